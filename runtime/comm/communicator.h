// Collectives and messages among the members of one group. Members must make the same collective
// calls in the same order, with the same instruction id.
//
// Every call has a group, a sequence number and an instruction id. All collectives of a group share
// one sequence; messages have one for each ordered pair of ranks. Communicators that go through the
// host send a header before the data of every call, and the receiver detects any difference in
// sequence number, operation, size, type or instruction id. NCCL cannot detect a difference when it
// occurs; some are named when the deadline passes (gpu/comm/nccl_communicator.h).
//
// Errors, of every call:
//   Internal - two members made different calls; the message names both calls. Our bug. Or an error
//   of CUDA or NCCL.
//   DeadlineExceeded - the timeout passed; the message names the ranks that had not arrived. Or the
//   machines of other ranks do not answer, and UnreachedRanks() returns these ranks.
//   Aborted - a rank's process ended or closed its end, or a peer reported that it gave up (the
//   message names it), or Abort was called here; the attempt is over, rejoin in the next one.
//   InvalidArgument - wrong sizes or types; nothing was sent.
// After any error but InvalidArgument the communicator is dead: the other members are told, and
// every later call fails with the same status. BlamedRanks() returns the world ranks that are to
// blame.
//
// Threads: calls on the thread of the owning stream; Abort() and the accessors on any. Determinism:
// through the host, a sum is a binary tree over the group's ranks (runtime/tensor/sum_tree.h), with
// fp32 accumulation (F64 for F64) and one rounding at the end, so its bits do not depend on
// transport or timing. NCCL sums in an order of its own, the same in every run on the same
// machines.
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
  // From 0: counts the group's collectives, or the messages of the ordered pair of ranks.
  uint64_t sequence = 0;
  uint64_t instruction_id = 0;
  int peer = -1;             // world rank of the other end of a message; -1 for collectives
  size_t payload_bytes = 0;  // size of this rank's buffer (of the larger one if there are two)
  bool ok = true;            // kLeft only
};

// Called on the thread that makes the call, at its start and its end. Must not block.
using CallObserver = std::function<void(const CallEvent&)>;

// Exchanges tensors of a device; belongs to one stream. A call is made on the stream's own thread
// and is ordered there: it reads what the stream's earlier work wrote, and the stream's later work
// reads its result. So the call may return before the exchange is over; then an error may come with
// a later call, or with the stream's work (stream::Stream::Notify). Shapes are those of
// HostCommunicator (host/host_communicator.h). For communicators that go through the host,
// HostCommunicator also says how they sum and what a call costs.
//
// After an error of a call, other than InvalidArgument, its buffers hold garbage.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // this member's index in the group, from 0
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;

  virtual absl::Status AllReduce(const tensor::Vector& buffer, const CallInfo& info) = 0;
  virtual absl::Status ReduceScatter(const tensor::Vector& input, const tensor::Vector& output,
                                     const CallInfo& info) = 0;
  virtual absl::Status AllGather(const tensor::Vector& input, const tensor::Vector& output,
                                 const CallInfo& info) = 0;
  virtual absl::Status Broadcast(const tensor::Vector& buffer, int root, const CallInfo& info) = 0;
  virtual absl::Status Reduce(const tensor::Vector& input, const tensor::Vector& output, int root,
                              const CallInfo& info) = 0;
  virtual absl::Status AllToAll(const tensor::Vector& input, const tensor::Vector& output,
                                const CallInfo& info) = 0;
  virtual absl::Status Barrier(const CallInfo& info) = 0;
  virtual absl::Status Send(int peer, const tensor::Vector& tensor, const CallInfo& info) = 0;
  virtual absl::Status Recv(int peer, const tensor::Vector& tensor, const CallInfo& info) = 0;

  // As HostCommunicator::Abort. Threads: any.
  virtual void Abort(const absl::Status& reason) = 0;
};

// Returns the world ranks that an error of a Communicator blames; empty when it blames no rank.
// They are a payload of the status; base::Annotate keeps the payload.
std::vector<int> BlamedRanks(const absl::Status& status);

// Returns `status` with `world_ranks` blamed, instead of any that were blamed before.
absl::Status Blame(absl::Status status, const std::vector<int>& world_ranks);

// As Blame, for ranks that have come, but whose machines do not answer this one: the links to them
// may be at fault, and not the ranks.
absl::Status BlameLinks(absl::Status status, const std::vector<int>& world_ranks);
// Returns the ranks that BlameLinks has blamed; empty: the error is another one.
std::vector<int> UnreachedRanks(const absl::Status& status);

}  // namespace megascale::comm
