// Element types, and views of memory as vectors and matrices. A view owns nothing; the memory comes
// from an Arena. `Vector` and `Matrix` view a device's memory, `HostVector` the host's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace megascale::tensor {

enum class DType : uint8_t { kF64, kF32, kBF16, kI32 };

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
      return 2;
  }
  return 0;
}

// Returns the name that safetensors uses: "F64", "F32", "BF16", "I32".
absl::string_view Name(DType dtype);

// Returns the type of gradients, master weights and statistics for the compute type `compute`: F64
// for F64, F32 for F32 and BF16.
constexpr DType AccumulationType(DType compute) {
  return compute == DType::kF64 ? DType::kF64 : DType::kF32;
}

// bfloat16 as bits. ToBFloat16 rounds to nearest even.
struct BFloat16 {
  uint16_t bits = 0;
};
BFloat16 ToBFloat16(float value);
float ToFloat(BFloat16 value);

// `size` contiguous elements.
struct Vector {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t size = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  int64_t bytes() const { return size * static_cast<int64_t>(SizeOf(dtype)); }
};

// `size` contiguous elements in host memory: what code of this process may read and write. A Vector
// may lie in a device's memory, so no conversion leads from one to the other; only a device whose
// memory is the host's makes a HostVector of a Vector (runtime/device).
struct HostVector {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t size = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  int64_t bytes() const { return size * static_cast<int64_t>(SizeOf(dtype)); }
};

// rows x cols elements, row-major, rows `stride` elements apart.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
};

}  // namespace megascale::tensor
