#include "gpu/emulator/cublas_lt/problem.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/kernels/vocabulary.h"

namespace megascale::emulator {
namespace {

using kernels::host::Translate;
using Operand = CublasLtOperand;

// Numbers one behind the other, column-major, where the host can read them.
class Column {
 public:
  Column(const void* data, int32_t type)
      : data_(static_cast<const char*>(Translate(data, 1, 1))), type_(type) {}

  double operator[](int64_t i) const {
    if (type_ == CUDA_R_32F) {
      float value;
      std::memcpy(&value, data_ + i * 4, sizeof(value));
      return value;
    }
    kernels::BFloat16 value;
    std::memcpy(&value, data_ + i * 2, sizeof(value));
    return kernels::ToFloat(value);
  }

 private:
  const char* data_;
  int32_t type_;
};

double RoundToTf32(double x) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return std::isfinite(x) ? std::bit_cast<float>((bits + 0x1000) & 0xffffe000) : x;
}

// Rounds once: first to the fp32 number towards 0, whose last bit then tells whether something is
// missing.
kernels::BFloat16 RoundToBFloat16(double x) {
  auto value = static_cast<float>(x);
  if (std::isfinite(value) && std::abs(static_cast<double>(value)) > std::abs(x)) {
    value = std::nextafter(value, 0.0f);
  }
  auto bits = std::bit_cast<uint32_t>(value);
  if (std::isfinite(value) && static_cast<double>(value) != x) bits |= 1;
  return kernels::ToBFloat16(std::bit_cast<float>(bits));
}

// Returns op(X) by the index that is summed over: [k, outer].
std::vector<double> Gather(const Operand& operand, const void* data, bool outer_is_row,
                           bool rounds_to_tf32) {
  const int64_t rows = operand.is_transposed ? operand.cols : operand.rows;  // of op(X)
  const int64_t cols = operand.is_transposed ? operand.rows : operand.cols;
  const int64_t outer = outer_is_row ? rows : cols;
  const Column column(data, operand.type);
  std::vector<double> gathered(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const double value =
          column[operand.is_transposed ? i * operand.distance + j : j * operand.distance + i];
      const int64_t at = outer_is_row ? j * outer + i : i * outer + j;
      gathered[static_cast<size_t>(at)] = rounds_to_tf32 ? RoundToTf32(value) : value;
    }
  }
  return gathered;
}

void Store(double value, int32_t type, char* to) {
  if (type == CUDA_R_32F) {
    const auto rounded = static_cast<float>(value);
    std::memcpy(to, &rounded, sizeof(rounded));
  } else {
    const kernels::BFloat16 rounded = RoundToBFloat16(value);
    std::memcpy(to, &rounded, sizeof(rounded));
  }
}

// GELU by tanh. Source: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016, section 2.
constexpr double kGeluScale = 0.7978845608028654;  // sqrt(2 / pi)
constexpr double kGeluCube = 0.044715;
double Gelu(double x) { return x * (1 + std::tanh(kGeluScale * (x + kGeluCube * x * x * x))) / 2; }
double GeluSlope(double x) {
  const double t = std::tanh(kGeluScale * (x + kGeluCube * x * x * x));
  return (1 + t) / 2 + x * (1 - t * t) / 2 * kGeluScale * (1 + 3 * kGeluCube * x * x);
}

// Stores the sum of op(B) over k.
void StoreSums(const CublasLtProblem& p, const std::vector<double>& b_KN) {
  auto* const to = static_cast<char*>(const_cast<void*>(Translate(p.bias_gradient, 1, 1)));
  for (int64_t j = 0; j < p.n; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < p.k; ++i) sum += b_KN[static_cast<size_t>(i * p.n + j)];
    Store(sum, p.d.type, to + j * static_cast<int64_t>(p.d.element_bytes()));
  }
}

}  // namespace

void ComputeProduct(const CublasLtProblem& p) {
  const bool is_tf32 = p.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::vector<double> a_KM = Gather(p.a, p.a_data, /*outer_is_row=*/true, is_tf32);
  const std::vector<double> b_KN = Gather(p.b, p.b_data, /*outer_is_row=*/false, is_tf32);
  auto* const d = static_cast<char*>(const_cast<void*>(Translate(p.d_data, 1, 1)));
  auto* const aux =
      p.aux == nullptr ? nullptr : static_cast<char*>(const_cast<void*>(Translate(p.aux, 1, 1)));
  if (p.has_bias_gradient) StoreSums(p, b_KN);
  std::vector<double> sums_M(static_cast<size_t>(p.m));
  for (int64_t j = 0; j < p.n; ++j) {
    std::fill(sums_M.begin(), sums_M.end(), 0.0);
    for (int64_t i = 0; i < p.k; ++i) {
      const double factor = b_KN[static_cast<size_t>(i * p.n + j)];
      const double* const a_M = &a_KM[static_cast<size_t>(i * p.m)];
      for (size_t row = 0; row < sums_M.size(); ++row) sums_M[row] += a_M[row] * factor;
    }
    for (int64_t i = 0; i < p.m; ++i) {
      double value = p.alpha * sums_M[static_cast<size_t>(i)];
      if (p.beta != 0) value += p.beta * Column(p.c_data, p.c.type)[j * p.c.distance + i];
      if (p.has_bias) value += Column(p.bias, p.d.type)[i];
      const auto element_bytes = static_cast<int64_t>(p.d.element_bytes());
      const int64_t aux_at = j * p.aux_distance + i;
      if (p.activation == CublasLtActivation::kGelu) {
        Store(value, p.d.type, aux + aux_at * element_bytes);
        value = Gelu(value);
      } else if (p.activation == CublasLtActivation::kGeluGradient) {
        value *= GeluSlope(Column(p.aux, p.d.type)[aux_at]);
      }
      Store(value, p.d.type, d + (j * p.d.distance + i) * element_bytes);
    }
  }
}

}  // namespace megascale::emulator
