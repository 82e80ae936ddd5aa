#include "tests/diagnose/paced_device.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/device/cpu_device.h"
#include "runtime/device/direct_communicator.h"
#include "runtime/stream/host_stream.h"
#include "tests/diagnose/slow_send.h"
#include "tests/diagnose/switch.h"

namespace megascale::injection {
namespace {

// What an instruction that computes takes beyond its real work.
constexpr absl::Duration kBusy = absl::Milliseconds(1);
constexpr absl::Duration kAsleep = absl::Milliseconds(14);
// A copy that is slowed takes at most this much longer: gradients are large beside batches.
constexpr absl::Duration kCopyMax = absl::Milliseconds(100);

absl::Duration ThreadTime() {
  timespec now = {};
  MEGASCALE_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return absl::DurationFromTimespec(now);
}

// A stream whose instructions take a set time, if they compute. The executor notifies at the
// beginning and at the end of each.
class PacedStream final : public stream::Stream {
 public:
  struct Switches {
    Switch slow;
    Switch slow_copy;
    bool keeps_core_busy = false;
  };
  static absl::StatusOr<std::unique_ptr<PacedStream>> Create(std::string name, Switches switches) {
    std::unique_ptr<PacedStream> stream(new PacedStream(std::move(name), std::move(switches)));
    RETURN_IF_ERROR(stream->Start());
    return stream;
  }
  ~PacedStream() override { End(); }

  void Copy(void* to, const void* from, size_t bytes) override {
    double seconds_per_byte = 0;
    double unused = 0;
    if (bytes == 0) return;
    if (switches_.slow_copy.Read(&seconds_per_byte, &unused)) {
      absl::SleepFor(
          std::min(kCopyMax, absl::Seconds(seconds_per_byte) * static_cast<double>(bytes)));
    }
    std::memcpy(to, from, bytes);
  }
  void Notify(Notification notification) override {
    if (name() == "compute" && num_notified_++ % 2 == 1) Pace();
    notification(absl::OkStatus());
  }
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::Status FinishWhile(absl::FunctionRef<absl::Status()> /*may_wait*/) override {
    return absl::OkStatus();
  }
  std::unique_ptr<stream::Event> MakeEvent() override {
    return std::make_unique<stream::HostEvent>();
  }

 private:
  PacedStream(std::string name, Switches switches)
      : Stream(std::move(name)), switches_(std::move(switches)) {}

  void Pace() const {
    double times = 1;
    double unused = 0;
    switches_.slow.Read(&times, &unused);
    const absl::Duration end = ThreadTime() + kBusy * times;
    while (switches_.keeps_core_busy && ThreadTime() < end) {
    }
    absl::SleepFor(kAsleep * times);
  }

  const Switches switches_;
  int64_t num_notified_ = 0;
};

// Passes each call on, sometimes late.
class LateCommunicator final : public comm::Communicator {
 public:
  LateCommunicator(std::unique_ptr<comm::Communicator> inner, Switch late)
      : inner_(std::move(inner)), late_(std::move(late)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  absl::Status AllReduce(const tensor::Vector& buffer, const comm::CallInfo& info) override {
    return Late().AllReduce(buffer, info);
  }
  absl::Status ReduceScatter(const tensor::Vector& input, const tensor::Vector& output,
                             const comm::CallInfo& info) override {
    return Late().ReduceScatter(input, output, info);
  }
  absl::Status AllGather(const tensor::Vector& input, const tensor::Vector& output,
                         const comm::CallInfo& info) override {
    return Late().AllGather(input, output, info);
  }
  absl::Status Broadcast(const tensor::Vector& buffer, int root,
                         const comm::CallInfo& info) override {
    return Late().Broadcast(buffer, root, info);
  }
  absl::Status Reduce(const tensor::Vector& input, const tensor::Vector& output, int root,
                      const comm::CallInfo& info) override {
    return Late().Reduce(input, output, root, info);
  }
  absl::Status AllToAll(const tensor::Vector& input, const tensor::Vector& output,
                        const comm::CallInfo& info) override {
    return Late().AllToAll(input, output, info);
  }
  absl::Status Barrier(const comm::CallInfo& info) override { return Late().Barrier(info); }
  absl::Status Send(int peer, const tensor::Vector& tensor, const comm::CallInfo& info) override {
    return Late().Send(peer, tensor, info);
  }
  absl::Status Recv(int peer, const tensor::Vector& tensor, const comm::CallInfo& info) override {
    return inner_->Recv(peer, tensor, info);
  }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  comm::Communicator& Late() {
    double seconds = 0;
    double probability = 0;
    if (late_.Read(&seconds, &probability) &&
        std::uniform_real_distribution<double>()(random_) < probability) {
      absl::SleepFor(absl::Seconds(seconds));
    }
    return *inner_;
  }

  const std::unique_ptr<comm::Communicator> inner_;
  const Switch late_;
  std::mt19937_64 random_{1};
};

class PacedDevice final : public device::Device {
 public:
  PacedDevice(int local_rank, const std::string& folder)
      : inner_(device::MakeCpuDevice()),
        switches_{{folder, absl::StrCat("slow-", local_rank)},
                  {folder, absl::StrCat("copy-", local_rank)},
                  !folder.empty()},
        late_(folder, absl::StrCat("late-", local_rank)) {}

  device::Description Describe() const override { return inner_->Describe(); }
  absl::StatusOr<std::unique_ptr<device::Memory>> Allocate(absl::string_view name,
                                                           size_t size_bytes) override {
    return inner_->Allocate(name, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<device::Memory>> AllocateForPeers(absl::string_view name,
                                                                   size_t size_bytes) override {
    return inner_->AllocateForPeers(name, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<device::Memory>> AllocateHost(absl::string_view name,
                                                               size_t size_bytes) override {
    return inner_->AllocateHost(name, size_bytes);
  }
  tensor::HostVector OnHost(const tensor::Vector& vector) const override {
    return inner_->OnHost(vector);
  }
  absl::StatusOr<std::unique_ptr<stream::Stream>> MakeStream(std::string name) override {
    return PacedStream::Create(std::move(name), switches_);
  }
  std::unique_ptr<ops::Ops> MakeOps(stream::Stream* stream, tensor::DType compute,
                                    int num_threads) override {
    return inner_->MakeOps(stream, compute, num_threads);
  }
  absl::StatusOr<std::unique_ptr<comm::Communicator>> MakeCommunicator(
      comm::HostCommunicator* host, stream::Stream* stream) override {
    ASSIGN_OR_RETURN(auto inner, inner_->MakeCommunicator(host, stream));
    return std::make_unique<LateCommunicator>(std::move(inner), late_);
  }

 private:
  const std::unique_ptr<device::Device> inner_;
  const PacedStream::Switches switches_;
  const Switch late_;
};

}  // namespace

std::unique_ptr<device::Device> MakePacedDevice(int local_rank, const std::string& folder) {
  SlowSend(folder, local_rank);
  return std::make_unique<PacedDevice>(local_rank, folder);
}

}  // namespace megascale::injection
