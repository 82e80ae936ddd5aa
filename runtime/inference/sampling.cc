#include "runtime/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "runtime/base/check.h"

namespace megascale::inference {
namespace {

// Tokens from the most to the least likely, in the order in which they are asked for.
class Ranking {
 public:
  explicit Ranking(absl::Span<const double> logits) : is_less_{logits}, left_(logits.size()) {
    std::iota(left_.begin(), left_.end(), 0);
    std::make_heap(left_.begin(), left_.end(), is_less_);
  }
  bool has_next() const { return !left_.empty(); }
  int Next() {
    std::pop_heap(left_.begin(), left_.end(), is_less_);
    const int next = left_.back();
    left_.pop_back();
    return next;
  }

 private:
  struct IsLess {
    absl::Span<const double> logits;
    bool operator()(int a, int b) const {
      return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
    }
  };

  const IsLess is_less_;
  std::vector<int> left_;
};

struct Candidate {
  int token;
  double weight;
};

// Returns the candidate at `uniform` of their total weight.
int Pick(const std::vector<Candidate>& candidates, double uniform) {
  double left = 0;
  for (const Candidate& candidate : candidates) left += candidate.weight;
  left *= uniform;
  for (const Candidate& candidate : candidates) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return candidates.back().token;
}

// Leaves the first candidates that have the part `top_p` of the weight.
void KeepTopP(double top_p, std::vector<Candidate>* candidates) {
  double left = 0;
  for (const Candidate& candidate : *candidates) left += candidate.weight;
  left *= top_p;
  size_t kept = 0;
  while (kept < candidates->size() && (kept == 0 || left > 0)) {
    left -= (*candidates)[kept++].weight;
  }
  candidates->resize(kept);
}

}  // namespace

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
  const auto greatest = std::max_element(logits.begin(), logits.end());
  if (rule.temperature <= 0) return static_cast<int>(greatest - logits.begin());
  const auto weight_of = [&](int token) {
    return std::exp((logits[token] - *greatest) / rule.temperature);
  };
  Ranking ranking(logits);
  const bool is_cut = rule.top_k > 0 && rule.top_k < static_cast<int64_t>(logits.size());
  std::vector<Candidate> candidates;
  if (is_cut) {
    while (static_cast<int64_t>(candidates.size()) < rule.top_k) {
      const int token = ranking.Next();
      candidates.push_back({token, weight_of(token)});
    }
    if (rule.top_p < 1) KeepTopP(rule.top_p, &candidates);
    return Pick(candidates, uniform);
  }
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) total += weight_of(static_cast<int>(i));
  // Without other limits only the tokens down to the chosen one are ranked.
  const double wanted = rule.top_p < 1 ? rule.top_p * total : uniform * total;
  double sum = 0;
  while (ranking.has_next() && (candidates.empty() || sum <= wanted)) {
    if (rule.top_p < 1 && !candidates.empty() && sum >= wanted) break;
    const int token = ranking.Next();
    candidates.push_back({token, weight_of(token)});
    sum += candidates.back().weight;
  }
  return rule.top_p < 1 ? Pick(candidates, uniform) : candidates.back().token;
}

}  // namespace megascale::inference
