#include "gpu/comm/nccl_communicator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpu/comm/call_checks.h"
#include "gpu/comm/call_watch.h"
#include "gpu/comm/nccl_session.h"
#include "gpu/comm/solo_communicator.h"
#include "runtime/base/status.h"

namespace megascale::cuda {
namespace {

using comm::CallInfo;
using comm::Operation;
using tensor::DType;
using tensor::Vector;

ncclDataType_t TypeOf(const Vector& vector) {
  switch (vector.dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kI32:
      return ncclInt32;
  }
  return ncclUint8;
}

size_t CountOf(const Vector& vector) { return static_cast<size_t>(vector.size); }

class NcclCommunicator final : public comm::Communicator {
 public:
  explicit NcclCommunicator(const NcclOptions& options)
      : default_timeout_(options.default_timeout),
        before_call_(options.before_call),
        nccl_(*options.nccl),
        host_(*options.host),
        checks_(host_.name(), host_.rank(), host_.size()),
        session_(options),
        num_sent_(static_cast<size_t>(host_.size())),
        num_received_(static_cast<size_t>(host_.size())) {}

  absl::Status Start() { return session_.Start(); }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const std::string& name() const override { return host_.name(); }

  absl::Status AllReduce(const Vector& buffer, const CallInfo& info) override {
    RETURN_IF_ERROR(checks_.AllReduce(buffer));
    return Collective(Operation::kAllReduce, buffer, info, [&](ncclComm_t group) {
      return nccl_.ncclAllReduce(buffer.data, buffer.data, CountOf(buffer), TypeOf(buffer), ncclSum,
                                 group, stream());
    });
  }

  absl::Status ReduceScatter(const Vector& input, const Vector& output,
                             const CallInfo& info) override {
    RETURN_IF_ERROR(checks_.ReduceScatter(input, output));
    return Collective(Operation::kReduceScatter, input, info, [&](ncclComm_t group) {
      return nccl_.ncclReduceScatter(input.data, output.data, CountOf(output), TypeOf(input),
                                     ncclSum, group, stream());
    });
  }

  absl::Status AllGather(const Vector& input, const Vector& output, const CallInfo& info) override {
    RETURN_IF_ERROR(checks_.AllGather(input, output));
    return Collective(Operation::kAllGather, output, info, [&](ncclComm_t group) {
      return nccl_.ncclAllGather(input.data, output.data, CountOf(input), TypeOf(input), group,
                                 stream());
    });
  }

  absl::Status Broadcast(const Vector& buffer, int root, const CallInfo& info) override {
    RETURN_IF_ERROR(checks_.Broadcast(root));
    return Collective(Operation::kBroadcast, buffer, info, [&](ncclComm_t group) {
      return nccl_.ncclBroadcast(buffer.data, buffer.data, CountOf(buffer), TypeOf(buffer), root,
                                 group, stream());
    });
  }

  absl::Status Reduce(const Vector& input, const Vector& output, int root,
                      const CallInfo& info) override {
    RETURN_IF_ERROR(checks_.Reduce(input, output, root));
    void* const sum = rank() == root ? output.data : nullptr;
    return Collective(Operation::kReduce, input, info, [&](ncclComm_t group) {
      return nccl_.ncclReduce(input.data, sum, CountOf(input), TypeOf(input), ncclSum, root, group,
                              stream());
    });
  }

  absl::Status AllToAll(const Vector& input, const Vector& output, const CallInfo& info) override {
    RETURN_IF_ERROR(checks_.AllToAll(input, output));
    return Collective(Operation::kAllToAll, input, info,
                      [&](ncclComm_t group) { return SwapBlocks(input, output, group); });
  }

  absl::Status Barrier(const CallInfo& info) override {
    const Vector one = {session_.barrier(), DType::kF32, 1};
    return Collective(Operation::kBarrier, one, info, [&](ncclComm_t group) {
      return nccl_.ncclAllReduce(one.data, one.data, 1, ncclFloat32, ncclSum, group, stream());
    });
  }

  absl::Status Send(int peer, const Vector& tensor, const CallInfo& info) override {
    RETURN_IF_ERROR(checks_.Message(Operation::kSend, peer));
    const Call call = {.operation = Operation::kSend,
                       .sequence = num_sent_[static_cast<size_t>(peer)]++,
                       .peer_rank = host_.WorldRank(peer)};
    return Run(call, tensor, info, [&](ncclComm_t group) {
      return nccl_.ncclSend(tensor.data, CountOf(tensor), TypeOf(tensor), peer, group, stream());
    });
  }

  absl::Status Recv(int peer, const Vector& tensor, const CallInfo& info) override {
    RETURN_IF_ERROR(checks_.Message(Operation::kRecv, peer));
    const Call call = {.operation = Operation::kRecv,
                       .sequence = num_received_[static_cast<size_t>(peer)]++,
                       .peer_rank = host_.WorldRank(peer)};
    return Run(call, tensor, info, [&](ncclComm_t group) {
      return nccl_.ncclRecv(tensor.data, CountOf(tensor), TypeOf(tensor), peer, group, stream());
    });
  }

  void Abort(const absl::Status& reason) override { session_.Abort(reason); }

 private:
  cudaStream_t stream() const { return session_.stream(); }

  absl::Status Collective(Operation operation, const Vector& larger, const CallInfo& info,
                          NcclSession::Work work) {
    return Run({.operation = operation, .sequence = num_collectives_++}, larger, info, work);
  }

  absl::Status Run(Call call, const Vector& larger, const CallInfo& info, NcclSession::Work work) {
    if (larger.size == 0) return session_.failure();
    if (before_call_) before_call_();
    call.instruction_id = info.instruction_id;
    call.bytes = static_cast<size_t>(larger.bytes());
    call.timeout = info.timeout == absl::ZeroDuration() ? default_timeout_ : info.timeout;
    return session_.Run(call, work);
  }

  // As one group, so that all messages move at once. The own block, too, goes by a message.
  ncclResult_t SwapBlocks(const Vector& input, const Vector& output, ncclComm_t group) {
    const size_t count = CountOf(input) / static_cast<size_t>(size());
    const size_t block_bytes = count * tensor::SizeOf(input.dtype);
    ncclResult_t result = nccl_.ncclGroupStart();
    if (result != ncclSuccess) return result;
    for (int i = 0; i < size() && IsFine(result); ++i) {
      const size_t offset = static_cast<size_t>(i) * block_bytes;
      result =
          nccl_.ncclSend(input.as<std::byte>() + offset, count, TypeOf(input), i, group, stream());
      if (!IsFine(result)) break;
      result =
          nccl_.ncclRecv(output.as<std::byte>() + offset, count, TypeOf(input), i, group, stream());
    }
    const ncclResult_t ended = nccl_.ncclGroupEnd();
    return IsFine(result) ? ended : result;
  }
  static bool IsFine(ncclResult_t result) {
    return result == ncclSuccess || result == ncclInProgress;
  }

  const absl::Duration default_timeout_;
  const std::function<void()> before_call_;
  const NcclApi& nccl_;
  comm::HostCommunicator& host_;
  const CallChecks checks_;
  NcclSession session_;
  uint64_t num_collectives_ = 0;
  std::vector<uint64_t> num_sent_;      // by peer
  std::vector<uint64_t> num_received_;  // by peer
};

}  // namespace

absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeNcclCommunicator(
    const NcclOptions& options) {
  if (options.cuda == nullptr || options.host == nullptr) {
    return absl::InvalidArgumentError("NcclOptions: expected cuda and host");
  }
  if (options.host->size() == 1) {
    return MakeSoloCommunicator(options);
  }
  if (options.nccl == nullptr) {
    return absl::InvalidArgumentError("NcclOptions: expected nccl for a group of several ranks");
  }
  auto communicator = std::make_unique<NcclCommunicator>(options);
  RETURN_IF_ERROR(communicator->Start());
  return communicator;
}

}  // namespace megascale::cuda
