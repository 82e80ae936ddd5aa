// Collectives and messages of tensors in host memory, over an Endpoint: decides the messages of
// each call. All algorithms are direct (every member to every other), which sends no byte twice and
// keeps the order of sums simple. Rules, errors and determinism: runtime/comm/communicator.h.
//
// Calls are blocking, and their order on the owner's thread is the order on the wire. After an
// error buffers hold garbage.
//
// Shared memory: a message larger than its ring (GroupSpec::ring_bytes) is not copied into the
// ring; peers read it from the sender's memory, and the call returns once they have. The costs
// below that say "copied into shared memory" are those of smaller messages, and of all messages
// where the kernel forbids such reading.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/call_progress.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/endpoint.h"

namespace megascale::comm {

class HostCommunicator {
 public:
  struct Options {
    absl::Duration default_timeout;
    CallObserver observer;
    CallProgress* progress = nullptr;  // outlives the communicator; null: nobody wants to know
  };
  HostCommunicator(std::shared_ptr<Endpoint> endpoint, Options options);

  int rank() const { return endpoint_->index(); }  // this member's index in the group, from 0
  int size() const { return endpoint_->size(); }
  const std::string& name() const { return endpoint_->name(); }
  int WorldRank(int member) const { return endpoint_->WorldRank(member); }
  // Options::progress, for a communicator that moves its data another way and therefore shows its
  // calls itself.
  CallProgress* progress() const { return options_.progress; }

  // Replaces `buffer` on every member by the sum of all. Shapes: [N], any N, F32, F64 or BF16. Cost
  // per member of n: adds its block of all n buffers in place, and copies the other n-1 sums. For
  // small buffers: copies (n-1)/n of the buffer into shared memory, adds as much from there, copies
  // 1/n in and (n-1)/n out. With members on other machines: sends 2(n-1)/n.
  absl::Status AllReduce(tensor::HostVector buffer, const CallInfo& info);

  // Overwrites `output` with this member's block of the sum of all `input`s. Shapes: input [n N],
  // output [N]; all members' blocks are equally long, the caller pads. F32, F64 or BF16. `output`
  // may be this member's block of `input`; the rest of `input` does not change. Cost per member:
  // adds its block of all n inputs in place. For small inputs: copies (n-1)/n of the input into
  // shared memory (or sends it), and adds as much from there.
  absl::Status ReduceScatter(tensor::HostVector input, tensor::HostVector output,
                             const CallInfo& info);

  // Overwrites `output` with the members' `input`s, in order. Shapes: input [N], output [n N];
  // equally long on all members, the caller pads. Any type. `input` may be this member's block of
  // `output`. Cost per member: copies the input into shared memory once, and the n-1 others out;
  // with members on other machines, sends the input n-1 times.
  absl::Status AllGather(tensor::HostVector input, tensor::HostVector output, const CallInfo& info);

  // Overwrites `buffer` on all members with that of member `root`. Any type. The root may return
  // before others have received it. Cost: the root copies the buffer into shared memory once, every
  // other member copies it out; with members on other machines, the root sends it n-1 times.
  absl::Status Broadcast(tensor::HostVector buffer, int root, const CallInfo& info);

  // Overwrites `output` on member `root` with the sum of all `input`s. Shapes: input and output
  // [N], equally long on all members. F32, F64 or BF16. `output` may be `input`. Other members'
  // `output` is not used, and their `input` does not change. They may return before the root has
  // read their input; if they have to wait for the root, their timeout is twice as long, since the
  // root knows better which rank is missing. Cost: each member but the root copies its input into
  // shared memory (or sends it), and the root adds all n in place.
  absl::Status Reduce(tensor::HostVector input, tensor::HostVector output, int root,
                      const CallInfo& info);

  // On member i, overwrites block j of `output` with block i of member j's `input`. Shapes: input
  // [n N], output [n N]; equally long on all members, the caller pads. Any type. Input and output
  // must not overlap. Cost per member: copies (n-1)/n of the input into shared memory (or sends
  // it), and as much out.
  absl::Status AllToAll(tensor::HostVector input, tensor::HostVector output, const CallInfo& info);

  // Returns once all members have called it.
  absl::Status Barrier(const CallInfo& info);

  // Sends `bytes` to member `peer`. Returns when `bytes` may be reused, which can be before the
  // peer receives. Blocks while the peer lags behind by more than the transport holds: two ranks
  // that send to each other at the same time need a communicator for each direction.
  absl::Status Send(int peer, absl::Span<const std::byte> bytes, const CallInfo& info);

  // Overwrites `bytes` with the next message from member `peer`, which must have exactly this
  // length.
  absl::Status Recv(int peer, absl::Span<std::byte> bytes, const CallInfo& info);

  // Fails the running call and all later ones with Aborted and `reason`'s message, and tells the
  // other members. Only the first reason counts. `reason` is not OK; the ranks that it blames are
  // passed on.
  void Abort(const absl::Status& reason) { endpoint_->Abort(reason); }

  // The following methods are for a communicator that moves its data another way, or has to do
  // something before it can move data. They neither wait nor change anything.

  // Returns how long a call may take.
  absl::Duration TimeoutOf(const CallInfo& info) const {
    return info.timeout == absl::ZeroDuration() ? options_.default_timeout : info.timeout;
  }
  // Returns OK, or the error with which every call ends from now on. Threads: any.
  absl::Status failure() const { return endpoint_->failure(); }
  // Returns OK, or the error with which a call that needs all peers would end at once.
  // `asks_kernel`: also ask the kernel whether peers on this machine live, a system call for each.
  // Threads: any, once a Barrier has ended.
  absl::Status FindFailure(bool asks_kernel) const { return endpoint_->FindFailure(asks_kernel); }
  // Whether a peer waits for this member in a call with this instruction id. Threads: any, while no
  // call runs.
  bool HasCall(uint64_t instruction_id) const { return endpoint_->HasCall(instruction_id); }

 private:
  // A call that has begun and not ended.
  struct Call {
    MessageHeader header;
    absl::Duration deadline;
    CallEvent event;
  };

  absl::Status Invalid(Operation operation, absl::string_view problem) const;
  absl::Status CheckPeer(Operation operation, int peer) const;
  Call Begin(const MessageHeader& header, const CallInfo& info, int peer);
  absl::Status End(Call& call, absl::Status status);
  MessageHeader Collective(Operation operation, tensor::HostVector buffer);
  // Gathers the members' blocks of `output`; this member's block is already in place.
  absl::Status GatherBlocks(const Call& call, tensor::HostVector output, int64_t block);

  // Send the same data to all other members, and receive from a member that does so. Both use
  // windows if the group has them.
  void SendToOthers(Exchange& exchange, tensor::HostVector data) const;
  void ReceiveFrom(Exchange& exchange, int peer, tensor::HostVector data) const;

  const std::shared_ptr<Endpoint> endpoint_;
  const Options options_;
  const int channel_;  // of options_.progress
  uint64_t num_collectives_ = 0;
  std::vector<uint64_t> num_sent_;      // by peer
  std::vector<uint64_t> num_received_;  // by peer
};

}  // namespace megascale::comm
