// What ranks exchange: collectives and messages among the members of one group. A Communicator
// belongs to one stream (one thread): calls are blocking, and their order on that thread is the
// order on the wire. Members must make the same collective calls in the same order, with the same
// instruction id.
//
// Every call has (group, sequence number, instruction id), and every message carries them.
// Collectives of a group are numbered together, messages by their ordered pair of ranks. A
// difference (sequence, operation, size, type, instruction) is found by the receiver.
//
// Errors, of every call:
//   Internal - members do not make the same calls; the message names both. Our bug.
//   DeadlineExceeded - the timeout passed; the message names the ranks that had not arrived.
//   Aborted - a rank's process ended or closed its end, or a peer reported that it gave up (the
//   message names it), or Abort was called here; the attempt is over, rejoin in the next one.
//   InvalidArgument - sizes or types; nothing was sent.
// After any error but InvalidArgument the communicator is dead: the other members are told, every
// later call fails with the same status, and buffers hold garbage. BlamedRanks() says which world
// ranks are to blame.
//
// Threads: calls on the owner's thread; Abort() and the accessors on any.
// Shared memory: a message larger than its ring (GroupSpec::ring_bytes) is not copied into it;
// peers read it where it lies, and the call returns once they have. "Copied into shared memory"
// below is what smaller ones cost, and all where the kernel forbids reading. Determinism: a sum is
// a left fold in the order of the group's ranks, with fp32 accumulation (F64 for F64) and one
// rounding at the end: equal bits whatever the transport and the timing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/tensor/tensor.h"

namespace megascale::comm {

enum class Operation : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kReduce,
  kAllToAll,
  kBarrier,
  kSend,
  kRecv,
};

// "all-reduce", "reduce-scatter" …
absl::string_view Name(Operation operation);

struct CallInfo {
  // Of the plan; equal on all members. The two ends of a message pass the same one.
  uint64_t instruction_id = 0;
  // How long the whole call may take. Zero: the default of the implementation's options.
  absl::Duration timeout = absl::ZeroDuration();
};

// A call that was entered or left, for telemetry and diagnosis.
struct CallEvent {
  enum class Kind : uint8_t { kEntered, kLeft };
  Kind kind = Kind::kEntered;
  Operation operation = Operation::kBarrier;
  absl::string_view group;  // lives as long as the communicator
  uint64_t sequence =
      0;  // from 0; of the group's collectives, or of the messages of the ordered pair
  uint64_t instruction_id = 0;
  int peer = -1;             // world rank of the other end of a message; -1 for collectives
  size_t payload_bytes = 0;  // of this rank's buffer (the larger one, where there are two)
  bool ok = true;            // kLeft only
};

// Called on the communicator's thread, at the start and the end of every call. Must not block.
using CallObserver = std::function<void(const CallEvent&)>;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // this member's index in the group, from 0
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;

  // Replaces `buffer` on every member by the sum of all. Shapes: [N], any N, F32, F64 or BF16.
  // Cost, per member: its block of all n buffers added in place, the n-1 other sums copied. Small
  // ones: (n-1)/n of the buffer copied into shared memory and as much added from there, then 1/n
  // copied in and (n-1)/n copied out. Where a member is on another machine, 2(n-1)/n sent.
  virtual absl::Status AllReduce(tensor::Vector buffer, const CallInfo& info) = 0;

  // Overwrites `output` with this member's block of the sum of all `input`s. Shapes: input [n N],
  // output [N]; all members' blocks are equally long, the caller pads. F32, F64 or BF16. `output`
  // may be this member's block of `input`; nothing else of `input` changes. Cost, per member: its
  // block of all n inputs added in place. Small ones: (n-1)/n of the input copied into shared
  // memory (or sent) and as much added from there.
  virtual absl::Status ReduceScatter(tensor::Vector input, tensor::Vector output,
                                     const CallInfo& info) = 0;

  // Overwrites `output` with the members' `input`s, in order. Shapes: input [N], output [n N];
  // equally long on all members, the caller pads. Any type. `input` may be this member's block of
  // `output`. Cost, per member: the input copied into shared memory once and n-1 others' copied
  // out; where a member is on another machine, the input sent n-1 times.
  virtual absl::Status AllGather(tensor::Vector input, tensor::Vector output,
                                 const CallInfo& info) = 0;

  // Overwrites `buffer` on all members with that of the member `root`. Any type. The root may
  // return before others have it. Cost: the buffer copied into shared memory once and out on every
  // other member; where a member is on another machine, sent n-1 times.
  virtual absl::Status Broadcast(tensor::Vector buffer, int root, const CallInfo& info) = 0;

  // Overwrites `output` on the member `root` with the sum of all `input`s. Shapes: input and output
  // [N], equally long on all members. F32, F64 or BF16. `output` may be `input`; other members'
  // output is not looked at, and their input does not change. They may return before the root has
  // read it; where they wait for it, they do so twice as long, since it knows who is missing. Cost:
  // the input of each member but the root copied into shared memory (or sent), and all n added in
  // place by the root.
  virtual absl::Status Reduce(tensor::Vector input, tensor::Vector output, int root,
                              const CallInfo& info) = 0;

  // Overwrites block j of `output` with block i of the `input` of the member j, on the member i.
  // Shapes: input [n N], output [n N]; equally long on all members, the caller pads. Any type. The
  // two must not overlap. Cost, per member: (n-1)/n of the input copied into shared memory (or
  // sent) and as much copied out.
  virtual absl::Status AllToAll(tensor::Vector input, tensor::Vector output,
                                const CallInfo& info) = 0;

  // Returns once all members have called it.
  virtual absl::Status Barrier(const CallInfo& info) = 0;

  // Gives `bytes` to the member `peer`. Returns when `bytes` may be reused, which can be before the
  // peer receives. Blocks while the peer lags by more than the transport holds: two ranks that send
  // to each other at once need a communicator for each direction.
  virtual absl::Status Send(int peer, absl::Span<const std::byte> bytes, const CallInfo& info) = 0;

  // Overwrites `bytes` with the next message of the member `peer`, which must be exactly as long.
  virtual absl::Status Recv(int peer, absl::Span<std::byte> bytes, const CallInfo& info) = 0;

  // Fails the running call and all later ones with Aborted (and `reason`'s message), and tells the
  // other members. The first reason stays. `reason` is not OK; ranks that it blames are passed on.
  virtual void Abort(const absl::Status& reason) = 0;
};

// The world ranks that an error of a Communicator blames, in order; empty when it blames none. They
// travel as a payload of the status, which base::Annotate does not keep: ask before annotating.
std::vector<int> BlamedRanks(const absl::Status& status);

// `status`, blaming `world_ranks` (instead of any blamed before).
absl::Status Blame(absl::Status status, const std::vector<int>& world_ranks);

}  // namespace megascale::comm
