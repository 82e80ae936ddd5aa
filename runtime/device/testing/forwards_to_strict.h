// A device that passes every call on to a strict device, as a base of devices of tests that change
// something of it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "runtime/device/testing/strict_device.h"

namespace megascale::device {

class ForwardsToStrict : public Device {
 public:
  explicit ForwardsToStrict(const StrictOptions& options = {})
      : strict_(StrictDevice::Create(options)) {}

  Description Describe() const override { return strict_->Describe(); }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(absl::string_view name,
                                                   size_t size_bytes) override {
    return strict_->Allocate(name, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<Memory>> AllocateForPeers(absl::string_view name,
                                                           size_t size_bytes) override {
    return strict_->AllocateForPeers(name, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<Memory>> AllocateHost(absl::string_view name,
                                                       size_t size_bytes) override {
    return strict_->AllocateHost(name, size_bytes);
  }
  tensor::HostVector OnHost(const tensor::Vector& vector) const override {
    return strict_->OnHost(vector);
  }
  absl::StatusOr<std::unique_ptr<stream::Stream>> MakeStream(std::string name) override {
    return strict_->MakeStream(std::move(name));
  }
  std::unique_ptr<ops::Ops> MakeOps(stream::Stream* stream, tensor::DType compute,
                                    int num_threads) override {
    return strict_->MakeOps(stream, compute, num_threads);
  }
  absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeCommunicator(
      comm::HostCommunicator* host, stream::Stream* stream) override {
    return strict_->MakeCommunicator(host, stream);
  }

 protected:
  const std::unique_ptr<StrictDevice> strict_;
};

}  // namespace megascale::device
