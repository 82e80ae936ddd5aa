// Attention on blocks of bf16; blocks-inl.h defines blocks and factors, attention_scores-inl.h what
// both directions do with scores.
//
// Scores are computed transposed, [keys, queries] = keys x queries^T. The lanes of a vector are
// then queries, and softmax needs no sum across lanes. Probabilities [keys, queries] need no
// rearrangement to be the left factor of the values' gradients. With neighbouring rows interleaved
// they are the right factor of outputs^T [D, queries] = values^T x probabilities. So nothing is
// transposed inside the loops. Interleaving permutes 32 queries (PositionOf); writing outputs^T
// undoes that.
//
// Source: Dao, 2023, FlashAttention-2, algorithms 1 and 2.
// Legend: D head size, E padded to 32; S sequence padded to 32.
#include "runtime/ops/cpu/attention_blocks.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/ops/cpu/attention_scores-inl.h"
#include "runtime/ops/cpu/blocks-inl.h"
#include "runtime/ops/ops.h"

namespace megascale::ops::cpu {
namespace {

// Returns whether InstructionSet() has AMX and the kernel lets this process use it.
bool HasTiles() {
  // The kernel saves the 8 KiB of tiles only for processes that ask for it.
  static const bool permitted = [] {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return std::strcmp(InstructionSet(), "amx_bf16") == 0 && permitted;
}

}  // namespace
}  // namespace megascale::ops::cpu

// Requires, for all code below: MultipliesBFloat16().
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,amx-tile,amx-bf16,fma,avx2")

namespace megascale::ops::cpu {
namespace blocks {
namespace {

// The memory of one (batch, key/value head) pair in forward.
struct ForwardScratch {
  ForwardScratch(const AttentionArgs& args, float* begin) : width(BlocksOf(args.head_dim)) {
    Cutter cutter(begin);
    keys = cutter.Halves(BlocksOf(args.seq) * width);
    values = cutter.Halves(BlocksOf(args.seq) * width);
    query = cutter.Halves(width);
    out = cutter.Floats(width);
    scores = cutter.Floats(kKeyBlocks);
    weights = cutter.Halves(kKeyBlocks);
    size = cutter.size();
  }
  int64_t width;  // E / 32
  Half* keys;     // [S / 32, E / 32] of [keys, D]
  Half* values;   // [S / 32, E / 32] of [D, keys]
  Half* query;    // [E / 32] of [D, queries]
  float* out;     // [E / 32] of [D, queries]
  float* scores;  // [kKeyBlocks] of [keys, queries]
  Half* weights;  // like scores
  int64_t size;   // floats
};

// Running softmax of 32 queries.
struct Softmax {
  // `factor` turns scores into exponents to the base 2.
  explicit Softmax(const AttentionArgs& args)
      : factor(_mm512_set1_ps(kLog2E / std::sqrt(static_cast<float>(args.head_dim)))) {}
  __m512 factor;
  __m512 max[2] = {_mm512_set1_ps(kLowest), _mm512_set1_ps(kLowest)};
  __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
};

template <bool kAll>
inline void RaiseMax(const float* scores, const Sight& sight, __m512 max[2]) {
  for (int64_t key = 0; key < kBlock; ++key) {
    const float* row = ScoreRow(scores, key);
    const uint32_t seen = kAll ? 0 : sight.Queries(key);
    for (int half = 0; half < 2; ++half) {
      const __m512 score = _mm512_load_ps(row + half * kTileFloats);
      // If one operand is a NaN, this maximum returns the second operand.
      max[half] = kAll ? _mm512_max_ps(score, max[half])
                       : _mm512_mask_max_ps(max[half], static_cast<__mmask16>(seen >> half * 16),
                                            score, max[half]);
    }
  }
}

// Turns a block of scores into weights.
template <bool kAll>
inline void Weigh(const float* scores, const Sight& sight, Softmax& softmax, Half* weights) {
  // Copies, because the compiler must assume that stores to `weights` change the originals.
  const __m512 factor = softmax.factor;
  const __m512 offset[2] = {_mm512_mul_ps(softmax.max[0], factor),
                            _mm512_mul_ps(softmax.max[1], factor)};
  __m512 sum[2] = {softmax.sum[0], softmax.sum[1]};
  for (int64_t key = 0; key < kBlock; key += 2) {
    __m512i rounded[2];
    for (int64_t odd = 0; odd < 2; ++odd) {
      const float* row = ScoreRow(scores, key + odd);
      __m512 weight[2];
      for (int half = 0; half < 2; ++half) {
        weight[half] =
            Exp2(_mm512_fmsub_ps(_mm512_load_ps(row + half * kTileFloats), factor, offset[half]));
        if constexpr (!kAll) {
          weight[half] = _mm512_maskz_mov_ps(
              static_cast<__mmask16>(sight.Queries(key + odd) >> half * 16), weight[half]);
        }
        sum[half] = _mm512_add_ps(sum[half], weight[half]);
      }
      rounded[odd] = Round(weight[0], weight[1]);
    }
    Half* to = weights + key / 2 * kBlock;
    _mm512_store_si512(to, _mm512_unpacklo_epi16(rounded[0], rounded[1]));
    _mm512_store_si512(to + kBlockHalves / 2, _mm512_unpackhi_epi16(rounded[0], rounded[1]));
  }
  softmax.sum[0] = sum[0];
  softmax.sum[1] = sum[1];
}

inline void ScaleOut(const ForwardScratch& scratch, __m512 first, __m512 second) {
  Permute(first, second);
  for (int64_t i = 0; i < scratch.width * kBlockFloats; i += 2 * kTileFloats) {
    float* tiles = scratch.out + i;
    for (int64_t j = 0; j < kTileFloats; j += 16) {
      _mm512_store_ps(tiles + j, _mm512_mul_ps(_mm512_load_ps(tiles + j), first));
      float* other = tiles + kTileFloats + j;
      _mm512_store_ps(other, _mm512_mul_ps(_mm512_load_ps(other), second));
    }
  }
}

// Attends 32 queries from `first_query` on to at most kKeyBlocks blocks of keys.
template <class Products>
inline void AttendBlocks(const AttentionArgs& args, const ForwardScratch& scratch,
                         int64_t first_query, Range blocks, Softmax& softmax) {
  const int64_t width = scratch.width;
  __m512 max[2] = {softmax.max[0], softmax.max[1]};
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    float* scores = scratch.scores + (block - blocks.begin) * kBlockFloats;
    Products::Multiply({scratch.keys + block * width * kBlockHalves, kBlockHalves},
                       {scratch.query, kBlockHalves}, width, scores, false);
  }
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const float* scores = scratch.scores + (block - blocks.begin) * kBlockFloats;
    const Sight sight(args, block * kBlock, first_query);
    sight.All() ? RaiseMax<true>(scores, sight, max) : RaiseMax<false>(scores, sight, max);
  }
  // Rescales the earlier sum where the maximum grew.
  const bool grew = (_mm512_cmp_ps_mask(max[0], softmax.max[0], _CMP_GT_OQ) |
                     _mm512_cmp_ps_mask(max[1], softmax.max[1], _CMP_GT_OQ)) != 0;
  if (grew) {
    __m512 shrink[2];
    for (int half = 0; half < 2; ++half) {
      shrink[half] =
          Exp2(_mm512_mul_ps(_mm512_sub_ps(softmax.max[half], max[half]), softmax.factor));
      softmax.sum[half] = _mm512_mul_ps(softmax.sum[half], shrink[half]);
      softmax.max[half] = max[half];
    }
    ScaleOut(scratch, shrink[0], shrink[1]);
  }
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const int64_t index = block - blocks.begin;
    const float* scores = scratch.scores + index * kBlockFloats;
    Half* weights = scratch.weights + index * kBlockHalves;
    const Sight sight(args, block * kBlock, first_query);
    sight.All() ? Weigh<true>(scores, sight, softmax, weights)
                : Weigh<false>(scores, sight, softmax, weights);
  }
  for (int64_t col = 0; col < width; ++col) {
    Products::Multiply(
        {scratch.values + (blocks.begin * width + col) * kBlockHalves, width * kBlockHalves},
        {scratch.weights, kBlockHalves}, blocks.size(), scratch.out + col * kBlockFloats, true);
  }
}

template <class Products>
void ForwardHead(const AttentionArgs& args, const ForwardScratch& scratch, int64_t batch,
                 int64_t head) {
  const int64_t first_row = batch * args.seq;
  const Rows query(args.q, first_row, args.seq, head, args.head_dim);
  const Rows out(args.out, first_row, args.seq, head, args.head_dim);
  float* log_sum_exp = args.log_sum_exp.as<float>() + (batch * args.heads + head) * args.seq;
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.head_dim));
  for (int64_t first = 0; first < args.seq; first += kBlock) {
    PackBlocks<Form::kTransposed>(query.From(first), scratch.query);
    std::fill(scratch.out, scratch.out + scratch.width * kBlockFloats, 0.0f);
    Softmax softmax(args);
    const Range blocks = KeyBlocks(args, first, kBlock);
    for (int64_t begin = blocks.begin; begin < blocks.end; begin += kKeyBlocks) {
      AttendBlocks<Products>(args, scratch, first,
                             {begin, std::min(begin + kKeyBlocks, blocks.end)}, softmax);
    }
    alignas(64) float max[kBlock], sum[kBlock];
    __m512 factors[2];
    for (int half = 0; half < 2; ++half) {
      _mm512_store_ps(max + half * 16, softmax.max[half]);
      _mm512_store_ps(sum + half * 16, softmax.sum[half]);
      factors[half] = _mm512_div_ps(_mm512_set1_ps(1), softmax.sum[half]);
    }
    Permute(factors[0], factors[1]);
    WriteTransposed(scratch.out, factors, out.From(first));
    for (int64_t i = 0; i < std::min(kBlock, args.seq - first); ++i) {
      log_sum_exp[first + i] = max[i] * scale + std::log(sum[i]);
    }
  }
}

// The memory of one (batch, key/value head) pair in backward.
struct BackwardScratch {
  BackwardScratch(const AttentionArgs& args, float* begin) : width(BlocksOf(args.head_dim)) {
    Cutter cutter(begin);
    const int64_t whole = BlocksOf(args.seq) * width, some = kQueryBlocks * width;
    keys = cutter.Halves(whole);
    values = cutter.Halves(whole);
    transposed_keys = cutter.Halves(whole);
    d_keys = cutter.Floats(whole);
    d_values = cutter.Floats(whole);
    query = cutter.Halves(some);
    transposed_query = cutter.Halves(some);
    d_out = cutter.Halves(some);
    transposed_d_out = cutter.Halves(some);
    d_query = cutter.Floats(some);
    scores = cutter.Floats(1);
    d_weights = cutter.Floats(1);
    weights = cutter.Halves(kKeyBlocks * kQueryBlocks);
    d_scores = cutter.Halves(kKeyBlocks * kQueryBlocks);
    paired_d_scores = cutter.Halves(kKeyBlocks * kQueryBlocks);
    size = cutter.size();
  }
  int64_t width;           // E / 32
  Half* keys;              // [S / 32, E / 32] of [keys, D]
  Half* values;            // [S / 32, E / 32] of [keys, D]
  Half* transposed_keys;   // [S / 32, E / 32] of [D, keys]
  float* d_keys;           // [S / 32, E / 32] of [keys, D]
  float* d_values;         // [S / 32, E / 32] of [keys, D]
  Half* query;             // [kQueryBlocks, E / 32] of [queries, D]
  Half* transposed_query;  // [kQueryBlocks, E / 32] of [D, queries]
  Half* d_out;             // [kQueryBlocks, E / 32] of [queries, D]
  Half* transposed_d_out;  // [kQueryBlocks, E / 32] of [D, queries]
  float* d_query;          // [kQueryBlocks, E / 32] of [D, queries]
  float* scores;           // [keys, queries]
  float* d_weights;        // [keys, queries]
  Half* weights;           // [kKeyBlocks, kQueryBlocks] of [keys, queries], left factors
  Half* d_scores;          // like weights
  Half* paired_d_scores;   // like weights, right factors
  int64_t size;            // floats
};

// Statistics of 32 queries, from which weights and gradients of scores are computed.
struct Statistics {
  float log_sum_exp[kBlock];  // to the base 2
  float delta[kBlock];        // d_out . out
};

// Turns a block of scores and of gradients of weights into the factors of the gradients' products.
template <bool kAll>
inline void WeighBackward(const BackwardScratch& scratch, const Sight& sight,
                          const Statistics& statistics, float to_power, int64_t at) {
  const __m512 factor = _mm512_set1_ps(to_power);
  __m512 log_sum_exp[2], delta[2];
  for (int half = 0; half < 2; ++half) {
    log_sum_exp[half] = _mm512_loadu_ps(statistics.log_sum_exp + half * 16);
    delta[half] = _mm512_loadu_ps(statistics.delta + half * 16);
  }
  for (int64_t key = 0; key < kBlock; key += 2) {
    __m512i rounded[2];
    for (int64_t odd = 0; odd < 2; ++odd) {
      const float* scores = ScoreRow(scratch.scores, key + odd);
      const float* d_weights = ScoreRow(scratch.d_weights, key + odd);
      const uint32_t seen = kAll ? ~uint32_t{0} : sight.Queries(key + odd);
      __m512 weight[2], d_score[2];
      for (int half = 0; half < 2; ++half) {
        const __mmask16 lanes = static_cast<__mmask16>(seen >> half * 16);
        weight[half] = Exp2(_mm512_fmsub_ps(_mm512_load_ps(scores + half * kTileFloats), factor,
                                            log_sum_exp[half]));
        if constexpr (!kAll) weight[half] = _mm512_maskz_mov_ps(lanes, weight[half]);
        const __m512 difference =
            _mm512_sub_ps(_mm512_load_ps(d_weights + half * kTileFloats), delta[half]);
        d_score[half] = kAll ? _mm512_mul_ps(weight[half], difference)
                             : _mm512_maskz_mul_ps(lanes, weight[half], difference);
      }
      rounded[odd] = Round(d_score[0], d_score[1]);
      const int64_t row = at + (key + odd) * kBlock;
      _mm512_store_si512(scratch.weights + row, Round(weight[0], weight[1]));
      _mm512_store_si512(scratch.d_scores + row, rounded[odd]);
    }
    Half* to = scratch.paired_d_scores + at + key / 2 * kBlock;
    _mm512_store_si512(to, _mm512_unpacklo_epi16(rounded[0], rounded[1]));
    _mm512_store_si512(to + kBlockHalves / 2, _mm512_unpackhi_epi16(rounded[0], rounded[1]));
  }
}

// At most kQueryBlocks blocks of queries from `first` on.
struct QueryBlocks {
  int64_t first;  // query
  int64_t count;  // blocks
  Statistics statistics[kQueryBlocks];
};

// Returns the blocks of `queries`, counted from its first, in which some query sees a key of
// `block`.
Range BlocksThatSee(const AttentionArgs& args, const QueryBlocks& queries, int64_t block) {
  const int64_t first_key = block * kBlock - queries.first;
  int64_t end = queries.count;
  if (args.window > 0) end = std::min(end, BlocksOf(first_key + kBlock - 1 + args.window));
  const int64_t begin = std::max<int64_t>(0, first_key / kBlock);
  if (args.document_begins) {
    const int64_t last_key = (block + 1) * kBlock - 1;
    while (end > begin && FirstKey(args, queries.first + (end - 1) * kBlock) > last_key) --end;
  }
  return {begin, end};
}

// Adds the contributions of some queries and at most kKeyBlocks blocks of keys to all gradients.
template <class Products>
inline void BackwardBlocks(const AttentionArgs& args, const BackwardScratch& scratch,
                           const QueryBlocks& queries, Range blocks) {
  const int64_t width = scratch.width, row = width * kBlockHalves;
  const float to_power = kLog2E / std::sqrt(static_cast<float>(args.head_dim));
  Range keys_of[kQueryBlocks];
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const int64_t index = block - blocks.begin;
    const Range seeing = BlocksThatSee(args, queries, block);
    for (int64_t q = seeing.begin; q < seeing.end; ++q) {
      if (keys_of[q].size() == 0) keys_of[q].begin = index;
      keys_of[q].end = index + 1;
      Products::Multiply({scratch.keys + block * row, kBlockHalves},
                         {scratch.transposed_query + q * row, kBlockHalves}, width, scratch.scores,
                         false);
      Products::Multiply({scratch.values + block * row, kBlockHalves},
                         {scratch.transposed_d_out + q * row, kBlockHalves}, width,
                         scratch.d_weights, false);
      const Sight sight(args, block * kBlock, queries.first + q * kBlock);
      const int64_t at = (index * kQueryBlocks + q) * kBlockHalves;
      const Statistics& statistics = queries.statistics[q];
      sight.All() ? WeighBackward<true>(scratch, sight, statistics, to_power, at)
                  : WeighBackward<false>(scratch, sight, statistics, to_power, at);
    }
    if (seeing.size() <= 0) continue;
    const int64_t at = (index * kQueryBlocks + seeing.begin) * kBlockHalves;
    for (int64_t col = 0; col < width; ++col) {
      const int64_t from = seeing.begin * row + col * kBlockHalves;
      const int64_t to = (block * width + col) * kBlockFloats;
      Products::Multiply({scratch.weights + at, kBlockHalves}, {scratch.d_out + from, row},
                         seeing.size(), scratch.d_values + to, true);
      Products::Multiply({scratch.d_scores + at, kBlockHalves}, {scratch.query + from, row},
                         seeing.size(), scratch.d_keys + to, true);
    }
  }
  for (int64_t q = 0; q < queries.count; ++q) {
    const Range keys = keys_of[q];
    for (int64_t col = 0; col < width && keys.size() > 0; ++col) {
      Products::Multiply(
          {scratch.transposed_keys + (blocks.begin + keys.begin) * row + col * kBlockHalves, row},
          {scratch.paired_d_scores + (keys.begin * kQueryBlocks + q) * kBlockHalves,
           kQueryBlocks * kBlockHalves},
          keys.size(), scratch.d_query + (q * width + col) * kBlockFloats, true);
    }
  }
}

inline __m512 Widen(__m512i halves, int part) {
  const __m256i bits =
      part == 0 ? _mm512_castsi512_si256(halves) : _mm512_extracti64x4_epi64(halves, 1);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

float Dot(const Rows& a, const Rows& b, int64_t row) {
  __m512 sum = _mm512_setzero_ps();
  for (int64_t col = 0; col < a.cols; col += kBlock) {
    const __m512i left = LoadHalves(a, row, col), right = LoadHalves(b, row, col);
    sum = _mm512_fmadd_ps(Widen(left, 0), Widen(right, 0), sum);
    sum = _mm512_fmadd_ps(Widen(left, 1), Widen(right, 1), sum);
  }
  return _mm512_reduce_add_ps(sum);
}

template <class Products>
void BackwardHead(const AttentionBackwardArgs& args, const BackwardScratch& scratch, int64_t batch,
                  int64_t head) {
  const AttentionArgs& forward = args.forward;
  const int64_t width = scratch.width, seq = forward.seq;
  const auto rows_of = [&](const Matrix& matrix) {
    return Rows(matrix, batch * seq, seq, head, forward.head_dim);
  };
  const Rows query = rows_of(forward.q), out = rows_of(forward.out);
  const Rows d_out = rows_of(args.d_out), d_query = rows_of(args.d_q);
  const float* log_sum_exp = forward.log_sum_exp.as<float>() + (batch * forward.heads + head) * seq;
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(static_cast<float>(forward.head_dim)));
  const __m512 scales[2] = {scale, scale};
  for (int64_t first = 0; first < seq; first += kQueryBlocks * kBlock) {
    QueryBlocks queries;
    queries.first = first;
    queries.count = std::min(kQueryBlocks, BlocksOf(seq - first));
    for (int64_t q = 0; q < queries.count; ++q) {
      const int64_t begin = first + q * kBlock, at = q * width * kBlockHalves;
      PackBlocks<Form::kPairs>(query.From(begin), scratch.query + at);
      PackBlocks<Form::kTransposed>(query.From(begin), scratch.transposed_query + at);
      PackBlocks<Form::kPairs>(d_out.From(begin), scratch.d_out + at);
      PackBlocks<Form::kTransposed>(d_out.From(begin), scratch.transposed_d_out + at);
      for (int64_t i = 0; i < kBlock; ++i) {
        const bool inside = begin + i < seq;
        queries.statistics[q].log_sum_exp[i] = inside ? log_sum_exp[begin + i] * kLog2E : 0;
        queries.statistics[q].delta[i] = inside ? Dot(out, d_out, begin + i) : 0;
      }
    }
    std::fill(scratch.d_query, scratch.d_query + queries.count * width * kBlockFloats, 0.0f);
    const Range blocks = KeyBlocks(forward, first, queries.count * kBlock);
    for (int64_t begin = blocks.begin; begin < blocks.end; begin += kKeyBlocks) {
      BackwardBlocks<Products>(forward, scratch, queries,
                               {begin, std::min(begin + kKeyBlocks, blocks.end)});
    }
    for (int64_t q = 0; q < queries.count; ++q) {
      WriteTransposed(scratch.d_query + q * width * kBlockFloats, scales,
                      d_query.From(first + q * kBlock));
    }
  }
}

template <class Products>
void ForwardGroups(const AttentionArgs& args, float* memory, Range groups) {
  [[maybe_unused]] const Products products;
  const ForwardScratch scratch(args, memory);
  const int64_t heads_per_group = args.heads / args.kv_heads;
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const int64_t b = g / args.kv_heads, kv_head = g % args.kv_heads;
    const AttentionArgs of_sequence = WithDocumentsOf(args, b);
    PackAll<Form::kRows>(Rows(args.k, b * args.seq, args.seq, kv_head, args.head_dim),
                         scratch.keys);
    PackAll<Form::kTransposedPairs>(Rows(args.v, b * args.seq, args.seq, kv_head, args.head_dim),
                                    scratch.values);
    for (int64_t i = 0; i < heads_per_group; ++i) {
      ForwardHead<Products>(of_sequence, scratch, b, kv_head * heads_per_group + i);
    }
  }
}

template <class Products>
void BackwardGroups(const AttentionBackwardArgs& args, float* memory, Range groups) {
  [[maybe_unused]] const Products products;
  const AttentionArgs& forward = args.forward;
  const BackwardScratch scratch(forward, memory);
  const int64_t heads_per_group = forward.heads / forward.kv_heads;
  const int64_t gradients = BlocksOf(forward.seq) * scratch.width * kBlockFloats;
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    const int64_t b = g / forward.kv_heads, kv_head = g % forward.kv_heads;
    AttentionBackwardArgs of_sequence = args;
    of_sequence.forward = WithDocumentsOf(forward, b);
    const auto rows_of = [&](const Matrix& matrix) {
      return Rows(matrix, b * forward.seq, forward.seq, kv_head, forward.head_dim);
    };
    PackAll<Form::kRows>(rows_of(forward.k), scratch.keys);
    PackAll<Form::kTransposedPairs>(rows_of(forward.k), scratch.transposed_keys);
    PackAll<Form::kRows>(rows_of(forward.v), scratch.values);
    std::fill(scratch.d_keys, scratch.d_keys + gradients, 0.0f);
    std::fill(scratch.d_values, scratch.d_values + gradients, 0.0f);
    for (int64_t i = 0; i < heads_per_group; ++i) {
      BackwardHead<Products>(of_sequence, scratch, b, kv_head * heads_per_group + i);
    }
    WriteAll(scratch.d_keys, 1.0f / std::sqrt(static_cast<float>(forward.head_dim)),
             rows_of(args.d_k));
    WriteAll(scratch.d_values, 1, rows_of(args.d_v));
  }
}

}  // namespace
}  // namespace blocks

using namespace blocks;

int64_t BlockAttentionScratchSize(const AttentionArgs& args) {
  return blocks::ForwardScratch(args, nullptr).size;
}
int64_t BlockAttentionBackwardScratchSize(const AttentionArgs& args) {
  return blocks::BackwardScratch(args, nullptr).size;
}

void BlockAttention(const AttentionArgs& args, float* memory, Range groups) {
  HasTiles() ? ForwardGroups<OnTiles>(args, memory, groups)
             : ForwardGroups<OnVectors>(args, memory, groups);
}

void BlockAttentionBackward(const AttentionBackwardArgs& args, float* memory, Range groups) {
  HasTiles() ? BackwardGroups<OnTiles>(args, memory, groups)
             : BackwardGroups<OnVectors>(args, memory, groups);
}

}  // namespace megascale::ops::cpu
#pragma GCC pop_options
