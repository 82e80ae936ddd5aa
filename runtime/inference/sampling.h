// Chooses the next token. Pure functions; deterministic.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace megascale::inference {

// Numbers in [0, 1) that follow from a seed, the same on every machine. Source: SplitMix64, Steele
// et al., 2014.
class UniformNumbers {
 public:
  explicit UniformNumbers(uint64_t seed) : state_(seed) {}
  double Next();

 private:
  uint64_t state_;
};

struct SamplingRule {
  double temperature = 1;  // 0: always the most likely token
  int64_t top_k = 0;       // choose among the K most likely tokens; 0: all
  // Choose among the most likely of these K tokens: as few as together have this share of the K
  // tokens' probability; 1: all K. Source: Holtzman et al., 2020 (nucleus sampling).
  double top_p = 1;
};

// Returns the index of the logit that `uniform` in [0, 1) chooses: the more likely an index, the
// larger its share of that range; ties go to the lower index. Requires: at least one logit. Cost:
// O(V), and O(log V) for each token that is at least as likely as the chosen one.
int ChooseToken(absl::Span<const double> logits, const SamplingRule& rule, double uniform);

}  // namespace megascale::inference
