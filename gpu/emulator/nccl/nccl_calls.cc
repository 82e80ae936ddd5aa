#include "gpu/emulator/nccl/nccl_calls.h"

#include <cstring>
#include <memory>

#include "gpu/emulator/emulated_cuda.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/comm/fold.h"

namespace megascale::emulator {
namespace {

using tensor::DType;

// The bytes of one call, and where its sum goes.
struct Plan {
  std::vector<NcclTransfer> transfers;
  std::vector<std::vector<std::byte>> received;  // by rank, for a sum; empty: no sum here
  const std::byte* own = nullptr;                // this rank's part of the sum
  std::byte* sum = nullptr;
  size_t count = 0;
  ncclDataType_t dtype = ncclFloat32;
};

class Planner {
 public:
  Planner(const NcclMesh& mesh, const NcclCall& call, Plan& plan)
      : mesh_(mesh), call_(call), plan_(plan), bytes_(call.count * NcclSizeOf(call.dtype)) {}

  absl::Status Make() {
    const auto size = static_cast<size_t>(mesh_.size());
    switch (call_.operation) {
      case NcclOperation::kAllReduce:
        RETURN_IF_ERROR(Find(bytes_, bytes_));
        for (int i = 0; i < mesh_.size(); ++i) SendTo(i, 0);
        return Sum(0);
      case NcclOperation::kReduceScatter:
        RETURN_IF_ERROR(Find(size * bytes_, bytes_));
        for (int i = 0; i < mesh_.size(); ++i) SendTo(i, static_cast<size_t>(i) * bytes_);
        return Sum(static_cast<size_t>(mesh_.rank()) * bytes_);
      case NcclOperation::kReduce:
        RETURN_IF_ERROR(Find(bytes_, mesh_.rank() == call_.root ? bytes_ : 0));
        SendTo(call_.root, 0);
        return mesh_.rank() == call_.root ? Sum(0) : absl::OkStatus();
      case NcclOperation::kAllGather:
        RETURN_IF_ERROR(Find(bytes_, size * bytes_));
        for (int i = 0; i < mesh_.size(); ++i) {
          SendTo(i, 0);
          ReceiveFrom(i, output_ + static_cast<size_t>(i) * bytes_);
        }
        CopyOwn(output_ + static_cast<size_t>(mesh_.rank()) * bytes_);
        return absl::OkStatus();
      case NcclOperation::kBroadcast:
        return Broadcast();
      case NcclOperation::kSend:
      case NcclOperation::kRecv:
        return Message();
    }
    return absl::InternalError("unknown operation");
  }

 private:
  absl::Status Find(size_t input_bytes, size_t output_bytes) {
    if (input_bytes > 0) {
      ASSIGN_OR_RETURN(input_, WorkingAddress(call_.input, input_bytes));
    }
    if (output_bytes > 0) {
      ASSIGN_OR_RETURN(output_, WorkingAddress(call_.output, output_bytes));
    }
    return absl::OkStatus();
  }
  NcclLabel Label() const {
    NcclOperation operation = call_.operation;
    uint64_t root = 0;
    if (operation == NcclOperation::kRecv) operation = NcclOperation::kSend;
    if (operation == NcclOperation::kBroadcast || operation == NcclOperation::kReduce) {
      root = static_cast<uint64_t>(call_.root);
    }
    return {static_cast<uint64_t>(operation), bytes_, static_cast<uint64_t>(call_.dtype), root};
  }
  void SendTo(int peer, size_t offset) {
    if (peer == mesh_.rank()) return;
    plan_.transfers.push_back({peer, true, input_ + offset, Label(), call_.event});
  }
  void ReceiveFrom(int peer, std::byte* to) {
    if (peer == mesh_.rank()) return;
    plan_.transfers.push_back({peer, false, to, Label(), call_.event});
  }
  void CopyOwn(std::byte* to) const {
    if (to != input_) std::memmove(to, input_, bytes_);
  }
  absl::Status Sum(size_t own_offset) {
    plan_.own = input_ + own_offset;
    plan_.sum = output_;
    plan_.count = call_.count;
    plan_.dtype = call_.dtype;
    plan_.received.resize(static_cast<size_t>(mesh_.size()));
    for (int i = 0; i < mesh_.size(); ++i) {
      std::vector<std::byte>& part = plan_.received[static_cast<size_t>(i)];
      if (i != mesh_.rank()) part.resize(bytes_);
      ReceiveFrom(i, part.data());
    }
    return absl::OkStatus();
  }
  absl::Status Broadcast() {
    const bool is_root = mesh_.rank() == call_.root;
    RETURN_IF_ERROR(Find(is_root ? bytes_ : 0, bytes_));
    if (!is_root) {
      ReceiveFrom(call_.root, output_);
      return absl::OkStatus();
    }
    for (int i = 0; i < mesh_.size(); ++i) SendTo(i, 0);
    CopyOwn(output_);
    return absl::OkStatus();
  }
  absl::Status Message() {
    const bool is_send = call_.operation == NcclOperation::kSend;
    RETURN_IF_ERROR(Find(is_send ? bytes_ : 0, is_send ? 0 : bytes_));
    plan_.transfers.push_back(
        {call_.root, is_send, is_send ? input_ : output_, Label(), call_.event});
    return absl::OkStatus();
  }

  const NcclMesh& mesh_;
  const NcclCall& call_;
  Plan& plan_;
  const size_t bytes_;
  std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
};

DType TypeOf(ncclDataType_t dtype) {
  if (dtype == ncclFloat64) return DType::kF64;
  return dtype == ncclBfloat16 ? DType::kBF16 : DType::kF32;
}

void AddUp(const Plan& plan) {
  std::vector<const std::byte*> sources;
  for (const auto& part : plan.received) sources.push_back(part.empty() ? plan.own : part.data());
  comm::FoldSum(TypeOf(plan.dtype), sources, plan.count, plan.sum);
}

}  // namespace

size_t NcclSizeOf(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclBfloat16:
      return 2;
    default:
      return 0;
  }
}

absl::Status RunNcclCalls(NcclMesh& mesh, absl::Span<const NcclCall> calls, NcclEvents& events,
                          NcclOutcome* outcome) {
  std::vector<Plan> plans(calls.size());
  std::vector<NcclTransfer> transfers;
  for (size_t i = 0; i < calls.size(); ++i) {
    RETURN_IF_ERROR(Planner(mesh, calls[i], plans[i]).Make());
    transfers.insert(transfers.end(), plans[i].transfers.begin(), plans[i].transfers.end());
  }
  *outcome = mesh.Exchange(transfers, events);
  if (*outcome != NcclOutcome::kDone) return absl::OkStatus();
  for (const Plan& plan : plans) {
    if (plan.sum != nullptr) AddUp(plan);
  }
  return absl::OkStatus();
}

}  // namespace megascale::emulator
