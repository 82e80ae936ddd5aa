#include "gpu/comm/solo_communicator.h"

#include <functional>
#include <mutex>
#include <string>

#include "gpu/comm/call_checks.h"
#include "gpu/cuda/cuda_status.h"
#include "runtime/base/status.h"

namespace megascale::cuda {
namespace {

using comm::CallInfo;
using comm::Operation;
using tensor::Vector;

class SoloCommunicator final : public comm::Communicator {
 public:
  explicit SoloCommunicator(const NcclOptions& options)
      : name_(options.host->name()),
        checks_(name_, 0, 1),
        cuda_(*options.cuda),
        stream_(options.stream),
        before_call_(options.before_call) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return name_; }

  absl::Status AllReduce(const Vector& buffer, const CallInfo& /*info*/) override {
    RETURN_IF_ERROR(checks_.AllReduce(buffer));
    return failure();
  }
  absl::Status ReduceScatter(const Vector& input, const Vector& output,
                             const CallInfo& /*info*/) override {
    RETURN_IF_ERROR(checks_.ReduceScatter(input, output));
    return Copy(input, output);
  }
  absl::Status AllGather(const Vector& input, const Vector& output,
                         const CallInfo& /*info*/) override {
    RETURN_IF_ERROR(checks_.AllGather(input, output));
    return Copy(input, output);
  }
  absl::Status Broadcast(const Vector& /*buffer*/, int root, const CallInfo& /*info*/) override {
    RETURN_IF_ERROR(checks_.Broadcast(root));
    return failure();
  }
  absl::Status Reduce(const Vector& input, const Vector& output, int root,
                      const CallInfo& /*info*/) override {
    RETURN_IF_ERROR(checks_.Reduce(input, output, root));
    return Copy(input, output);
  }
  absl::Status AllToAll(const Vector& input, const Vector& output,
                        const CallInfo& /*info*/) override {
    RETURN_IF_ERROR(checks_.AllToAll(input, output));
    return Copy(input, output);
  }
  absl::Status Barrier(const CallInfo& /*info*/) override { return failure(); }
  absl::Status Send(int peer, const Vector& /*tensor*/, const CallInfo& /*info*/) override {
    return checks_.Message(Operation::kSend, peer);
  }
  absl::Status Recv(int peer, const Vector& /*tensor*/, const CallInfo& /*info*/) override {
    return checks_.Message(Operation::kRecv, peer);
  }

  void Abort(const absl::Status& reason) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.ok()) {
      failure_ = comm::Blame(absl::AbortedError(reason.message()), comm::BlamedRanks(reason));
    }
  }

 private:
  absl::Status failure() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }
  absl::Status Copy(const Vector& from, const Vector& to) {
    RETURN_IF_ERROR(failure());
    if (from.data == to.data || from.size == 0) return absl::OkStatus();
    if (before_call_) before_call_();
    return MEGASCALE_CUDA_CALL(
        cuda_, cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.bytes()),
                               cudaMemcpyDeviceToDevice, stream_));
  }

  const std::string name_;
  const CallChecks checks_;
  const CudaApi& cuda_;
  const cudaStream_t stream_;
  const std::function<void()> before_call_;
  std::mutex mutex_;
  absl::Status failure_;  // guarded by mutex_
};

}  // namespace

std::unique_ptr<comm::Communicator> MakeSoloCommunicator(const NcclOptions& options) {
  return std::make_unique<SoloCommunicator>(options);
}

}  // namespace megascale::cuda
