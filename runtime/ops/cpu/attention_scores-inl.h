// What forward and backward of attention on blocks share: which keys each query sees, powers of
// two, and the pieces of scratch memory. Requires: MultipliesBFloat16() (matmul.h). Legend: as in
// attention_blocks.cc.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/ops/cpu/blocks-inl.h"
#include "runtime/ops/ops.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,fma,avx2")

namespace megascale::ops::cpu::blocks {

// Number of blocks of keys whose scores are computed at a time.
constexpr int64_t kKeyBlocks = 4;
// Number of blocks of queries that backward processes at a time. It reads and writes the gradients
// of keys and values once for all of these blocks.
constexpr int64_t kQueryBlocks = 4;
// Means "no score yet". It is finite, so that the difference of two such scores is not NaN.
constexpr float kLowest = -1e30f;
constexpr float kLog2E = 1.44269504f;

// Returns 2^x with a relative error below 4e-6; rounding to bf16 has five hundred times this error.
inline __m512 Exp2(__m512 x) {
  const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);
  // 2^fraction interpolated at the Chebyshev nodes of [0, 1].
  __m512 power = _mm512_set1_ps(0.013670309453357876f);
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.05174499776409221f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.24160435727010832f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(0.6929729221730454f));
  power = _mm512_fmadd_ps(power, fraction, _mm512_set1_ps(1.0000034929076986f));
  return _mm512_scalef_ps(power, x);  // times 2^floor(x)
}

// The pairs of a block of 32 keys and 32 queries that see each other.
struct Sight {
  Sight(const AttentionArgs& args, int64_t first_key, int64_t first_query)
      : first(first_key - first_query),
        limit(args.seq - first_query),
        window(args.window > 0 ? args.window : args.seq),
        in_one_document(!args.document_begins) {
    if (in_one_document) return;
    const int32_t* begins_of_queries = args.document_begins.as<int32_t>() + first_query;
    const uint32_t present = FirstBits(limit);
    in_one_document = begins_of_queries[std::min(kBlock, limit) - 1] <= first_key;
    for (int half = 0; half < 2; ++half) {
      const auto lanes = static_cast<__mmask16>(present >> half * 16);
      begins[half] =
          _mm512_sub_epi32(_mm512_maskz_loadu_epi32(lanes, begins_of_queries + half * 16),
                           _mm512_set1_epi32(static_cast<int32_t>(first_query)));
    }
  }
  bool All() const {
    return first + kBlock - 1 <= 0 && first + window >= kBlock && limit >= kBlock &&
           in_one_document;
  }
  // Returns the queries that see key `key` of the block.
  uint32_t Queries(int64_t key) const {
    const uint32_t seen =
        FirstBits(std::min(first + key + window, limit)) & ~FirstBits(first + key);
    if (in_one_document) return seen;
    const __m512i at = _mm512_set1_epi32(static_cast<int32_t>(first + key));
    const auto low = static_cast<uint32_t>(_mm512_cmple_epi32_mask(begins[0], at));
    const auto high = static_cast<uint32_t>(_mm512_cmple_epi32_mask(begins[1], at));
    return seen & (low | high << 16);
  }
  int64_t first, limit, window;
  bool in_one_document;  // no query's document begins after the block's first key
  // Otherwise: where the queries' documents begin, counted from the first query.
  __m512i begins[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
};

// Returns the blocks of keys that the queries [first, first + count) see.
inline Range KeyBlocks(const AttentionArgs& args, int64_t first, int64_t count) {
  return {FirstKey(args, first) / kBlock, BlocksOf(std::min(first + count, args.seq))};
}

inline const float* ScoreRow(const float* block, int64_t key) {
  return block + key / 16 * 2 * kTileFloats + key % 16 * 16;
}

// Takes 64-byte aligned pieces from a scratch of floats.
class Cutter {
 public:
  // Null: only counts.
  explicit Cutter(float* begin)
      : begin_(reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(begin) + 63) / 64 * 64)) {}
  float* Floats(int64_t blocks) { return Take(blocks * kBlockFloats); }
  Half* Halves(int64_t blocks) { return reinterpret_cast<Half*>(Take(blocks * kBlockHalves / 2)); }
  // Returns the floats taken, including those lost to alignment.
  int64_t size() const { return size_ + 16; }

 private:
  float* Take(int64_t floats) {
    float* piece = begin_ == nullptr ? nullptr : begin_ + size_;
    size_ += floats;
    return piece;
  }
  float* begin_;
  int64_t size_ = 0;
};

}  // namespace megascale::ops::cpu::blocks
#pragma GCC pop_options
