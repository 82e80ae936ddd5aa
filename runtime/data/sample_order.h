// Chooses the piece of the training text for each sample of a job: a pure function of (seed, sample
// index, number of tokens). The text is cut into consecutive windows of seq_length tokens, each
// with one token more as the target of its last one. An epoch takes every window once, in an order
// of its own. It also shifts the whole grid by an offset of its own, so that later epochs cut the
// text at other places. Determinism: integers only; the order is part of the numerics version
// (runtime/checkpoint/numerics.h).
#pragma once

#include <cstdint>

namespace megascale::data {

class SampleOrder {
 public:
  // Requires: num_tokens > seq_length > 0.
  SampleOrder(uint64_t seed, int64_t num_tokens, int seq_length);

  int64_t num_windows() const { return num_windows_; }

  // Returns the first token of sample `sample` (global index, from 0). The window of seq_length + 1
  // tokens from there lies within the text.
  int64_t WindowStart(int64_t sample) const;

 private:
  int64_t Permute(int64_t index, uint64_t key) const;

  uint64_t seed_;
  int64_t seq_length_;
  int64_t num_windows_;
  int64_t num_offsets_;  // possible places for the beginning of the grid
  int half_bits_;        // the permutation works on numbers of 2 * half_bits_ bits
};

}  // namespace megascale::data
