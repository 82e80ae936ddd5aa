#include <algorithm>
#include <cstdint>

#include "gpu/kernels/numbers_params.h"
#include "gpu/ops/operators.h"
#include "gpu/ops/row_launch.h"
#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"

namespace megascale::gpu {
namespace {

using kernels::NotFinite;
using tensor::DType;

constexpr int kThreads = 256;
constexpr size_t kBlockScratchBytes = 32 * sizeof(double);  // of a reduction over a block
// As many blocks as a large device runs at once; the second kernel adds their results in one block.
constexpr int64_t kBlocksMax = 1024;
constexpr int64_t kBytesPerBlock = 64 << 10;  // from which on a tensor is worth another block
constexpr uintptr_t kLoadBytes = 16;

bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kLoadBytes == 0; }

int64_t BlocksFor(int64_t bytes) {
  return std::clamp<int64_t>(DivideUp(bytes, kBytesPerBlock), 1, kBlocksMax);
}

const char* FindKernelFor(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "FindNotFiniteF64";
    case DType::kF32:
      return "FindNotFiniteF32";
    case DType::kBF16:
      return "FindNotFiniteBF16";
    case DType::kI32:
      break;
  }
  base::CheckFailed(__FILE__, __LINE__, "x is of floating point", "x is I32");
}

}  // namespace

void AddSumOfSquares(Launcher& launcher, const ops::Vector& x, const ops::Vector& out) {
  MEGASCALE_CHECK(x.dtype == DType::kF32);
  ops::CheckNumbers("out", out, 1);
  if (x.size == 0) return;
  const auto num_blocks = static_cast<int>(BlocksFor(x.bytes()));
  auto* const partials = num_blocks == 1 ? nullptr
                                         : static_cast<double*>(launcher.Workspace(
                                               sizeof(double) * static_cast<size_t>(num_blocks)));
  launcher.Launch(
      "SumOfSquaresF32",
      {.grid = {num_blocks, 1, 1}, .threads = kThreads, .shared_bytes = kBlockScratchBytes},
      kernels::SumOfSquaresParams{.x = x.as<const float>(),
                                  .size = x.size,
                                  .is_aligned = IsAligned(x.data),
                                  .partials = partials,
                                  .out = out.as<double>()});
  if (num_blocks == 1) return;
  launcher.Launch("AddPartialsF64", {.threads = kThreads, .shared_bytes = kBlockScratchBytes},
                  kernels::AddPartialsParams{
                      .partials = partials, .num_partials = num_blocks, .out = out.as<double>()});
}

void AddTotal(Launcher& launcher, const ops::Vector& x, const ops::Vector& out) {
  ops::CheckNumbers("x", x, x.size);
  ops::CheckNumbers("out", out, 1);
  if (x.size == 0) return;
  launcher.Launch(
      "AddTotalF64", {.threads = 32},
      kernels::AddTotalParams{.x = x.as<const double>(), .size = x.size, .out = out.as<double>()});
}

void FirstNotFinite(Launcher& launcher, const ops::Matrix& x, const ops::Vector& out) {
  ops::CheckFirstNotFinite(x, out, x.dtype);
  if (x.rows == 0 || x.cols == 0) return launcher.FillZero(out.data, sizeof(double));
  const auto element = static_cast<int64_t>(tensor::SizeOf(x.dtype));
  // Rows without gaps are one row.
  const bool is_one_row = x.stride == x.cols;
  const int64_t rows = is_one_row ? 1 : x.rows;
  const int64_t cols = is_one_row ? x.rows * x.cols : x.cols;
  const int64_t blocks_of_row = BlocksFor(cols * element);
  const int64_t blocks = BlocksFor(rows * cols * element);
  const auto blocks_of_col = static_cast<int>(std::min(rows, blocks / blocks_of_row));
  const auto num_blocks = static_cast<int>(blocks_of_row * blocks_of_col);
  auto* const found = static_cast<NotFinite*>(
      launcher.Workspace(sizeof(NotFinite) * static_cast<size_t>(num_blocks)));
  launcher.Launch(
      FindKernelFor(x.dtype),
      {.grid = {static_cast<int>(blocks_of_row), blocks_of_col, 1},
       .threads = kThreads,
       .shared_bytes = kBlockScratchBytes},
      kernels::FindNotFiniteParams{
          .x = x.data,
          .rows = rows,
          .cols = cols,
          .stride = x.stride,
          .is_aligned = IsAligned(x.data) &&
                        (rows == 1 || x.stride * element % static_cast<int64_t>(kLoadBytes) == 0),
          .found = found});
  launcher.Launch("PickNotFiniteF64", {.threads = kThreads, .shared_bytes = kBlockScratchBytes},
                  kernels::PickNotFiniteParams{
                      .found = found, .num_found = num_blocks, .out = out.as<double>()});
}

}  // namespace megascale::gpu
