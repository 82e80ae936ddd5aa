// Cross-entropy and its gradient, which overwrites the logits [N, V]. V is up to 200,000.
//
// A block owns a row; thread t of P owns its packs t, t + P, ... of 16 bytes. First pass: each
// thread keeps the greatest logit so far and the sum of exp(logit - greatest), which it rescales as
// the greatest grows; the block then combines the threads' numbers, sums in fp64. Second pass: the
// same thread replaces the same packs by (exp(logit - greatest) / sum - one_hot) * scale. Between
// the passes a row is in the L2 cache: bytes of device memory are 2 N V elements, and as many again
// are read from the cache. No copy of the logits, no intermediate but one fp64 loss a row.
//
// Loss and the target's gradient, where numbers of the same size cancel, are computed in fp64 by
// one thread a row, all else in fp32. The losses of rows are added in row order by numbers.cu.
//
// A vocabulary in parts: LogitStatistics is the first pass; CombineStatistics, a thread a row,
// combines the parts' statistics, [parts, 3, N], in the order of parts; GradientOfPart is the
// second pass.
//
// Rows of odd length begin anywhere: packs are those of the address, so a row's first and last pack
// may be partly outside of it. Where a row begins follows from shape and stride alone, and `logits`
// that is not aligned is read by elements in the same order: the bits do not depend on addresses.
//
// A NaN becomes a NaN in the sum, so in the loss and the whole row. A target that is no token gives
// a loss of NaN. Shared memory: 32 floats for the greatest, 32 doubles for the sum, used once each.
#include "gpu/kernels/cross_entropy_params.h"
#include "gpu/kernels/packs.h"
#include "gpu/kernels/reduce.h"
#include "gpu/kernels/vocabulary.h"

namespace megascale::kernels {

namespace {

// Below all logits. It is finite, so that no difference of two is NaN.
constexpr float kLowest = -3.402823466e38f;

// The elements of one row, in packs. Pack v begins at column v * kPack - skew.
template <typename T>
struct RowOfPacks {
  static constexpr int kPack = 16 / sizeof(T);

  MEGASCALE_DEVICE RowOfPacks(const LogitRows& rows, int64_t row)
      : logits(Global<T>(rows.logits) + row * rows.stride),
        cols(rows.cols),
        skew(static_cast<int>(row * rows.stride % kPack)),
        is_aligned(rows.is_aligned) {}

  MEGASCALE_DEVICE int num_packs() const { return (cols + skew + kPack - 1) / kPack; }
  MEGASCALE_DEVICE PackPlace Place(int v) const { return {v * kPack - skew, cols, is_aligned}; }
  MEGASCALE_DEVICE Pack<T, kPack> Load(int v) const {
    return LoadPack<kPack>(Global<const T>(logits.data()), Place(v), FromFloat<T>(-INFINITY));
  }
  MEGASCALE_DEVICE bool IsOwnerOf(int col) const {
    return (col + skew) / kPack % NumThreads() == ThreadIndex();
  }

  Global<T> logits;
  int cols;
  int skew;
  bool is_aligned;
};

// The column of a row's target; -1 if it is not among the columns.
MEGASCALE_DEVICE int TargetOf(const LogitRows& rows, int64_t row) {
  const int64_t col = Global<const int32_t>(rows.targets)[row] - rows.first_token;
  return col >= 0 && col < rows.cols ? static_cast<int>(col) : -1;
}

// Adds pairs of pairs: the order in which the chain from one pack to the next is shortest.
template <int kNum>
MEGASCALE_DEVICE float AddPairs(float (&x)[kNum]) {
  if constexpr (kNum == 1) {
    return x[0];
  } else {
    float half[kNum / 2];
    for (int j = 0; j < kNum / 2; ++j) half[j] = x[2 * j] + x[2 * j + 1];
    return AddPairs(half);
  }
}

struct Softmax {
  float greatest;
  double sum;  // of exp(logit - greatest)
};

// The first pass. All threads return the row's numbers.
template <typename T>
MEGASCALE_DEVICE Softmax SoftmaxOf(const RowOfPacks<T>& row) {
  constexpr int kPack = RowOfPacks<T>::kPack;
  const int num_packs = row.num_packs();
  float greatest = kLowest, sum = 0;
  for (int v = ThreadIndex(); v < num_packs; v += NumThreads()) {
    const Pack<T, kPack> pack = row.Load(v);
    float x[kPack];
    float greatest_here = kLowest;
    for (int j = 0; j < kPack; ++j) {
      x[j] = ToFloat(pack.at[j]);
      greatest_here = Greatest()(x[j], greatest_here);
    }
    if (greatest_here > greatest) {  // never with NaN
      sum *= Exp(greatest - greatest_here);
      greatest = greatest_here;
    }
    for (int j = 0; j < kPack; ++j) x[j] = Exp(x[j] - greatest);
    sum += AddPairs(x);
  }
  const float of_all = ReduceBlockOnce(greatest, Greatest(), DynamicShared<float>(0));
  const double share = sum == 0 ? 0 : static_cast<double>(sum * Exp(greatest - of_all));
  const Shared<double> scratch = DynamicShared<double>(kLanes * sizeof(float));
  return {of_all, ReduceBlockOnce(share, Sum(), scratch)};
}

// The second pass.
template <typename T>
MEGASCALE_DEVICE void WriteGradient(const RowOfPacks<T>& row, const Softmax& softmax, int target,
                                    double gradient_scale) {
  constexpr int kPack = RowOfPacks<T>::kPack;
  const bool is_mine = target >= 0 && row.IsOwnerOf(target);
  const float target_logit = is_mine ? ToFloat(row.logits[target]) : 0;
  const float greatest = softmax.greatest;
  const float scale = static_cast<float>(gradient_scale) / static_cast<float>(softmax.sum);
  const int num_packs = row.num_packs();
  for (int v = ThreadIndex(); v < num_packs; v += NumThreads()) {
    Pack<T, kPack> pack = row.Load(v);
    for (int j = 0; j < kPack; ++j) {
      pack.at[j] = FromFloat<T>(Exp(ToFloat(pack.at[j]) - greatest) * scale);
    }
    StorePack(row.logits, row.Place(v), pack);
  }
  if (!is_mine) return;
  const double power = Exp(static_cast<double>(target_logit) - greatest);
  row.logits[target] = FromFloat<T>(static_cast<float>((power / softmax.sum - 1) * gradient_scale));
}

MEGASCALE_DEVICE double LossOf(const Softmax& softmax, double target_logit) {
  return softmax.greatest + Log(softmax.sum) - target_logit;
}
MEGASCALE_DEVICE double NoLoss() {
  const double zero = 0;
  return zero / zero;
}

template <typename T>
MEGASCALE_DEVICE void LogitStatistics(const LogitStatisticsParams& params) {
  const int64_t n = BlockIndex();
  const RowOfPacks<T> row(params.rows, n);
  const Softmax softmax = SoftmaxOf(row);
  if (ThreadIndex() != 0) return;
  const int target = TargetOf(params.rows, n);
  const Global<float> statistics(params.statistics);
  statistics[n] = softmax.greatest;
  statistics[params.rows.rows + n] = static_cast<float>(softmax.sum);
  statistics[2 * params.rows.rows + n] = target >= 0 ? ToFloat(row.logits[target]) : 0;
}

template <typename T>
MEGASCALE_DEVICE void CrossEntropy(const CrossEntropyParams& params) {
  const int64_t n = BlockIndex();
  const RowOfPacks<T> row(params.rows, n);
  const int target = TargetOf(params.rows, n);
  // Before the first pass's barriers: behind them it may be overwritten.
  const float target_logit = target >= 0 ? ToFloat(row.logits[target]) : 0;
  const Softmax softmax = SoftmaxOf(row);
  if (ThreadIndex() == 0) {
    Global<double>(params.losses)[n] = target >= 0 ? LossOf(softmax, target_logit) : NoLoss();
  }
  if (params.backward) WriteGradient(row, softmax, target, params.gradient_scale);
}

template <typename T>
MEGASCALE_DEVICE void GradientOfPart(const GradientOfPartParams& params) {
  const int64_t n = BlockIndex();
  const Softmax softmax = {Global<const float>(params.greatest)[n],
                           Global<const double>(params.sums)[n]};
  WriteGradient(RowOfPacks<T>(params.rows, n), softmax, TargetOf(params.rows, n),
                params.gradient_scale);
}

}  // namespace

MEGASCALE_KERNEL(LogitStatisticsF32, LogitStatisticsParams, 512) { LogitStatistics<float>(params); }
MEGASCALE_KERNEL(LogitStatisticsBF16, LogitStatisticsParams, 512) {
  LogitStatistics<BFloat16>(params);
}

MEGASCALE_KERNEL(CrossEntropyF32, CrossEntropyParams, 512) { CrossEntropy<float>(params); }
MEGASCALE_KERNEL(CrossEntropyBF16, CrossEntropyParams, 512) { CrossEntropy<BFloat16>(params); }

MEGASCALE_KERNEL(CombineStatisticsF32, CombineStatisticsParams, 128) {
  const int64_t n = static_cast<int64_t>(BlockIndex()) * NumThreads() + ThreadIndex();
  if (n >= params.rows) return;
  const Global<const float> statistics = Global<const float>(params.statistics) + n;
  Softmax softmax = {kLowest, 0};
  for (int part = 0; part < params.num_parts; ++part) {
    softmax.greatest = Greatest()(softmax.greatest, statistics[3 * part * params.rows]);
  }
  double target_logit = 0;  // one part has it; the others have 0
  for (int part = 0; part < params.num_parts; ++part) {
    const Global<const float> of_part = statistics + 3 * part * params.rows;
    softmax.sum += of_part[params.rows] * Exp(static_cast<double>(of_part[0]) - softmax.greatest);
    target_logit += of_part[2 * params.rows];
  }
  const int32_t target = Global<const int32_t>(params.targets)[n];
  const bool is_token = target >= 0 && target < params.vocab_size;
  Global<double>(params.losses)[n] = is_token ? LossOf(softmax, target_logit) : NoLoss();
  Global<double>(params.sums)[n] = softmax.sum;
  Global<float>(params.greatest)[n] = softmax.greatest;
}

MEGASCALE_KERNEL(GradientOfPartF32, GradientOfPartParams, 512) { GradientOfPart<float>(params); }
MEGASCALE_KERNEL(GradientOfPartBF16, GradientOfPartParams, 512) {
  GradientOfPart<BFloat16>(params);
}

}  // namespace megascale::kernels
