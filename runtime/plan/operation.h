// The operations of a step, each a row of a table. Code that reads a plan (text, checks, estimated
// times, timelines, breakdowns, progress of a rank) looks up the row and never lists operations
// itself. So a new operation needs a value of OpKind, a row in operation.cc, and the code that
// builds and runs it; operation_test fails on a value without a row. docs/adding.md lists the
// steps.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/mesh.h"

namespace megascale::plan {

// The values are part of packed ids: new values may be added, but existing values never change. The
// comments begin with the letters that ids show.
enum class OpKind : uint8_t {
  // L: loads the step's tokens (for the first chunk) and targets (for the last); where attention
  // stays within documents, also the documents of samples (for every chunk)
  kLoadBatch = 1,
  kReceiveActivation = 2,  // RA: receives a chunk's input from the previous chunk
  kForward = 3,  // F: forward of a micro-batch through a chunk; in the last chunk also the loss
  kSendActivation = 4,   // SA: sends a chunk's output to the next chunk
  kReceiveGradient = 5,  // RG: receives the gradient of a chunk's output from the next chunk
  kBackward = 6,         // B: backward of a micro-batch through a chunk; accumulates its gradients
  kSendGradient = 7,     // SG: sends the gradient of a chunk's input to the previous chunk
  // R: reduce-scatter of a bucket's gradients over the data group. With ZeRO stage 2 it reduces the
  // gradients of one micro-batch and adds them to this rank's shard.
  kReduceGradients = 8,
  // N: all-gather over the pipeline group of sums of squares, losses and stop flags, which NT and
  // ND have added up in each stage; makes the numbers of the step from them
  kReduceNorm = 9,
  kOptimizerStep = 10,     // O: steps this rank's slice of a chunk's parameters
  kGatherParameters = 11,  // G: all-gather of a bucket's parameters over the data group
  // W: the gradients of the layers' matrices, in schedules that split the backward. B then computes
  // the rest: the gradient of the chunk's input, and those of the other parameters.
  kWeightGradient = 12,
  // U: with trust ratios (LAMB): computes the update of this rank's slice of a chunk's parameters,
  // which O then scales.
  kOptimizerUpdate = 13,
  // T: all-gather over the data group of the sums behind the trust ratios, which with tensor
  // parallelism TT has gathered.
  kGatherTrustSums = 14,
  // S: all-reduce over the tensor group of the gradients of replicated parameters; before each R.
  kSumReplicated = 15,
  // With tied embeddings on several stages the first chunk owns the embedding matrix. The head, in
  // the last chunk, computes with a copy of the matrix; the gradients of embedding and head are
  // added up.
  kSendEmbedding = 16,        // SE: sends the embedding matrix to the last stage
  kReceiveEmbedding = 17,     // RE: the last stage receives it, before the first use
  kSendHeadGradient = 18,     // SH: sends the head's complete gradient to the first stage
  kReceiveHeadGradient = 19,  // RH: the first stage receives it
  // A: adds the head's gradient to the embedding's gradient, before the S and R of its bucket (with
  // ZeRO stage 2, before the last ones).
  kAddHeadGradient = 20,
  // All-gathers of what each rank contributes to N, which add it up: NT over the tensor group, then
  // ND over the data group.
  kGatherTensorNorms = 21,
  kGatherDataNorms = 22,
  // TT: all-gather over the tensor group of the sums behind the trust ratios, before T
  kGatherTensorTrustSums = 23,
  // An evaluation computes the loss on held-out text with the weights after a step
  // (build/evaluation_plan.h). Its operations are those of a step, with E in front of their
  // letters: F becomes E.
  kLoadWindows = 24,          // EL: loads windows of the held-out text
  kGatherForEvaluation = 25,  // EG: as G
  kReceiveEvaluated = 26,     // ERA: as RA
  kEvaluate = 27,             // E: forward without gradients; in the last chunk also the loss
  kSendEvaluated = 28,        // ESA: as SA
  kGatherTensorLosses = 29,   // ENT: as NT, of losses and numbers of windows
  kGatherDataLosses = 30,     // END: as ND
  kGatherLosses = 31,         // EN: as N
  kSendHead = 32,             // ESE: as SE
  kReceiveHead = 33,          // ERE: as RE
};

// Streams run independently of each other. Each stream runs its instructions one after another, in
// the plan's order, and belongs to one owner. Sends and receives have separate streams, in each
// direction. So a send that waits for its receiver never blocks a receive: ranks can wait for each
// other in a circle only if the data dependencies have one.
enum class StreamKind : uint8_t {
  kCompute,
  kLoadBatch,
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
  kDataParallel,  // the shard's collectives, and A between them
  kOptimizer,     // the shard's computing
  // Exchanges of tensor-parallel ranks within a pass (InstructionId::piece). No plan has them.
  kTensorParallel,
};
inline constexpr int kNumStreamKinds = 9;

// Returns "compute", "send-activation" …
absl::string_view Name(StreamKind kind);

// The actor that launches an instruction.
enum class Owner : uint8_t { kStage, kShard };
inline constexpr int kNumOwners = 2;
absl::string_view Name(Owner owner);

// The classes of operations that breakdowns, timelines and estimates of time distinguish.
enum class OpClass : uint8_t {
  kUnknown,  // no row
  kLoad,     // reads the batch
  // The passes of a micro-batch through a chunk, or their parts. Tensor-parallel ranks do them
  // together.
  kForward,
  kBackward,
  kWeights,
  kSend,        // the two ends of a transfer between stages
  kReceive,     //
  kCollective,  // an exchange with all members of a group
  kOptimizer,   // the shard computes
};
inline constexpr int kNumOpClasses = 9;

// A group and the channel of its communicator. For a transfer `channel` is the first part of the
// channel's name, "activation" of "activation.0"; see build/channels.h.
struct Meeting {
  GroupKind group = GroupKind::kNone;
  absl::string_view channel = "";
};

// What the ranks of an operation send each other, which bounds their messages.
enum class Payload : uint8_t {
  kNumbers,     // a few: norms, flags, trust sums
  kBucket,      // a bucket's gradients or parameters, one replica's part
  kReplicated,  // a bucket's replicated gradients, one tensor rank's part
  kRows,        // of a micro-batch: activations or their gradients, one tensor rank's part
  kEmbedding,   // the embedding matrix or its gradient, one tensor rank's part
};

// Whether the id of an operation names a micro-batch.
enum class PerMicrobatch : uint8_t { kNever, kAlways, kIfGradientsAreSharded };

// A row of the table.
struct Operation {
  OpKind kind = {};
  absl::string_view letters = "?";  // in ids: "RA"
  absl::string_view name = "";      // for people: "receiving an activation"
  OpClass op_class = OpClass::kUnknown;
  StreamKind stream = StreamKind::kCompute;
  Owner owner = Owner::kStage;
  PerMicrobatch per_microbatch = PerMicrobatch::kNever;
  bool per_chunk = true;    // the id names a chunk
  bool per_bucket = false;  // the id names a bucket
  bool goes_back = false;   // part of a micro-batch's way back through the chunks
  // Where the ranks of this operation meet: nowhere in a mesh without groups of this kind.
  Meeting meeting = {};
  Payload payload = Payload::kNumbers;
  // For a transfer: the operation at its other end, and the other end's chunk relative to this
  // end's chunk. If the id names no chunk, 1 means the model's last chunk, and -1 its first.
  OpKind other_end = {};
  int other_chunk = 0;
  // For a collective: how often its buffer goes round the ring of its members; an all-reduce is a
  // reduce-scatter and an all-gather, so it goes twice.
  int rounds = 1;
  bool for_trust_ratios = false;  // only in plans with trust ratios
  bool for_tied_ends = false;     // only in plans with tied embeddings on several stages
  bool for_evaluation = false;    // only in plans of evaluations, which have no others
};

// Returns the row of an operation. For a value that has no row, which another program may leave in
// shared memory, returns a row of class kUnknown.
const Operation& OperationOf(OpKind kind);

// Returns all rows, ascending by kind.
absl::Span<const Operation> AllOperations();

// Returns where the ranks of an operation meet in this mesh; GroupKind::kNone: nowhere.
Meeting MeetingIn(const Mesh& mesh, OpKind kind);

// Returns the letters listed above: "F" for kForward; "-" for kind 0.
inline absl::string_view Letters(OpKind kind) { return OperationOf(kind).letters; }

// True for a send or a receive between two ranks.
inline bool IsTransfer(OpKind kind) {
  const OpClass op_class = OperationOf(kind).op_class;
  return op_class == OpClass::kSend || op_class == OpClass::kReceive;
}

// True for a pass of a micro-batch through a chunk, or a part of a pass: F, B and W.
// Tensor-parallel ranks run these together.
inline bool IsPass(OpKind kind) {
  const OpClass op_class = OperationOf(kind).op_class;
  return op_class == OpClass::kForward || op_class == OpClass::kBackward ||
         op_class == OpClass::kWeights;
}

}  // namespace megascale::plan
