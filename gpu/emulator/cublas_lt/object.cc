#include "gpu/emulator/cublas_lt/object.h"

#include <algorithm>
#include <cstring>

namespace megascale::emulator {
namespace {

using Kind = CublasLtKind;

struct Attribute {
  Kind kind;
  int id;
  size_t bytes;
  uint64_t default_value = 0;
  bool is_emulated = false;  // others have to keep their default
};

// Sizes are those of the library's own descriptors.
constexpr Attribute kAttributes[] = {
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 4, 0, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_SCALE_TYPE, 4, 0, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_POINTER_MODE, 4, CUBLASLT_POINTER_MODE_HOST},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_TRANSA, 4, CUBLAS_OP_N, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_TRANSB, 4, CUBLAS_OP_N, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_TRANSC, 4, CUBLAS_OP_N},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_FILL_MODE, 4, CUBLAS_FILL_MODE_FULL},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_EPILOGUE, 4, CUBLASLT_EPILOGUE_DEFAULT, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8, 0, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 8},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 8, 0, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 8, 0, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, 8},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 4, 0, true},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, 4, uint32_t(-1)},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1},
    {Kind::kOperation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 4, uint32_t(-1), true},
    {Kind::kLayout, CUBLASLT_MATRIX_LAYOUT_TYPE, 4, 0, true},
    {Kind::kLayout, CUBLASLT_MATRIX_LAYOUT_ORDER, 4, CUBLASLT_ORDER_COL},
    {Kind::kLayout, CUBLASLT_MATRIX_LAYOUT_ROWS, 8, 0, true},
    {Kind::kLayout, CUBLASLT_MATRIX_LAYOUT_COLS, 8, 0, true},
    {Kind::kLayout, CUBLASLT_MATRIX_LAYOUT_LD, 8, 0, true},
    {Kind::kLayout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4, 1},
    {Kind::kLayout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 8},
    {Kind::kLayout, CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, 8},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_SEARCH_MODE, 4, CUBLASLT_SEARCH_BEST_FIT},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 8, 0, true},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 4,
     CUBLASLT_REDUCTION_SCHEME_MASK, true},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 4, 256, true},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 4, 256, true},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 4, 256, true},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 4, 256, true},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT, 4},
    {Kind::kPreference, CUBLASLT_MATMUL_PREF_IMPL_MASK, 8, ~uint64_t{0}},
};

const Attribute* FindAttribute(Kind kind, int id) {
  for (const Attribute& attribute : kAttributes) {
    if (attribute.kind == kind && attribute.id == id) return &attribute;
  }
  return nullptr;
}

}  // namespace

uint64_t CublasLtObject::Get(int attribute) const {
  const auto found = values_.find(attribute);
  return found != values_.end() ? found->second : FindAttribute(kind_, attribute)->default_value;
}

cublasStatus_t CublasLtObject::SetBytes(int attribute, const void* from, size_t bytes) {
  const Attribute* const known = FindAttribute(kind_, attribute);
  if (known == nullptr || from == nullptr || bytes != known->bytes) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  uint64_t value = 0;
  std::memcpy(&value, from, bytes);
  values_[attribute] = value;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CublasLtObject::GetBytes(int attribute, void* to, size_t bytes,
                                        size_t* written) const {
  const Attribute* const known = FindAttribute(kind_, attribute);
  if (known == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes == 0 ? written == nullptr : to == nullptr || bytes != known->bytes) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const uint64_t value = Get(attribute);
  if (bytes > 0) std::memcpy(to, &value, bytes);
  if (written != nullptr) *written = known->bytes;
  return CUBLAS_STATUS_SUCCESS;
}

bool CublasLtObject::HasOnlyWhatIsEmulated() const {
  return std::all_of(values_.begin(), values_.end(), [&](const auto& entry) {
    const Attribute& attribute = *FindAttribute(kind_, entry.first);
    return attribute.is_emulated || entry.second == attribute.default_value;
  });
}

}  // namespace megascale::emulator
