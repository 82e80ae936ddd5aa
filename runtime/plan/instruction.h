// One instruction of a step plan: what is done, on which stream, after what. Plain data: the
// executor runs it, the simulator prices it, the viewer draws it, diagnosis walks `depends_on` to
// say who waits for whom.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/mesh.h"

namespace megascale::plan {

// The values are part of packed ids: they may be added to, never changed. Letters as ids show them.
enum class OpKind : uint8_t {
  kLoadBatch = 1,          // L: the step's tokens (for the first chunk) and targets (for the last)
  kReceiveActivation = 2,  // RA: a chunk's input, from the chunk before
  kForward = 3,            // F: a micro-batch through a chunk; in the last one, with its loss
  kSendActivation = 4,     // SA: a chunk's output, to the chunk after
  kReceiveGradient = 5,    // RG: the gradient of a chunk's output, from the chunk after
  kBackward = 6,           // B: a micro-batch back through a chunk; adds to the chunk's gradients
  kSendGradient = 7,       // SG: the gradient of a chunk's input, to the chunk before
  // R: reduce-scatter of a bucket's gradients over the data group; with ZeRO stage 2 of those of
  // one micro-batch, added to this rank's shard
  kReduceGradients = 8,
  kReduceNorm = 9,         // N: all-gather over the world: sum of squares, loss, stop flag
  kOptimizerStep = 10,     // O: steps this rank's slice of a chunk's parameters
  kGatherParameters = 11,  // G: all-gather of a bucket's parameters over the data group
  kWeightGradient = 12,  // W: the weights' part of a backward pass, where a schedule does it apart;
                         //    B then gives the gradient of the chunk's input alone
  kOptimizerUpdate = 13,  // U: where the optimizer has trust ratios (LAMB): the update of this
                          //    rank's slice of a chunk's parameters, which O then scales
  kGatherTrustSums = 14,  // T: all-gather of what those ratios are made of, over the data group; of
                          //    tensor-parallel ranks over the stage's
  kSumReplicated = 15,  // S: all-reduce over the tensor group of the gradients of what each of its
                        //    ranks has a copy of; before each R
};
inline constexpr int kMaxOpKind = 15;

// "F" for kForward, as listed above.
absl::string_view Letters(OpKind kind);

// True for one end of a message between two ranks.
bool IsTransfer(OpKind kind);

// True for a pass of a micro-batch through a chunk, or a part of one: F, B and W. Tensor-parallel
// ranks do these together.
bool IsPass(OpKind kind);

// Streams run their instructions one after another, in the plan's order, and independently of each
// other. Each belongs to one owner. What is sent and what is received have streams of their own, in
// both directions: a send that waits for its receiver never keeps a receive from being ready, so a
// plan's only cycles are those of its data.
enum class StreamKind : uint8_t {
  kCompute,
  kLoadBatch,
  kSendActivation,
  kReceiveActivation,
  kSendGradient,
  kReceiveGradient,
  kDataParallel,  // the shard's collectives: gradients, norm, parameters
  kOptimizer,     // the shard's computing
  // What tensor-parallel ranks exchange within a pass: its pieces, which are in no plan.
  kTensorParallel,
};
inline constexpr int kNumStreamKinds = 9;

// "compute", "send-activation" …
absl::string_view Name(StreamKind kind);

// Which actor launches it.
enum class Owner : uint8_t { kStage, kShard };
inline constexpr int kNumOwners = 2;
absl::string_view Name(Owner owner);

// The name of an instruction within a step: (operation, chunk, micro-batch, bucket, piece).
// Structural, never an ordinal: it means the same in every schedule, on every rank and in every
// reader. Chunks count through the model, not within a rank. Shown as "F.c0.m3", "R.c1" (no
// micro-batch), "N" (no chunk), "R.c1.b2" (bucket 2 of the chunk; bucket 0 is not shown),
// "B.c0.m3.b1" (a backward from bucket 1 on; PlanOptions::num_buckets). The pieces of a pass are
// its exchanges with tensor-parallel ranks, from 1 ("F.c0.m3.p2"); they are in no plan.
class InstructionId {
 public:
  static constexpr int kNoChunk = 0xffff;
  static constexpr int kNoMicrobatch = 0xffff;
  static constexpr int kMaxBucket = 0xff;
  static constexpr int kMaxPiece = 0xffff;

  // No instruction; shown as "-".
  InstructionId() = default;
  // Requires: 0 <= chunk <= kNoChunk, 0 <= microbatch <= kNoMicrobatch, 0 <= bucket <= kMaxBucket.
  explicit InstructionId(OpKind operation, int chunk = kNoChunk, int microbatch = kNoMicrobatch,
                         int bucket = 0);

  // 64 bits for shared memory and messages; 0 is no instruction.
  uint64_t packed() const { return packed_; }
  static InstructionId FromPacked(uint64_t packed);

  std::string ToString() const;
  // Errors: InvalidArgument - not the form that ToString gives.
  static absl::StatusOr<InstructionId> Parse(absl::string_view text);

  // The same instruction's piece `piece`, or all of it for 0. Requires: 0 <= piece <= kMaxPiece.
  InstructionId WithPiece(int piece) const;

  // What both ends of a transfer call it: the send's id, for the receive too. Of other
  // instructions, the id itself.
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

// True for what ends only once other ranks do their part: transfers, collectives, exchanges within
// a pass. A rank that stands still in one of them need not be the cause.
bool NeedsPeers(InstructionId id);

inline constexpr int kNoPeer = -1;
inline constexpr int kNoSlot = -1;
inline constexpr int kNoBuffer = -1;

struct Instruction {
  InstructionId id;
  StreamKind stream = StreamKind::kCompute;
  Owner owner = Owner::kStage;
  // Communication: with whom and over which communicator. A rank uses one (group, channel) from one
  // stream only. Of a pass: with the ranks that share it.
  GroupKind group = GroupKind::kNone;
  std::string channel = "";  // see ChannelsOf in step_plan.h
  int peer = kNoPeer;        // group-relative rank of a send's receiver or a receive's sender
  // The memory that holds this micro-batch on its way through the chunk, one of the chunk's slots:
  // what F keeps for B, and the buffers that are received into and sent from. Everything that an
  // earlier micro-batch does in a slot has ended before a later one begins there.
  int activation_slot = kNoSlot;
  // The memory for gradients, one of the rank's buffers, that a pass adds to and that S and R work
  // on: of a whole chunk, or with ZeRO stage 2 of one bucket, which take turns: from the first pass
  // that adds to it, through all others, to its R, which takes the sum. Everything of a turn has
  // ended before the next begins. With stage 2 a forward adds to the chunk's first bucket, and the
  // B of a pass that has a W to none: what both make of other buckets the stage keeps for the
  // pieces that make these whole.
  int gradient_buffer = kNoBuffer;
  // What is in the memory does not count: a pass begins a turn in its gradient buffer, which is to
  // be zero; or R is the first of its bucket in a step, and the rank's shard becomes what it gives.
  bool begins_sum = false;
  // Of B and W: the buckets whose layers it goes through, from id.bucket() on. All of the chunk's;
  // or one of them, where they are reduced next, each as soon as it is made.
  int num_buckets = 0;
  // Of B: it gives the gradient of the chunk's input alone; a W of its own gives the weights'.
  bool input_only = false;
  // Indices into this rank's plan. What stands earlier on the same stream needs no entry.
  std::vector<int> depends_on = {};
  int64_t bytes = 0;  // moved: of one micro-batch, of the whole buffer of a collective, of all
                      // whole buffers that a pass exchanges
  int64_t flops = 0;

  OpKind kind() const { return id.operation(); }
  bool operator==(const Instruction&) const = default;
};

}  // namespace megascale::plan
