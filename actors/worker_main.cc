#include "actors/worker_main.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "actors/actor_process.h"
#include "actors/link.h"
#include "actors/worker_actor.h"
#include "proto/link.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/base/process/termination.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/comm/store/link_store.h"
#include "runtime/job/evaluation.h"
#include "runtime/telemetry/exchange_board.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/recording.h"
#include "runtime/telemetry/span_ring.h"
#include "runtime/telemetry/stack/process_stacks.h"

namespace megascale::actors {
namespace {

// The shared memory that the agent passed beside the Assignment.
struct WorkerRegions {
  std::unique_ptr<base::SharedMemory> heartbeats;
  std::unique_ptr<base::SharedMemory> spans;
  std::unique_ptr<base::SharedMemory> comm;
  std::unique_ptr<base::SharedMemory> ring;  // null: this rank reads no batches
  std::unique_ptr<base::SharedMemory> snapshots;
};

absl::StatusOr<WorkerRegions> MapRegions(std::vector<base::UniqueFd> fds, bool has_batch_ring) {
  RETURN_IF_ERROR(CheckDescriptors(fds.size(), has_batch_ring ? 5 : 4));
  size_t next = 0;
  WorkerRegions regions;
  ASSIGN_OR_RETURN(regions.heartbeats, base::SharedMemory::Map(std::move(fds[next++])));
  ASSIGN_OR_RETURN(regions.spans, base::SharedMemory::Map(std::move(fds[next++])));
  ASSIGN_OR_RETURN(regions.comm, base::SharedMemory::Map(std::move(fds[next++])));
  if (has_batch_ring) {
    ASSIGN_OR_RETURN(regions.ring, base::SharedMemory::Map(std::move(fds[next++])));
  }
  ASSIGN_OR_RETURN(regions.snapshots, base::SharedMemory::Map(std::move(fds[next++])));
  return regions;
}

engine::EngineOptions EngineOptionsOf(const link::v1::Assignment& assignment,
                                      const WorkerRegions& regions) {
  engine::EngineOptions options;
  options.spec = assignment.spec();
  options.job_id = assignment.job_id();
  options.attempt = assignment.attempt();
  options.rank = assignment.rank();
  options.placements = {assignment.placements().begin(), assignment.placements().end()};
  options.node_id = assignment.node_id();
  options.secret = assignment.secret();
  options.binds_address = assignment.binds_address();
  options.socket_directory = assignment.socket_directory();
  options.interface = assignment.interface();
  options.comm_region = regions.comm.get();
  options.batch_ring = regions.ring.get();
  options.batch_reader = assignment.batch_reader();
  options.snapshots = regions.snapshots.get();
  options.job_directory = assignment.checkpoint_directory();
  options.products_may_differ =
      checkpoint::AllowsChange(assignment.allow_changed(), checkpoint::kProductTableField);
  return options;
}

// `assignment` outlives the options.
WorkerCoreOptions CoreOptionsOf(const link::v1::Assignment& assignment) {
  WorkerCoreOptions options = {.attempt = assignment.attempt(),
                               .first_step = assignment.restore().step(),
                               .last_step = assignment.spec().train().steps(),
                               .checkpoint_interval = assignment.spec().checkpoint().interval()};
  if (assignment.evaluates()) {
    options.is_evaluated = [&spec = assignment.spec()](int64_t step) {
      return job::IsEvaluated(spec, step);
    };
  }
  return options;
}

using WorkerMail = Mail<link::v1::ToWorker>;

// Passes the agent's messages on until the link breaks.
void ReadMail(WorkerMail* mail, comm::LinkStore* store, int64_t attempt,
              const WorkerActor& worker) {
  for (;;) {
    const absl::StatusOr<link::v1::ToWorker> received = mail->Take(absl::InfiniteDuration());
    if (!received.ok()) {
      store->Close(absl::UnavailableError("the agent is gone"));
      caf::anon_send(worker, LinkLost{absl::StrCat("agent: ", received.status().message())});
      return;
    }
    const link::v1::ToWorker& message = *received;
    if (message.has_store()) {
      store->OnReply(message.store());
    } else if (message.has_stop()) {
      caf::anon_send(worker, StopRequested{attempt, message.stop().checkpoint()});
    }
  }
}

// Reports a failure from before the worker actor existed.
int FailEarly(Link* link, const agent::v1::RankFailure& failure) {
  base::LogError(absl::StrCat("cannot start: ", failure.message()));
  link::v1::FromWorker message;
  *message.mutable_failure() = failure;
  (void)link->Send(message);
  return 1;
}

// The user must fix a specification that cannot be built. Memory that belongs to another attempt
// (FailedPrecondition) is not the user's fault.
int FailToMake(Link* link, const absl::Status& status) {
  return FailEarly(link,
                   absl::IsInvalidArgument(status) ? FailureOfInput(status) : FailureOf(status));
}

int RunAssigned(Link* link, WorkerMail* mail, const link::v1::Assignment& assignment,
                WorkerRegions* regions, const MakeDevice& make_device) {
  telemetry::HeartbeatWriter heartbeat(regions->heartbeats.get(), assignment.heartbeat_slot());
  heartbeat.Start(::getpid());
  telemetry::SpanWriter spans(regions->spans.get(), assignment.heartbeat_slot());
  telemetry::ExchangeWriter exchanges(regions->spans.get(), assignment.heartbeat_slot(), [] {
    return absl::ToInt64Nanoseconds(base::RealClock().Monotonic());
  });
  const telemetry::HeartbeatTimer timer(&heartbeat, &base::RealClock());
  const comm::LinkStoreOptions store_options = {
      .job_id = assignment.job_id(),
      .attempt = assignment.attempt(),
      .client = absl::StrCat("rank-", assignment.rank()),
  };
  comm::LinkStore store(store_options, [&](const agent::v1::StoreRequest& request) {
    link::v1::FromWorker message;
    *message.mutable_store() = request;
    return link->Send(message);
  });
  engine::EngineOptions engine_options = EngineOptionsOf(assignment, *regions);
  engine_options.store = &store;
  engine_options.heartbeat = &heartbeat;
  engine_options.spans = telemetry::IsRecording() ? &spans : nullptr;
  engine_options.exchanges = telemetry::IsRecording() ? &exchanges : nullptr;
  const auto device = make_device(assignment.spec(), {.local_rank = assignment.heartbeat_slot(),
                                                      .interface = assignment.interface()});
  // Workers start once the preflight has made a device for each of them.
  if (!device.ok()) return FailEarly(link, FailureOfDevice(device.status(), /*was_there=*/true));
  engine_options.device = device->get();
  auto engine = engine::RankEngine::Create(std::move(engine_options));
  if (!engine.ok()) return FailToMake(link, engine.status());

  std::promise<int> exit_code;
  caf::actor_system_config config;
  SetThreads(2, &config);
  caf::actor_system system(config);
  WorkerOptions options;
  options.engine = *engine;
  options.core = CoreOptionsOf(assignment);
  options.restore = assignment.restore();
  options.heartbeat = &heartbeat;
  options.report = [link](const link::v1::FromWorker& message) { (void)link->Send(message); };
  std::atomic<bool> exiting = false;
  options.exit = [&](int code) {
    if (!exiting.exchange(true)) exit_code.set_value(code);
  };
  const WorkerActor worker = system.spawn(Worker, std::move(options));
  std::thread reader([&] { ReadMail(mail, &store, assignment.attempt(), worker); });
  const int code = exit_code.get_future().get();
  // A peer that is behind still needs what this rank sent last.
  if (code == 0) (*engine)->Leave();
  // The process ends here even if a thread still waits for a peer or a device: it holds nothing
  // that must survive.
  std::fflush(nullptr);
  std::_Exit(code);
}

// Sets the name that ps, ss and top show; it would be "exe", because the agent executes the program
// under that path. The kernel keeps 15 characters, which must include the whole rank.
void NameProcess(int rank) {
  const std::string name = absl::StrCat("megascale-w", rank);
  constexpr size_t kNameMax = 15;
  ::prctl(PR_SET_NAME, name.size() <= kNameMax ? name.c_str() : absl::StrCat("ms-w", rank).c_str());
}

}  // namespace

int RunWorker(int link_fd, const MakeDevice& make_device) {
  ::prctl(PR_SET_NAME, "megascale-w");
  telemetry::AllowStacks();
  base::Termination termination;
  Link link{base::UniqueFd(link_fd)};
  link::v1::ToWorker first;
  auto fds = link.Receive(&first, kAssignmentTimeout);
  if (!fds.ok() || !first.has_assignment()) {
    base::InitLog("worker", base::LogLevel::kInfo);
    base::LogError("no assignment came from the agent: `megascale worker` is started by an agent");
    return 1;
  }
  const link::v1::Assignment& assignment = first.assignment();
  NameProcess(assignment.rank());
  base::InitLog(absl::StrCat("worker ", assignment.rank()), base::LogLevel::kInfo);
  base::LogInfo(absl::StrCat("job ", assignment.job_id(), " attempt ", assignment.attempt(),
                             " from step ", assignment.restore().step()));
  WorkerMail mail(&link, &termination);
  auto regions = MapRegions(*std::move(fds), assignment.has_batch_ring());
  if (!regions.ok()) return FailEarly(&link, FailureOf(regions.status()));
  return RunAssigned(&link, &mail, assignment, &*regions, make_device);
}

}  // namespace megascale::actors
