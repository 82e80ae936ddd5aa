#include "tests/sim/agent_node.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/checkpoint/snapshot.h"

namespace megascale::sim {
namespace {

namespace core = megascale::agent;

constexpr absl::Duration kRepeatInterval = absl::Milliseconds(250);
constexpr absl::Duration kCoalesce = absl::Milliseconds(20);
constexpr absl::Duration kLinkDelay = absl::Milliseconds(1);  // the same for all: links keep order
constexpr absl::Duration kReapMax = absl::Milliseconds(60);
constexpr absl::Duration kReconnectMin = absl::Milliseconds(200);
constexpr absl::Duration kReconnectMax = absl::Seconds(1);
constexpr absl::Duration kRestartMax = absl::Seconds(2);
constexpr absl::Duration kCountingTime = absl::Milliseconds(100);
constexpr int kWakesMax = 2000;
constexpr absl::Duration kTestMin = absl::Milliseconds(200);
constexpr absl::Duration kTestMax = absl::Milliseconds(1500);
constexpr absl::Duration kExchangeTimeout = absl::Seconds(10);

std::string RankWords(int rank) {
  return rank == core::kHostRank ? std::string("host") : absl::StrCat("rank ", rank);
}

std::string Describe(const ProcessName& name) {
  return absl::StrCat(RankWords(name.rank), " of job ", name.job_id, " attempt ", name.attempt);
}

}  // namespace

AgentNode::AgentNode(const Cluster& cluster, Identity identity)
    : cluster_(cluster),
      world_(*cluster.world),
      identity_(std::move(identity)),
      clock_offset_(world_.rng.Between(absl::ZeroDuration(), absl::Hours(100))),
      clock_rate_(1.0 + static_cast<double>(world_.rng.Between(-10, 10)) / 1000) {}

absl::Duration AgentNode::Now() const {
  const auto nanoseconds = static_cast<double>(absl::ToInt64Nanoseconds(world_.timeline.now()));
  return clock_offset_ + absl::Nanoseconds(static_cast<int64_t>(nanoseconds * clock_rate_));
}

std::string AgentNode::MachineName() const {
  return identity_.copy == 0 ? node_id_ : absl::StrCat(node_id_, "-copy-", identity_.copy);
}

std::string AgentNode::IncarnationName() const {
  return absl::StrCat(MachineName(), "-", num_incarnations_);
}

void AgentNode::Start() {
  MEGASCALE_CHECK(!up());
  if (removed_) return;
  ++num_incarnations_;
  world_.Say(node_id_, absl::StrCat("starts, incarnation ", num_incarnations_));
  core_ = std::make_unique<core::AgentCore>(node_id_, IncarnationName());
  if (!identity_.numerics.empty()) world_.numerics[IncarnationName()] = identity_.numerics;
  MakeForwarder();
  actions_left_.reset();
  taken_ = false;
  drain_away_.reset();
  changed_ = true;
  reported_ = -absl::InfiniteDuration();
  wake_at_ = absl::InfiniteDuration();
  Connect();
  ScheduleWake(world_.timeline.now());
}

void AgentNode::Later(absl::Duration delay, std::function<void()> run) {
  world_.timeline.After(delay, [this, incarnation = num_incarnations_, run = std::move(run)] {
    if (!up() || incarnation != num_incarnations_) return;
    if (world_.timeline.now() < stalled_until_ || !deferred_.empty()) {
      deferred_.push_back(run);
    } else {
      run();
    }
  });
}

// Ends a stall: runs everything that arrived meanwhile, in order.
void AgentNode::WakeUp() {
  if (world_.timeline.now() < stalled_until_) return;
  world_.Tell(&Observer::OnFault,
              Fault{node_id_, Harm::kAway});  // what others conclude now is a consequence, too
  std::vector<std::function<void()>> runs;
  runs.swap(deferred_);
  for (const auto& run : runs) {
    if (up()) run();
  }
}

void AgentNode::Crash(absl::string_view why, absl::Duration away) {
  // One that the driver never took is missed by nobody.
  EndAgent(why, taken_ || identity_.copy == 0 ? Harm::kAway : Harm::kNothing, away);
}

void AgentNode::Upgrade(const std::string& numerics, absl::Duration away) {
  identity_.numerics = numerics;
  Crash(absl::StrCat("it is upgraded to the numerics version ", numerics), away);
}

void AgentNode::EndAgent(absl::string_view why, Harm harm, absl::Duration away) {
  if (!up()) return;
  world_.Break({node_id_, harm}, absl::StrCat("the agent ends: ", why));
  DieAll();
  memory_.clear();
  deferred_.clear();
  stalled_until_ = absl::ZeroDuration();
  repeater_ = {};
  core_.reset();
  forwarder_.reset();
  if (connection_ != nullptr) cluster_.network->Abandon(connection_);
  connection_.reset();
  world_.timeline.After(away, [this, harm] {
    if (up() || removed_) return;
    world_.Tell(&Observer::OnFault, Fault{node_id_, harm});
    Start();
  });
}

void AgentNode::Drain(absl::Duration limit, absl::Duration away) {
  if (!up() || drains()) return;
  world_.Break({node_id_, Harm::kPeople}, "is asked to end");
  world_.Tell(&Observer::OnDrainBegan, node_id_);
  drain_away_ = away;
  Later(absl::ZeroDuration(), [this] {
    core_->Drain();
    changed_ = true;
    Wake();
  });
  world_.timeline.After(limit, [this, away, incarnation = num_incarnations_] {
    if (incarnation == num_incarnations_) Crash("its jobs did not leave in time", away);
  });
}

// As controlplane/agent/service does. Returns true if the agent ended.
bool AgentNode::EndIfDrained() {
  if (!drains()) return false;
  if (!core_->drained() && (connection_ != nullptr || core_->has_processes())) return false;
  world_.Tell(&Observer::OnDrained, node_id_);
  // While the driver is away it ends without having told anybody.
  EndAgent("its jobs have left", core_->drained() ? Harm::kPeople : Harm::kAway, *drain_away_);
  return true;
}

void AgentNode::DamageMemory() {
  for (const auto& [job_id, memory] : memory_) {
    for (const auto& [rank, region] : memory.snapshots) {
      const auto reader = checkpoint::SnapshotReader::Open(region.get());
      for (const checkpoint::SealedSnapshot& sealed : reader->List()) {
        const auto payload = reader->Read(sealed);
        if (!payload.ok() || payload->empty()) continue;
        const_cast<char&>(payload->front()) ^= 1;
        world_.damaged_memory.insert(IncarnationName());
      }
    }
  }
  world_.Break({node_id_, Harm::kReads}, "its snapshots are damaged");
}

void AgentNode::Remove() {
  removed_ = true;
  if (!up()) world_.Break({node_id_, Harm::kAway}, "is lost for good");
  Crash("the machine is lost for good", absl::ZeroDuration());
}

void AgentNode::DieAll() {
  for (auto& [id, child] : children_) {
    if (child.worker != nullptr) child.worker->Die();
    if (child.host != nullptr) child.host->Die();
    world_.Tell(&Observer::OnProcessEnded, child.name);
  }
  children_.clear();
  if (test_process_ != 0 && test_is_exchange_) {
    world_.Tell(&Observer::OnExchangeEnded, IncarnationName());
  } else if (test_process_ != 0) {
    world_.Tell(&Observer::OnTestEnded, IncarnationName(), false);
  }
  test_process_ = 0;
}

void AgentNode::Stall(absl::Duration how_long, bool repeats) {
  if (!up()) return;
  world_.Break({node_id_, Harm::kAway},
               absl::StrCat("stands still for ", absl::FormatDuration(how_long)));
  stalled_until_ = std::max(stalled_until_, world_.timeline.now() + how_long);
  world_.timeline.At(stalled_until_, [this] { WakeUp(); });
  if (repeats) Repeat();
}

// As the thread beside the agent's loop.
void AgentNode::Repeat() {
  if (!up() || world_.timeline.now() >= stalled_until_) return;
  const auto read =
      [this](const std::string& job_id,
             const telemetry::RankStatus& reported) -> std::optional<telemetry::RankStatus> {
    for (const auto& [id, child] : children_) {
      if (child.name.job_id == job_id && child.worker != nullptr && child.pid == reported.pid()) {
        return child.worker->Heartbeat();
      }
    }
    return std::nullopt;
  };
  const auto report = repeater_.Due(Now(), read);
  if (report.has_value() && connection_ != nullptr) {
    cluster_.network->Send(connection_, *report);
  }
  world_.timeline.After(kRepeatInterval, [this, incarnation = num_incarnations_] {
    if (incarnation == num_incarnations_) Repeat();
  });
}

void AgentNode::MakeForwarder() {
  const auto to_driver = [this](const agent::AgentUp& message) {
    if (connection_ == nullptr) return;  // they are sent again on the next stream
    for (const auto& request : message.store().requests()) {
      cluster_.network->SendStore(connection_, request);
    }
  };
  const auto to_process = [this](int64_t process_id, const agent::StoreReply& reply) {
    const auto child = children_.find(process_id);
    if (child == children_.end() || child->second.worker == nullptr) return;
    world_.timeline.After(kLinkDelay,
                          [worker = child->second.worker, reply] { worker->OnStoreReply(reply); });
  };
  forwarder_ = std::make_unique<core::StoreForwarder>(core::StoreAccess(), to_driver, to_process);
}

// --- the driver -------------------------------------------------------------------------------

void AgentNode::Connect() {
  agent::Hello hello;
  hello.set_protocol_version(megascale::agent::v1::PROTOCOL_VERSION_CURRENT);
  hello.set_node_id(node_id_);
  hello.set_incarnation(IncarnationName());
  hello.set_num_slots(num_slots());
  hello.set_machine_id(MachineName());
  hello.set_key(absl::StrCat("key of ", MachineName()));
  hello.set_instruction_set("avx2");
  hello.set_numerics_version(identity_.numerics);
  hello.set_tests_machine(!identity_.is_old);
  hello.set_binds_address(!identity_.is_old);
  hello.set_evaluates(!identity_.is_old);
  hello.set_tests_exchange(!identity_.is_old);
  const auto reconnect = [this] {
    Later(world_.rng.Between(kReconnectMin, kReconnectMax), [this] {
      if (connection_ == nullptr) Connect();
    });
  };
  ConnectionEvents events;
  events.on_desired = [this, incarnation = num_incarnations_](const agent::DesiredState& desired) {
    if (!up() || incarnation != num_incarnations_) return;
    taken_ = true;
    Later(absl::ZeroDuration(), [this, desired = desired]() mutable {
      forwarder_->SetDriverTakesManyKeys(desired.store_many_keys());
      if (identity_.is_old) {
        for (auto& job : *desired.mutable_jobs()) job.clear_step_duty();
      }
      core_->OnDesired(desired, Now());
      changed_ = true;
      Wake();
    });
  };
  events.on_closed = [this, incarnation = num_incarnations_, reconnect](const absl::Status& why) {
    if (!up() || incarnation != num_incarnations_) return;
    connection_.reset();
    // Refused after it was accepted: the driver gave it up, and another agent has its id.
    if (absl::IsAborted(why) || (absl::IsAlreadyExists(why) && taken_)) {
      return Crash(why.message(), world_.rng.Between(kReconnectMin, kRestartMax));
    }
    reconnect();
  };
  events.on_store = [this, incarnation = num_incarnations_](const agent::StoreReply& reply) {
    if (!up() || incarnation != num_incarnations_) return;
    Later(absl::ZeroDuration(), [this, reply] { forwarder_->OnDriverReply(reply); });
  };
  connection_ = cluster_.network->Connect(
      hello, std::move(events), {.certificate = absl::StrCat("agent ", node_id_), .address = ""});
  if (connection_ == nullptr) return reconnect();
  forwarder_->OnStreamOpened();
  forwarder_->FlushToDriver();
  changed_ = true;
  ScheduleWake(world_.timeline.now());
}

// --- its loop ---------------------------------------------------------------------------------

void AgentNode::ScheduleWake(absl::Duration when) {
  when = std::max(when, world_.timeline.now());
  if (when >= wake_at_) return;
  wake_at_ = when;
  Later(when - world_.timeline.now(), [this, when] {
    if (when == wake_at_) Wake();
  });
}

// Checks that the agent sleeps until something happens or is due.
void AgentNode::CountWake() {
  if (world_.timeline.now() - counting_since_ > kCountingTime) {
    counting_since_ = world_.timeline.now();
    num_wakes_ = 0;
  }
  if (++num_wakes_ <= kWakesMax) return;
  world_.Violate("AgentsSleep",
                 absl::StrCat(node_id_, ": its agent woke ", kWakesMax, " times within ",
                              absl::FormatDuration(kCountingTime)));
}

void AgentNode::Wake() {
  CountWake();
  wake_at_ = absl::InfiniteDuration();
  if (!Act() || EndIfDrained()) return;
  const absl::Duration due =
      reported_ + (changed_ && connection_ != nullptr ? kCoalesce : core_->report_interval());
  if (Now() >= due) Report();
  const absl::Duration next_report =
      reported_ + (changed_ && connection_ != nullptr ? kCoalesce : core_->report_interval());
  const absl::Duration wake = std::min(next_report, core_->NextWake());
  // One nanosecond more, so that rounding never wakes it too early.
  ScheduleWake((std::max(wake, Now()) - clock_offset_) / clock_rate_ + absl::Microseconds(1));
}

// Carries out the next actions. Returns false if the agent ended meanwhile.
bool AgentNode::Act() {
  for (;;) {
    const std::vector<core::Action> actions = core_->Reconcile(Now());
    if (actions.empty()) return true;
    changed_ = true;
    for (const core::Action& action : actions) {
      if (actions_left_.has_value() && --*actions_left_ <= 0) {
        Crash("before an action", world_.rng.Between(kReconnectMin, kRestartMax));
        return false;
      }
      std::visit([this](const auto& one) { Do(one); }, action);
    }
  }
}

std::map<int64_t, telemetry::RankStatus> AgentNode::Heartbeats() const {
  std::map<int64_t, telemetry::RankStatus> heartbeats;
  for (const auto& [id, child] : children_) {
    heartbeats[id] = child.worker != nullptr ? child.worker->Heartbeat() : child.host->Heartbeat();
  }
  return heartbeats;
}

void AgentNode::Report() {
  const auto heartbeats = Heartbeats();
  for (const int64_t id : core_->HungHosts(heartbeats)) Do(core::KillProcess{id});
  const agent::ActualState report = core_->Report(heartbeats);
  repeater_.OnReport(report, core_->report_interval(), Now());
  if (connection_ != nullptr) cluster_.network->Send(connection_, report);
  reported_ = Now();
  changed_ = false;
}

void AgentNode::RefreshSnapshots(const std::string& job_id) {
  const auto memory = memory_.find(job_id);
  if (memory == memory_.end()) return;
  std::vector<checkpoint::SealedSnapshot> held;
  for (const auto& [rank, region] : memory->second.snapshots) {
    for (const auto& sealed : checkpoint::ListSealed(*region)) held.push_back(sealed);
  }
  core_->OnSnapshots(job_id, std::move(held));
}

// --- actions ----------------------------------------------------------------------------------

void AgentNode::Do(const core::PrepareMemory& action) {
  Memory& memory = memory_[action.job->job_id()];
  memory.attempt = action.job->attempt();
  std::set<int> ranks;
  for (const auto& placement : action.job->placements()) {
    if (placement.node_id() == node_id_) ranks.insert(placement.rank());
  }
  std::erase_if(memory.snapshots, [&](const auto& item) { return ranks.count(item.first) == 0; });
  if (std::exchange(fail_next_prepare_, false)) {
    world_.Break({node_id_, Harm::kMemory}, "has no memory for the attempt");
    core_->OnPrepareFailed(action.job->job_id(), absl::ResourceExhaustedError("no memory"), Now());
  } else {
    for (const int rank : ranks) {
      if (memory.snapshots.count(rank) > 0) continue;
      std::shared_ptr<base::SharedMemory> region =
          *base::SharedMemory::Create("sim", checkpoint::SnapshotBytes(sizeof(int64_t)));
      checkpoint::FormatSnapshots(*region, rank);
      memory.snapshots[rank] = std::move(region);
    }
  }
  RefreshSnapshots(action.job->job_id());
}

void AgentNode::Do(const core::StartProcess& action) {
  if (std::exchange(fail_next_start_, false)) {
    world_.Break({node_id_, Harm::kProcess, action.job->job_id(), action.rank},
                 "cannot start a process");
    core_->OnStarted(action.process_id, absl::UnavailableError("fork failed"), Now());
    return;
  }
  Child child;
  child.name = {node_id_,
                IncarnationName(),
                action.job->job_id(),
                action.job->attempt(),
                action.rank,
                action.process_id,
                action.job->phase() == agent::DesiredJob::PHASE_RETAIN};
  child.pid = ++num_pids_;
  if (action.rank == core::kHostRank) {
    StartHost(action, &child);
  } else {
    StartWorker(action, &child);
  }
  world_.Say(node_id_, absl::StrCat("starts ", Describe(child.name),
                                    action.preflight_only ? " (preflight)" : ""));
  const Child& started = children_[action.process_id] = std::move(child);
  core_->OnStarted(action.process_id, started.pid, Now());
  world_.Tell(&Observer::OnProcessStarted, started.name);
  if (started.worker != nullptr) started.worker->Start();
  if (started.host != nullptr) started.host->Start();
}

void AgentNode::StartWorker(const core::StartProcess& action, Child* child) {
  WorkerProcess::Options options;
  options.name = child->name;
  options.job = *action.job;
  options.pid = child->pid;
  options.snapshots = memory_.at(action.job->job_id()).snapshots.at(action.rank);
  options.report = [this, id = action.process_id,
                    job_id = action.job->job_id()](const link::v1::FromWorker& message) {
    Later(kLinkDelay, [this, id, job_id, message] {
      if (children_.count(id) == 0) return;
      if (message.has_store()) {
        forwarder_->OnRequest(id, message.store(), Now());
        return forwarder_->FlushToDriver();
      }
      if (core_->OnWorkerMessage(id, message)) changed_ = true;
      if (message.has_sealed()) RefreshSnapshots(job_id);
      Wake();
    });
  };
  options.exit = [this, id = action.process_id](int status) { EndSoon(id, status, kReapMax); };
  forwarder_->OnStarted(action.process_id, *action.job);
  child->worker = std::make_shared<WorkerProcess>(&world_, cluster_.collective, cluster_.storage,
                                                  std::move(options));
}

void AgentNode::StartHost(const core::StartProcess& action, Child* child) {
  HostProcess::Options options;
  options.name = child->name;
  options.job = *action.job;
  options.preflight_only = action.preflight_only;
  options.pid = child->pid;
  if (!action.preflight_only && !child->name.only_deletes)
    options.snapshots = memory_.at(action.job->job_id()).snapshots;
  options.report = [this, id = action.process_id](const link::v1::FromHost& message) {
    Later(kLinkDelay, [this, id, message] {
      if (children_.count(id) == 0) return;
      core_->OnHostMessage(id, message);
      changed_ = true;
      Wake();
    });
  };
  options.exit = [this, id = action.process_id](int status) { EndSoon(id, status, kReapMax); };
  child->host = std::make_shared<HostProcess>(&world_, cluster_.storage, std::move(options));
}

void AgentNode::Do(const core::CheckStore& action) {
  core_->OnStoreChecked(action.job->job_id(), action.job->attempt(), absl::OkStatus(), Now());
}

void AgentNode::Do(const core::KillProcess& action) {
  if (action.process_id == test_process_) {
    test_killed_ = true;
    Later(world_.rng.Between(absl::Microseconds(1), kReapMax), [this] { EndTest(SIGKILL); });
    return;
  }
  const auto child = children_.find(action.process_id);
  if (child == children_.end()) return;
  world_.Tell(&Observer::OnProcessKilled, child->second.name);
  const bool is_alive =
      child->second.worker != nullptr ? child->second.worker->alive() : child->second.host->alive();
  if (!is_alive) return;  // it ended by itself, and its status is on its way
  child->second.killed = true;
  const absl::Duration hung = std::exchange(hung_kill_, absl::ZeroDuration());
  world_.timeline.After(hung, [this, id = action.process_id, incarnation = num_incarnations_] {
    if (incarnation == num_incarnations_) EndSoon(id, SIGKILL, kReapMax + kill_delay_);
  });
}

void AgentNode::Do(const core::SendToWorker& action) {
  const auto child = children_.find(action.process_id);
  if (child == children_.end() || child->second.worker == nullptr) return;
  if (action.message.has_stop()) {
    world_.timeline.After(kLinkDelay, [worker = child->second.worker, stop = action.message] {
      worker->Stop(stop.stop().checkpoint());
    });
  }
}

void AgentNode::Do(const core::SendToHost& action) {
  const auto child = children_.find(action.process_id);
  if (child == children_.end() || child->second.host == nullptr) return;
  child->second.host->Send(action.message);
}

void AgentNode::Do(const core::MarkPersisted& action) {
  const auto memory = memory_.find(action.job_id);
  if (memory == memory_.end()) return;
  const auto region = memory->second.snapshots.find(action.snapshot.rank);
  if (region == memory->second.snapshots.end()) return;
  checkpoint::SnapshotReader::Open(region->second.get())->MarkPersisted(action.snapshot);
}

void AgentNode::Do(const core::DropMemory& action) { memory_.erase(action.job_id); }

void AgentNode::Do(const core::StartTest& action) {
  if (std::exchange(fail_next_start_, false)) {
    world_.Break({node_id_, Harm::kTest}, "cannot start a test of the machine");
    core_->OnStarted(action.process_id, absl::UnavailableError("fork failed"), Now());
    // A machine whose test could not be started again and again counts as tested, with a note.
    const bool passed =
        core_->Report({}).machine_test().state() == agent::MachineTest::STATE_PASSED;
    if (passed && !action.request.has_exchange()) {
      world_.Tell(&Observer::OnTestEnded, IncarnationName(), true);
    }
    return;
  }
  world_.Say(node_id_, absl::StrCat("starts test ", action.request.id(), " of the machine"));
  test_process_ = action.process_id;
  test_killed_ = false;
  test_is_exchange_ = action.request.has_exchange();
  core_->OnStarted(action.process_id, ++num_pids_, Now());
  world_.Tell(&Observer::OnTestStarted, IncarnationName());
  if (test_is_exchange_) return StartExchange(action.process_id, action.request);
  agent::MachineTest test;
  test.set_id(action.request.id());
  test.set_kind(action.request.kind());
  test.set_state(agent::MachineTest::STATE_RUNNING);
  test.set_part("memory");
  core_->OnTestMessage(action.process_id, test);
  if (world_.timeline.now() < world_.tests_hang_until[node_id_]) return;
  const bool fails = world_.timeline.now() < world_.tests_fail_until[node_id_];
  test.set_state(fails ? agent::MachineTest::STATE_FAILED : agent::MachineTest::STATE_PASSED);
  test.set_evidence(fails ? "memory: 1 byte of 64 MiB read back wrong" : "");
  test.clear_part();
  Later(world_.rng.Between(kTestMin, kTestMax), [this, test, id = action.process_id] {
    if (id != test_process_ || test_killed_) return;
    core_->OnTestMessage(id, test);
    EndTest(0);
  });
}

void AgentNode::StartExchange(int64_t process_id, const agent::MachineTestRequest& request) {
  if (world_.timeline.now() < world_.tests_hang_until[node_id_]) return;
  world_.exchanging.insert({request.exchange().group(), node_id_});
  AdvanceExchange(process_id, request, world_.timeline.now() + kExchangeTimeout);
}

void AgentNode::AdvanceExchange(int64_t process_id, const agent::MachineTestRequest& request,
                                absl::Duration until) {
  Later(world_.rng.Between(kTestMin, kTestMax), [this, process_id, request, until] {
    if (process_id != test_process_ || test_killed_) return;
    const auto& members = request.exchange().node_ids();
    const bool can_end = std::all_of(members.begin(), members.end(), [&](const auto& member) {
      return world_.bad_links.count(member) == 0 && !world_.IsCut(node_id_, member) &&
             world_.exchanging.count({request.exchange().group(), member}) > 0;
    });
    const bool is_late = world_.timeline.now() >= until;
    if (!is_late && !can_end) return AdvanceExchange(process_id, request, until);
    std::vector<std::string> others;
    for (const std::string& member : members) {
      if (member != node_id_) others.push_back(member);
    }
    const std::string other = absl::StrJoin(others, ", ");
    agent::MachineTest test;
    test.set_id(request.id());
    test.set_kind(request.kind());
    agent::TestResult* result = test.add_results();
    result->set_part(absl::StrCat("exchange with ", other));
    if (is_late) result->set_failure(absl::StrCat(other, " does not connect"));
    result->set_peer_missing(is_late);
    if (!is_late) result->set_bytes_per_second(1e9);
    test.set_state(is_late ? agent::MachineTest::STATE_FAILED : agent::MachineTest::STATE_PASSED);
    test.set_evidence(result->failure());
    core_->OnTestMessage(process_id, test);
    EndTest(0);
  });
}

void AgentNode::EndTest(int status) {
  if (test_process_ == 0) return;
  const int64_t id = std::exchange(test_process_, 0);
  core::ProcessEnd end;
  end.status = status;
  end.killed = test_killed_;
  core_->OnEnded(id, end, Now());
  changed_ = true;
  if (test_is_exchange_) {
    world_.Tell(&Observer::OnExchangeEnded, IncarnationName());
    return Wake();
  }
  const agent::MachineTest::State state = core_->Report({}).machine_test().state();
  // What the driver concludes from a failed test is a consequence of the machine's fault.
  if (state == agent::MachineTest::STATE_FAILED)
    world_.Break({node_id_, Harm::kTest}, "fails its test");
  world_.Tell(&Observer::OnTestEnded, IncarnationName(), state == agent::MachineTest::STATE_PASSED);
  Wake();
}

// --- ends of processes ------------------------------------------------------------------------

// Ends the process now or soon; the agent reaps it a while after its last message.
void AgentNode::EndSoon(int64_t process_id, int status, absl::Duration within) {
  const absl::Duration death = world_.rng.Between(absl::ZeroDuration(), within);
  world_.timeline.After(death, [this, process_id, status, incarnation = num_incarnations_] {
    if (incarnation != num_incarnations_) return;
    const auto child = children_.find(process_id);
    if (child == children_.end()) return;
    if (child->second.worker != nullptr) child->second.worker->Die();
    if (child->second.host != nullptr) child->second.host->Die();
    Later(kLinkDelay + world_.rng.Between(absl::Microseconds(1), kReapMax),
          [this, process_id, status] { End(process_id, status); });
  });
}

void AgentNode::End(int64_t process_id, int status) {
  const auto found = children_.find(process_id);
  if (found == children_.end()) return;
  const Child child = std::move(found->second);
  children_.erase(found);
  forwarder_->OnEnded(process_id);
  world_.Say(node_id_, absl::StrCat(Describe(child.name), " ended with status ", status));
  world_.Tell(&Observer::OnProcessEnded, child.name);
  core::ProcessEnd end;
  end.status = status;
  end.killed = child.killed && status == SIGKILL;
  core_->OnEnded(process_id, end, Now());
  RefreshSnapshots(child.name.job_id);
  changed_ = true;
  Wake();
}

std::vector<int64_t> AgentNode::LivingChildren() const {
  std::vector<int64_t> living;
  for (const auto& [id, child] : children_) {
    if (child.worker != nullptr ? child.worker->runs() : child.host->runs()) living.push_back(id);
  }
  return living;
}

bool AgentNode::KillSomething() {
  const std::vector<int64_t> living = LivingChildren();
  if (living.empty()) return false;
  const int64_t id = living[world_.rng.Index(living.size())];
  const ProcessName& name = children_.at(id).name;
  world_.Break({node_id_, Harm::kProcess, name.job_id, name.rank},
               absl::StrCat("kill -9 of ", Describe(name)));
  EndSoon(id, SIGKILL, absl::ZeroDuration());
  return true;
}

bool AgentNode::HangSomething() {
  const std::vector<int64_t> living = LivingChildren();
  if (living.empty()) return false;
  Child& child = children_.at(living[world_.rng.Index(living.size())]);
  world_.Break({node_id_, Harm::kProcess, child.name.job_id, child.name.rank},
               absl::StrCat("hangs: ", Describe(child.name)));
  if (child.worker != nullptr) child.worker->Hang(world_.rng.Chance(0.5));
  if (child.host != nullptr) child.host->Hang();
  return true;
}

}  // namespace megascale::sim
