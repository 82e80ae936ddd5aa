// Runs trained models fast: processes the windows of all machines at one second together, in fp32,
// with AVX2 if the processor has it, otherwise with baseline vectors. The results of the two differ
// in their last bits. Pure. Threads: a const Denoiser may be used by several.
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

// Series of a metric, second by second: the values of all machines at one second are adjacent.
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

  // Reconstructs the windows that begin at `second`, with the mean of their latent. Writes `out`:
  // kWindow rows of grid.stride() numbers. Requires: the grid has kWindow seconds from `second` on.
  // Cost: about 0.2 us for each machine.
  void Reconstruct(const SecondsGrid& grid, size_t second, float* out) const;

 private:
  std::vector<float> weights_;
};

// The numbers by which machines are compared: `num_rows` rows of `stride` numbers, with a column
// for each machine.
struct Embedded {
  const float* rows = nullptr;
  size_t num_rows = 0;
  size_t stride = 0;  // a multiple of kLanes
};

// Sets sums[m], for each of the `stride` columns m, to the sum of the Euclidean distances of column
// m from the columns `references`. Cost: with 8 rows, about 1 ns for each pair of a column and a
// reference.
void SumDistances(const Embedded& embedded, absl::Span<const size_t> references, float* sums);

}  // namespace megascale::minder
