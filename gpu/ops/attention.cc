#include <cmath>
#include <cstdint>
#include <limits>

#include "gpu/kernels/attention_params.h"
#include "gpu/ops/operators.h"
#include "gpu/ops/row_launch.h"
#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"

namespace megascale::gpu {
namespace {

using kernels::AttentionMatrix;
using kernels::AttentionParams;
using tensor::DType;

AttentionMatrix MatrixOf(const ops::Matrix& matrix) { return {matrix.data, matrix.stride}; }

AttentionParams ParamsOf(const ops::AttentionArgs& args) {
  MEGASCALE_CHECK(args.head_dim <= kernels::kPlainHeadDimMax);
  MEGASCALE_CHECK(args.seq <= std::numeric_limits<int32_t>::max() / 2);
  return {.q = MatrixOf(args.q),
          .k = MatrixOf(args.k),
          .v = MatrixOf(args.v),
          .out = MatrixOf(args.out),
          .log_sum_exp = args.log_sum_exp.as<float>(),
          .d_out = {},
          .d_q = {},
          .d_k = {},
          .d_v = {},
          .delta = nullptr,
          .document_begins = args.document_begins.as<int32_t>(),
          .seq = static_cast<int32_t>(args.seq),
          .heads = static_cast<int32_t>(args.heads),
          .kv_heads = static_cast<int32_t>(args.kv_heads),
          .head_dim = static_cast<int32_t>(args.head_dim),
          // A window that reaches further than the sequence is none.
          .window = static_cast<int32_t>(args.window < args.seq ? args.window : 0),
          .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(args.head_dim)))};
}

// The kernels on tensor cores move 16 bytes at a time.
bool UsesTensorCores(const ops::AttentionArgs& args) {
  return args.q.dtype == DType::kBF16 && (args.head_dim == 64 || args.head_dim == 128) &&
         AreAligned({args.q, args.k, args.v, args.out});
}
bool UsesTensorCores(const ops::AttentionBackwardArgs& args) {
  return UsesTensorCores(args.forward) && AreAligned({args.d_out, args.d_q, args.d_k, args.d_v});
}

// Launches a kernel in which a warp owns a row of one of `heads`.
void LaunchRows(Launcher& launcher, const char* kernel, const ops::AttentionArgs& args,
                int64_t heads, const AttentionParams& params) {
  constexpr int kRowsOfBlock = kernels::kPlainAttentionThreads / 32;
  launcher.Launch(kernel,
                  {.grid = {ToGridSize(DivideUp(args.seq, kRowsOfBlock)), static_cast<int>(heads),
                            static_cast<int>(args.batch)},
                   .threads = kernels::kPlainAttentionThreads},
                  params);
}

// Launches a kernel in which a block owns a tile of rows of one of `heads`.
void LaunchTiles(Launcher& launcher, const char* kernel, const ops::AttentionArgs& args,
                 int64_t heads, int shared_bytes, const AttentionParams& params) {
  launcher.Launch(kernel,
                  {.grid = {ToGridSize(DivideUp(args.seq, kernels::kAttentionRows)),
                            static_cast<int>(heads), static_cast<int>(args.batch)},
                   .threads = kernels::kAttentionThreads,
                   .shared_bytes = static_cast<size_t>(shared_bytes)},
                  params);
}

}  // namespace

void Attention(Launcher& launcher, const ops::AttentionArgs& args) {
  CheckArguments(args, args.q.dtype);
  const AttentionParams params = ParamsOf(args);
  if (!UsesTensorCores(args)) {
    return LaunchRows(
        launcher,
        args.q.dtype == DType::kF32 ? "AttentionPlainForwardF32" : "AttentionPlainForwardBF16",
        args, args.heads, params);
  }
  LaunchTiles(launcher, args.head_dim == 64 ? "AttentionForward64" : "AttentionForward128", args,
              args.heads, kernels::AttentionForwardBytes(params.head_dim), params);
}

void AttentionBackward(Launcher& launcher, const ops::AttentionBackwardArgs& args) {
  const ops::AttentionArgs& forward = args.forward;
  CheckArguments(args, forward.q.dtype);
  AttentionParams params = ParamsOf(forward);
  params.d_out = MatrixOf(args.d_out);
  params.d_q = MatrixOf(args.d_q);
  params.d_k = MatrixOf(args.d_k);
  params.d_v = MatrixOf(args.d_v);
  params.delta = static_cast<float*>(
      launcher.Workspace(static_cast<size_t>(forward.log_sum_exp.size) * sizeof(float)));
  const bool is_f32 = forward.q.dtype == DType::kF32;
  LaunchRows(launcher, is_f32 ? "AttentionDeltaF32" : "AttentionDeltaBF16", forward, forward.heads,
             params);
  if (!UsesTensorCores(args)) {
    LaunchRows(launcher, is_f32 ? "AttentionPlainQueriesF32" : "AttentionPlainQueriesBF16", forward,
               forward.heads, params);
    LaunchRows(launcher, is_f32 ? "AttentionPlainKeysF32" : "AttentionPlainKeysBF16", forward,
               forward.kv_heads, params);
    return;
  }
  const bool is_64 = forward.head_dim == 64;
  LaunchTiles(launcher, is_64 ? "AttentionBackwardQueries64" : "AttentionBackwardQueries128",
              forward, forward.heads, kernels::AttentionQueriesBytes(params.head_dim), params);
  LaunchTiles(launcher, is_64 ? "AttentionBackwardKeys64" : "AttentionBackwardKeys128", forward,
              forward.kv_heads, kernels::AttentionKeysBytes(params.head_dim), params);
}

}  // namespace megascale::gpu
