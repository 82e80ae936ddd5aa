// Finds the matrix products of a rank's steps before the first step. The rank's plan runs once with
// operators that only record their calls. The calls have addresses of the rank's own memory, which
// nothing reads or writes meanwhile. Threads: plain functions.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::engine {

// A chunk of the rank, with its memory.
struct ChunkWork {
  model::ChunkOptions options;
  model::ChunkParameters parameters;
  void* activations = nullptr;
  size_t activation_bytes = 0;
};

struct RankWork {
  const plan::RankPlan* plan = nullptr;
  std::vector<ChunkWork> chunks;  // of the plan, by its index
  // Points the chunk at the gradient buffer of an instruction that has one.
  std::function<void(const plan::Instruction& instruction, model::TransformerChunk* chunk)>
      add_gradients;
  // Returns the layer down to which a backward goes, counted from 0 in its chunk.
  std::function<int(const plan::Instruction& instruction)> first_layer_of;
};

// Returns the products of a step. Of products that differ only in their addresses, and there by
// whole cache lines, it returns one. Errors: as TransformerChunk::Create. Cost: microseconds per
// layer and pass.
absl::StatusOr<std::vector<ops::MatMulArgs>> ProductCallsOf(const RankWork& work);

}  // namespace megascale::engine
