// What one rank does in one training step, as data. step_plan.h builds it.
#pragma once

#include <string>
#include <vector>

#include "runtime/plan/instruction.h"
#include "runtime/plan/mesh.h"

namespace megascale::plan {

struct RankPlan {
  Mesh mesh = {};
  int rank = 0;
  int num_chunks = 1;  // in the model; chunk c is on pipeline stage c % mesh.pipeline_size()
  int num_microbatches = 1;
  // Activation slots, by chunk of this stage in the model's order. Each chunk has its own: chunks
  // differ in layers and in their ends.
  std::vector<int> slots = {};
  // Memory for gradients. Of stage 1 a buffer for each chunk, of which a rank's shard is a part; of
  // stage 2 one for a bucket, or two where the stage has three buckets or more: with two, one is
  // reduced while passes add to the other.
  int gradient_buffers = 0;
  // ZeRO stage 2: the gradients of each micro-batch are reduced, and shards have memory of their
  // own.
  bool shards_gradients = false;
  // A stream's instructions stand in the order in which it runs them.
  std::vector<Instruction> instructions = {};

  int stage() const { return mesh.CoordinateOf(rank).pipeline; }
  // The index in `slots`, and wherever else a stage's chunks are counted, of a chunk of this stage.
  int IndexOfChunk(int chunk) const { return chunk / mesh.pipeline_size(); }
};

// The streams that a plan uses, ascending.
std::vector<StreamKind> StreamsOf(const RankPlan& plan);

// One line per stream, its instructions in order; for people.
std::string ToString(const RankPlan& plan);

}  // namespace megascale::plan
