#include "runtime/data/sample_order.h"

#include <algorithm>
#include <bit>

#include "runtime/base/check.h"

namespace megascale::data {
namespace {

constexpr int kRounds = 6;

// The finalizer of SplitMix64: every input bit reaches every output bit. Source: Steele, Lea and
// Flood, 2014.
uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

SampleOrder::SampleOrder(uint64_t seed, int64_t num_tokens, int seq_length)
    : seed_(seed), seq_length_(seq_length) {
  MEGASCALE_CHECK(seq_length > 0 && num_tokens > seq_length);
  // One window fewer than would fit, so that the grid may begin at any offset below seq_length. A
  // text of one window limits the offset to what fits.
  num_windows_ = std::max<int64_t>(1, num_tokens / seq_length - 1);
  num_offsets_ = std::min<int64_t>(seq_length, num_tokens - num_windows_ * seq_length);
  const int bits = std::bit_width(static_cast<uint64_t>(num_windows_ - 1));
  half_bits_ = std::max(1, (bits + 1) / 2);
}

int64_t SampleOrder::WindowStart(int64_t sample) const {
  MEGASCALE_CHECK(sample >= 0);
  const int64_t epoch = sample / num_windows_;
  const uint64_t key = Mix(Mix(seed_) + static_cast<uint64_t>(epoch));
  const auto offset = static_cast<int64_t>(Mix(key) % static_cast<uint64_t>(num_offsets_));
  return offset + Permute(sample % num_windows_, key) * seq_length_;
}

// A Feistel network is a bijection on the numbers below 4^half_bits_. Applying it until the result
// is below num_windows_ gives a bijection on these. Expected steps: less than four.
int64_t SampleOrder::Permute(int64_t index, uint64_t key) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<uint64_t>(index);
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = Mix(Mix(key + round) ^ right) & mask;
      const uint64_t old_left = left;
      left = right;
      right = old_left ^ mixed;
    }
    value = left << half_bits_ | right;
  } while (value >= static_cast<uint64_t>(num_windows_));
  return static_cast<int64_t>(value);
}

}  // namespace megascale::data
