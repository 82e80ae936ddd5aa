// The instructions of one rank in one training step, or in one batch of an evaluation, as data.
// build/step_plan.h and build/evaluation_plan.h build it.
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
  // Number of activation slots, by chunk of this stage in the model's order. Chunks do not share
  // slots, because they differ in their number of layers, and only some have the embedding or the
  // loss.
  std::vector<int> slots = {};
  // Number of gradient buffers. ZeRO stage 1: one for each chunk; a rank's shard is a part of the
  // buffer. ZeRO stage 2: one buffer of a bucket's size, or two if the rank's chunks have three
  // buckets or more in all, so that one buffer is reduced while passes accumulate into the other.
  int gradient_buffers = 0;
  // ZeRO stage 2: the gradients of each micro-batch are reduced, and shards have memory of their
  // own.
  bool shards_gradients = false;
  // Whether every forward needs the step's batch, and not only the forwards of the first and the
  // last chunk.
  bool every_chunk_reads_batch = false;
  bool has_tied_ends = false;  // see PlanOptions
  bool evaluates = false;      // of an evaluation, not of a training step
  // Instructions of the same stream are in the order in which the stream runs them.
  std::vector<Instruction> instructions = {};

  int stage() const { return mesh.CoordinateOf(rank).pipeline; }
  // Returns the index of `chunk` in `slots` and other arrays of this stage's chunks. Requires: the
  // chunk is on this stage.
  int IndexOfChunk(int chunk) const { return chunk / mesh.pipeline_size(); }
};

// Returns the streams that a plan uses, ascending.
std::vector<StreamKind> StreamsOf(const RankPlan& plan);

// Returns one line per stream with its instructions in order, for people.
std::string ToString(const RankPlan& plan);

}  // namespace megascale::plan
