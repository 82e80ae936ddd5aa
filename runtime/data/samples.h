// The samples of a job by their global index: from one text, or from several by weight. Which
// tokens a sample has is a pure function of (seed, index, sizes of the texts, weights): not of the
// layout, of earlier samples or of restarts. Threads: immutable; const methods from any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/data/sample_order.h"
#include "runtime/data/token_text.h"

namespace megascale::data {

// Deals the numbers 0, 1, 2 … to sources so that each source has its share of the first n numbers:
// a source is at most one sample behind, and ahead by at most one sample for each source before it.
// Integers only.
class Mixture {
 public:
  // Requires: at least one weight; all are positive and finite.
  explicit Mixture(const std::vector<double>& weights);

  struct Place {
    int source = 0;
    int64_t index = 0;  // among the samples of this source
  };
  // Cost: O(number of sources).
  Place PlaceOf(int64_t sample) const;

 private:
  // The share of source k among the samples that sources before it leave, in 2^-32. The last source
  // takes all that is left.
  std::vector<uint64_t> shares_;
};

class Samples {
 public:
  struct Source {
    const TokenText* text;
    double weight = 1;
  };
  // Borrows the texts. Requires: each is longer than `seq_length`.
  Samples(uint64_t seed, int seq_length, const std::vector<Source>& sources);

  // Fills `out`, seq_length + 1 tokens, with sample `sample`, from 0. Errors: as TokenText::Read.
  absl::Status Read(int64_t sample, absl::Span<int32_t> out) const;

 private:
  std::vector<const TokenText*> texts_;
  std::vector<SampleOrder> orders_;
  Mixture mixture_;
};

}  // namespace megascale::data
