// Element types, and views of memory as vectors and matrices. A view owns nothing; the memory comes
// from an Arena. `Vector` and `Matrix` view a device's memory, `HostVector` the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace megascale::device {
class HostViews;
}  // namespace megascale::device

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

// DTypeOf<float>::value is the element type of float.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kF64> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kF32> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::kBF16> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<DType, DType::kI32> {};

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

// A view of contiguous elements in host memory, which code of this process may read and write. A
// Vector may lie in a device's memory, so a Vector cannot be converted to a HostVector. Nor can an
// untyped pointer be wrapped. A HostVector comes from memory that has a C++ type, from another
// HostVector, or from a device that uses host memory (runtime/device/host_views.h).
class HostVector {
 public:
  HostVector() = default;  // empty

  // `T`: double, float, BFloat16 or int32_t.
  template <typename T>
  static HostVector Of(absl::Span<T> elements) {
    return {elements.data(), DTypeOf<T>::value, static_cast<int64_t>(elements.size())};
  }
  // Views the bytes of `objects` as elements of `dtype`, as many as fit. Requires: `objects` are
  // aligned for `dtype`.
  template <typename T>
  static HostVector OfBytes(absl::Span<T> objects, DType dtype) {
    static_assert(std::is_trivially_copyable_v<T>);
    const size_t bytes = objects.size() * sizeof(T);
    return {objects.data(), dtype, static_cast<int64_t>(bytes / SizeOf(dtype))};
  }
  // Returns elements [first, first + count) of this view. Requires: the view has these elements.
  HostVector Slice(int64_t first, int64_t count) const {
    return {as<std::byte>() + first * static_cast<int64_t>(SizeOf(dtype_)), dtype_, count};
  }

  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return size_ * static_cast<int64_t>(SizeOf(dtype_)); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class device::HostViews;
  HostVector(void* data, DType dtype, int64_t size) : data_(data), dtype_(dtype), size_(size) {}

  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int64_t size_ = 0;
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
  // Bytes from the first element to the end of the last one.
  int64_t bytes() const {
    if (rows == 0 || cols == 0) return 0;
    return ((rows - 1) * stride + cols) * static_cast<int64_t>(SizeOf(dtype));
  }
  explicit operator bool() const { return data != nullptr; }
};

}  // namespace megascale::tensor
