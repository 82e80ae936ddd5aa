// One instruction of a step plan: the operation, its stream and its dependencies. It is plain data.
// The executor runs it, the simulator estimates its time, timelines show it, and diagnosis follows
// `depends_on` to find which instruction waits for which.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/mesh.h"
#include "runtime/plan/operation.h"

namespace megascale::plan {

// The name of an instruction within a step: (operation, chunk, micro-batch, bucket, piece). It is
// not the instruction's number in a list, so it means the same in every schedule and on every rank.
// Chunks are numbered through the model, not within a rank. Text forms:
//
//   F.c0.m3      forward of micro-batch 3 through chunk 0
//   R.c1         no micro-batch; bucket 0, which is not shown
//   R.c1.b2      bucket 2 of the chunk
//   B.c0.m3.b1   the piece of a backward for bucket 1; see PlanOptions::num_buckets
//   F.c0.m3.p2   exchange 2 (counted from 1) of tensor-parallel ranks within the pass. For
//                telemetry only: no plan has it. In spite of the field's name, `piece`, it is no
//                piece of a backward, such as B.c0.m3.b1.
//   N, SE        no chunk
//
// operation.h explains the letters: F, B and W are passes, S and R reduce gradients.
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

  // Returns the id of exchange `piece` within this pass; 0: the id of the whole instruction.
  // Requires: 0 <= piece <= kMaxPiece.
  InstructionId WithPiece(int piece) const;

  // Returns the id that both ends of a transfer put on the message, which is the send's id. For
  // other instructions returns the id itself.
  InstructionId MessageId() const;
  // For a transfer: returns the id of its other end; InstructionId() if the other end would have no
  // valid chunk number.
  InstructionId OtherEnd() const;

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
// exchanges within a pass. A rank that is stuck in such an instruction need not be the cause.
bool NeedsPeers(InstructionId id);

// Returns the pipeline stage at the other end of a transfer; -1: there is no other end.
int OtherStage(InstructionId transfer, int num_stages);

inline constexpr int kNoPeer = -1;
inline constexpr int kNoSlot = -1;
inline constexpr int kNoBuffer = -1;

struct Instruction {
  InstructionId id;
  StreamKind stream = StreamKind::kCompute;
  Owner owner = Owner::kStage;
  // For communication: the group and the channel of its communicator. A rank uses each (group,
  // channel) from one stream only. For a pass: the group of the tensor ranks that share the pass.
  GroupKind group = GroupKind::kNone;
  std::string channel = "";  // see build/channels.h
  int peer = kNoPeer;        // group-relative rank of a send's receiver or a receive's sender
  // One of the chunk's activation slots, which hold a micro-batch on its way through the chunk: the
  // activations that F keeps for B, and the buffers of sends and receives. All instructions of a
  // micro-batch in a slot end before instructions of the slot's next micro-batch begin.
  int activation_slot = kNoSlot;
  // One of the rank's gradient buffers: a pass or A accumulates into it, S and R work on it. A
  // buffer holds a whole chunk, or with ZeRO stage 2 one bucket. With stage 2 buckets take turns in
  // a buffer. A turn lasts from the first pass that accumulates into the buffer to the R that
  // reduces the sum, and ends before the next turn begins. With stage 2 a forward accumulates only
  // into the buffer of the chunk's first bucket, and an input-only backward into no buffer. Their
  // gradients for other buckets go to separate memory (GradientSizes::early). The backward piece of
  // such a bucket later adds these gradients to the bucket's buffer.
  int gradient_buffer = kNoBuffer;
  // Overwrites the memory instead of accumulating into it. For a pass: the pass begins a turn in
  // its gradient buffer, which is zeroed first. For R: it is the first R of its bucket in a step,
  // and overwrites the rank's shard with its result.
  bool begins_sum = false;
  // For B and W: the number of buckets through whose layers it goes, from id.bucket() on. A
  // backward may be cut into one piece for each bucket, so that each bucket is reduced as soon as
  // its gradients are complete. Then num_buckets is 1, otherwise the number of the chunk's buckets.
  int num_buckets = 0;
  // For B: a separate W computes the gradients of the layers' matrices (kWeightGradient).
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
