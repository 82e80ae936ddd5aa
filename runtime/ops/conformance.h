// Compares an implementation of Ops with the float64 reference. A twin is a tensor that exists once
// in float64 and once in the dtype under test, with the same values.
//
//   Twins twins(DType::kBF16);
//   TwinMatrix x = twins.Input(5, 64, /*padding=*/3);
//   TwinMatrix out = twins.Output(5, 64, 3);
//   ... run the operator on x.exact and out.exact, and on x.tested and out.tested ...
//   twins.ExpectClose("Norm", out);
//
// The destructor checks that nothing was written between rows, before the first row or after the
// last row.
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

  // Returns uniform numbers from [-scale, scale), rounded to the dtype under test.
  TwinMatrix Input(int64_t rows, int64_t cols, int64_t padding = 0, double scale = 1);
  TwinVector InputVector(int64_t size, double scale = 1);
  // The same in fp32, for gradients and optimizer state.
  TwinMatrix Float(int64_t rows, int64_t cols, int64_t padding = 0, double scale = 1);
  TwinVector FloatVector(int64_t size, double scale = 1);
  // Filled with NaN, so that ExpectClose finds elements that were not written.
  TwinMatrix Output(int64_t rows, int64_t cols, int64_t padding = 0);
  TwinMatrix FloatOutput(int64_t rows, int64_t cols, int64_t padding = 0);
  TwinVector OutputVector(int64_t size);
  TwinVector FloatOutputVector(int64_t size);
  // Returns uniform I32 numbers from [0, limit), in one vector for both sides.
  Vector Tokens(int64_t size, int32_t limit);

  // Fails the test if an element differs by more than tolerances.h allows, and shows the worst
  // element.
  void ExpectClose(absl::string_view name, const TwinMatrix& twin);
  void ExpectClose(absl::string_view name, const TwinVector& twin);

  // Returns a number in [-1, 1); the same seed gives the same sequence.
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
