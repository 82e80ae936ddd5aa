#include "runtime/machine/machine_check.h"

#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/link.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/frame.h"
#include "runtime/base/log.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/serialize.h"
#include "runtime/base/status.h"
#include "runtime/comm/store/link_store.h"
#include "runtime/machine/core_check.h"
#include "runtime/machine/exchange_check.h"
#include "runtime/machine/memory_check.h"
#include "runtime/machine/peer_check.h"

namespace megascale::machine {
namespace {

using megascale::agent::v1::MachineTest;
using megascale::agent::v1::TestResult;

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kDirectoriesMax = 4;
constexpr absl::Duration kLinkTimeout = absl::Seconds(30);

// What each part may take, in milliseconds and bytes.
struct Budgets {
  size_t memory_bytes;
  int memory, arithmetic, training, loopback, disk, directory;
  size_t directory_bytes_max;
  int64_t device_elements;  // of each device's buffer that all add together
};
constexpr Budgets kQuick = {64 * kMiB, 250, 150, 100, 100, 100, 50, 8 * kMiB, int64_t{4} << 20};
constexpr Budgets kFull = {1024 * kMiB,      8000, 4000, 3000, 2000, 3000, 1000, 256 * kMiB,
                           int64_t{32} << 20};
constexpr int SumOf(const Budgets& each) {
  return each.memory + each.arithmetic + each.training + each.loopback + each.disk +
         kDirectoriesMax * each.directory;
}
static_assert(SumOf(kQuick) <= 1000, "a quick check takes about a second");
static_assert(SumOf(kFull) <= 30'000, "a full check takes at most half a minute");

bool IsFull(const MachineTest& test) { return test.kind() == megascale::agent::v1::TEST_KIND_FULL; }
const Budgets& BudgetsOf(const MachineTest& test) { return IsFull(test) ? kFull : kQuick; }

// An eighth of what the agent's processes may use, at most: the machine may have little.
size_t MemoryBytes(const Budgets& budgets) {
  const std::optional<base::MemoryLimit> limit = base::SmallestMemoryLimit();
  if (!limit.has_value() || limit->limit_bytes <= 0) return budgets.memory_bytes;
  const size_t share = static_cast<size_t>(limit->limit_bytes) / 8 / kMiB * kMiB;
  return std::clamp(share, kMiB, budgets.memory_bytes);
}

struct Part {
  std::string name;
  std::function<PartResult()> run;
  bool uses_job_directory = false;
};

std::vector<Part> PartsOf(const CheckOptions& options, const Budgets& budgets) {
  const auto directory = [&budgets](const std::string& path, bool is_own) {
    return [&budgets, path, is_own] {
      DirectoryOptions given;
      given.path = path;
      given.is_own = is_own;
      given.budget = absl::Milliseconds(is_own ? budgets.disk : budgets.directory);
      given.size_bytes_max = budgets.directory_bytes_max;
      given.memory_bytes_max = MemoryBytes(budgets);
      return CheckDirectory(given);
    };
  };
  std::vector<Part> parts = {
      {"memory",
       [&budgets] {
         return CheckMemory({MemoryBytes(budgets), absl::Milliseconds(budgets.memory), {}});
       }},
      {"arithmetic",
       [&budgets] {
         return CheckArithmetic({absl::Milliseconds(budgets.arithmetic), {}});
       }},
      {"training", [&budgets] { return CheckTraining({absl::Milliseconds(budgets.training)}); }},
      {"loopback",
       [&budgets] {
         return CheckLoopback({kMiB, absl::Milliseconds(budgets.loopback), {}});
       }},
      {"disk", directory(options.own_directory, /*is_own=*/true)}};
  for (int i = 0; i < std::min(kDirectoriesMax, options.request.directories_size()); ++i) {
    const std::string& path = options.request.directories(i);
    parts.push_back({absl::StrCat("directory ", path), directory(path, /*is_own=*/false),
                     /*uses_job_directory=*/true});
  }
  return parts;
}

// A part's result, as it is told.
TestResult Told(const std::string& part, const PartResult& result, absl::Duration took) {
  TestResult told;
  told.set_part(part);
  told.set_seconds(absl::ToDoubleSeconds(took));
  told.set_bytes_per_second(result.bytes_per_second);
  told.set_failure(result.failure);
  told.set_note(result.note);
  return told;
}

void AddResult(TestResult told, MachineTest* test) {
  if (!told.failure().empty() && test->evidence().empty()) {
    test->set_evidence(absl::StrCat(told.part(), ": ", told.failure()));
  }
  *test->add_results() = std::move(told);
}

// The parts of one device: "device 0 (NVIDIA H100), copies to the host".
std::vector<TestResult> CheckOneDevice(device::Device* device, int index,
                                       const device::check::CheckOptions& options) {
  std::vector<TestResult> results;
  const std::string name = absl::StrCat("device ", index, " (", device->Describe().name, "), ");
  for (const device::check::NamedResult& it :
       device::check::CheckDevice(device, options, [](absl::string_view /*part*/) {})) {
    TestResult& told = results.emplace_back(Told(
        name + it.part, {it.result.failure, it.result.note, it.result.bytes_per_second}, it.took));
    told.set_flops_per_second(it.result.flops_per_second);
  }
  return results;
}

// What ranks on the devices do together.
void CheckDevicesTogether(const std::vector<std::unique_ptr<device::Device>>& devices,
                          const CheckOptions& options, int64_t elements, MachineTest* test) {
  std::vector<device::Device*> members;
  for (const auto& device : devices) members.push_back(device.get());
  const absl::Duration begin = base::RealClock().Monotonic();
  const PartResult result = CheckDeviceExchange(
      members, options.device_exchange.value_or(DeviceExchangeOptions{.elements = elements}));
  AddResult(Told(absl::StrCat("all-reduce among ", devices.size(), " devices"), result,
                 base::RealClock().Monotonic() - begin),
            test);
}

// All devices at once: a machine has up to eight, and a job uses them together.
void CheckDevices(const CheckOptions& options, MachineTest* test) {
  const absl::Duration begin = base::RealClock().Monotonic();
  const auto devices = options.make_devices();
  if (!devices.ok()) {
    PartResult result;
    const std::string why(devices.status().message());
    (devices.status().code() == absl::StatusCode::kInternal ? result.failure : result.note) = why;
    return AddResult(Told("devices", result, base::RealClock().Monotonic() - begin), test);
  }
  const device::check::CheckOptions how = options.device_check.value_or(
      IsFull(*test) ? device::check::FullDeviceCheck() : device::check::QuickDeviceCheck());
  std::vector<std::vector<TestResult>> results(devices->size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < devices->size(); ++i) {
    threads.emplace_back(
        [&, i] { results[i] = CheckOneDevice((*devices)[i].get(), static_cast<int>(i), how); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::vector<TestResult>& of_device : results) {
    for (TestResult& told : of_device) AddResult(std::move(told), test);
  }
  if (devices->size() > 1) {
    CheckDevicesTogether(*devices, options, BudgetsOf(*test).device_elements, test);
  }
}

// What a full exchange does more slowly than a quick one (peer_check.h). The blocks of a round, in
// which there are more machines, take as much memory together.
constexpr size_t kFullBlockBytes = 16 * kMiB;
constexpr absl::Duration kFullConnectTimeout = absl::Seconds(20);
constexpr absl::Duration kFullCallTimeout = absl::Seconds(30);

MachineTest CheckExchange(PeerOptions options, MachineTest test) {
  if (IsFull(test)) {
    const int num_others = std::max(1, options.exchange.node_ids_size() - 1);
    options.block_bytes = kFullBlockBytes / static_cast<size_t>(num_others) / 8 * 8;
    options.connect_timeout = kFullConnectTimeout;
    options.call_timeout = kFullCallTimeout;
  }
  const absl::Duration begin = base::RealClock().Monotonic();
  const PeerResult result = CheckPeers(options);
  TestResult told = Told(test.part(), result.part, base::RealClock().Monotonic() - begin);
  told.set_latency_seconds(result.latency_seconds);
  told.set_peer_missing(result.peer_missing);
  AddResult(std::move(told), &test);
  test.clear_part();
  test.set_state(test.evidence().empty() ? MachineTest::STATE_PASSED : MachineTest::STATE_FAILED);
  return test;
}

// The test process's end of the link to its agent. Threads: one, except for the reader of answers.
class TestLink {
 public:
  explicit TestLink(int fd) : link_(fd) {}

  absl::StatusOr<megascale::link::v1::TestAssignment> TakeAssignment() const {
    ASSIGN_OR_RETURN(const base::Frame frame, base::ReceiveFrame(link_.get(), kLinkTimeout));
    megascale::link::v1::ToTest message;
    if (!message.ParseFromString(frame.payload) || !message.has_assignment()) {
      return absl::InternalError("malformed assignment");
    }
    return message.assignment();
  }
  absl::Status Send(const megascale::link::v1::FromTest& message) const {
    ASSIGN_OR_RETURN(const std::string bytes, base::Serialize(message, base::kFrameBytesMax));
    return base::SendFrame(link_.get(), bytes, {}, kLinkTimeout);
  }
  absl::Status Tell(const MachineTest& test) const {
    megascale::link::v1::FromTest message;
    *message.mutable_test() = test;
    return Send(message);
  }
  // Passes answers to the store until the link is closed, which Close does.
  void ReadAnswers(comm::LinkStore* store) const {
    for (;;) {
      const absl::StatusOr<base::Frame> frame =
          base::ReceiveFrame(link_.get(), absl::InfiniteDuration());
      if (!frame.ok()) return store->Close(frame.status());
      megascale::link::v1::ToTest message;
      if (message.ParseFromString(frame->payload)) store->OnReply(message.store());
    }
  }
  void Close() const { ::shutdown(link_.get(), SHUT_RDWR); }

 private:
  const base::UniqueFd link_;
};

// Returns the exit status.
int RunExchange(const TestLink& link, const megascale::link::v1::TestAssignment& assignment) {
  comm::LinkStoreOptions store_options;
  store_options.job_id = assignment.request().exchange().group();
  store_options.attempt = 1;
  store_options.client = absl::StrCat("member-", assignment.request().exchange().member());
  comm::LinkStore store(store_options, [&link](const megascale::agent::v1::StoreRequest& request) {
    megascale::link::v1::FromTest message;
    *message.mutable_store() = request;
    return link.Send(message);
  });
  std::thread reader([&] { link.ReadAnswers(&store); });
  MachineTest test;
  test.set_id(assignment.request().id());
  test.set_kind(assignment.request().kind());
  test.set_state(MachineTest::STATE_RUNNING);
  test.set_part(PartNameOf(assignment.request().exchange()));
  base::LogInfo(test.part());
  link.Tell(test).IgnoreError();  // as below
  PeerOptions options;
  options.exchange = assignment.request().exchange();
  options.store = &store;
  options.socket_directory = assignment.socket_directory();
  options.interface = assignment.interface();
  const MachineTest ended = CheckExchange(std::move(options), std::move(test));
  if (!ended.evidence().empty()) base::LogError(ended.evidence());
  const absl::Status told = link.Tell(ended);
  link.Close();
  reader.join();
  return told.ok() ? 0 : 1;
}

}  // namespace

MachineTest CheckMachine(const CheckOptions& options,
                         const std::function<void(const MachineTest&)>& on_part) {
  MachineTest test;
  test.set_id(options.request.id());
  test.set_kind(options.request.kind());
  test.set_state(MachineTest::STATE_RUNNING);
  for (const Part& part : PartsOf(options, BudgetsOf(test))) {
    test.set_part(part.name);
    test.set_uses_job_directory(part.uses_job_directory);
    on_part(test);
    const absl::Duration begin = base::RealClock().Monotonic();
    const PartResult result = part.run();
    AddResult(Told(part.name, result, base::RealClock().Monotonic() - begin), &test);
  }
  test.set_uses_job_directory(false);
  if (options.make_devices) {
    test.set_part("devices");
    on_part(test);
    CheckDevices(options, &test);
  }
  test.clear_part();
  test.set_state(test.evidence().empty() ? MachineTest::STATE_PASSED : MachineTest::STATE_FAILED);
  return test;
}

int RunCheckProcess(int link_fd, MakeDevices make_devices) {
  ::prctl(PR_SET_NAME, "megascale-tst");  // what ps shows
  base::InitLog("machine-test", base::LogLevel::kInfo);
  const TestLink link(link_fd);
  const auto assignment = link.TakeAssignment();
  if (!assignment.ok()) {
    base::LogError(assignment.status().message());
    return 1;
  }
  if (assignment->request().has_exchange()) return RunExchange(link, *assignment);
  const MachineTest test =
      CheckMachine({assignment->request(), assignment->own_directory(), std::move(make_devices)},
                   [&](const auto& running) {
                     base::LogInfo(absl::StrCat("tests ", running.part()));
                     link.Tell(running).IgnoreError();  // an agent that is gone ends this process
                   });
  if (!test.evidence().empty()) base::LogError(test.evidence());
  return link.Tell(test).ok() ? 0 : 1;
}

}  // namespace megascale::machine
