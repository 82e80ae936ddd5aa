// Checks a call before anything is enqueued, with the rules and the error messages of
// comm::HostCommunicator. Errors of all checks: InvalidArgument.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/tensor/tensor.h"

namespace megascale::cuda {

class CallChecks {
 public:
  CallChecks(std::string group, int rank, int size)
      : group_(std::move(group)), rank_(rank), size_(size) {}

  absl::Status AllReduce(const tensor::Vector& buffer) const;
  absl::Status ReduceScatter(const tensor::Vector& input, const tensor::Vector& output) const;
  absl::Status AllGather(const tensor::Vector& input, const tensor::Vector& output) const;
  absl::Status Broadcast(int root) const;
  absl::Status Reduce(const tensor::Vector& input, const tensor::Vector& output, int root) const;
  absl::Status AllToAll(const tensor::Vector& input, const tensor::Vector& output) const;
  // `operation`: kSend or kRecv.
  absl::Status Message(comm::Operation operation, int peer) const;

 private:
  absl::Status Refuse(comm::Operation operation, absl::string_view why) const;
  absl::Status CheckSummable(comm::Operation operation, tensor::DType dtype) const;
  absl::Status CheckRoot(comm::Operation operation, int root) const;
  // `whole` must be `parts` times `part`, of one type.
  absl::Status CheckParts(comm::Operation operation, const tensor::Vector& whole,
                          const tensor::Vector& part, int parts) const;

  const std::string group_;
  const int rank_;
  const int size_;
};

}  // namespace megascale::cuda
