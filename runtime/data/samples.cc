#include "runtime/data/samples.h"

#include <cmath>
#include <numeric>

#include "runtime/base/check.h"

namespace megascale::data {
namespace {

constexpr int kShareBits = 32;
constexpr uint64_t kSeedStep = 0x632be59bd9b4e019;  // odd: every source has a seed of its own

std::vector<double> WeightsOf(const std::vector<Samples::Source>& sources) {
  std::vector<double> weights;
  for (const Samples::Source& source : sources) weights.push_back(source.weight);
  return weights;
}

// Returns how many of the first `n` samples a share takes.
int64_t CountAmong(int64_t n, uint64_t share) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(n) * share >> kShareBits);
}

}  // namespace

Mixture::Mixture(const std::vector<double>& weights) {
  MEGASCALE_CHECK(!weights.empty());
  double rest = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t i = 0; i + 1 < weights.size(); ++i) {
    MEGASCALE_CHECK(std::isfinite(weights[i]) && weights[i] > 0);
    shares_.push_back(static_cast<uint64_t>(std::ldexp(weights[i] / rest, kShareBits)));
    rest -= weights[i];
  }
}

Mixture::Place Mixture::PlaceOf(int64_t sample) const {
  int64_t index = sample;
  for (size_t source = 0; source < shares_.size(); ++source) {
    const int64_t before = CountAmong(index, shares_[source]);
    if (CountAmong(index + 1, shares_[source]) > before) return {static_cast<int>(source), before};
    index -= before;
  }
  return {static_cast<int>(shares_.size()), index};
}

Samples::Samples(uint64_t seed, int seq_length, const std::vector<Source>& sources)
    : mixture_(WeightsOf(sources)) {
  for (const Source& source : sources) {
    texts_.push_back(source.text);
    orders_.emplace_back(seed + kSeedStep * orders_.size(), source.text->num_tokens(), seq_length);
  }
}

absl::Status Samples::Read(int64_t sample, absl::Span<int32_t> out) const {
  const Mixture::Place place = mixture_.PlaceOf(sample);
  return texts_[place.source]->Read(orders_[place.source].WindowStart(place.index), out);
}

}  // namespace megascale::data
