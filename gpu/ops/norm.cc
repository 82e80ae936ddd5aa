#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gpu/kernels/norm_params.h"
#include "gpu/ops/operators.h"
#include "gpu/ops/row_launch.h"
#include "runtime/base/check.h"
#include "runtime/layout/cuda_memory.h"
#include "runtime/ops/check_arguments.h"

namespace megascale::gpu {
namespace {

using tensor::DType;
using tensor::Matrix;
using tensor::Vector;

constexpr int kWarp = 32;
// Ranges of rows that become partial sums: enough to fill a large device, few enough that reading
// them again costs little beside the rows themselves.
constexpr int64_t kNormBlocksMax = layout::kCudaNormBlocksMax;
constexpr int64_t kNormRowsMin = 4;  // of each warp or block that works on a row
constexpr int64_t kColumnBlocksMax = 1024;
constexpr int64_t kColumnRowsMin = 32;

int ToInt32(int64_t value) {
  MEGASCALE_CHECK(value <= std::numeric_limits<int32_t>::max());
  return static_cast<int>(value);
}

// How many warps share a row, and the threads of a block.
struct NormShape {
  int warps_of_row = 1;
  int rows_at_once = kernels::kNormRowsOfBlock;
  int threads = 0;
};
NormShape ShapeOf(int64_t cols) {
  MEGASCALE_CHECK_MSG(cols <= kernels::kNormColumnsMax,
                      absl::StrCat("a norm over ", cols, " columns; at most ",
                                   kernels::kNormColumnsMax, " fit the registers of a block"));
  NormShape shape;
  while (int64_t{shape.warps_of_row} * kWarp * kernels::kNormElements < cols) {
    shape.warps_of_row *= 2;
  }
  if (shape.warps_of_row > 1) shape.rows_at_once = 1;
  shape.threads = shape.warps_of_row * shape.rows_at_once * kWarp;
  return shape;
}

bool AreWholePacks(int64_t cols, DType dtype) { return cols % PackOf(dtype) == 0; }

// Adds the partial sums to the outputs; the second may be absent.
void FoldPartials(Launcher& launcher, const float* partials, int64_t parts, const Vector& first,
                  const Vector& second) {
  launcher.Launch("FoldColumns",
                  {.grid = {ToGridSize(DivideUp(first.size, kWarp)), second ? 2 : 1, 1},
                   .threads = kernels::kFoldThreads,
                   .shared_bytes = kernels::kFoldThreads * sizeof(float)},
                  kernels::FoldParams{.partials = partials,
                                      .out = {first.as<float>(), second.as<float>()},
                                      .parts = ToInt32(parts),
                                      .cols = ToInt32(first.size)});
}

float* PartialsOf(Launcher& launcher, int64_t parts, int64_t cols) {
  return static_cast<float*>(launcher.Workspace(static_cast<size_t>(parts * cols) * sizeof(float)));
}

}  // namespace

void Norm(Launcher& launcher, const ops::NormArgs& args) {
  const DType dtype = args.x.dtype;
  CheckArguments(args, dtype);
  if (args.x.rows == 0 || args.x.cols == 0) return;
  const NormShape shape = ShapeOf(args.x.cols);
  const bool is_layer_norm = args.kind == ops::NormKind::kLayerNorm;
  const bool is_aligned =
      AreWholePacks(args.x.cols, dtype) &&
      AreAligned({args.x, args.out, AsRow(args.weight), AsRow(args.bias), args.delta, args.sum});
  launcher.Launch(absl::StrCat("NormForward", tensor::Name(dtype)).c_str(),
                  {.grid = {ToGridSize(DivideUp(args.x.rows, shape.rows_at_once)), 1, 1},
                   .threads = shape.threads,
                   .shared_bytes = kernels::kNormScratchFloats * sizeof(float)},
                  kernels::NormParams{.x = RowsOf(args.x),
                                      .delta = RowsOf(args.delta),
                                      .sum = RowsOf(args.sum),
                                      .out = RowsOf(args.out),
                                      .weight = args.weight.data,
                                      .bias = args.bias.data,
                                      .mean = is_layer_norm ? args.mean.as<float>() : nullptr,
                                      .rstd = args.rstd.as<float>(),
                                      .rows = ToInt32(args.x.rows),
                                      .cols = ToInt32(args.x.cols),
                                      .warps_of_row = shape.warps_of_row,
                                      .eps = static_cast<float>(args.eps),
                                      .is_aligned = is_aligned});
}

void NormBackward(Launcher& launcher, const ops::NormBackwardArgs& args) {
  const DType dtype = args.x.dtype;
  CheckArguments(args, dtype);
  const int64_t rows = args.x.rows, cols = args.x.cols;
  if (rows == 0 || cols == 0) return;
  const NormShape shape = ShapeOf(cols);
  const int64_t rows_of_block =
      std::max(kNormRowsMin * shape.rows_at_once, DivideUp(rows, kNormBlocksMax));
  const int64_t blocks = DivideUp(rows, rows_of_block);
  float* partials = PartialsOf(launcher, 2 * blocks, cols);
  const bool is_layer_norm = args.kind == ops::NormKind::kLayerNorm;
  launcher.Launch(
      absl::StrCat("NormBackward", tensor::Name(dtype)).c_str(),
      {.grid = {ToGridSize(blocks), 1, 1},
       .threads = shape.threads,
       .shared_bytes = static_cast<size_t>(
           kernels::NormBackwardBytes(shape.threads, static_cast<int>(tensor::SizeOf(dtype))))},
      kernels::NormBackwardParams{
          .x = RowsOf(args.x),
          .d_out = RowsOf(args.d_out),
          .d_x = RowsOf(args.d_x),
          .weight = args.weight.data,
          .mean = is_layer_norm ? args.mean.as<float>() : nullptr,
          .rstd = args.rstd.as<float>(),
          .partials = partials,
          .rows = ToInt32(rows),
          .cols = ToInt32(cols),
          .warps_of_row = shape.warps_of_row,
          .rows_of_block = ToInt32(rows_of_block),
          .is_aligned = AreWholePacks(cols, dtype) &&
                        AreAligned({args.x, args.d_out, args.d_x, AsRow(args.weight)})});
  FoldPartials(launcher, partials, blocks, args.d_weight, args.d_bias);
}

void AddColumnSums(Launcher& launcher, const Matrix& x, const Vector& out) {
  ops::CheckColumnSums(x, out, x.dtype);
  if (x.rows == 0 || x.cols == 0) return;
  const int64_t tiles = DivideUp(x.cols, kWarp * PackOf(x.dtype));
  const int64_t blocks_max = std::max<int64_t>(1, kColumnBlocksMax / tiles);
  const int64_t rows_of_block = std::max(kColumnRowsMin, DivideUp(x.rows, blocks_max));
  const int64_t blocks = DivideUp(x.rows, rows_of_block);
  float* partials = PartialsOf(launcher, blocks, x.cols);
  launcher.Launch(
      absl::StrCat("ColumnSums", tensor::Name(x.dtype)).c_str(),
      {.grid = {ToGridSize(tiles), ToGridSize(blocks), 1},
       .threads = kernels::kColumnSumsThreads,
       .shared_bytes =
           static_cast<size_t>(kernels::kColumnSumsThreads * PackOf(x.dtype)) * sizeof(float)},
      kernels::ColumnSumsParams{.x = RowsOf(x),
                                .partials = partials,
                                .rows = ToInt32(x.rows),
                                .cols = ToInt32(x.cols),
                                .rows_of_block = ToInt32(rows_of_block),
                                .is_aligned = IsAligned(x)});
  FoldPartials(launcher, partials, blocks, out, Vector());
}

}  // namespace megascale::gpu
