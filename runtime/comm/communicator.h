// Collectives and messages among the members of one group. A Communicator belongs to one stream
// (one thread): calls are blocking, and their order on that thread is the order on the wire.
// Members must make the same collective calls in the same order, with the same instruction id.
//
// Every call has a group, a sequence number and an instruction id, and every message carries them.
// All collectives of a group share one sequence; messages have one for each ordered pair of ranks.
// The receiver detects any difference in sequence, operation, size, type or instruction.
//
// Errors, of every call:
//   Internal - members do not make the same calls; the message names both. Our bug.
//   DeadlineExceeded - the timeout passed; the message names the ranks that had not arrived.
//   Aborted - a rank's process ended or closed its end, or a peer reported that it gave up (the
//   message names it), or Abort was called here; the attempt is over, rejoin in the next one.
//   InvalidArgument - wrong sizes or types; nothing was sent.
// After any error but InvalidArgument the communicator is dead: the other members are told, every
// later call fails with the same status, and buffers hold garbage. BlamedRanks() returns the world
// ranks that are to blame.
//
// Threads: calls on the owner's thread; Abort() and the accessors on any.
// Shared memory: a message larger than its ring (GroupSpec::ring_bytes) is not copied into the
// ring; peers read it from the sender's memory, and the call returns once they have. The costs
// below that say "copied into shared memory" are those of smaller messages, and of all messages
// where the kernel forbids such reading. Determinism: a sum is a left fold in the order of the
// group's ranks, with fp32 accumulation (F64 for F64) and one rounding at the end, so its bits do
// not depend on transport or timing.
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

// Returns "all-reduce", "reduce-scatter" …
absl::string_view Name(Operation operation);

struct CallInfo {
  // From the plan; equal on all members. Both ends of a message pass the same id.
  uint64_t instruction_id = 0;
  // How long the whole call may take. Zero: the default of the implementation's options.
  absl::Duration timeout = absl::ZeroDuration();
};

// The beginning or the end of a call, for telemetry and diagnosis.
struct CallEvent {
  enum class Kind : uint8_t { kEntered, kLeft };
  Kind kind = Kind::kEntered;
  Operation operation = Operation::kBarrier;
  absl::string_view group;  // lives as long as the communicator
  uint64_t sequence =
      0;  // from 0; of the group's collectives, or of the messages of the ordered pair
  uint64_t instruction_id = 0;
  int peer = -1;             // world rank of the other end of a message; -1 for collectives
  size_t payload_bytes = 0;  // size of this rank's buffer (of the larger one if there are two)
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

  // Replaces `buffer` on every member by the sum of all. Shapes: [N], any N, F32, F64 or BF16. Cost
  // per member of n: adds its block of all n buffers in place, and copies the other n-1 sums. For
  // small buffers: copies (n-1)/n of the buffer into shared memory, adds as much from there, copies
  // 1/n in and (n-1)/n out. With members on other machines: sends 2(n-1)/n.
  virtual absl::Status AllReduce(tensor::Vector buffer, const CallInfo& info) = 0;

  // Overwrites `output` with this member's block of the sum of all `input`s. Shapes: input [n N],
  // output [N]; all members' blocks are equally long, the caller pads. F32, F64 or BF16. `output`
  // may be this member's block of `input`; the rest of `input` does not change. Cost per member:
  // adds its block of all n inputs in place. For small inputs: copies (n-1)/n of the input into
  // shared memory (or sends it), and adds as much from there.
  virtual absl::Status ReduceScatter(tensor::Vector input, tensor::Vector output,
                                     const CallInfo& info) = 0;

  // Overwrites `output` with the members' `input`s, in order. Shapes: input [N], output [n N];
  // equally long on all members, the caller pads. Any type. `input` may be this member's block of
  // `output`. Cost per member: copies the input into shared memory once, and the n-1 others out;
  // with members on other machines, sends the input n-1 times.
  virtual absl::Status AllGather(tensor::Vector input, tensor::Vector output,
                                 const CallInfo& info) = 0;

  // Overwrites `buffer` on all members with that of member `root`. Any type. The root may return
  // before others have received it. Cost: the root copies the buffer into shared memory once, every
  // other member copies it out; with members on other machines, the root sends it n-1 times.
  virtual absl::Status Broadcast(tensor::Vector buffer, int root, const CallInfo& info) = 0;

  // Overwrites `output` on member `root` with the sum of all `input`s. Shapes: input and output
  // [N], equally long on all members. F32, F64 or BF16. `output` may be `input`. Other members'
  // `output` is not used, and their `input` does not change. They may return before the root has
  // read their input; if they have to wait for the root, their timeout is twice as long, since the
  // root knows better which rank is missing. Cost: each member but the root copies its input into
  // shared memory (or sends it), and the root adds all n in place.
  virtual absl::Status Reduce(tensor::Vector input, tensor::Vector output, int root,
                              const CallInfo& info) = 0;

  // On member i, overwrites block j of `output` with block i of member j's `input`. Shapes: input
  // [n N], output [n N]; equally long on all members, the caller pads. Any type. The two must not
  // overlap. Cost per member: copies (n-1)/n of the input into shared memory (or sends it), and as
  // much out.
  virtual absl::Status AllToAll(tensor::Vector input, tensor::Vector output,
                                const CallInfo& info) = 0;

  // Returns once all members have called it.
  virtual absl::Status Barrier(const CallInfo& info) = 0;

  // Sends `bytes` to member `peer`. Returns when `bytes` may be reused, which can be before the
  // peer receives. Blocks while the peer lags behind by more than the transport holds: two ranks
  // that send to each other at the same time need a communicator for each direction.
  virtual absl::Status Send(int peer, absl::Span<const std::byte> bytes, const CallInfo& info) = 0;

  // Overwrites `bytes` with the next message from member `peer`, which must have exactly this
  // length.
  virtual absl::Status Recv(int peer, absl::Span<std::byte> bytes, const CallInfo& info) = 0;

  // Fails the running call and all later ones with Aborted and `reason`'s message, and tells the
  // other members. Only the first reason counts. `reason` is not OK; the ranks that it blames are
  // passed on.
  virtual void Abort(const absl::Status& reason) = 0;
};

// Returns the world ranks that an error of a Communicator blames, ascending; empty when it blames
// no rank. They are a payload of the status, which base::Annotate drops: call this before
// annotating.
std::vector<int> BlamedRanks(const absl::Status& status);

// Returns `status` with `world_ranks` blamed, instead of any that were blamed before.
absl::Status Blame(absl::Status status, const std::vector<int>& world_ranks);

}  // namespace megascale::comm
