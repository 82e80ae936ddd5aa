// One instruction of a step plan: the operation, its stream and its dependencies. Plain data: the
// executor runs it, the simulator prices it, the viewer draws it, and diagnosis walks `depends_on`
// to say who waits for whom.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/mesh.h"

namespace megascale::plan {

// The values are part of packed ids: new ones may be added, existing ones never change. The letters
// are those that ids show.
enum class OpKind : uint8_t {
  kLoadBatch = 1,  // L: loads the step's tokens (for the first chunk) and targets (for the last)
  kReceiveActivation = 2,  // RA: receives a chunk's input from the previous chunk
  kForward = 3,  // F: forward of a micro-batch through a chunk; in the last chunk also the loss
  kSendActivation = 4,   // SA: sends a chunk's output to the next chunk
  kReceiveGradient = 5,  // RG: receives the gradient of a chunk's output from the next chunk
  kBackward = 6,         // B: backward of a micro-batch through a chunk; accumulates its gradients
  kSendGradient = 7,     // SG: sends the gradient of a chunk's input to the previous chunk
  // R: reduce-scatter of a bucket's gradients over the data group. With ZeRO stage 2 it reduces the
  // gradients of one micro-batch and adds them to this rank's shard.
  kReduceGradients = 8,
  kReduceNorm = 9,         // N: all-gather over the world of sum of squares, loss and stop flag
  kOptimizerStep = 10,     // O: steps this rank's slice of a chunk's parameters
  kGatherParameters = 11,  // G: all-gather of a bucket's parameters over the data group
  // W: the weight gradients of a backward, in schedules that split the backward. B then computes
  // only the gradient of the chunk's input.
  kWeightGradient = 12,
  // U: with trust ratios (LAMB): computes the update of this rank's slice of a chunk's parameters,
  // which O then scales.
  kOptimizerUpdate = 13,
  // T: all-gather of the sums behind the trust ratios, over the data group, or with tensor
  // parallelism over the stage's group.
  kGatherTrustSums = 14,
  // S: all-reduce over the tensor group of the gradients of replicated parameters; before each R.
  kSumReplicated = 15,
};
inline constexpr int kMaxOpKind = 15;

// Returns the letters listed above: "F" for kForward.
absl::string_view Letters(OpKind kind);

// True for a send or a receive between two ranks.
bool IsTransfer(OpKind kind);

// True for a pass of a micro-batch through a chunk, or a part of one: F, B and W. Tensor-parallel
// ranks do these together.
bool IsPass(OpKind kind);

// Streams run independently of each other; each runs its instructions one after another, in the
// plan's order. Each belongs to one owner. Sends and receives have separate streams, in both
// directions: a send that waits for its receiver never blocks a receive, so a plan can only have
// cycles that its data dependencies have.
enum class StreamKind : uint8_t {
  kCompute,
  kLoadBatch,
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
  kDataParallel,  // the shard's collectives: gradients, norm, parameters
  kOptimizer,     // the shard's computing
  // Exchanges of tensor-parallel ranks within a pass: the pieces of a pass, which no plan lists.
  kTensorParallel,
};
inline constexpr int kNumStreamKinds = 9;

// Returns "compute", "send-activation" …
absl::string_view Name(StreamKind kind);

// The actor that launches an instruction.
enum class Owner : uint8_t { kStage, kShard };
inline constexpr int kNumOwners = 2;
absl::string_view Name(Owner owner);

// The name of an instruction within a step: (operation, chunk, micro-batch, bucket, piece). It is
// structural, not an ordinal, so it means the same in every schedule, on every rank and for every
// reader. Chunks are numbered through the model, not within a rank. Text forms:
//
//   F.c0.m3      forward of micro-batch 3 through chunk 0
//   R.c1         no micro-batch; bucket 0, which is not shown
//   R.c1.b2      bucket 2 of the chunk
//   B.c0.m3.b1   a backward from bucket 1 on; see PlanOptions::num_buckets
//   F.c0.m3.p2   piece 2: the second exchange of the pass between tensor-parallel ranks; pieces
//                are numbered from 1 and are in no plan
//   N            no chunk
class InstructionId {
 public:
  static constexpr int kNoChunk = 0xffff;
  static constexpr int kNoMicrobatch = 0xffff;
  static constexpr int kMaxBucket = 0xff;
  static constexpr int kMaxPiece = 0xffff;

  // Names no instruction; shown as "-".
  InstructionId() = default;
  // Requires: 0 <= chunk <= kNoChunk, 0 <= microbatch <= kNoMicrobatch, 0 <= bucket <= kMaxBucket.
  explicit InstructionId(OpKind operation, int chunk = kNoChunk, int microbatch = kNoMicrobatch,
                         int bucket = 0);

  // Returns the id in 64 bits, for shared memory and messages; 0 names no instruction.
  uint64_t packed() const { return packed_; }
  static InstructionId FromPacked(uint64_t packed);

  std::string ToString() const;
  // Parses what ToString returns. Errors: InvalidArgument - the text has another form.
  static absl::StatusOr<InstructionId> Parse(absl::string_view text);

  // Returns the id of this instruction's piece `piece`; 0: of the whole instruction. Requires: 0 <=
  // piece <= kMaxPiece.
  InstructionId WithPiece(int piece) const;

  // Returns the id that both ends of a transfer put on the message: that of the send. For other
  // instructions returns the id itself.
  InstructionId MessageId() const;

  OpKind operation() const { return static_cast<OpKind>(packed_ >> 56); }
  int chunk() const { return static_cast<int>(packed_ >> 40) & kNoChunk; }
  int microbatch() const { return static_cast<int>(packed_ >> 24) & kNoMicrobatch; }
  int bucket() const { return static_cast<int>(packed_ >> 16) & kMaxBucket; }
  int piece() const { return static_cast<int>(packed_) & kMaxPiece; }

  bool operator==(const InstructionId&) const = default;
  auto operator<=>(const InstructionId&) const = default;

 private:
  uint64_t packed_ = 0;  // operation 8 bits, chunk 16, micro-batch 16, bucket 8, piece 16
};

// True for an exchange of tensor-parallel ranks within a pass.
bool IsExchangeOfPass(InstructionId id);

// True for an instruction that ends only once other ranks do their part: transfers, collectives,
// exchanges within a pass. A rank that is stuck in one of them need not be the cause.
bool NeedsPeers(InstructionId id);

inline constexpr int kNoPeer = -1;
inline constexpr int kNoSlot = -1;
inline constexpr int kNoBuffer = -1;

struct Instruction {
  InstructionId id;
  StreamKind stream = StreamKind::kCompute;
  Owner owner = Owner::kStage;
  // For communication: the group and the channel of its communicator. A rank uses each (group,
  // channel) from one stream only. For a pass: the group of the tensor ranks that share it.
  GroupKind group = GroupKind::kNone;
  std::string channel = "";  // see build/channels.h
  int peer = kNoPeer;        // group-relative rank of a send's receiver or a receive's sender
  // One of the chunk's activation slots, which hold a micro-batch on its way through the chunk: the
  // activations that F keeps for B, and the buffers of sends and receives. All instructions of a
  // micro-batch in a slot have ended before those of the slot's next micro-batch begin.
  int activation_slot = kNoSlot;
  // One of the rank's gradient buffers: a pass accumulates into it, S and R work on it. A buffer
  // holds a whole chunk, or with ZeRO stage 2 one bucket. With stage 2 buckets take turns in a
  // buffer: a turn lasts from the first pass that accumulates into it to the R that takes the sum,
  // and has ended before the next one begins. With stage 2 a forward accumulates only into the
  // chunk's first bucket, and a B that has a W into no buffer. The gradients that both make for
  // other buckets are kept by the stage and added by the backward pieces of those buckets.
  int gradient_buffer = kNoBuffer;
  // Overwrites the memory instead of accumulating into it. For a pass: the pass begins a turn in
  // its gradient buffer, which is zeroed first. For R: it is the first of its bucket in a step, and
  // overwrites the rank's shard with its result.
  bool begins_sum = false;
  // For B and W: how many buckets' layers it goes through, from id.bucket() on. This is all of the
  // chunk's, or 1 in the backward that is reduced next, so that each bucket is reduced as soon as
  // its gradients are complete.
  int num_buckets = 0;
  // For B: computes only the gradient of the chunk's input; a separate W computes the weight
  // gradients.
  bool input_only = false;
  // Indices into this rank's plan. Earlier instructions of the same stream are not listed.
  std::vector<int> depends_on = {};
  // Bytes moved. Transfer: one micro-batch. Collective: the whole buffer. Pass: the whole buffers
  // of all its exchanges between tensor ranks.
  int64_t bytes = 0;
  int64_t flops = 0;

  OpKind kind() const { return id.operation(); }
  bool operator==(const Instruction&) const = default;
};

}  // namespace megascale::plan
