#include "runtime/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/base/check.h"

namespace megascale::cli {

double UniformNumbers::Next() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

int ChooseToken(absl::Span<const double> logits, const SamplingRule& rule, double uniform) {
  MEGASCALE_CHECK(!logits.empty());
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (rule.temperature <= 0) return order[0];
  if (rule.top_k > 0 && rule.top_k < static_cast<int64_t>(order.size())) order.resize(rule.top_k);
  std::vector<double> weights;
  for (const int index : order) {
    weights.push_back(std::exp((logits[index] - logits[order[0]]) / rule.temperature));
  }
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i < order.size(); ++i) {
    left -= weights[i];
    if (left < 0) return order[i];
  }
  return order.back();
}

}  // namespace megascale::cli
