#include "actors/host_main.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "actors/actor_process.h"
#include "actors/checkpoint_actor.h"
#include "actors/data_loader_actor.h"
#include "actors/link.h"
#include "actors/preflight.h"
#include "actors/worker_core.h"
#include "proto/link.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/base/process/termination.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/job/data_digest.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::actors {
namespace {

using base::SharedMemory;
using megascale::link::v1::FromHost;
using megascale::link::v1::HostAssignment;
using megascale::link::v1::ToHost;
using HostMail = Mail<ToHost>;

constexpr absl::Duration kFetchTimeout = absl::Seconds(10);

struct HostRegions {
  std::unique_ptr<SharedMemory> heartbeats;
  std::shared_ptr<SharedMemory> ring;                      // null: no rank here reads batches
  std::map<int, std::shared_ptr<SharedMemory>> snapshots;  // by rank
};

absl::StatusOr<HostRegions> MapRegions(const HostAssignment& assignment,
                                       std::vector<base::UniqueFd> fds) {
  const size_t expected = 1 + (assignment.has_batch_ring() ? 1 : 0) +
                          static_cast<size_t>(assignment.local_ranks_size());
  RETURN_IF_ERROR(CheckDescriptors(fds.size(), expected));
  size_t next = 0;
  HostRegions regions;
  ASSIGN_OR_RETURN(regions.heartbeats, SharedMemory::Map(std::move(fds[next++])));
  if (assignment.has_batch_ring()) {
    ASSIGN_OR_RETURN(regions.ring, SharedMemory::Map(std::move(fds[next++])));
  }
  for (const int rank : assignment.local_ranks()) {
    ASSIGN_OR_RETURN(regions.snapshots[rank], SharedMemory::Map(std::move(fds[next++])));
  }
  return regions;
}

int Fail(Link* link, const agent::v1::RankFailure& failure) {
  base::LogError(failure.message());
  FromHost message;
  *message.mutable_failure() = failure;
  (void)link->Send(message);
  return 1;
}

// Returns what the device of the last rank is, with the least free memory of the devices of all
// ranks from local rank `first` on.
absl::StatusOr<device::Description> Describe(const MakeDevice& make_device,
                                             const HostAssignment& assignment, int first) {
  device::Description last;
  std::optional<int64_t> least;
  for (int rank = first; rank < assignment.local_ranks_size(); ++rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<device::Device> device,
                     make_device(assignment.spec(), {.local_rank = rank, .interface = ""}));
    last = device->Describe();
    if (!last.free_bytes.has_value()) continue;
    least = std::min(*last.free_bytes, least.value_or(*last.free_bytes));
  }
  last.free_bytes = least;
  return last;
}

// Asks the agent, which asks the driver, for the list of files on which the job has trained. The
// process is about to end, so other messages do not matter. Empty: no answer came.
std::vector<std::string> FetchFiles(Link* link, HostMail* mail, const std::string& job_id) {
  FromHost question;
  question.mutable_fetch_data_files()->set_job_id(job_id);
  if (!link->Send(question).ok()) return {};
  const absl::Duration end = base::RealClock().Monotonic() + kFetchTimeout;
  for (;;) {
    const absl::Duration left = end - base::RealClock().Monotonic();
    if (left <= absl::ZeroDuration()) return {};
    const absl::StatusOr<ToHost> answer = mail->Take(left);
    if (!answer.ok()) return {};
    if (!answer->has_data_files()) continue;
    const auto& files = answer->data_files().file_sha256();
    return {files.begin(), files.end()};
  }
}

// No other attempt and no other machine would have more success.
agent::v1::RankFailure RefusalOf(const absl::Status& why) {
  agent::v1::RankFailure failure;
  failure.set_failure_class(telemetry::v1::FAILURE_CLASS_REFUSED);
  failure.set_message(std::string(why.message()));
  return failure;
}

agent::v1::RankFailure FailureOfPreflight(const absl::Status& status,
                                          const HostAssignment& assignment) {
  const bool of_system = base::ErrnoOf(status) != 0;
  if (absl::IsPermissionDenied(status) && !of_system) return RefusalOf(status);
  agent::v1::RankFailure failure = FailureOf(status);
  // It has waited for storage for as long as it may.
  if (assignment.ran_here() && of_system) {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_STORAGE);
  }
  return failure;
}

int ReportPreflight(Link* link, HostMail* mail, const HostAssignment& assignment,
                    const device::Description& device, const MakeDevice& make_device) {
  FromHost message;
  const auto report = [&](const agent::v1::Preflight& running) {
    *message.mutable_preflight() = running;
    (void)link->Send(message);
  };
  const auto free_bytes = [&] {
    const auto now = Describe(make_device, assignment, 0);
    return now.ok() ? now->free_bytes : device.free_bytes;
  };
  const auto away = [&](const std::string& why) {
    message.mutable_storage_error()->set_message(why);
    (void)link->Send(message);
  };
  auto preflight = RunPreflight(
      assignment, device,
      {.on_progress = report, .on_away = away, .free_bytes = free_bytes, .fetch_files = [&] {
         return FetchFiles(link, mail, assignment.job_id());
       }});
  if (!preflight.ok()) return Fail(link, FailureOfPreflight(preflight.status(), assignment));
  *message.mutable_preflight() = *std::move(preflight);
  for (const std::string& warning : message.preflight().warnings()) base::LogWarning(warning);
  base::LogInfo(absl::StrCat("preflight: ", message.preflight().message().empty()
                                                ? "passed"
                                                : message.preflight().message()));
  return link->Send(message).ok() ? 0 : 1;
}

// Opens the data and sets `assignment`'s fingerprint to the complete one, which checkpoints keep.
absl::StatusOr<std::shared_ptr<const data::Dataset>> OpenDataset(Link* link, HostMail* mail,
                                                                 HostAssignment* assignment) {
  // The preflight has encoded the text.
  ASSIGN_OR_RETURN(std::shared_ptr<const data::Dataset> dataset,
                   data::Dataset::Open(assignment->spec(), {}));
  ASSIGN_OR_RETURN(const checkpoint::v1::DataFingerprint now, dataset->Fingerprint());
  const checkpoint::v1::DataFingerprint kept = assignment->data();
  *assignment->mutable_data() = now;
  if (job::AreSameData(kept, now)) return dataset;
  const absl::Status same = checkpoint::CompareFingerprints(
      WithFiles(kept, [&] { return FetchFiles(link, mail, assignment->job_id()); }), now, {});
  return MayBeMissing(kept, now,
                      base::Annotate(same, absl::StrCat("data.files changed since the job began (",
                                                        dataset->PathsText(), ")")));
}

// Hands the agent's messages to the persister until the link breaks.
void ServeLink(HostMail* mail, int64_t attempt, const PersisterActor& persister) {
  for (;;) {
    const absl::StatusOr<ToHost> received = mail->Take(absl::InfiniteDuration());
    if (!received.ok()) return;
    const ToHost& message = *received;
    if (message.has_persist()) {
      caf::anon_send(persister,
                     PersistSnapshot{attempt, message.persist().rank(), message.persist().step(),
                                     message.persist().buffer()});
    } else if (message.has_finalize()) {
      caf::anon_send(persister, WriteCheckpointManifest{message.finalize().attempt(),
                                                        message.finalize().step()});
    } else if (message.has_retain()) {
      caf::anon_send(persister, message.retain().SerializeAsString());
    }
  }
}

int Serve(Link* link, HostMail* mail, HostAssignment assignment, const device::Description& device,
          HostRegions* regions) {
  telemetry::HeartbeatWriter heartbeat(regions->heartbeats.get(), assignment.heartbeat_slot());
  heartbeat.Start(::getpid());
  const telemetry::HeartbeatTimer timer(&heartbeat, &base::RealClock());
  auto dataset = OpenDataset(link, mail, &assignment);
  if (!dataset.ok()) return Fail(link, FailureOfInput(dataset.status()));

  caf::actor_system_config config;
  SetThreads(1, &config);
  caf::actor_system system(config);
  const PersisterActor persister = system.spawn<caf::detached>(
      Persister,
      PersisterOptions{assignment, regions->snapshots,
                       [link](const FromHost& message) { (void)link->Send(message); },
                       [link](const absl::Status& why) { std::_Exit(Fail(link, RefusalOf(why))); },
                       device.numerics, *dataset});
  if (regions->ring != nullptr) {
    DataLoaderOptions loader;
    loader.spec = assignment.spec();
    loader.sample_offset = assignment.sample_offset();
    loader.dataset = *dataset;
    loader.ring = regions->ring;
    loader.evaluates = assignment.evaluates();
    loader.done = [link](const BatchesLoaded& loaded) {
      const absl::Status status = loaded.outcome.ToStatus();
      if (status.ok()) return;
      std::_Exit(Fail(link, FailureOf(status)));
    };
    const auto actor = system.spawn<caf::detached>(DataLoader, std::move(loader));
    caf::anon_send(actor, LoadBatches{assignment.attempt()});
  }
  base::LogInfo(absl::StrCat("job ", assignment.job_id(), " attempt ", assignment.attempt(),
                             ": loading from step ", assignment.first_step()));
  ServeLink(mail, assignment.attempt(), persister);
  // The agent closed the link, or is gone. This process holds nothing that must survive.
  std::fflush(nullptr);
  std::_Exit(0);
}

// Deletes checkpoints of a job that is about to end. Neither its data nor its device matters.
int ServeRetention(Link* link, HostMail* mail, const HostAssignment& assignment) {
  for (;;) {
    const absl::StatusOr<ToHost> message = mail->Take(absl::InfiniteDuration());
    if (!message.ok()) return 0;
    const auto& retain = message->retain();
    if (retain.committed().empty()) continue;
    const absl::Status status = checkpoint::ApplyRetention(
        assignment.checkpoint_directory(), {{retain.committed().begin(), retain.committed().end()},
                                            retain.attempt(),
                                            assignment.owner()});
    FromHost report;
    if (!status.ok()) {
      base::LogWarning(absl::StrCat("storage: ", status.message()));
      report.mutable_storage_error()->set_message(std::string(status.message()));
      (void)link->Send(report);
    }
    *report.mutable_retained()->mutable_newest() = *retain.committed().rbegin();
    (void)link->Send(report);
  }
}

}  // namespace

int RunHost(int link_fd, const MakeDevice& make_device) {
  ::prctl(PR_SET_NAME, "megascale-host");  // what ps and ss show, instead of "exe"
  base::InitLog("host", base::LogLevel::kInfo);
  base::Termination termination;
  Link link{base::UniqueFd(link_fd)};
  ToHost first;
  auto fds = link.Receive(&first, kAssignmentTimeout);
  if (!fds.ok() || !first.has_assignment()) {
    base::LogError("no assignment came from the agent: `megascale host` is started by an agent");
    return 1;
  }
  const HostAssignment& assignment = first.assignment();
  HostMail mail(&link, &termination);
  if (assignment.retain_only()) return ServeRetention(&link, &mail, assignment);
  // Serving a job needs the device's name alone; the preflight all devices' memory.
  const int first_rank = assignment.preflight_only() ? 0 : assignment.local_ranks_size() - 1;
  const auto device = Describe(make_device, assignment, first_rank);
  // Only a preflight finds out about the data.
  if (!device.ok()) return Fail(&link, FailureOfDevice(device.status(), assignment.has_data()));
  if (assignment.preflight_only()) {
    return ReportPreflight(&link, &mail, assignment, *device, make_device);
  }
  auto regions = MapRegions(assignment, *std::move(fds));
  if (!regions.ok()) return Fail(&link, FailureOf(regions.status()));
  return Serve(&link, &mail, assignment, *device, &*regions);
}

}  // namespace megascale::actors
