// A Communicator over an Endpoint: decides the messages of each call. All algorithms are direct
// (every member to every other), which sends no byte twice and keeps the order of sums simple.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/host/endpoint.h"

namespace megascale::comm {

class HostCommunicator : public Communicator {
 public:
  struct Options {
    absl::Duration default_timeout;
    CallObserver observer;
  };
  HostCommunicator(std::shared_ptr<Endpoint> endpoint, Options options);

  int rank() const override { return endpoint_->index(); }
  int size() const override { return endpoint_->size(); }
  const std::string& name() const override { return endpoint_->name(); }

  absl::Status AllReduce(tensor::Vector buffer, const CallInfo& info) override;
  absl::Status ReduceScatter(tensor::Vector input, tensor::Vector output,
                             const CallInfo& info) override;
  absl::Status AllGather(tensor::Vector input, tensor::Vector output,
                         const CallInfo& info) override;
  absl::Status Broadcast(tensor::Vector buffer, int root, const CallInfo& info) override;
  absl::Status Reduce(tensor::Vector input, tensor::Vector output, int root,
                      const CallInfo& info) override;
  absl::Status AllToAll(tensor::Vector input, tensor::Vector output, const CallInfo& info) override;
  absl::Status Barrier(const CallInfo& info) override;
  absl::Status Send(int peer, absl::Span<const std::byte> bytes, const CallInfo& info) override;
  absl::Status Recv(int peer, absl::Span<std::byte> bytes, const CallInfo& info) override;
  void Abort(const absl::Status& reason) override { endpoint_->Abort(reason); }

 private:
  // A call that has begun and not ended.
  struct Call {
    MessageHeader header;
    absl::Duration deadline;
    CallEvent event;
  };

  absl::Duration TimeoutOf(const CallInfo& info) const {
    return info.timeout == absl::ZeroDuration() ? options_.default_timeout : info.timeout;
  }
  absl::Status Invalid(Operation operation, absl::string_view problem) const;
  absl::Status CheckPeer(Operation operation, int peer) const;
  Call Begin(const MessageHeader& header, const CallInfo& info, int peer);
  absl::Status End(Call& call, absl::Status status);
  MessageHeader Collective(Operation operation, tensor::Vector buffer);
  // Gathers the members' blocks of `output`; this member's block is already in place.
  absl::Status GatherBlocks(const Call& call, tensor::Vector output, int64_t block);

  // Send the same data to all other members, and receive from a member that does so. Both use
  // windows if the group has them.
  void SendToOthers(Exchange& exchange, tensor::Vector data) const;
  void ReceiveFrom(Exchange& exchange, int peer, tensor::Vector data) const;

  const std::shared_ptr<Endpoint> endpoint_;
  const Options options_;
  uint64_t num_collectives_ = 0;
  std::vector<uint64_t> num_sent_;      // by peer
  std::vector<uint64_t> num_received_;  // by peer
};

}  // namespace megascale::comm
