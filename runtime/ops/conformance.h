// Comparing an implementation of Ops with the float64 reference: twins are tensors that exist once
// in float64 and once in the dtype under test, with the same numbers.
//
//   Twins twins(DType::kBF16);
//   TwinMatrix x = twins.Input(5, 64, /*padding=*/3);
//   TwinMatrix out = twins.Output(5, 64, 3);
//   ... run the operator on x.exact and out.exact, and on x.tested and out.tested ...
//   twins.ExpectClose("Norm", out);
//
// The destructor checks that nobody wrote between rows, before the first or behind the last one.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/ops/ops.h"

namespace megascale::ops {

struct TwinMatrix {
  Matrix exact;   // F64, contiguous
  Matrix tested;  // with padding between rows
  TwinMatrix Cols(int64_t first, int64_t count) const;
};
struct TwinVector {
  Vector exact;
  Vector tested;
};

class Twins {
 public:
  explicit Twins(DType compute, uint64_t seed = 1) : compute_(compute), random_(seed) {}
  ~Twins();
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;

  // Uniform numbers of [-scale, scale), rounded to the dtype under test.
  TwinMatrix Input(int64_t rows, int64_t cols, int64_t padding = 0, double scale = 1);
  TwinVector InputVector(int64_t size, double scale = 1);
  // The same in fp32: gradients and optimizer state.
  TwinMatrix Float(int64_t rows, int64_t cols, int64_t padding = 0, double scale = 1);
  TwinVector FloatVector(int64_t size, double scale = 1);
  // NaN: every element must be written.
  TwinMatrix Output(int64_t rows, int64_t cols, int64_t padding = 0);
  TwinMatrix FloatOutput(int64_t rows, int64_t cols, int64_t padding = 0);
  TwinVector OutputVector(int64_t size);
  TwinVector FloatOutputVector(int64_t size);
  // Uniform of [0, limit), I32: one vector for both.
  Vector Tokens(int64_t size, int32_t limit);

  // Fails the test with the worst element when one is further off than tolerances.h allows.
  void ExpectClose(absl::string_view name, const TwinMatrix& twin);
  void ExpectClose(absl::string_view name, const TwinVector& twin);

  // In [-1, 1), the same sequence for the same seed.
  double Random();

 private:
  struct Buffer {
    std::vector<char> bytes;
    Matrix matrix;
  };
  Matrix Allocate(DType dtype, int64_t rows, int64_t cols, int64_t padding);
  TwinMatrix Make(DType dtype, int64_t rows, int64_t cols, int64_t padding, double scale);

  DType compute_;
  uint64_t random_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

double ReadElement(const Matrix& matrix, int64_t row, int64_t col);

}  // namespace megascale::ops
