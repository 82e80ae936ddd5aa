// The plan of one training step for one rank, as data, and the pure function that builds it.
// Nothing outside this folder knows how a schedule works.
//
//   ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create({.data = 2, .pipeline = 2}));
//   ASSIGN_OR_RETURN(RankPlan plan, BuildTrainPlan({.mesh = mesh, .num_microbatches = 8}, rank));
//
// A step: load the batch; every micro-batch forward and backward through every chunk, in the
// schedule's order; as a chunk's last backward goes through its layers, the shard reduces their
// gradients over the data-parallel group, bucket by bucket; all ranks exchange norm, loss and stop
// flag, each rank steps its slice of the parameters (ZeRO stage 1). With stage 2 the shard reduces
// in each backward, and adds up its slice of the gradients, so that a rank needs no memory for the
// whole of them, but for a buffer or two that its buckets use in turn (Rajbhandari et al., 2020,
// section 5). The next step begins with gathering them over the group, chunk by chunk in the order
// in which the forward passes need them: the first chunk's behind the loading of the batch, later
// ones' behind the forward passes of earlier chunks (MegaScale, section 3.2).
//
// Tensor-parallel ranks do each pass together: it is one instruction, whose exchanges stand in no
// plan, and by their group a plan says that they come to it in one order. Of a chunk's gradients
// they first sum those of the parameters that each of them has a copy of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/instruction.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/plan/schedule.h"

namespace megascale::plan {

// What one of a chunk's buckets costs; as ChunkCost.
struct BucketCost {
  int64_t flops = 0;  // of its piece of what makes a micro-batch's gradients whole: B, or W
  int64_t bytes = 0;  // that tensor-parallel ranks exchange in that piece
  int64_t gradient_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t replicated_bytes = 0;
};

// What a chunk costs; the plan carries it for the simulator, telemetry and the communicators'
// accounting.
struct ChunkCost {
  int64_t forward_flops = 0;   // of one micro-batch
  int64_t backward_flops = 0;  // of one micro-batch, with those of the weights' gradients
  int64_t weight_flops = 0;    // of the weights' gradients, where they are apart
  int64_t output_bytes = 0;    // of one micro-batch; the gradient of the output has as many
  // Of all of the chunk's parameters; by bucket below, where it has several.
  int64_t gradient_bytes = 0;
  int64_t parameter_bytes = 0;  // as gathered
  int64_t trust_bytes = 0;      // as gathered: of trust sums
  // Of tensor-parallel ranks: what they exchange in a pass, whole buffers; the backward's as its
  // FLOPs, with those of the weights.
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
  int64_t weight_bytes = 0;
  int64_t replicated_bytes = 0;          // of the gradients that they sum
  std::vector<BucketCost> buckets = {};  // that add up to the above; or empty: there is one
};

// What communication hides behind. To switch one off adds dependencies and changes nothing else in
// a plan: the same instructions in the same order on each stream, so the same bits, in no less
// time. Source: MegaScale, section 3.2 and table 3; fields as Megatron-LM calls them.
struct Overlap {
  // A bucket's gradients are reduced once its chunk's last backward has gone through its layers,
  // behind the backward of earlier layers and behind passes of other chunks. False: once all passes
  // of the rank have ended; with ZeRO stage 2 what is computed next waits for it.
  bool grad_reduce = true;
  // Parameters are gathered behind the loading of the batch, and a later chunk's behind passes of
  // earlier ones. False: all are, and only then the batch is loaded and a first pass begins.
  bool param_gather = true;
  // Stages send and receive beside passes. False: in between; what the next pass needs is received
  // once the pass before it has ended, and it waits for what that one sends. Both go at once, since
  // stages that send to each other would wait for ever if each first sent. With several chunks per
  // stage a forward and the backward after it count as one pass here: the forward's receiver may
  // first need a slot that the backward frees.
  bool p2p_communication = true;
};

struct PlanOptions {
  Mesh mesh = {};
  Schedule schedule = Schedule::k1F1B;
  int chunks_per_stage = 1;  // see ScheduleOptions
  int num_microbatches = 1;  // of one data-parallel rank in one step, at least 1
  // Activation slots of each chunk that receives, which is all but the model's first, beyond those
  // that the schedule needs (never more than micro-batches): so that a stage receives a micro-batch
  // while it still computes the backward before it, or sends what that made. Costs a micro-batch's
  // activations each. Jobs have 1 where transfers overlap, and else 0. Default 0.
  int spare_slots = 0;
  Overlap overlap = {};
  // The optimizer needs norms of whole tensors, which shards exchange before they step: LAMB.
  bool has_trust_ratios = false;
  int zero_stage = 1;  // 1, or 2: see above
  // By chunk of the model: how many buckets its parameters make, which are reduced and gathered
  // each for itself. Bucket 0 is made first, that of the last layers. Or empty: one each.
  //
  // The backward that is reduced next (of the last micro-batch; with stage 2 of each) is then cut
  // into a piece for each bucket, on the compute stream as any pass: so what a reduction waits for
  // is an instruction that has ended, for the executor and the validator alike.
  std::vector<int> num_buckets = {};
  int64_t batch_bytes = 0;  // that one rank loads in a step
  int64_t norm_bytes = 0;   // that one rank gives to the exchange of norms
  // By chunk, mesh.pipeline_size() * chunks_per_stage of them; or empty: all zero.
  std::vector<ChunkCost> chunks = {};

  int num_chunks() const { return mesh.pipeline_size() * chunks_per_stage; }
  // True where every backward is in two parts, B and W.
  bool splits_backward() const { return SplitsBackward(schedule); }
  int NumBuckets(int chunk) const {
    return num_buckets.empty() ? 1 : num_buckets[static_cast<size_t>(chunk)];
  }
};

// The plan of `rank`. A pure function. The instructions are equal for all ranks with the same
// pipeline coordinate (groups and peers are symbols), so plans for p stages describe a mesh of any
// size. Errors: InvalidArgument - a rank outside the mesh, sizes below their least, more
// micro-batches or chunks than an id can name, the wrong number of chunk costs.
absl::StatusOr<RankPlan> BuildTrainPlan(const PlanOptions& options, int rank);

// A communicator that the plans of a mesh use.
struct Channel {
  GroupKind group = GroupKind::kNone;
  std::string name = "";
  bool operator==(const Channel&) const = default;
};

// The communicators that every rank opens, in the same order on every rank. Channels of a pipeline
// group carry one direction across every second boundary between stages ("activation.0" from stage
// 0 to 1, "activation.1" from 1 to 2 …): a rank uses each for sending or for receiving, never for
// both, so its streams never queue behind each other. With several chunks per stage the last stage
// and the first have a boundary, too; it has a channel of its own ("activation.2") where their
// number is odd.
// Tensor-parallel ranks have one for their passes and one for their sums of gradients, and with
// trust ratios a stage's ranks have one.
std::vector<Channel> ChannelsOf(const Mesh& mesh, int chunks_per_stage = 1,
                                bool has_trust_ratios = false);

}  // namespace megascale::plan
