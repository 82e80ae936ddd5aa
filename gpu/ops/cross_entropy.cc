#include <cstdint>
#include <limits>

#include "gpu/kernels/cross_entropy_params.h"
#include "gpu/ops/operators.h"
#include "gpu/ops/row_launch.h"
#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"

namespace megascale::gpu {
namespace {

using kernels::LogitRows;
using tensor::DType;

constexpr size_t kLossScratchBytes =
    32 * (sizeof(float) + sizeof(double));  // of the two reductions
constexpr int kCombineThreads = 128;
// Below this many columns, many threads would have nothing to do.
constexpr int64_t kLongRow = 8192;

LogitRows RowsOf(const ops::Matrix& logits, const ops::Vector& targets,
                 const ops::VocabularyPart& part) {
  MEGASCALE_CHECK(logits.dtype == DType::kF32 || logits.dtype == DType::kBF16);
  MEGASCALE_CHECK(logits.rows <= std::numeric_limits<int>::max());
  MEGASCALE_CHECK(logits.cols <= std::numeric_limits<int>::max() / 2);
  return {.logits = logits.data,
          .rows = logits.rows,
          .stride = logits.stride,
          .cols = static_cast<int32_t>(logits.cols),
          .is_aligned = reinterpret_cast<uintptr_t>(logits.data) % 16 == 0,
          .targets = targets.as<const int32_t>(),
          .first_token = part.first_token};
}

// A block for each row.
LaunchShape ShapeFor(const ops::Matrix& logits) {
  return {.grid = {static_cast<int>(logits.rows), 1, 1},
          .threads = logits.cols < kLongRow ? 128 : 512,
          .shared_bytes = kLossScratchBytes};
}

void CrossEntropyOfPart(Launcher& launcher, const ops::CrossEntropyArgs& args) {
  const int64_t rows = args.logits.rows;
  auto* const losses = static_cast<double*>(
      launcher.Workspace(static_cast<size_t>(rows) * (2 * sizeof(double) + sizeof(float))));
  double* const sums = losses + rows;
  auto* const greatest = reinterpret_cast<float*>(sums + rows);
  const int64_t part_size = args.vocabulary.vocab_size;
  launcher.Launch(
      "CombineStatisticsF32",
      {.grid = {ToGridSize(DivideUp(rows, kCombineThreads)), 1, 1}, .threads = kCombineThreads},
      kernels::CombineStatisticsParams{
          .statistics = args.statistics.as<const float>(),
          .targets = args.targets.as<const int32_t>(),
          .rows = rows,
          .num_parts = static_cast<int32_t>(args.statistics.size / (3 * rows)),
          .vocab_size = part_size == 0 ? args.logits.cols : part_size,
          .losses = losses,
          .sums = sums,
          .greatest = greatest});
  if (args.backward) {
    launcher.Launch(
        args.logits.dtype == DType::kF32 ? "GradientOfPartF32" : "GradientOfPartBF16",
        ShapeFor(args.logits),
        kernels::GradientOfPartParams{.rows = RowsOf(args.logits, args.targets, args.vocabulary),
                                      .gradient_scale = args.gradient_scale,
                                      .sums = sums,
                                      .greatest = greatest});
  }
  AddTotal(launcher, {losses, DType::kF64, rows}, args.loss_sum);
}

}  // namespace

void LogitStatistics(Launcher& launcher, const ops::LogitStatisticsArgs& args) {
  CheckArguments(args, args.logits.dtype);
  launcher.Launch(
      args.logits.dtype == DType::kF32 ? "LogitStatisticsF32" : "LogitStatisticsBF16",
      ShapeFor(args.logits),
      kernels::LogitStatisticsParams{.rows = RowsOf(args.logits, args.targets, args.vocabulary),
                                     .statistics = args.statistics.as<float>()});
}

void CrossEntropy(Launcher& launcher, const ops::CrossEntropyArgs& args) {
  CheckArguments(args, args.logits.dtype);
  const int64_t rows = args.logits.rows;
  if (rows == 0) return;
  if (args.statistics) return CrossEntropyOfPart(launcher, args);
  auto* const losses =
      static_cast<double*>(launcher.Workspace(static_cast<size_t>(rows) * sizeof(double)));
  launcher.Launch(
      args.logits.dtype == DType::kF32 ? "CrossEntropyF32" : "CrossEntropyBF16",
      ShapeFor(args.logits),
      kernels::CrossEntropyParams{.rows = RowsOf(args.logits, args.targets, args.vocabulary),
                                  .backward = args.backward,
                                  .gradient_scale = args.gradient_scale,
                                  .losses = losses});
  AddTotal(launcher, {losses, DType::kF64, rows}, args.loss_sum);
}

}  // namespace megascale::gpu
