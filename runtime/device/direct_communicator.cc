#include "runtime/device/direct_communicator.h"

#include <string>

#include "absl/types/span.h"
#include "runtime/base/check.h"

namespace megascale::device {
namespace {

using comm::CallInfo;
using tensor::HostVector;
using tensor::Vector;

class DirectCommunicator final : public comm::Communicator {
 public:
  DirectCommunicator(const Device* device, comm::HostCommunicator* host)
      : device_(*device), host_(*host) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const std::string& name() const override { return host_.name(); }

  absl::Status AllReduce(const Vector& buffer, const CallInfo& info) override {
    return host_.AllReduce(View(buffer), info);
  }
  absl::Status ReduceScatter(const Vector& input, const Vector& output,
                             const CallInfo& info) override {
    return host_.ReduceScatter(View(input), View(output), info);
  }
  absl::Status AllGather(const Vector& input, const Vector& output, const CallInfo& info) override {
    return host_.AllGather(View(input), View(output), info);
  }
  absl::Status Broadcast(const Vector& buffer, int root, const CallInfo& info) override {
    return host_.Broadcast(View(buffer), root, info);
  }
  absl::Status Reduce(const Vector& input, const Vector& output, int root,
                      const CallInfo& info) override {
    return host_.Reduce(View(input), View(output), root, info);
  }
  absl::Status AllToAll(const Vector& input, const Vector& output, const CallInfo& info) override {
    return host_.AllToAll(View(input), View(output), info);
  }
  absl::Status Barrier(const CallInfo& info) override { return host_.Barrier(info); }
  absl::Status Send(int peer, const Vector& tensor, const CallInfo& info) override {
    return host_.Send(peer, BytesOf(tensor), info);
  }
  absl::Status Recv(int peer, const Vector& tensor, const CallInfo& info) override {
    return host_.Recv(peer, BytesOf(tensor), info);
  }
  void Abort(const absl::Status& reason) override { host_.Abort(reason); }

 private:
  HostVector View(const Vector& vector) const {
    const HostVector view = device_.OnHost(vector);
    MEGASCALE_CHECK(view || !vector);
    return view ? view : HostVector::OfBytes(absl::Span<std::byte>(), vector.dtype);
  }
  absl::Span<std::byte> BytesOf(const Vector& vector) const {
    return {View(vector).as<std::byte>(), static_cast<size_t>(vector.bytes())};
  }

  const Device& device_;
  comm::HostCommunicator& host_;
};

}  // namespace

std::unique_ptr<comm::Communicator> MakeDirectCommunicator(const Device* device,
                                                           comm::HostCommunicator* host) {
  return std::make_unique<DirectCommunicator>(device, host);
}

}  // namespace megascale::device
