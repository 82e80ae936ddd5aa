#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "gpu/kernels/embedding_params.h"
#include "gpu/ops/operators.h"
#include "gpu/ops/row_launch.h"
#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"

namespace megascale::gpu {
namespace {

using tensor::DType;
using tensor::Matrix;

void LaunchOverTokens(Launcher& launcher, const char* kernel, int64_t num_tokens,
                      const auto& params) {
  launcher.Launch(kernel,
                  {.grid = {ToGridSize(DivideUp(num_tokens, kernels::kTokenOrderThreads)), 1, 1},
                   .threads = kernels::kTokenOrderThreads},
                  params);
}

}  // namespace

void Embedding(Launcher& launcher, const ops::EmbeddingArgs& args) {
  const DType dtype = args.out.dtype;
  CheckArguments(args, dtype);
  const RowLaunch rows = LaunchOver(
      args.out, PackOf(dtype), AreAligned({args.token_weight, args.position_weight, args.out}));
  launcher.Launch(absl::StrCat("Embedding", tensor::Name(dtype)).c_str(), rows.shape,
                  kernels::EmbeddingParams{.tokens = args.tokens.as<int32_t>(),
                                           .token_weight = RowsOf(args.token_weight),
                                           .position_weight = RowsOf(args.position_weight),
                                           .out = RowsOf(args.out),
                                           .first_token = args.vocabulary.first_token,
                                           .num_rows = args.token_weight.rows,
                                           .seq = args.seq,
                                           .document_begins = args.document_begins.as<int32_t>(),
                                           .split = rows.split});
}

void EmbeddingBackward(Launcher& launcher, const ops::EmbeddingBackwardArgs& args) {
  const DType dtype = args.d_out.dtype;
  CheckArguments(args, dtype);
  const int64_t num_tokens = args.tokens.size;
  // Threads count in 32 bits, and the grid has to fit too.
  MEGASCALE_CHECK(num_tokens <= std::numeric_limits<int32_t>::max() / kernels::kRowThreads);
  if (num_tokens == 0) return;
  auto* sorted_tokens = static_cast<int32_t*>(
      launcher.Workspace(3 * static_cast<size_t>(num_tokens) * sizeof(int32_t)));
  int32_t* order = sorted_tokens + num_tokens;
  int32_t* positions = order + num_tokens;
  const auto sort = [&](const int32_t* tokens, bool is_aligned) {
    LaunchOverTokens(launcher, "TokenOrder", num_tokens,
                     kernels::TokenOrderParams{.tokens = tokens,
                                               .sorted_tokens = sorted_tokens,
                                               .order = order,
                                               .num_tokens = static_cast<int32_t>(num_tokens),
                                               .is_aligned = is_aligned});
  };
  sort(args.tokens.as<int32_t>(), IsAligned(args.tokens));
  kernels::EmbeddingBackwardParams params = {.sorted_tokens = sorted_tokens,
                                             .order = order,
                                             .num_tokens = static_cast<int32_t>(num_tokens),
                                             .d_out = RowsOf(args.d_out),
                                             .d_weight = RowsOf(args.d_token_weight),
                                             .first_token = args.vocabulary.first_token,
                                             .num_rows = args.d_token_weight.rows,
                                             .seq = args.seq,
                                             .split = {}};
  const auto launch = [&](const char* name, int64_t num_rows, const Matrix& d_weight) {
    const int64_t packs = DivideUp(args.d_out.cols, PackOf(dtype));
    const RowLaunch rows =
        LaunchOfRows(num_rows, args.d_out.cols, packs, AreAligned({args.d_out, d_weight}));
    params.split = rows.split;
    params.d_weight = RowsOf(d_weight);
    launcher.Launch(absl::StrCat(name, tensor::Name(dtype)).c_str(), rows.shape, params);
  };
  launch("EmbeddingBackward", num_tokens, args.d_token_weight);
  if (!args.d_position_weight) return;
  if (!args.document_begins) {
    launch("PositionBackward", std::min(args.seq, num_tokens), args.d_position_weight);
    return;
  }
  LaunchOverTokens(
      launcher, "DocumentPositions", num_tokens,
      kernels::DocumentPositionsParams{.document_begins = args.document_begins.as<int32_t>(),
                                       .positions = positions,
                                       .num_tokens = static_cast<int32_t>(num_tokens),
                                       .seq = args.seq});
  sort(positions, /*is_aligned=*/num_tokens % 4 == 0);
  params.first_token = 0;
  params.num_rows = args.d_position_weight.rows;
  launch("EmbeddingBackward", num_tokens, args.d_position_weight);
}

}  // namespace megascale::gpu
