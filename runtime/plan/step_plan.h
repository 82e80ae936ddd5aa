// The plan of one training step for one rank, as data, and the pure function that builds it.
// Nothing outside this folder knows how a schedule works.
//
//   ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create({.data = 2, .pipeline = 2}));
//   ASSIGN_OR_RETURN(RankPlan plan, BuildTrainPlan({.mesh = mesh, .num_microbatches = 8}, rank));
//
// A step: load the batch; every micro-batch forward and backward through every chunk, in the
// schedule's order; then the shard reduces the gradients over its data-parallel group, all ranks
// exchange norm, loss and stop flag, each rank steps its slice of the parameters (ZeRO stage 1) and
// the group gathers them. A step leaves nothing for the next one to wait for: it ends with the new
// parameters in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/instruction.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/schedule.h"

namespace megascale::plan {

// What a chunk costs; the plan carries it for the simulator, telemetry and the communicators'
// accounting.
struct ChunkCost {
  int64_t forward_flops = 0;    // of one micro-batch
  int64_t backward_flops = 0;   // of one micro-batch
  int64_t output_bytes = 0;     // of one micro-batch; the gradient of the output has as many
  int64_t gradient_bytes = 0;   // of all of the chunk's parameters
  int64_t parameter_bytes = 0;  // as gathered
};

struct PlanOptions {
  Mesh mesh = {};
  Schedule schedule = Schedule::k1F1B;
  int num_microbatches = 1;  // of one data-parallel rank in one step, at least 1
  // Activation slots beyond those that the schedule needs (never more than micro-batches), so that
  // a stage can receive a micro-batch while it still computes the backward before it. Costs a
  // micro-batch's activations each. Default 0.
  int spare_slots = 0;
  int64_t batch_bytes = 0;             // that one rank loads in a step
  int64_t norm_bytes = 0;              // that one rank gives to the exchange of norms
  std::vector<ChunkCost> chunks = {};  // by chunk, mesh.pipeline_size() of them; or empty: all zero
};

struct RankPlan {
  Mesh mesh = {};
  int rank = 0;
  int num_chunks = 1;  // in the model; chunk c is on pipeline stage c % mesh.pipeline_size()
  int num_microbatches = 1;
  int num_activation_slots = 0;
  // A stream's instructions stand in the order in which it runs them.
  std::vector<Instruction> instructions = {};

  int stage() const { return mesh.CoordinateOf(rank).pipeline; }
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
// both, so its streams never queue behind each other.
std::vector<Channel> ChannelsOf(const Mesh& mesh);

// The streams that a plan uses, ascending.
std::vector<StreamKind> StreamsOf(const RankPlan& plan);

// One line per stream, its instructions in order; for people.
std::string ToString(const RankPlan& plan);

}  // namespace megascale::plan
