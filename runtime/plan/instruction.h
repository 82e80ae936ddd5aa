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
  kReduceGradients = 8,    // R: reduce-scatter of a chunk's gradients over the data group
  kReduceNorm = 9,         // N: all-gather over the world: sum of squares, loss, stop flag
  kOptimizerStep = 10,     // O: steps this rank's slice of a chunk's parameters
  kGatherParameters = 11,  // G: all-gather of a chunk's parameters over the data group
};
inline constexpr int kMaxOpKind = 11;

// "F" for kForward, as listed above.
absl::string_view Letters(OpKind kind);

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
};
inline constexpr int kNumStreamKinds = 8;

// "compute", "send-activation" …
absl::string_view Name(StreamKind kind);

// Which actor launches it.
enum class Owner : uint8_t { kStage, kShard };
inline constexpr int kNumOwners = 2;
absl::string_view Name(Owner owner);

// The name of an instruction within a step: (operation, chunk, micro-batch, piece). Structural,
// never an ordinal: it means the same in every schedule, on every rank and in every reader. Chunks
// count through the model, not within a rank. Shown as "F.c0.m3", "R.c1" (no micro-batch), "N" (no
// chunk), "R.c1.p2" (piece 2; piece 0 is not shown).
class InstructionId {
 public:
  static constexpr int kNoChunk = 0xffff;
  static constexpr int kNoMicrobatch = 0xffffff;
  static constexpr int kMaxPiece = 0xffff;

  // No instruction; shown as "-".
  InstructionId() = default;
  // Requires: 0 <= chunk <= kNoChunk, 0 <= microbatch <= kNoMicrobatch, 0 <= piece <= kMaxPiece.
  explicit InstructionId(OpKind operation, int chunk = kNoChunk, int microbatch = kNoMicrobatch,
                         int piece = 0);

  // 64 bits for shared memory and messages; 0 is no instruction.
  uint64_t packed() const { return packed_; }
  static InstructionId FromPacked(uint64_t packed);

  std::string ToString() const;
  // Errors: InvalidArgument - not the form that ToString gives.
  static absl::StatusOr<InstructionId> Parse(absl::string_view text);

  // What both ends of a transfer call it: the send's id, for the receive too. Of other
  // instructions, the id itself.
  InstructionId MessageId() const;

  OpKind operation() const { return static_cast<OpKind>(packed_ >> 56); }
  int chunk() const { return static_cast<int>(packed_ >> 40) & kNoChunk; }
  int microbatch() const { return static_cast<int>(packed_ >> 16) & kNoMicrobatch; }
  int piece() const { return static_cast<int>(packed_) & kMaxPiece; }

  bool operator==(const InstructionId&) const = default;
  auto operator<=>(const InstructionId&) const = default;

 private:
  uint64_t packed_ = 0;  // operation 8 bits, chunk 16, micro-batch 24, piece 16
};

inline constexpr int kNoPeer = -1;
inline constexpr int kNoSlot = -1;

struct Instruction {
  InstructionId id;
  StreamKind stream = StreamKind::kCompute;
  Owner owner = Owner::kStage;
  // Communication: with whom and over which communicator. A rank uses one (group, channel) from one
  // stream only.
  GroupKind group = GroupKind::kNone;
  std::string channel = "";  // see ChannelsOf in step_plan.h
  int peer = kNoPeer;        // group-relative rank of a send's receiver or a receive's sender
  // The memory that holds this micro-batch on its way through this rank: what F keeps for B, and
  // the buffers that are received into and sent from. Everything that an earlier micro-batch does
  // in a slot has ended before a later one begins there.
  int activation_slot = kNoSlot;
  // Indices into this rank's plan. What stands earlier on the same stream needs no entry.
  std::vector<int> depends_on = {};
  int64_t bytes = 0;  // moved: of one micro-batch, of the whole buffer of a collective
  int64_t flops = 0;

  OpKind kind() const { return id.operation(); }
  bool operator==(const Instruction&) const = default;
};

}  // namespace megascale::plan
