#include "gpu/product_tuner.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu/cuda/cuda_status.h"
#include "gpu/device/cuda_stream.h"
#include "gpu/ops/products/products.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/ops/epilogues.h"
#include "runtime/tensor/tensor.h"

namespace megascale::gpu {
namespace {

using ops::MatMulArgs;

// An algorithm is timed in rounds of several products, and its best round counts: one product alone
// may be shorter than what an event can tell.
constexpr int kRounds = 3;
constexpr absl::Duration kRoundTime = absl::Milliseconds(1);
constexpr int kProductsPerRoundMax = 10;
// Once a product has taken this long on the device, the algorithms that are left get no turn: those
// that the heuristic thinks slower.
constexpr absl::Duration kProductTime = absl::Seconds(1);

constexpr size_t kOperandBlockBytes = size_t{1} << 20;
constexpr uint64_t kOperandSeed = 1;

// Numbers between -1 and 1, as many as fill a block.
std::vector<std::byte> RandomBlock(tensor::DType dtype) {
  std::mt19937_64 random(kOperandSeed);
  std::uniform_real_distribution<float> numbers(-1, 1);
  std::vector<std::byte> block(kOperandBlockBytes);
  const size_t count = block.size() / tensor::SizeOf(dtype);
  for (size_t i = 0; i < count; ++i) {
    const float number = numbers(random);
    if (dtype == tensor::DType::kF32) {
      reinterpret_cast<float*>(block.data())[i] = number;
    } else {
      reinterpret_cast<tensor::BFloat16*>(block.data())[i] = tensor::ToBFloat16(number);
    }
  }
  return block;
}

// A pair of CUDA's events, for the time between them.
class Stopwatch {
 public:
  explicit Stopwatch(const cuda::CudaApi* cuda) : cuda_(*cuda) {}
  ~Stopwatch() {
    for (const cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) (void)cuda_.cudaEventDestroy(event);
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Returns how long the device takes for what `run` puts on the stream, `times` times.
  absl::StatusOr<absl::Duration> Time(cudaStream_t stream, int times,
                                      const std::function<absl::Status()>& run) {
    for (cudaEvent_t* event : {&begin_, &end_}) {
      if (*event != nullptr) continue;
      RETURN_IF_ERROR(
          MEGASCALE_CUDA_CALL(cuda_, cudaEventCreateWithFlags(event, cudaEventBlockingSync)));
    }
    RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaEventRecord(begin_, stream)));
    for (int i = 0; i < times; ++i) RETURN_IF_ERROR(run());
    RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaEventRecord(end_, stream)));
    RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaEventSynchronize(end_)));
    float milliseconds = 0;
    RETURN_IF_ERROR(MEGASCALE_CUDA_CALL(cuda_, cudaEventElapsedTime(&milliseconds, begin_, end_)));
    return absl::Milliseconds(milliseconds);
  }

 private:
  const cuda::CudaApi& cuda_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Times the algorithms of one product.
class ProductTimer {
 public:
  ProductTimer(const cuda::CudaApi* cuda, cudaStream_t stream) : watch_(cuda), stream_(stream) {}

  absl::StatusOr<absl::Duration> Time(const std::function<absl::Status()>& run) {
    if (spent_ > kProductTime) return absl::InfiniteDuration();
    // The first one may load code.
    RETURN_IF_ERROR(Run(1, run).status());
    ASSIGN_OR_RETURN(const absl::Duration once, Run(1, run));
    const int times =
        std::clamp(static_cast<int>(kRoundTime / std::max(once, absl::Microseconds(1))), 1,
                   kProductsPerRoundMax);
    absl::Duration best = absl::InfiniteDuration();
    for (int round = 0; round < kRounds; ++round) {
      ASSIGN_OR_RETURN(const absl::Duration time, Run(times, run));
      best = std::min(best, time / times);
    }
    return best;
  }

 private:
  absl::StatusOr<absl::Duration> Run(int times, const std::function<absl::Status()>& run) {
    ASSIGN_OR_RETURN(const absl::Duration time, watch_.Time(stream_, times, run));
    spent_ += time;
    return time;
  }

  Stopwatch watch_;
  const cudaStream_t stream_;
  absl::Duration spent_ = absl::ZeroDuration();
};

// Products on a stream, with a workspace for as long as this lives. On the stream's thread.
class Bench {
 public:
  Bench(const ProductTunerOptions& options, const device::ProductCalls& calls)
      : options_(options), stream_(dynamic_cast<CudaStream*>(calls.stream)) {
    MEGASCALE_CHECK(stream_ != nullptr);
  }
  ~Bench() {
    if (workspace_ == nullptr) return;
    (void)stream_->Finish();
    products_.reset();
    (void)options_.cuda->cudaFree(workspace_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  absl::Status Open(Products::Options products) {
    RETURN_IF_ERROR(base::Annotate(
        MEGASCALE_CUDA_CALL(*options_.cuda, cudaMalloc(&workspace_, products.workspace_bytes)),
        "workspace of matrix products"));
    products.stream = stream_->handle();
    products.workspace = workspace_;
    products.fill_zero = [this](void* data, size_t bytes) { FillZero(data, bytes); };
    // Zeros do for a bias that is only timed, and its gradient stays in the workspace.
    products.cast = products.add = [](const tensor::Vector&, const tensor::Vector&) {};
    ASSIGN_OR_RETURN(products_, Products::Create(std::move(products)));
    return absl::OkStatus();
  }
  Products& products() { return *products_; }

  absl::Status Tune(const MatMulArgs& args) {
    for (const tensor::Matrix& operand : {args.a, args.b}) Fill(operand);
    ProductTimer timer(options_.cuda, stream_->handle());
    absl::Status tuned = products_->Tune(args, [&](const auto& run) { return timer.Time(run); });
    for (const tensor::Matrix& used :
         {args.a, args.b, args.c, args.activated, args.activation_in, args.d_activation_in}) {
      FillZero(used.data, static_cast<size_t>(used.bytes()));
    }
    tuned.Update(stream_->Finish());
    return tuned;
  }

 private:
  void Fill(const tensor::Matrix& operand) {
    auto [block, is_new] = blocks_.try_emplace(operand.dtype);
    if (is_new) block->second = RandomBlock(operand.dtype);
    const auto bytes = static_cast<size_t>(operand.bytes());
    for (size_t at = 0; at < bytes; at += kOperandBlockBytes) {
      stream_->Copy(static_cast<std::byte*>(operand.data) + at, block->second.data(),
                    std::min(kOperandBlockBytes, bytes - at));
    }
  }

  void FillZero(void* data, size_t bytes) {
    if (bytes == 0) return;
    stream_->Issued(
        MEGASCALE_CUDA_CALL(*options_.cuda, cudaMemsetAsync(data, 0, bytes, stream_->handle())));
  }

  const ProductTunerOptions& options_;
  CudaStream* const stream_;
  void* workspace_ = nullptr;
  std::unique_ptr<Products> products_;
  std::map<tensor::DType, std::vector<std::byte>> blocks_;
};

absl::StatusOr<AlgorithmTable> Parse(absl::string_view table) {
  if (table.empty()) return AlgorithmTable();
  return AlgorithmTable::FromJson(table);
}

std::string Others(size_t count) {
  if (count == 0) return "";
  return absl::StrCat(" and ", count, count == 1 ? " other product" : " other products");
}

class GpuProductTuner final : public device::ProductTuner {
 public:
  explicit GpuProductTuner(ProductTunerOptions options) : options_(std::move(options)) {}

  absl::StatusOr<std::vector<std::string>> Missing(absl::string_view table,
                                                   const device::ProductCalls& calls) override {
    ASSIGN_OR_RETURN(const AlgorithmTable known, Parse(table));
    ASSIGN_OR_RETURN(const Found missing, MissingIn(known, calls));
    std::vector<std::string> names;
    for (const auto& [product, args] : missing) names.push_back(NameOf(product));
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<std::string> Measure(absl::string_view table, const device::ProductCalls& calls,
                                      const OnProgress& on_progress) override {
    ASSIGN_OR_RETURN(const AlgorithmTable known, Parse(table));
    ASSIGN_OR_RETURN(const Found missing, MissingIn(known, calls));
    const auto total = static_cast<int>(missing.size());
    // Opening the library may take long.
    on_progress(0, total);
    ASSIGN_OR_RETURN(AlgorithmTable measured, KnownForDevice(missing, calls));
    absl::Status status;
    calls.stream->RunAndWait([&] {
      Bench bench(options_, calls);
      status = bench.Open(OptionsOf(calls));
      int done = 0;
      for (const auto& [product, args] : missing) {
        if (!status.ok()) return;
        on_progress(done++, total);
        if (measured.Find(product) != nullptr) continue;
        status = bench.Tune(args);
        // The library need not have every epilogue for every size. A kernel has.
        if (absl::IsFailedPrecondition(status) && Products::Fuses(args)) {
          measured.Set(product, {.id = kNoAlgorithm});
          status = bench.Tune(ops::WithoutEpilogues(args));
        }
        status = base::Annotate(status, Describe(product));
      }
      if (status.ok()) measured.Add(bench.products().table());
    });
    RETURN_IF_ERROR(status);
    on_progress(total, total);
    return measured.ToJson();
  }

  absl::StatusOr<std::string> Join(absl::Span<const std::string> tables) override {
    AlgorithmTable joined;
    for (const std::string& text : tables) {
      ASSIGN_OR_RETURN(const AlgorithmTable table, Parse(text));
      joined.Add(table);
    }
    return joined.ToJson();
  }

  absl::Status Use(absl::string_view table, const device::ProductCalls& calls) override {
    ASSIGN_OR_RETURN(AlgorithmTable parsed, Parse(table));
    ASSIGN_OR_RETURN(const Found missing, MissingIn(parsed, calls));
    if (!missing.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "it has no algorithm for ", Describe(missing.begin()->first), Others(missing.size() - 1),
          ": begin a job from its checkpoint (submit --from), which measures what is missing"));
    }
    absl::Status status;
    calls.stream->RunAndWait([&] {
      Bench bench(options_, calls);
      Products::Options options = OptionsOf(calls);
      options.table = parsed;
      status = bench.Open(std::move(options));
      for (const MatMulArgs& args : calls.calls) {
        if (!status.ok()) return;
        const auto made = Products::WithFusedEpilogue(args, parsed, OptionsOf(calls));
        status = made.ok() ? bench.products().Prepare(*made) : made.status();
      }
    });
    RETURN_IF_ERROR(status);
    options_.table->Set(std::move(parsed));
    return absl::OkStatus();
  }

 private:
  using Found = std::map<Product, MatMulArgs>;  // a call of each

  Products::Options OptionsOf(const device::ProductCalls& calls) const {
    Products::Options options;
    options.api = options_.cublas_lt;
    options.compute = calls.compute;
    options.allow_tf32 = options_.allow_tf32;
    options.workspace_bytes = kProductWorkspaceBytesHopper;
    return options;
  }

  // Returns what the table of this kind of device has of the products, as far as this library runs
  // its algorithms here.
  absl::StatusOr<AlgorithmTable> KnownForDevice(const Found& missing,
                                                const device::ProductCalls& calls) const {
    AlgorithmTable known;
    if (options_.device_tables.empty()) return known;
    cudaDeviceProp properties = {};
    RETURN_IF_ERROR(
        MEGASCALE_CUDA_CALL(*options_.cuda, cudaGetDeviceProperties(&properties, options_.device)));
    const absl::StatusOr<DeviceTableChoice> choice = ChooseDeviceTable(
        options_.device_tables, {.device = properties.name,
                                 .library_version = options_.cublas_lt->cublasLtGetVersion(),
                                 .workspace_bytes = kProductWorkspaceBytesHopper});
    // A test reads all tables: a damaged one is ours, and no reason not to train.
    if (!choice.ok()) {
      base::LogWarning(absl::StrCat("measures all products: ", choice.status().message()));
      return known;
    }
    base::LogInfo(choice->line);
    absl::Status status;
    calls.stream->RunAndWait([&] {
      Bench bench(options_, calls);
      Products::Options products = OptionsOf(calls);
      products.table = choice->table;
      status = bench.Open(std::move(products));
      for (const auto& [product, args] : missing) {
        if (status.ok()) status = Take(args, calls, choice->table, &bench.products(), &known);
      }
    });
    RETURN_IF_ERROR(status);
    if (!known.products().empty()) known.set_origin(choice->table.origin());
    return known;
  }

  // Adds to `known` the algorithm that `table` has for a product: with its fused epilogue, or
  // without, where the table says that there is no algorithm for both.
  absl::Status Take(const MatMulArgs& args, const device::ProductCalls& calls,
                    const AlgorithmTable& table, Products* products, AlgorithmTable* known) const {
    const Products::Options options = OptionsOf(calls);
    ASSIGN_OR_RETURN(const MatMulArgs made, Products::WithFusedEpilogue(args, table, options));
    AlgorithmTable taken;
    for (const MatMulArgs& of : {args, made}) {
      ASSIGN_OR_RETURN(const Product product, Products::ProductOf(options, of));
      const Algorithm* const algorithm = table.Find(product);
      if (algorithm == nullptr) return absl::OkStatus();
      taken.Set(product, *algorithm);
    }
    absl::Status prepared = products->Prepare(made);
    if (absl::IsFailedPrecondition(prepared)) {
      base::LogWarning(absl::StrCat("measures a product anew: ", prepared.message()));
      return absl::OkStatus();
    }
    if (prepared.ok()) known->Add(taken);
    return prepared;
  }

  absl::StatusOr<Found> MissingIn(const AlgorithmTable& table,
                                  const device::ProductCalls& calls) const {
    const Products::Options options = OptionsOf(calls);
    Found missing;
    for (const MatMulArgs& call : calls.calls) {
      ASSIGN_OR_RETURN(const MatMulArgs args, Products::WithFusedEpilogue(call, table, options));
      ASSIGN_OR_RETURN(const Product product, Products::ProductOf(options, args));
      if (product.k == 0 || table.Find(product) != nullptr) continue;
      missing.emplace(product, args);
    }
    return missing;
  }

  const ProductTunerOptions options_;
};

}  // namespace

std::unique_ptr<device::ProductTuner> MakeProductTuner(ProductTunerOptions options) {
  return std::make_unique<GpuProductTuner>(std::move(options));
}

}  // namespace megascale::gpu
