#include "runtime/device/solo_communicator.h"

#include <string>

#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::device {
namespace {

using comm::CallInfo;
using tensor::HostVector;
using tensor::Vector;

class SoloCommunicator final : public comm::Communicator {
 public:
  SoloCommunicator(comm::HostCommunicator* host, stream::Stream* stream)
      : host_(*host), stream_(*stream) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const std::string& name() const override { return host_.name(); }

  absl::Status AllReduce(const Vector& buffer, const CallInfo& info) override {
    return host_.AllReduce(NothingOf(buffer), info);
  }
  absl::Status ReduceScatter(const Vector& input, const Vector& output,
                             const CallInfo& info) override {
    RETURN_IF_ERROR(CheckEqual(input, output));
    RETURN_IF_ERROR(host_.ReduceScatter(NothingOf(input), NothingOf(output), info));
    return Copy(input, output);
  }
  absl::Status AllGather(const Vector& input, const Vector& output, const CallInfo& info) override {
    RETURN_IF_ERROR(CheckEqual(input, output));
    RETURN_IF_ERROR(host_.AllGather(NothingOf(input), NothingOf(output), info));
    return Copy(input, output);
  }
  absl::Status Broadcast(const Vector& buffer, int root, const CallInfo& info) override {
    return host_.Broadcast(NothingOf(buffer), root, info);
  }
  absl::Status Reduce(const Vector& input, const Vector& output, int root,
                      const CallInfo& info) override {
    RETURN_IF_ERROR(CheckEqual(input, output));
    RETURN_IF_ERROR(host_.Reduce(NothingOf(input), NothingOf(output), root, info));
    return Copy(input, output);
  }
  absl::Status AllToAll(const Vector& input, const Vector& output, const CallInfo& info) override {
    RETURN_IF_ERROR(CheckEqual(input, output));
    RETURN_IF_ERROR(host_.AllToAll(NothingOf(input), NothingOf(output), info));
    return Copy(input, output);
  }
  absl::Status Barrier(const CallInfo& info) override { return host_.Barrier(info); }
  // There is no peer: the host's communicator says so.
  absl::Status Send(int peer, const Vector& /*tensor*/, const CallInfo& info) override {
    return host_.Send(peer, {}, info);
  }
  absl::Status Recv(int peer, const Vector& /*tensor*/, const CallInfo& info) override {
    return host_.Recv(peer, {}, info);
  }

  void Abort(const absl::Status& reason) override { host_.Abort(reason); }

 private:
  static HostVector NothingOf(const Vector& vector) {
    return HostVector::OfBytes(absl::Span<std::byte>(), vector.dtype);
  }

  static absl::Status CheckEqual(const Vector& input, const Vector& output) {
    if (input.size == output.size && input.dtype == output.dtype) return absl::OkStatus();
    return absl::InvalidArgumentError("communicator of one rank: input and output must be equal");
  }

  absl::Status Copy(const Vector& from, const Vector& to) {
    if (from.data != to.data) {
      stream_.Copy(to.data, from.data, static_cast<size_t>(from.bytes()));
    }
    return absl::OkStatus();
  }

  comm::HostCommunicator& host_;
  stream::Stream& stream_;
};

}  // namespace

std::unique_ptr<comm::Communicator> MakeSoloCommunicator(comm::HostCommunicator* host,
                                                         stream::Stream* stream) {
  MEGASCALE_CHECK(host->size() == 1);
  return std::make_unique<SoloCommunicator>(host, stream);
}

}  // namespace megascale::device
