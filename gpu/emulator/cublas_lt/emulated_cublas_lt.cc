#include "gpu/emulator/cublas_lt/emulated_cublas_lt.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/emulator/cublas_lt/algorithms.h"
#include "gpu/emulator/cublas_lt/object.h"
#include "gpu/emulator/cublas_lt/problem.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::emulator {
namespace {

constexpr size_t kWorkspaceAlignment = 256;

using Kind = CublasLtKind;
using Object = CublasLtObject;
using kernels::host::Translate;
using Operand = CublasLtOperand;
using Problem = CublasLtProblem;
using Words = AlgorithmWords;

struct Library {
  std::mutex mutex;
  Enqueue enqueue;
  CublasLtFaults faults;
  CublasLtCounts counts;
  std::map<const void*, std::unique_ptr<Object>> objects;
};
Library& TheLibrary() {
  static auto* const library = new Library;
  return *library;
}

// Every function of the table runs with the lock of the library.
class Locked {
 public:
  Locked() : lock_(TheLibrary().mutex) {}
  Library* operator->() const { return &TheLibrary(); }

  template <typename Handle>
  Object* Create(Kind kind, Handle* handle) {
    auto object = std::make_unique<Object>(kind);
    Object* const raw = object.get();
    *handle = reinterpret_cast<Handle>(raw);
    TheLibrary().objects[raw] = std::move(object);
    ++TheLibrary().counts.created;
    return raw;
  }
  // Returns null for what is no living object of the kind.
  Object* Find(Kind kind, const void* handle) const {
    const auto found = TheLibrary().objects.find(handle);
    if (found == TheLibrary().objects.end() || found->second->kind() != kind) return nullptr;
    return found->second.get();
  }
  cublasStatus_t Destroy(Kind kind, const void* handle) {
    if (Find(kind, handle) == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    TheLibrary().objects.erase(handle);
    return CUBLAS_STATUS_SUCCESS;
  }
  cublasStatus_t Set(Kind kind, const void* handle, int id, const void* from, size_t bytes) {
    Object* const object = Find(kind, handle);
    return object != nullptr ? object->SetBytes(id, from, bytes) : CUBLAS_STATUS_INVALID_VALUE;
  }
  cublasStatus_t Get(Kind kind, const void* handle, int id, void* to, size_t bytes,
                     size_t* written) {
    const Object* const object = Find(kind, handle);
    return object != nullptr ? object->GetBytes(id, to, bytes, written)
                             : CUBLAS_STATUS_INVALID_VALUE;
  }

 private:
  std::lock_guard<std::mutex> lock_;
};

// --- Problems ------------------------------------------------------------------------------------

bool IsKnownType(int32_t type) { return type == CUDA_R_32F || type == CUDA_R_16BF; }

// The descriptors of a call: null where one is no living object.
struct Descriptors {
  const Object* operation;
  const Object* a;
  const Object* b;
  const Object* c;
  const Object* d;
};

Operand ReadLayout(const Object& layout) {
  Operand operand;
  operand.type = static_cast<int32_t>(layout.Get(CUBLASLT_MATRIX_LAYOUT_TYPE));
  operand.rows = static_cast<int64_t>(layout.Get(CUBLASLT_MATRIX_LAYOUT_ROWS));
  operand.cols = static_cast<int64_t>(layout.Get(CUBLASLT_MATRIX_LAYOUT_COLS));
  operand.distance = static_cast<int64_t>(layout.Get(CUBLASLT_MATRIX_LAYOUT_LD));
  return operand;
}

cublasStatus_t CheckTypes(const Problem& p, const Object& operation) {
  const bool is_tf32 = p.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!is_tf32 && p.compute_type != CUBLAS_COMPUTE_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (operation.Get(CUBLASLT_MATMUL_DESC_SCALE_TYPE) != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const Operand* operand : {&p.a, &p.b, &p.c, &p.d}) {
    if (!IsKnownType(operand->type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (p.a.type != p.b.type || p.c.type != p.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.d.type != p.a.type && p.d.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (is_tf32 && p.a.type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  // A bias and its gradient have the type of the result.
  const auto bias_type = static_cast<int32_t>(operation.Get(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE));
  const bool has_either = p.has_bias || p.has_bias_gradient;
  if (has_either && bias_type != -1 && bias_type != p.d.type) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CheckShapes(const Problem& p) {
  constexpr int64_t kSizeMax = INT32_MAX;
  for (const Operand* operand : {&p.a, &p.b, &p.c, &p.d}) {
    if (operand->rows < 1 || operand->cols < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (operand->distance < operand->rows) return CUBLAS_STATUS_INVALID_VALUE;
    if (operand->rows > kSizeMax || operand->cols > kSizeMax) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const int64_t b_rows = p.b.is_transposed ? p.b.cols : p.b.rows;
  const int64_t a_rows = p.a.is_transposed ? p.a.cols : p.a.rows;
  const int64_t b_cols = p.b.is_transposed ? p.b.rows : p.b.cols;
  const bool fits =
      a_rows == p.m && b_rows == p.k && b_cols == p.n && p.c.rows == p.m && p.c.cols == p.n;
  return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

// Returns false for an epilogue that is not emulated.
bool ReadEpilogue(const Object& operation, Problem* to) {
  using Activation = CublasLtActivation;
  struct Known {
    uint64_t epilogue;
    bool has_bias;
    Activation activation;
  };
  constexpr Known kKnown[] = {
      {CUBLASLT_EPILOGUE_DEFAULT, false, Activation::kNone},
      {CUBLASLT_EPILOGUE_BIAS, true, Activation::kNone},
      {CUBLASLT_EPILOGUE_GELU_AUX, false, Activation::kGelu},
      {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, Activation::kGelu},
      {CUBLASLT_EPILOGUE_DGELU, false, Activation::kGeluGradient},
  };
  const auto pointer = [&](cublasLtMatmulDescAttributes_t id) {
    return reinterpret_cast<void*>(static_cast<uintptr_t>(operation.Get(id)));
  };
  if (operation.Get(CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_BGRADB) {
    to->has_bias_gradient = true;
    to->bias_gradient = pointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    return TheLibrary().faults.has_bias_gradients;
  }
  for (const Known& known : kKnown) {
    if (known.epilogue != operation.Get(CUBLASLT_MATMUL_DESC_EPILOGUE)) continue;
    if (known.activation != Activation::kNone && !TheLibrary().faults.has_activations) return false;
    to->has_bias = known.has_bias;
    to->bias = pointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    to->activation = known.activation;
    to->aux = pointer(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
    to->aux_distance = static_cast<int64_t>(operation.Get(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD));
    return true;
  }
  return false;
}

// The input of an activation. The manual asks for a distance that is a multiple of 8; in fp32, and
// at addresses that are not multiples of 16 bytes, no release is known to have algorithms.
cublasStatus_t CheckAux(const Problem& p) {
  constexpr int64_t kDistanceUnit = 8;
  constexpr uintptr_t kAlignment = 16;
  if (p.activation == CublasLtActivation::kNone) return CUBLAS_STATUS_SUCCESS;
  if (p.aux_distance < p.m || p.aux_distance % kDistanceUnit != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool is_aligned = reinterpret_cast<uintptr_t>(p.aux) % kAlignment == 0;
  return p.d.type == CUDA_R_16BF && is_aligned ? CUBLAS_STATUS_SUCCESS
                                               : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t ReadProblem(const Descriptors& from, Problem* to) {
  for (const Object* object : {from.operation, from.a, from.b, from.c, from.d}) {
    if (object == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    if (!object->HasOnlyWhatIsEmulated()) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  Problem& p = *to;
  p.a = ReadLayout(*from.a), p.b = ReadLayout(*from.b);
  p.c = ReadLayout(*from.c), p.d = ReadLayout(*from.d);
  for (const auto& [operand, id] : {std::pair(&p.a, CUBLASLT_MATMUL_DESC_TRANSA),
                                    std::pair(&p.b, CUBLASLT_MATMUL_DESC_TRANSB)}) {
    const uint64_t transposed = from.operation->Get(id);
    if (transposed != CUBLAS_OP_N && transposed != CUBLAS_OP_T) return CUBLAS_STATUS_NOT_SUPPORTED;
    operand->is_transposed = transposed == CUBLAS_OP_T;
  }
  p.m = p.d.rows, p.n = p.d.cols, p.k = p.a.is_transposed ? p.a.rows : p.a.cols;
  p.compute_type = static_cast<int32_t>(from.operation->Get(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE));
  if (!ReadEpilogue(*from.operation, to)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const cublasStatus_t status : {CheckTypes(p, *from.operation), CheckShapes(p)}) {
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  return CheckAux(p);
}

// --- The functions of the table ------------------------------------------------------------------

cublasStatus_t Create(cublasLtHandle_t* handle) {
  Locked library;
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (library->faults.create_status != CUBLAS_STATUS_SUCCESS) return library->faults.create_status;
  library.Create(Kind::kHandle, handle);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t Destroy(cublasLtHandle_t handle) { return Locked().Destroy(Kind::kHandle, handle); }
size_t GetVersion() { return Locked()->faults.version; }

const char* GetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "an unknown status";
  }
}
const char* GetStatusString(cublasStatus_t status) { return GetStatusName(status); }

cublasStatus_t OperationCreate(cublasLtMatmulDesc_t* to, cublasComputeType_t compute_type,
                               cudaDataType_t scale_type) {
  Locked library;
  Object* const object = library.Create(Kind::kOperation, to);
  object->Set(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, compute_type);
  object->Set(CUBLASLT_MATMUL_DESC_SCALE_TYPE, scale_type);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t OperationDestroy(cublasLtMatmulDesc_t operation) {
  return Locked().Destroy(Kind::kOperation, operation);
}
cublasStatus_t OperationSet(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t id,
                            const void* from, size_t bytes) {
  return Locked().Set(Kind::kOperation, operation, id, from, bytes);
}
cublasStatus_t OperationGet(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t id,
                            void* to, size_t bytes, size_t* written) {
  return Locked().Get(Kind::kOperation, operation, id, to, bytes, written);
}

cublasStatus_t LayoutCreate(cublasLtMatrixLayout_t* to, cudaDataType type, uint64_t rows,
                            uint64_t cols, int64_t distance) {
  Locked library;
  Object* const object = library.Create(Kind::kLayout, to);
  object->Set(CUBLASLT_MATRIX_LAYOUT_TYPE, type);
  object->Set(CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
  object->Set(CUBLASLT_MATRIX_LAYOUT_COLS, cols);
  object->Set(CUBLASLT_MATRIX_LAYOUT_LD, static_cast<uint64_t>(distance));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t LayoutDestroy(cublasLtMatrixLayout_t layout) {
  return Locked().Destroy(Kind::kLayout, layout);
}
cublasStatus_t LayoutSet(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t id,
                         const void* from, size_t bytes) {
  return Locked().Set(Kind::kLayout, layout, id, from, bytes);
}
cublasStatus_t LayoutGet(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t id,
                         void* to, size_t bytes, size_t* written) {
  return Locked().Get(Kind::kLayout, layout, id, to, bytes, written);
}

cublasStatus_t PreferenceCreate(cublasLtMatmulPreference_t* to) {
  Locked library;
  library.Create(Kind::kPreference, to);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t PreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Locked().Destroy(Kind::kPreference, preference);
}
cublasStatus_t PreferenceSet(cublasLtMatmulPreference_t preference,
                             cublasLtMatmulPreferenceAttributes_t id, const void* from,
                             size_t bytes) {
  return Locked().Set(Kind::kPreference, preference, id, from, bytes);
}
cublasStatus_t PreferenceGet(cublasLtMatmulPreference_t preference,
                             cublasLtMatmulPreferenceAttributes_t id, void* to, size_t bytes,
                             size_t* written) {
  return Locked().Get(Kind::kPreference, preference, id, to, bytes, written);
}

cublasStatus_t AlgoGetIds(cublasLtHandle_t handle, cublasComputeType_t compute_type, cudaDataType_t,
                          cudaDataType_t a_type, cudaDataType_t, cudaDataType_t,
                          cudaDataType_t d_type, int capacity, int* ids, int* num_ids) {
  Locked library;
  if (library.Find(Kind::kHandle, handle) == nullptr || capacity < 1) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const std::vector<int32_t> all = AlgorithmIds({compute_type, a_type, d_type});
  *num_ids = std::min(capacity, static_cast<int>(all.size()));
  std::copy_n(all.begin(), *num_ids, ids);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t AlgoInit(cublasLtHandle_t handle, cublasComputeType_t compute_type,
                        cudaDataType_t scale_type, cudaDataType_t a_type, cudaDataType_t b_type,
                        cudaDataType_t c_type, cudaDataType_t d_type, int id,
                        cublasLtMatmulAlgo_t* to) {
  Locked library;
  if (library.Find(Kind::kHandle, handle) == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (scale_type != CUDA_R_32F || a_type != b_type || c_type != d_type) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return InitAlgorithm(id, {compute_type, a_type, d_type}, to);
}
cublasStatus_t AlgoConfigSet(cublasLtMatmulAlgo_t* algorithm,
                             cublasLtMatmulAlgoConfigAttributes_t id, const void* from,
                             size_t bytes) {
  return SetConfiguration(id, from, bytes, algorithm);
}
cublasStatus_t AlgoConfigGet(const cublasLtMatmulAlgo_t* algorithm,
                             cublasLtMatmulAlgoConfigAttributes_t id, void* to, size_t bytes,
                             size_t* written) {
  return GetConfiguration(algorithm, id, to, bytes, written);
}

Descriptors Find(const Locked& library, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                 cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {library.Find(Kind::kOperation, operation), library.Find(Kind::kLayout, a),
          library.Find(Kind::kLayout, b), library.Find(Kind::kLayout, c),
          library.Find(Kind::kLayout, d)};
}

cublasStatus_t Check(const Locked& library, const Words& words, const Problem& problem) {
  if (words.id == library->faults.refused_algorithm) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CheckConfiguration(words, problem);
}

cublasStatus_t AlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                         cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                         const cublasLtMatmulAlgo_t* algorithm,
                         cublasLtMatmulHeuristicResult_t* result) {
  Locked library;
  const std::optional<Words> words = Unpack(algorithm);
  if (library.Find(Kind::kHandle, handle) == nullptr || !words || result == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  Problem problem;
  cublasStatus_t status = ReadProblem(Find(library, operation, a, b, c, d), &problem);
  if (status == CUBLAS_STATUS_SUCCESS) status = Check(library, *words, problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  result->workspaceSize = WorkspaceOf(*words, problem);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t AlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference_handle, int capacity,
                                cublasLtMatmulHeuristicResult_t* results, int* num_results) {
  Locked library;
  ++library->counts.heuristics;
  const Object* const preference = library.Find(Kind::kPreference, preference_handle);
  if (library.Find(Kind::kHandle, handle) == nullptr || preference == nullptr || capacity < 1 ||
      results == nullptr || num_results == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *num_results = 0;
  Problem problem;
  const cublasStatus_t status = ReadProblem(Find(library, operation, a, b, c, d), &problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (!preference->HasOnlyWhatIsEmulated() || !library->faults.has_heuristic) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const Words& words : ConfigurationsFor(problem)) {
    if (*num_results == capacity || Check(library, words, problem) != CUBLAS_STATUS_SUCCESS ||
        !Suits(words, problem, *preference)) {
      continue;
    }
    results[(*num_results)++] = {
        Pack(words), WorkspaceOf(words, problem), CUBLAS_STATUS_SUCCESS, 1.0f, {}};
  }
  return *num_results > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

// Overwrites what the algorithm owns of the workspace, and the end of what it was given.
void SpoilWorkspace(void* workspace, size_t owned, size_t given) {
  constexpr int kNan = 0xff;
  if (given == 0) return;
  char* const begin = static_cast<char*>(const_cast<void*>(Translate(workspace, 1, 1)));
  const size_t end = std::min(given, kWorkspaceAlignment);
  std::memset(begin, kNan, owned);
  std::memset(begin + given - end, kNan, end);
}

cublasStatus_t Matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha,
                      const void* a_data, cublasLtMatrixLayout_t a, const void* b_data,
                      cublasLtMatrixLayout_t b, const void* beta, const void* c_data,
                      cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                      const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                      size_t workspace_bytes, cudaStream_t stream) {
  Enqueue enqueue;
  Problem problem;
  size_t owned = 0;
  {
    Locked library;
    const std::optional<Words> words = Unpack(algorithm);
    if (library.Find(Kind::kHandle, handle) == nullptr || !words) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    for (const void* data :
         {alpha, beta, a_data, b_data, c_data, static_cast<const void*>(d_data)}) {
      if (data == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
    }
    cublasStatus_t status = ReadProblem(Find(library, operation, a, b, c, d), &problem);
    if (status == CUBLAS_STATUS_SUCCESS) status = Check(library, *words, problem);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    problem.alpha = *static_cast<const float*>(alpha);
    problem.beta = *static_cast<const float*>(beta);
    problem.a_data = a_data, problem.b_data = b_data;
    problem.c_data = c_data, problem.d_data = d_data;
    owned = WorkspaceOf(*words, problem);
    if (owned > workspace_bytes || (workspace == nullptr && workspace_bytes > 0) ||
        reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0 ||
        (problem.has_bias && problem.bias == nullptr) ||
        (problem.has_bias_gradient && problem.bias_gradient == nullptr) ||
        (problem.activation != CublasLtActivation::kNone && problem.aux == nullptr) ||
        (c_data == d_data && problem.c.distance != problem.d.distance)) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!IsAligned(*words, problem)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (library->faults.product_status != CUBLAS_STATUS_SUCCESS) {
      return library->faults.product_status;
    }
    ++library->counts.products;
    library->counts.last_algorithm = *algorithm;
    enqueue = library->enqueue;
  }
  enqueue(stream, [problem, workspace, owned, workspace_bytes] {
    SpoilWorkspace(workspace, owned, workspace_bytes);
    ComputeProduct(problem);
  });
  return CUBLAS_STATUS_SUCCESS;
}

// No capability is needed to run the algorithms that the heuristic names.
cublasStatus_t AlgoCapGet(const cublasLtMatmulAlgo_t*, cublasLtMatmulAlgoCapAttributes_t, void*,
                          size_t, size_t*) {
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

}  // namespace

cuda::CublasLtApi MakeCublasLt(Enqueue enqueue) {
  Locked library;
  library->enqueue = std::move(enqueue);
  library->faults = {};
  library->counts = {};
  library->objects.clear();
  cuda::CublasLtApi api;
  api.cublasLtCreate = Create;
  api.cublasLtDestroy = Destroy;
  api.cublasLtGetVersion = GetVersion;
  api.cublasLtGetStatusName = GetStatusName;
  api.cublasLtGetStatusString = GetStatusString;
  api.cublasLtMatmul = Matmul;
  api.cublasLtMatmulDescCreate = OperationCreate;
  api.cublasLtMatmulDescDestroy = OperationDestroy;
  api.cublasLtMatmulDescSetAttribute = OperationSet;
  api.cublasLtMatmulDescGetAttribute = OperationGet;
  api.cublasLtMatrixLayoutCreate = LayoutCreate;
  api.cublasLtMatrixLayoutDestroy = LayoutDestroy;
  api.cublasLtMatrixLayoutSetAttribute = LayoutSet;
  api.cublasLtMatrixLayoutGetAttribute = LayoutGet;
  api.cublasLtMatmulPreferenceCreate = PreferenceCreate;
  api.cublasLtMatmulPreferenceDestroy = PreferenceDestroy;
  api.cublasLtMatmulPreferenceSetAttribute = PreferenceSet;
  api.cublasLtMatmulPreferenceGetAttribute = PreferenceGet;
  api.cublasLtMatmulAlgoGetHeuristic = AlgoGetHeuristic;
  api.cublasLtMatmulAlgoGetIds = AlgoGetIds;
  api.cublasLtMatmulAlgoInit = AlgoInit;
  api.cublasLtMatmulAlgoCheck = AlgoCheck;
  api.cublasLtMatmulAlgoCapGetAttribute = AlgoCapGet;
  api.cublasLtMatmulAlgoConfigSetAttribute = AlgoConfigSet;
  api.cublasLtMatmulAlgoConfigGetAttribute = AlgoConfigGet;
  return api;
}

CublasLtCounts CountsOfCublasLt() {
  Locked library;
  CublasLtCounts counts = library->counts;
  counts.alive = static_cast<int>(library->objects.size());
  return counts;
}

void SetFaultsOfCublasLt(const CublasLtFaults& faults) { Locked()->faults = faults; }

}  // namespace megascale::emulator
