#include "runtime/data/samples.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "absl/status/status.h"

namespace megascale::data {
namespace {

constexpr int64_t kSamples = 20'000;
const std::vector<std::vector<double>> kMixtures = {
    {1}, {3, 1}, {3, 1, 0.5}, {0.01, 0.01, 0.98}, {1, 1, 1, 1, 1}};

TEST(MixtureTest, EverySourceDealsItsSamplesInOrderWithoutGaps) {
  for (const std::vector<double>& weights : kMixtures) {
    const Mixture mixture(weights);
    std::vector<int64_t> next(weights.size(), 0);
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      const Mixture::Place place = mixture.PlaceOf(sample);
      ASSERT_GE(place.source, 0);
      ASSERT_LT(place.source, static_cast<int>(weights.size()));
      ASSERT_EQ(place.index, next[static_cast<size_t>(place.source)]++) << "sample " << sample;
    }
  }
}

// A source takes the samples that the sources before it leave. It is at most one sample behind its
// share, and ahead by less than one for each source before it.
TEST(MixtureTest, SharesAreKeptAtEverySample) {
  constexpr double kRounding = 1e-4;  // of shares to 2^-32, and of their sums
  for (const std::vector<double>& weights : kMixtures) {
    const Mixture mixture(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<double> taken(weights.size(), 0);
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      ++taken[static_cast<size_t>(mixture.PlaceOf(sample).source)];
      for (size_t k = 0; k < weights.size(); ++k) {
        const double ahead = taken[k] - static_cast<double>(sample + 1) * weights[k] / sum;
        ASSERT_GT(ahead, -1 - kRounding) << "source " << k << " after sample " << sample;
        ASSERT_LT(ahead, static_cast<double>(k) + kRounding)
            << "source " << k << " after sample " << sample;
      }
    }
  }
}

// A text whose tokens count on, so that a sample says where it begins.
class Counting : public TokenText {
 public:
  explicit Counting(int64_t num_tokens, int32_t first) : num_tokens_(num_tokens), first_(first) {}
  int64_t num_tokens() const override { return num_tokens_; }
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const override {
    std::iota(out.begin(), out.end(), first_ + static_cast<int32_t>(begin));
    return absl::OkStatus();
  }

 private:
  const int64_t num_tokens_;
  const int32_t first_;
};

TEST(SamplesTest, EveryWindowOfASourceIsUsedOnceBeforeAnyIsUsedAgain) {
  constexpr int kSeq = 8;
  constexpr int32_t kApart = 1'000'000;
  for (const std::vector<double>& weights : kMixtures) {
    std::vector<Counting> texts;
    for (size_t k = 0; k < weights.size(); ++k) {
      texts.emplace_back(100 + 61 * static_cast<int64_t>(k), kApart * static_cast<int32_t>(k));
    }
    std::vector<Samples::Source> sources;
    for (size_t k = 0; k < weights.size(); ++k) sources.push_back({&texts[k], weights[k]});
    const Samples samples(7, kSeq, sources);
    std::vector<std::set<int32_t>> used(weights.size());
    std::vector<int64_t> epochs(weights.size(), 0);
    for (int64_t sample = 0; sample < kSamples / 10; ++sample) {
      std::vector<int32_t> tokens(kSeq + 1);
      ASSERT_EQ(samples.Read(sample, absl::MakeSpan(tokens)), absl::OkStatus());
      const auto source = static_cast<size_t>(tokens[0] / kApart);
      ASSERT_TRUE(used[source].insert(tokens[0]).second)
          << "sample " << sample << " begins at token " << tokens[0] << " again";
      const SampleOrder order(0, texts[source].num_tokens(), kSeq);
      if (static_cast<int64_t>(used[source].size()) < order.num_windows()) continue;
      used[source].clear();
      ++epochs[source];
    }
    for (const int64_t epoch : epochs) EXPECT_GE(epoch, 1);
  }
}

}  // namespace
}  // namespace megascale::data
