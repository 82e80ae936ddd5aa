#include "runtime/ops/conformance.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gtest/gtest.h"
#include "runtime/base/check.h"
#include "runtime/ops/tolerances.h"

namespace megascale::ops {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr char kGuard = '\xA5';
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void WriteElement(const Matrix& matrix, int64_t row, int64_t col, double value) {
  const int64_t i = row * matrix.stride + col;
  switch (matrix.dtype) {
    case DType::kF64:
      matrix.as<double>()[i] = value;
      break;
    case DType::kF32:
      matrix.as<float>()[i] = static_cast<float>(value);
      break;
    case DType::kBF16:
      matrix.as<tensor::BFloat16>()[i] = tensor::ToBFloat16(static_cast<float>(value));
      break;
    case DType::kI32:
      matrix.as<int32_t>()[i] = static_cast<int32_t>(value);
      break;
  }
}

Vector AsVector(const Matrix& matrix) { return {matrix.data, matrix.dtype, matrix.cols}; }

Tolerance ToleranceOf(absl::string_view name, DType dtype) {
  for (const Tolerance& tolerance : kTolerances) {
    if (tolerance.name == name && tolerance.dtype == dtype) return tolerance;
  }
  ADD_FAILURE() << "tolerances.h has no entry for " << name << " in " << tensor::Name(dtype);
  return {name, dtype, 0, 0, ""};
}

}  // namespace

double ReadElement(const Matrix& matrix, int64_t row, int64_t col) {
  const int64_t i = row * matrix.stride + col;
  switch (matrix.dtype) {
    case DType::kF64:
      return matrix.as<double>()[i];
    case DType::kF32:
      return matrix.as<float>()[i];
    case DType::kBF16:
      return tensor::ToFloat(matrix.as<tensor::BFloat16>()[i]);
    case DType::kI32:
      return matrix.as<int32_t>()[i];
  }
  return kNan;
}

TwinMatrix TwinMatrix::Cols(int64_t first, int64_t count) const {
  const auto cut = [&](Matrix matrix) {
    matrix.data = matrix.as<char>() + first * tensor::SizeOf(matrix.dtype);
    matrix.cols = count;
    return matrix;
  };
  return {cut(exact), cut(tested)};
}

Twins::~Twins() {
  for (const auto& buffer : buffers_) {
    const Matrix& matrix = buffer->matrix;
    const int64_t element = static_cast<int64_t>(tensor::SizeOf(matrix.dtype));
    const int64_t size = static_cast<int64_t>(buffer->bytes.size());
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = i - kGuardBytes;
      const int64_t row_bytes = matrix.stride * element;
      const bool inside = at >= 0 && row_bytes > 0 && at / row_bytes < matrix.rows &&
                          at % row_bytes < matrix.cols * element;
      if (inside || buffer->bytes[i] == kGuard) continue;
      ADD_FAILURE() << "byte " << at << " of a " << tensor::Name(matrix.dtype) << " ["
                    << matrix.rows << ", " << matrix.cols << "] with stride " << matrix.stride
                    << " was written, outside of its elements";
      break;
    }
  }
}

Matrix Twins::Allocate(DType dtype, int64_t rows, int64_t cols, int64_t padding) {
  auto buffer = std::make_unique<Buffer>();
  const int64_t stride = cols + padding;
  buffer->bytes.assign(2 * kGuardBytes + rows * stride * tensor::SizeOf(dtype), kGuard);
  buffer->matrix = {buffer->bytes.data() + kGuardBytes, dtype, rows, cols, stride};
  buffers_.push_back(std::move(buffer));
  return buffers_.back()->matrix;
}

double Twins::Random() {
  // splitmix64, by Vigna.
  random_ += 0x9E3779B97F4A7C15;
  uint64_t z = random_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-52 - 1;
}

TwinMatrix Twins::Make(DType dtype, int64_t rows, int64_t cols, int64_t padding, double scale) {
  const TwinMatrix twin{Allocate(DType::kF64, rows, cols, 0), Allocate(dtype, rows, cols, padding)};
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      WriteElement(twin.tested, i, j, std::isnan(scale) ? kNan : Random() * scale);
      WriteElement(twin.exact, i, j, ReadElement(twin.tested, i, j));
    }
  }
  return twin;
}

TwinMatrix Twins::Input(int64_t rows, int64_t cols, int64_t padding, double scale) {
  return Make(compute_, rows, cols, padding, scale);
}
TwinVector Twins::InputVector(int64_t size, double scale) {
  const TwinMatrix twin = Make(compute_, 1, size, 0, scale);
  return {AsVector(twin.exact), AsVector(twin.tested)};
}
TwinMatrix Twins::Float(int64_t rows, int64_t cols, int64_t padding, double scale) {
  return Make(DType::kF32, rows, cols, padding, scale);
}
TwinVector Twins::FloatVector(int64_t size, double scale) {
  const TwinMatrix twin = Make(DType::kF32, 1, size, 0, scale);
  return {AsVector(twin.exact), AsVector(twin.tested)};
}
TwinMatrix Twins::Output(int64_t rows, int64_t cols, int64_t padding) {
  return Make(compute_, rows, cols, padding, kNan);
}
TwinMatrix Twins::FloatOutput(int64_t rows, int64_t cols, int64_t padding) {
  return Make(DType::kF32, rows, cols, padding, kNan);
}
TwinVector Twins::OutputVector(int64_t size) { return InputVector(size, kNan); }
TwinVector Twins::FloatOutputVector(int64_t size) { return FloatVector(size, kNan); }

Vector Twins::Tokens(int64_t size, int32_t limit) {
  const Matrix tokens = Allocate(DType::kI32, 1, size, 0);
  for (int64_t i = 0; i < size; ++i) {
    WriteElement(tokens, 0, i, std::floor((Random() + 1) / 2 * limit));
  }
  return AsVector(tokens);
}

void Twins::ExpectClose(absl::string_view name, const TwinMatrix& twin) {
  const Tolerance tolerance = ToleranceOf(name, twin.tested.dtype);
  double worst = 0;
  int64_t worst_row = -1, worst_col = -1;
  for (int64_t i = 0; i < twin.exact.rows; ++i) {
    for (int64_t j = 0; j < twin.exact.cols; ++j) {
      const double exact = ReadElement(twin.exact, i, j);
      const double error = std::abs(ReadElement(twin.tested, i, j) - exact);
      const double excess = error / (tolerance.absolute + tolerance.relative * std::abs(exact));
      if (error == 0 || excess <= worst) continue;  // a NaN continues
      worst = std::isnan(excess) ? std::numeric_limits<double>::infinity() : excess;
      worst_row = i;
      worst_col = j;
    }
  }
  EXPECT_LE(worst, 1) << name << " in " << tensor::Name(twin.tested.dtype) << ": element ("
                      << worst_row << ", " << worst_col << ") is "
                      << ReadElement(twin.tested, worst_row, worst_col) << ", expected "
                      << ReadElement(twin.exact, worst_row, worst_col);
}

void Twins::ExpectClose(absl::string_view name, const TwinVector& twin) {
  const auto as_matrix = [](const Vector& vector) {
    return Matrix{vector.data, vector.dtype, 1, vector.size, vector.size};
  };
  ExpectClose(name, TwinMatrix{as_matrix(twin.exact), as_matrix(twin.tested)});
}

}  // namespace megascale::ops
