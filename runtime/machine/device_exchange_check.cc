#include "runtime/machine/device_exchange_check.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/fabric.h"
#include "runtime/comm/host/region.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/tensor.h"

namespace megascale::machine {
namespace {

constexpr char kDevicesGroup[] = "devices";
constexpr char kNode[] = "here";
constexpr int64_t kDevicesAttempt = 1;

// What device `index` adds at element `i`.
float NumberOf(int index, int round, int64_t i) {
  return static_cast<float>((i * 7 + index * 13 + round) % 101 - 50);
}

// What all devices share.
struct Group {
  comm::RegionSpec spec;
  std::unique_ptr<base::SharedMemory> region;
};

absl::StatusOr<Group> MakeGroup(int num_devices) {
  comm::GroupSpec members;
  members.name = kDevicesGroup;
  for (int i = 0; i < num_devices; ++i) members.ranks.push_back(i);
  Group group;
  group.spec.groups = {members};
  group.spec.placements.assign(static_cast<size_t>(num_devices), kNode);
  group.spec.node_id = kNode;
  group.spec.job_id = kDevicesGroup;
  group.spec.attempt = kDevicesAttempt;
  ASSIGN_OR_RETURN(
      group.region,
      base::SharedMemory::Create(
          kDevicesGroup, comm::RegionBytes(group.spec.groups, group.spec.placements, kNode)));
  RETURN_IF_ERROR(comm::FormatRegion(group.spec, *group.region));
  return group;
}

// One device, on a thread of its own.
class Member {
 public:
  Member(const Group& group, device::Device* device, int index,
         const DeviceExchangeOptions& options)
      : group_(group), device_(*device), index_(index), options_(options) {}
  // The communicator uses the stream, and work on the stream the memory.
  ~Member() {
    if (stream_ != nullptr) (void)stream_->Synchronize();
    communicator_.reset();
    stream_.reset();
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Errors: ResourceExhausted - there is no memory; DataLoss - a sum is wrong; Aborted - another
  // member failed; else what failed.
  absl::Status Run() {
    absl::Status status = Prepare();
    for (int round = 0; status.ok() && round <= options_.rounds; ++round) status = Add(round);
    // The others must not wait for this one.
    if (!status.ok() && host_ != nullptr) host_->Abort(status);
    return status;
  }
  absl::Duration best() const { return best_; }

 private:
  absl::Status Prepare();
  absl::Status Add(int round);
  absl::Status Compare(int round) const;
  absl::Status Copy(void* to, const void* from) {
    stream_->RunAndWait([&] { stream_->Copy(to, from, bytes()); });
    return stream_->Synchronize();
  }
  absl::Span<float> numbers() const {
    return {static_cast<float*>(pinned_->data()), static_cast<size_t>(options_.elements)};
  }
  size_t bytes() const { return static_cast<size_t>(options_.elements) * sizeof(float); }
  comm::CallInfo call() const { return {.instruction_id = 1, .timeout = options_.timeout}; }

  const Group& group_;
  device::Device& device_;
  const int index_;
  const DeviceExchangeOptions& options_;
  std::unique_ptr<comm::Fabric> fabric_;
  std::unique_ptr<comm::HostCommunicator> host_;
  std::unique_ptr<device::Memory> memory_, pinned_;
  std::unique_ptr<stream::Stream> stream_;
  std::unique_ptr<comm::Communicator> communicator_;
  absl::Duration best_ = absl::InfiniteDuration();
};

absl::Status Member::Prepare() {
  comm::FabricOptions fabric;
  fabric.rank = index_;
  fabric.placements = group_.spec.placements;
  fabric.job_id = group_.spec.job_id;
  fabric.attempt = kDevicesAttempt;
  fabric.region = group_.region.get();
  fabric.connect_timeout = fabric.default_timeout = options_.timeout;
  ASSIGN_OR_RETURN(fabric_, comm::Fabric::Create(std::move(fabric), group_.spec.groups));
  RETURN_IF_ERROR(fabric_->Connect());
  ASSIGN_OR_RETURN(host_, fabric_->Make(kDevicesGroup));
  ASSIGN_OR_RETURN(memory_, device_.Allocate("the test of devices", bytes()));
  ASSIGN_OR_RETURN(pinned_, device_.AllocateHost("the test of devices", bytes()));
  ASSIGN_OR_RETURN(stream_, device_.MakeStream("device test"));
  ASSIGN_OR_RETURN(communicator_, device_.MakeCommunicator(host_.get(), stream_.get()));
  return absl::OkStatus();
}

absl::Status Member::Add(int round) {
  for (int64_t i = 0; i < options_.elements; ++i) {
    numbers()[static_cast<size_t>(i)] = NumberOf(index_, round, i);
  }
  RETURN_IF_ERROR(Copy(memory_->data(), pinned_->data()));
  RETURN_IF_ERROR(host_->Barrier(call()));
  const absl::Duration begin = base::RealClock().Monotonic();
  absl::Status called;
  stream_->RunAndWait([&] {
    called =
        communicator_->AllReduce({memory_->data(), tensor::DType::kF32, options_.elements}, call());
  });
  RETURN_IF_ERROR(called);
  RETURN_IF_ERROR(stream_->Synchronize());
  // Connections may be made in the first round.
  if (round > 0) best_ = std::min(best_, base::RealClock().Monotonic() - begin);
  RETURN_IF_ERROR(Copy(pinned_->data(), memory_->data()));
  if (options_.tamper && index_ == 0) options_.tamper(pinned_->data(), bytes());
  return Compare(round);
}

absl::Status Member::Compare(int round) const {
  const auto num_devices = static_cast<int>(group_.spec.placements.size());
  for (int64_t i = 0; i < options_.elements; ++i) {
    float expected = 0;
    for (int index = 0; index < num_devices; ++index) expected += NumberOf(index, round, i);
    const float found = numbers()[static_cast<size_t>(i)];
    if (found == expected) continue;
    return absl::DataLossError(
        absl::StrCat("the sum of element ", i, " is ", found, " in place of ", expected));
  }
  return absl::OkStatus();
}

// Returns the error that tells most: that of a member which did not merely end for another's.
std::pair<int, absl::Status> WorstOf(const std::vector<absl::Status>& ended) {
  std::pair<int, absl::Status> worst = {-1, absl::OkStatus()};
  for (size_t i = 0; i < ended.size(); ++i) {
    const bool is_first = worst.second.ok() && !ended[i].ok();
    const bool tells_more =
        absl::IsAborted(worst.second) && !ended[i].ok() && !absl::IsAborted(ended[i]);
    if (is_first || tells_more) worst = {static_cast<int>(i), ended[i]};
  }
  return worst;
}

}  // namespace

PartResult CheckDeviceExchange(const std::vector<device::Device*>& devices,
                               const DeviceExchangeOptions& options) {
  MEGASCALE_CHECK(devices.size() > 1);
  PartResult result;
  const absl::StatusOr<Group> group = MakeGroup(static_cast<int>(devices.size()));
  if (!group.ok()) {
    result.note = std::string(group.status().message());
    return result;
  }
  std::vector<absl::Status> ended(devices.size());
  std::vector<absl::Duration> best(devices.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < devices.size(); ++i) {
    threads.emplace_back([&, i] {
      Member member(*group, devices[i], static_cast<int>(i), options);
      ended[i] = member.Run();
      best[i] = member.best();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto [index, status] = WorstOf(ended);
  if (!status.ok()) {
    (absl::IsResourceExhausted(status) ? result.note : result.failure) =
        absl::StrCat("device ", index, ": ", status.message());
    return result;
  }
  const auto n = static_cast<double>(devices.size());
  const double sent = 2 * (n - 1) / n * static_cast<double>(options.elements) * sizeof(float);
  result.bytes_per_second = RateOf(sent, *std::max_element(best.begin(), best.end()));
  return result;
}

}  // namespace megascale::machine
