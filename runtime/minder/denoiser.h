// Runs trained models fast: the windows of all machines at one second together, in fp32, with the
// widest vectors that the processor has (AVX2 or the baseline; results differ in their last bits).
// Pure. Threads: a const Denoiser may be used by several.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "runtime/minder/lstm_vae.h"

namespace megascale::minder {

// Machines are padded to a multiple of this.
inline constexpr size_t kLanes = 8;

inline size_t PaddedTo(size_t count, size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

// Series of a metric, second by second: the machines of a second lie side by side.
class SecondsGrid {
 public:
  // Requires: all series have the same length.
  explicit SecondsGrid(absl::Span<const std::vector<float>> machines);

  size_t num_machines() const { return num_machines_; }
  size_t num_seconds() const { return num_seconds_; }
  size_t stride() const { return stride_; }  // num_machines, padded
  // Values of all machines, `stride` numbers; the next second follows.
  const float* second(size_t index) const { return values_.data() + index * stride_; }

 private:
  size_t num_machines_;
  size_t num_seconds_;
  size_t stride_;
  std::vector<float> values_;
};

class Denoiser {
 public:
  explicit Denoiser(const LstmVae& model);

  // Writes the windows that begin at `second` back, with the mean of their latent: out [kWindow]
  // rows of grid.stride() numbers. Requires: the grid has kWindow seconds from there on. Cost:
  // about 0.2 us for each machine.
  void Reconstruct(const SecondsGrid& grid, size_t second, float* out) const;

 private:
  std::vector<float> weights_;
};

// What is compared of machines: [num_rows] of `stride` numbers, a column for each machine.
struct Embedded {
  const float* rows = nullptr;
  size_t num_rows = 0;
  size_t stride = 0;  // a multiple of kLanes
};

// Sets sums[m], for all `stride` columns, to the sum of the Euclidean distances of column m from
// the columns `references`. Cost: about 1 ns for each column and reference of 8 rows.
void SumDistances(const Embedded& embedded, absl::Span<const size_t> references, float* sums);

}  // namespace megascale::minder
