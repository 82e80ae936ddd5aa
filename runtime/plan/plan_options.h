// The input of a step plan: the mesh, the schedule, the cost of each chunk, what overlaps.
// build/step_plan.h builds the plan.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/plan/mesh.h"
#include "runtime/plan/schedule.h"

namespace megascale::plan {

// The cost of one of a chunk's buckets; units as in ChunkCost.
struct BucketCost {
  int64_t flops = 0;  // of its piece of the pass that completes gradients (B or W)
  int64_t bytes = 0;  // exchanged by tensor-parallel ranks in that piece
  int64_t gradient_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t replicated_bytes = 0;
};

// The cost of a chunk. The plan carries it for the simulator, telemetry and the communicators'
// accounting.
struct ChunkCost {
  int64_t forward_flops = 0;   // of one micro-batch
  int64_t backward_flops = 0;  // of one micro-batch; includes weight_flops
  int64_t weight_flops = 0;    // of the weight gradients alone, for schedules with W
  int64_t output_bytes = 0;    // of one micro-batch; the gradient of the output has the same size
  // For all of the chunk's parameters. `buckets` has these costs by bucket.
  int64_t gradient_bytes = 0;
  int64_t parameter_bytes = 0;  // as gathered
  int64_t trust_bytes = 0;      // trust sums, as gathered
  // Tensor parallelism: bytes of the whole buffers exchanged in a pass. backward_bytes includes
  // weight_bytes.
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t replicated_bytes = 0;          // replicated gradients, which tensor ranks sum
  std::vector<BucketCost> buckets = {};  // their sums are the costs above; empty: one bucket
};

// Which communication is overlapped with computing. Switching an overlap off only adds
// dependencies. Each stream still runs the same instructions in the same order, so results have the
// same bits, and the step is never faster. Source: MegaScale, section 3.2 and table 3; fields named
// as in Megatron-LM.
struct Overlap {
  // A bucket's gradients are reduced once its chunk's last backward has gone through the bucket's
  // layers, while earlier layers and other chunks compute. False: gradients are reduced after all
  // passes of the rank have ended; with ZeRO stage 2, the next computation waits for each reduction
  // instead.
  bool grad_reduce = true;
  // Parameters are gathered while the batch is loaded; the parameters of later chunks are gathered
  // during passes of earlier chunks. False: the batch is loaded, and the first pass begins, only
  // after all parameters are gathered.
  bool param_gather = true;
  // Stages send and receive during passes. False: only between passes. The input of the next pass
  // is received once the previous pass has ended, and the next pass also waits until the output of
  // the previous pass is sent. This receive and this send run at the same time, because two stages
  // that send to each other would deadlock if each sent first. With several chunks per stage, a
  // forward and the backward after it count as one pass here, because the forward's receiver may
  // first need a slot that this backward frees.
  bool p2p_communication = true;
};

struct PlanOptions {
  Mesh mesh = {};
  Schedule schedule = Schedule::k1F1B;
  int chunks_per_stage = 1;  // see ScheduleOptions
  int num_microbatches = 1;  // per data-parallel rank and step, at least 1
  // Extra activation slots, in addition to those that the schedule needs, of each chunk that
  // receives its input (all but the model's first). The total never exceeds the number of
  // micro-batches. With one spare slot, a stage can receive a micro-batch while it still computes
  // the previous backward or sends the result. Cost: one micro-batch's activations for each spare
  // slot. Default 0; jobs set 1 if transfers overlap.
  int spare_slots = 0;
  Overlap overlap = {};
  // LAMB: the optimizer needs norms of whole tensors, so shards exchange partial sums before they
  // update parameters.
  bool has_trust_ratios = false;
  int zero_stage = 1;  // 1 or 2; see docs/layouts.md
  // By chunk of the model: its number of buckets, each of which is reduced and gathered separately.
  // Bucket 0 holds the last layers, whose gradients are complete first. Empty: one bucket per
  // chunk.
  //
  // The backward before a reduction (the last micro-batch's; with stage 2 every backward) is cut
  // into one piece per bucket, each an instruction of the compute stream. So a reduction waits for
  // the end of an instruction, as with every other dependency.
  std::vector<int> num_buckets = {};
  // Whether every chunk needs the step's batch, and not only the first and the last. Every chunk
  // needs the documents of samples if attention stays within documents.
  bool every_chunk_reads_batch = false;
  // Tied embeddings on several stages: the last chunk's head uses the first chunk's embedding
  // matrix. In each step, the matrix is sent to the last stage, and its gradient is sent back. See
  // docs/layouts.md.
  bool has_tied_ends = false;
  bool evaluates = false;           // plans of an evaluation (build/evaluation_plan.h)
  int64_t embedding_bytes = 0;      // the matrix, in the compute type
  int64_t head_gradient_bytes = 0;  // its gradient, in the accumulation type
  int64_t batch_bytes = 0;          // loaded by one rank in a step
  int64_t norm_bytes = 0;           // contributed by one rank to the exchange of norms
  // By chunk of the model; mesh.pipeline_size() * chunks_per_stage entries. Empty: all costs are
  // zero.
  std::vector<ChunkCost> chunks = {};

  int num_chunks() const { return mesh.pipeline_size() * chunks_per_stage; }
  // True if every backward is split into B and W.
  bool splits_backward() const { return SplitsBackward(schedule); }
  int NumBuckets(int chunk) const {
    return num_buckets.empty() ? 1 : num_buckets[static_cast<size_t>(chunk)];
  }
};

// Returns the options on which the schedule of these plans depends.
inline ScheduleOptions ScheduleOptionsOf(const PlanOptions& options) {
  return {.schedule = options.schedule,
          .num_stages = options.mesh.pipeline_size(),
          .chunks_per_stage = options.chunks_per_stage,
          .num_microbatches = options.num_microbatches};
}

}  // namespace megascale::plan
