#include "gpu/ops/products/products.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/ops/check_arguments.h"
#include "runtime/ops/epilogues.h"

namespace megascale::gpu {
namespace {

using ops::MatMulArgs;
using ops::Transpose;
using tensor::DType;
using tensor::Matrix;

constexpr size_t kWorkspaceAlignment = 256;
// How many algorithms the heuristic is asked for when the first that will do is taken.
constexpr int kHeuristicResults = 8;

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

cublasComputeType_t ComputeTypeOf(const Product& product) {
  return product.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// Its B is our a: see Call.
cublasLtEpilogue_t EpilogueOf(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kBiasGradient:
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// Whether the same inputs always give the same bits, with sums in fp32. Where k is split, parts are
// added in the workspace, in a separate step; "in place" and "output type" round each part to the
// type of the result.
bool IsRepeatable(const Algorithm& algorithm) {
  return algorithm.split_k <= 1 ||
         algorithm.reduction_scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

int AlignmentOf(const void* data) {
  const auto bits = reinterpret_cast<uintptr_t>(data) | kAlignmentMax;
  return static_cast<int>(bits & -bits);
}
int AlignmentOf(const Matrix& matrix) {
  const auto row_bytes = static_cast<uintptr_t>(matrix.stride) * tensor::SizeOf(matrix.dtype);
  return AlignmentOf(
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(matrix.data) | row_bytes));
}

// The product reads `a` anyway. Where it is of another size, or there is nothing to multiply, sums
// of columns may be left to do.
bool FusesBiasGradient(const MatMulArgs& args) {
  return args.a.dtype == DType::kBF16 && args.c.dtype == DType::kF32 && args.c.rows > 0 &&
         args.c.cols > 0 && args.a.rows > 0;
}

bool LacksAlgorithm(const AlgorithmTable& table, const Product& product) {
  const Algorithm* const found = table.Find(product);
  return found != nullptr && found->id == kNoAlgorithm;
}

// Calls `visit` with each attribute of a configuration, and where it is kept.
template <typename Visit>
void ForEachAttribute(Algorithm& algorithm, Visit visit) {
  visit(CUBLASLT_ALGO_CONFIG_TILE_ID, algorithm.tile);
  visit(CUBLASLT_ALGO_CONFIG_STAGES_ID, algorithm.stages);
  visit(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, algorithm.split_k);
  visit(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, algorithm.reduction_scheme);
  visit(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, algorithm.swizzle);
  visit(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, algorithm.custom_option);
  visit(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, algorithm.inner_shape);
  visit(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, algorithm.cluster_shape);
}

// Owns a descriptor of cuBLASLt.
template <typename T>
class Owned {
 public:
  using Destroy = cublasStatus_t (*)(T);
  Owned() = default;
  Owned(T value, Destroy destroy) : value_(value), destroy_(destroy) {}
  Owned(Owned&& other) noexcept
      : value_(std::exchange(other.value_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(value_, other.value_);
    std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Owned() {
    if (value_ != nullptr) destroy_(value_);
  }
  T get() const { return value_; }

 private:
  T value_ = nullptr;
  Destroy destroy_ = nullptr;
};

}  // namespace

// One call, as cuBLASLt needs it. Its matrices are column-major, so it sees each of ours
// transposed, and computes c^T [n, m] = op(b)^T [n, k] op(a)^T [k, m]: its A is our b, its B our a,
// and the bias, one number for each row of its result, fits.
struct Products::Call {
  Product product;
  Matrix a, b, c;
  Matrix aux;  // of GELU and its gradient: the activation's input; or empty
  const void* bias = nullptr;
  // What has to be done first: zeros written, a bias cast to fp32; both in the workspace.
  void* zeros = nullptr;
  size_t zeros_bytes = 0;
  tensor::Vector bias_from, bias_to;
  // The gradient of a bias, in the workspace, and what it is added to afterwards.
  tensor::Vector sums, sums_to;
  size_t workspace_bytes = 0;  // that is left for the algorithm
};

struct Products::Plan {
  Product product;
  uint64_t number = 0;  // of all plans of this process
  Owned<cublasLtMatmulDesc_t> operation;
  Owned<cublasLtMatrixLayout_t> a, b, c;
  cublasLtMatmulAlgo_t algorithm = {};
};

// All that decides what a product puts on the stream: equal ones do the same.
struct Products::Started {
  const Products* products;
  const Plan* plan;
  uint64_t plan_number;  // another plan may come to lie at the same address
  const void *a, *b, *bias, *aux;
  void* c;
  size_t workspace_bytes;
};

Products::Products(Options options) : options_(std::move(options)) {}

Products::~Products() {
  plans_.clear();
  if (handle_ != nullptr) options_.api->cublasLtDestroy(handle_);
}

absl::StatusOr<std::unique_ptr<Products>> Products::Create(Options options) {
  MEGASCALE_CHECK(options.api != nullptr && options.fill_zero && options.cast && options.add);
  MEGASCALE_CHECK(options.compute == DType::kF32 || options.compute == DType::kBF16);
  MEGASCALE_CHECK(reinterpret_cast<uintptr_t>(options.workspace) % kWorkspaceAlignment == 0);
  MEGASCALE_CHECK(options.workspace != nullptr || options.workspace_bytes == 0);
  auto products = std::unique_ptr<Products>(new Products(std::move(options)));
  RETURN_IF_ERROR(products->Called("cublasLtCreate",
                                   products->options_.api->cublasLtCreate(&products->handle_)));
  return products;
}

absl::Status Products::MatMul(const MatMulArgs& args) {
  ASSIGN_OR_RETURN(const Call call, MakeCall(args));
  if (call.product.k == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Plan* const plan, PlanOf(call));
  return Start(call, *plan);
}

absl::Status Products::Prepare(const MatMulArgs& args) {
  ASSIGN_OR_RETURN(const Call call, MakeCall(args));
  if (call.product.k == 0) return absl::OkStatus();
  return PlanOf(call).status();
}

absl::StatusOr<Product> Products::ProductOf(const Options& options, const MatMulArgs& args) {
  ASSIGN_OR_RETURN(const Call call, Products(options).MakeCall(args));
  return call.product;
}

absl::Status Products::Tune(const MatMulArgs& args, const Timer& timer, int num_algorithms) {
  MEGASCALE_CHECK(timer && num_algorithms > 0 && options_.work == nullptr);
  ASSIGN_OR_RETURN(const Call call, MakeCall(args));
  if (call.product.k == 0 || options_.table.Find(call.product) != nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<Plan> plan, MakePlan(call));
  ASSIGN_OR_RETURN(const std::vector<Algorithm> candidates,
                   Candidates(call, *plan, num_algorithms));
  const Algorithm* best = nullptr;
  absl::Duration best_time = absl::InfiniteDuration();
  absl::Status last_failure;
  for (const Algorithm& candidate : candidates) {
    absl::Status started = Restore(call, candidate, plan.get());
    if (started.ok()) {
      const absl::StatusOr<absl::Duration> time = timer([&] {
        started.Update(Start(call, *plan));
        return started;
      });
      // An error of the timer's own is one of the device: no other algorithm would do better.
      if (started.ok() && !time.ok()) return time.status();
      if (started.ok() && *time < best_time) best = &candidate, best_time = *time;
    }
    if (!started.ok()) last_failure = started;
  }
  if (best == nullptr) return last_failure;
  options_.table.Set(call.product, *best);
  return absl::OkStatus();
}

bool Products::Fuses(const MatMulArgs& args) {
  if (args.d_bias) return FusesBiasGradient(args);
  constexpr int64_t kAuxStrideUnit = 8;  // cublasLt.h, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD
  const bool is_forward = static_cast<bool>(args.activated);
  // DGELU has no form with a bias.
  const bool is_backward = args.d_activation_in && !args.bias;
  if (!(is_forward || is_backward) || args.accumulate) return false;
  if (args.activation != ops::ActivationKind::kGeluTanh) return false;
  const Matrix& input = is_forward ? args.c : args.activation_in;
  const Matrix& result = is_forward ? args.activated : args.d_activation_in;
  return input.dtype == DType::kBF16 && result.dtype == DType::kBF16 &&
         input.stride % kAuxStrideUnit == 0 && AlignmentOf(input) == kAlignmentMax &&
         AlignmentOf(result) == kAlignmentMax;
}

absl::StatusOr<MatMulArgs> Products::WithFusedEpilogue(const MatMulArgs& args,
                                                       const AlgorithmTable& table,
                                                       const Options& options) {
  if (!Fuses(args)) return ops::WithoutEpilogues(args);
  ASSIGN_OR_RETURN(const Product product, ProductOf(options, args));
  return LacksAlgorithm(table, product) ? ops::WithoutEpilogues(args) : args;
}

bool Products::MakesEpilogue(const MatMulArgs& args) const {
  if (!Fuses(args)) return false;
  const absl::StatusOr<Call> call = MakeCall(args);
  return !call.ok() || !LacksAlgorithm(options_.table, call->product);
}

// Returns a call whose k is 0 where there is nothing to do.
absl::StatusOr<Products::Call> Products::MakeCall(const MatMulArgs& args) const {
  ops::CheckArguments(args, options_.compute);
  const bool is_fused = Fuses(args);
  MEGASCALE_CHECK(is_fused || (!args.activated && !args.d_activation_in && !args.d_bias));
  Call call;
  Product& p = call.product;
  p.compute = options_.compute;
  p.result = args.c.dtype;
  p.m = args.c.rows;
  p.n = args.c.cols;
  p.transpose_a = args.transpose_a;
  p.transpose_b = args.transpose_b;
  p.accumulate = args.accumulate;
  p.tf32 = options_.allow_tf32 && options_.compute == DType::kF32;
  p.epilogue = args.bias ? Epilogue::kBias : Epilogue::kNone;
  call.a = args.a, call.b = args.b, call.c = args.c;
  if (is_fused && args.activated) {
    p.epilogue = args.bias ? Epilogue::kBiasGelu : Epilogue::kGelu;
    call.aux = args.c, call.c = args.activated;
  } else if (is_fused && args.d_bias) {
    p.epilogue = Epilogue::kBiasGradient;
  } else if (is_fused) {
    p.epilogue = Epilogue::kGeluGradient;
    call.aux = args.activation_in, call.c = args.d_activation_in;
  }
  call.bias = args.bias.data;
  const int64_t k = args.transpose_a == Transpose::kYes ? args.a.rows : args.a.cols;
  if (p.m == 0 || p.n == 0 || (k == 0 && p.accumulate)) return call;

  size_t reserved = 0;
  const auto reserve = [&](int64_t size, DType dtype) {
    const size_t bytes = static_cast<size_t>(size) * tensor::SizeOf(dtype);
    reserved += (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(options_.workspace) +
                                   options_.workspace_bytes - reserved);
  };
  reserved = options_.workspace_bytes % kWorkspaceAlignment;
  p.k = k;
  if (k == 0) {  // a product of zeros, so that the epilogue applies
    p.k = 1;
    p.transpose_a = p.transpose_b = Transpose::kNo;
    call.zeros_bytes = static_cast<size_t>(std::max(p.m, p.n)) * tensor::SizeOf(p.compute);
    call.zeros = reserve(std::max(p.m, p.n), p.compute);
    call.a = {call.zeros, p.compute, p.m, 1, 1};
    call.b = {call.zeros, p.compute, 1, p.n, p.n};
  }
  if (args.bias && p.result != p.compute) {
    call.bias_from = args.bias;
    call.bias_to = {reserve(p.n, p.result), p.result, p.n};
    call.bias = call.bias_to.data;
  }
  if (p.epilogue == Epilogue::kBiasGradient) {
    call.sums = {reserve(p.m, DType::kF32), DType::kF32, p.m};
    call.sums_to = args.d_bias;
    call.bias = call.sums.data;
  }
  if (reserved > options_.workspace_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("the workspace of products has ", options_.workspace_bytes, " bytes; ",
                     Describe(p), " needs ", reserved, ": give more"));
  }
  call.workspace_bytes = options_.workspace_bytes - reserved;
  p.a_alignment = AlignmentOf(call.a);
  p.b_alignment = AlignmentOf(call.b);
  p.c_alignment = AlignmentOf(call.c);
  if (args.bias) p.bias_alignment = AlignmentOf(call.bias);
  return call;
}

absl::StatusOr<const Products::Plan*> Products::PlanOf(const Call& call) {
  const PlanKey key = {call.product, call.a.stride, call.b.stride, call.c.stride, call.aux.stride};
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second.get();
  ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, MakePlan(call));
  const Algorithm* const chosen = options_.table.Find(call.product);
  if (chosen != nullptr) {
    RETURN_IF_ERROR(Restore(call, *chosen, plan.get()));
  } else {
    ASSIGN_OR_RETURN(const std::vector<Algorithm> candidates,
                     Candidates(call, *plan, kHeuristicResults));
    RETURN_IF_ERROR(Restore(call, candidates.front(), plan.get()));
    options_.table.Set(call.product, candidates.front());
  }
  return plans_.emplace(key, std::move(plan)).first->second.get();
}

// Makes the descriptors; the algorithm is still to be chosen.
absl::StatusOr<std::unique_ptr<Products::Plan>> Products::MakePlan(const Call& call) const {
  const cuda::CublasLtApi& api = *options_.api;
  static std::atomic<uint64_t> last_number = 0;
  auto plan = std::make_unique<Plan>();
  plan->product = call.product;
  plan->number = ++last_number;
  cublasLtMatmulDesc_t operation = nullptr;
  RETURN_IF_ERROR(
      Called("cublasLtMatmulDescCreate",
             api.cublasLtMatmulDescCreate(&operation, ComputeTypeOf(call.product), CUDA_R_32F)));
  plan->operation = {operation, api.cublasLtMatmulDescDestroy};
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    return Called("cublasLtMatmulDescSetAttribute",
                  api.cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
  };
  const auto transpose = [](Transpose t) {
    return int32_t{t == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N};
  };
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, transpose(call.product.transpose_b)));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSB, transpose(call.product.transpose_a)));
  RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(EpilogueOf(call.product.epilogue))));
  // The heuristic looks at the alignment of this address.
  if (call.bias != nullptr) RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias));
  if (call.sums) {
    RETURN_IF_ERROR(
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(TypeOf(call.sums.dtype))));
  }
  if (call.aux) {
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{call.aux.stride}));
    RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux.data));
  }

  const auto layout = [&](const Matrix& matrix, Owned<cublasLtMatrixLayout_t>* to) -> absl::Status {
    cublasLtMatrixLayout_t made = nullptr;
    RETURN_IF_ERROR(Called("cublasLtMatrixLayoutCreate",
                           api.cublasLtMatrixLayoutCreate(
                               &made, TypeOf(matrix.dtype), static_cast<uint64_t>(matrix.cols),
                               static_cast<uint64_t>(matrix.rows), matrix.stride)));
    *to = {made, api.cublasLtMatrixLayoutDestroy};
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(layout(call.a, &plan->a));
  RETURN_IF_ERROR(layout(call.b, &plan->b));
  RETURN_IF_ERROR(layout(call.c, &plan->c));
  return plan;
}

// Returns the algorithms that the heuristic names, the one first that it thinks fastest.
absl::StatusOr<std::vector<Algorithm>> Products::Candidates(const Call& call, const Plan& plan,
                                                            int num_algorithms) const {
  const cuda::CublasLtApi& api = *options_.api;
  const Product& p = call.product;
  cublasLtMatmulPreference_t made = nullptr;
  RETURN_IF_ERROR(
      Called("cublasLtMatmulPreferenceCreate", api.cublasLtMatmulPreferenceCreate(&made)));
  const Owned<cublasLtMatmulPreference_t> preference(made, api.cublasLtMatmulPreferenceDestroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return Called("cublasLtMatmulPreferenceSetAttribute",
                  api.cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)));
  };
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{call.workspace_bytes}));
  RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                      uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
  RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(p.b_alignment)));
  RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(p.a_alignment)));
  RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(p.c_alignment)));
  RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(p.c_alignment)));

  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(num_algorithms));
  int num_results = 0;
  const cublasStatus_t status = api.cublasLtMatmulAlgoGetHeuristic(
      handle_, plan.operation.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(), made,
      num_algorithms, results.data(), &num_results);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
    RETURN_IF_ERROR(Called("cublasLtMatmulAlgoGetHeuristic", status));
    results.resize(static_cast<size_t>(num_results));
  } else {
    results.clear();
  }
  std::vector<Algorithm> candidates;
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    ASSIGN_OR_RETURN(const Algorithm algorithm, Read(result.algo));
    if (IsRepeatable(algorithm)) candidates.push_back(algorithm);
  }
  if (!candidates.empty()) return candidates;
  return absl::FailedPreconditionError(
      absl::StrCat(Library(), " has no repeatable algorithm for ", Describe(p), " (of ",
                   results.size(), ") in a workspace of ", call.workspace_bytes, " bytes"));
}

// Sets the algorithm of the plan, and checks that this library runs it on this device.
absl::Status Products::Restore(const Call& call, const Algorithm& algorithm, Plan* plan) const {
  const auto refused = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(
        Library(), " cannot run the algorithm (", algorithm.id, ", chosen by version ",
        algorithm.library_version, ") of ", Describe(call.product), ": ", why,
        "; use the library and kind of device that the table was made with, or begin a job from "
        "its checkpoint with products measured anew (submit --from --allow-changed products)"));
  };
  if (!IsRepeatable(algorithm)) return refused("its sums are not repeatable");
  const absl::StatusOr<cublasLtMatmulAlgo_t> words = Write(call.product, algorithm);
  if (!words.ok()) return refused(words.status().message());
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status = options_.api->cublasLtMatmulAlgoCheck(
      handle_, plan->operation.get(), plan->b.get(), plan->a.get(), plan->c.get(), plan->c.get(),
      &*words, &result);
  if (status != CUBLAS_STATUS_SUCCESS) {
    return refused(Called("cublasLtMatmulAlgoCheck", status).message());
  }
  if (result.workspaceSize > call.workspace_bytes) {
    return refused(absl::StrCat("it needs a workspace of ", result.workspaceSize, " bytes, not ",
                                call.workspace_bytes));
  }
  plan->algorithm = *words;
  return absl::OkStatus();
}

absl::Status Products::Start(const Call& call, const Plan& plan) const {
  if (call.zeros != nullptr) options_.fill_zero(call.zeros, call.zeros_bytes);
  if (call.bias_to) options_.cast(call.bias_from, call.bias_to);
  const Started started = {.products = this,
                           .plan = &plan,
                           .plan_number = plan.number,
                           .a = call.a.data,
                           .b = call.b.data,
                           .bias = call.bias,
                           .aux = call.aux.data,
                           .c = call.c.data,
                           .workspace_bytes = call.workspace_bytes};
  if (options_.work == nullptr) {
    RETURN_IF_ERROR(Run(&started, options_.stream));
  } else {
    options_.work->Add(&Run, started);
  }
  if (call.sums) options_.add(call.sums, call.sums_to);
  return absl::OkStatus();
}

absl::Status Products::Run(const void* started, cudaStream_t stream) {
  const Started& call = *static_cast<const Started*>(started);
  const Products& self = *call.products;
  const Plan& plan = *call.plan;
  const cuda::CublasLtApi& api = *self.options_.api;
  for (const auto& [attribute, data] :
       {std::pair(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.bias),
        std::pair(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.aux)}) {
    if (data == nullptr) continue;
    RETURN_IF_ERROR(self.Called(
        "cublasLtMatmulDescSetAttribute",
        api.cublasLtMatmulDescSetAttribute(plan.operation.get(), attribute, &data, sizeof(data))));
  }
  const float alpha = 1, beta = plan.product.accumulate ? 1 : 0;
  const cublasStatus_t status =
      api.cublasLtMatmul(self.handle_, plan.operation.get(), &alpha, call.b, plan.b.get(), call.a,
                         plan.a.get(), &beta, call.c, plan.c.get(), call.c, plan.c.get(),
                         &plan.algorithm, self.options_.workspace, call.workspace_bytes, stream);
  return base::Annotate(self.Called("cublasLtMatmul", status), Describe(plan.product));
}

absl::StatusOr<Algorithm> Products::Read(const cublasLtMatmulAlgo_t& words) const {
  const cuda::CublasLtApi& api = *options_.api;
  Algorithm algorithm;
  algorithm.library_version = api.cublasLtGetVersion();
  std::copy(std::begin(words.data), std::end(words.data), algorithm.words.begin());
  cublasStatus_t failure = CUBLAS_STATUS_SUCCESS;
  const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    size_t written = 0;
    const cublasStatus_t status = api.cublasLtMatmulAlgoConfigGetAttribute(
        &words, attribute, &value, sizeof(value), &written);
    if (status != CUBLAS_STATUS_SUCCESS) failure = status;
  };
  get(CUBLASLT_ALGO_CONFIG_ID, algorithm.id);
  ForEachAttribute(algorithm, get);
  RETURN_IF_ERROR(Called("cublasLtMatmulAlgoConfigGetAttribute", failure));
  return algorithm;
}

// Returns the library's words for an algorithm: its own where it has written them, else words that
// it makes of the attributes.
absl::StatusOr<cublasLtMatmulAlgo_t> Products::Write(const Product& product,
                                                     const Algorithm& algorithm) const {
  const cuda::CublasLtApi& api = *options_.api;
  cublasLtMatmulAlgo_t words = {};
  const bool has_words = algorithm.words != std::array<uint64_t, 8>{};
  if (has_words && algorithm.library_version == api.cublasLtGetVersion()) {
    std::copy(algorithm.words.begin(), algorithm.words.end(), std::begin(words.data));
    const absl::StatusOr<Algorithm> read = Read(words);
    if (!read.ok()) return read.status();
    if (*read == algorithm) return words;
    return absl::FailedPreconditionError("its words and its attributes differ");
  }
  RETURN_IF_ERROR(Called("cublasLtMatmulAlgoInit",
                         api.cublasLtMatmulAlgoInit(handle_, ComputeTypeOf(product), CUDA_R_32F,
                                                    TypeOf(product.compute),
                                                    TypeOf(product.compute), TypeOf(product.result),
                                                    TypeOf(product.result), algorithm.id, &words)));
  cublasStatus_t failure = CUBLAS_STATUS_SUCCESS;
  Algorithm attributes = algorithm;
  ForEachAttribute(attributes, [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    const cublasStatus_t status =
        api.cublasLtMatmulAlgoConfigSetAttribute(&words, attribute, &value, sizeof(value));
    if (status != CUBLAS_STATUS_SUCCESS) failure = status;
  });
  RETURN_IF_ERROR(Called("cublasLtMatmulAlgoConfigSetAttribute", failure));
  return words;
}

// Returns the status of a call of the library.
absl::Status Products::Called(const char* function, cublasStatus_t status) const {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message =
      absl::StrCat(Library(), ": ", function, ": ", options_.api->cublasLtGetStatusString(status));
  switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED:
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::FailedPreconditionError(message);
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

std::string Products::Library() const {
  const size_t version = options_.api->cublasLtGetVersion();
  return absl::StrCat("cuBLASLt ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace megascale::gpu
