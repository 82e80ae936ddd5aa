#include "controlplane/agent/service/agent_loop.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/agent/core/exit_class.h"
#include "controlplane/agent/service/kept_logs.h"
#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/process/thread_environment.h"
#include "runtime/base/status.h"
#include "runtime/base/version.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kCoalesce = absl::Milliseconds(20);
// Ended exchanges are read this often. The ring of a rank holds 1,024 of them. Source: Mycroft
// (SOSP 2025).
constexpr absl::Duration kSampleInterval = absl::Milliseconds(100);
constexpr absl::Duration kPingInterval = absl::Seconds(1);
constexpr absl::Duration kWarningInterval = absl::Minutes(1);  // of lines that would repeat
// Far above the ids that AgentCore gives.
constexpr int64_t kFirstStackProcess = int64_t{1} << 40;

absl::Duration Now() { return base::RealClock().Monotonic(); }

std::string RankWords(int rank) {
  if (rank == kTestRank) return "machine test";
  if (rank == kStackRank) return "reader of stacks";
  return rank == kHostRank ? std::string("host") : absl::StrCat("rank ", rank);
}

std::string Describe(const ChildName& name) {
  return absl::StrCat(RankWords(name.rank), " of job ", name.job_id, " attempt ", name.attempt);
}

}  // namespace

AgentLoop::AgentLoop(AgentLoopOptions options, launch::ProcessKeeper* keeper, DriverStream* stream)
    : options_(std::move(options)),
      keeper_(keeper),
      stream_(stream),
      core_(options_.node_id, options_.incarnation),
      stores_(
          options_.store, [this](v1::AgentUp message) { stream_->Send(std::move(message)); },
          [this](int64_t process_id, const v1::StoreReply& reply) {
            const auto child = children_.find(process_id);
            if (child != children_.end() && child->second->name().rank == kTestRank) {
              link::v1::ToTest message;
              *message.mutable_store() = reply;
              return SendToChild(process_id, message);
            }
            link::v1::ToWorker message;
            *message.mutable_store() = reply;
            SendToChild(process_id, message);
          }),
      gpus_(options_.read_gpus),
      machine_(options_.run_directory),
      heartbeat_([stream](v1::ActualState report) { stream->SendActual(std::move(report)); }),
      last_stack_process_(kFirstStackProcess) {}

absl::Status AgentLoop::Run() {
  while (!stopping_) {
    stream_->Maintain(Now());
    Wait();
    RETURN_IF_ERROR(TakeStream());
    for (const auto& [id, child] : children_) ReadChild(child.get());
    RETURN_IF_ERROR(TakeExits());
    DriveStores();
    SampleExchanges();
    SampleMachine();
    Act();
    PingKeeper();
    ReportWhenDue();
    EndWhenDrained();
    out_of_memory_.Sample(Now());
  }
  return absl::OkStatus();
}

// --- waiting --------------------------------------------------------------------------------

// While the driver is away, reports would only replace each other, so they wait.
absl::Duration AgentLoop::NextReport() const {
  return reported_ + (changed_ && stream_->is_open() ? kCoalesce : core_.report_interval());
}

absl::Duration AgentLoop::NextWake() const {
  const absl::Duration sample =
      memory_.empty() || !is_recording_ ? absl::InfiniteDuration() : sampled_ + kSampleInterval;
  return std::min({sample, NextReport(), core_.NextWake(), stream_->NextWake(), stores_.NextWake(),
                   drain_deadline_});
}

void AgentLoop::Wait() {
  std::vector<pollfd> entries = {{options_.signals_fd, POLLIN, 0},
                                 {keeper_->exits_fd(), POLLIN, 0},
                                 {stream_->events_fd(), POLLIN, 0}};
  for (const auto& [id, child] : children_) {
    if (child->link_fd() >= 0) entries.push_back({child->link_fd(), POLLIN, 0});
    if (child->output_fd() >= 0) entries.push_back({child->output_fd(), POLLIN, 0});
  }
  stores_.AddPollEntries(&entries);
  const absl::Duration wait =
      std::clamp(NextWake() - Now(), absl::ZeroDuration(), absl::Duration(absl::Seconds(1)));
  ::poll(entries.data(), entries.size(), base::PollMilliseconds(wait));
  if (entries[0].revents != 0) TakeSignals();
}

void AgentLoop::TakeSignals() {
  signalfd_siginfo info;
  while (::read(options_.signals_fd, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGTERM || drains()) {
      stopping_ = true;
      return;
    }
    base::LogInfo(absl::StrCat("SIGTERM: its jobs leave, for at most ",
                               absl::FormatDuration(options_.drain_timeout),
                               "; a second one ends it at once"));
    drain_deadline_ = Now() + options_.drain_timeout;
    core_.Drain();
    for (const auto& [id, child] : children_) TellThatItDrains(child->name());
    changed_ = true;
  }
}

void AgentLoop::EndWhenDrained() {
  if (!drains()) return;
  if (core_.drained() || (!stream_->is_open() && !core_.has_processes())) {
    stopping_ = true;
  } else if (Now() >= drain_deadline_) {
    base::LogWarning(absl::StrCat("its jobs did not leave within ",
                                  absl::FormatDuration(options_.drain_timeout),
                                  "; ends with their processes"));
    stopping_ = true;
  }
}

absl::Status AgentLoop::TakeStream() {
  const DriverStream::Events events = stream_->Take();
  if (!events.ended.ok()) return events.ended;
  if (events.opened) {
    base::LogInfo("connected to the driver");
    changed_ = true;
    stores_.OnStreamOpened();
  }
  for (const v1::AgentDown& message : events.messages) {
    if (message.message_case() == v1::AgentDown::MESSAGE_NOT_SET) WarnOfUnknown();
    if (message.has_desired()) {
      stores_.SetDriverTakesManyKeys(message.desired().store_many_keys());
      OnDesired(message.desired());
    }
    for (const v1::StoreReply& reply : message.store().replies()) stores_.OnDriverReply(reply);
    if (message.has_fetch_log()) AnswerFetchLog(message.fetch_log());
    if (message.has_fetch_spans()) AnswerFetchSpans(message.fetch_spans());
    if (message.has_fetch_evidence()) AnswerFetchEvidence(message.fetch_evidence());
    if (message.has_fetch_data_files()) AnswerFetchDataFiles(message.fetch_data_files());
    if (message.has_data_files()) OnDataFiles(message.data_files());
  }
  return absl::OkStatus();
}

// A newer driver asks for something that this version cannot do. Nothing depends on an answer: the
// driver's wait has a deadline.
void AgentLoop::WarnOfUnknown() {
  if (std::exchange(warned_of_unknown_, true)) return;
  base::LogWarning("ignores a message of the driver that megascale " + std::string(base::kVersion) +
                   " does not know");
}

void AgentLoop::OnDesired(const v1::DesiredState& desired) {
  core_.OnDesired(desired, Now());
  const v1::KnownState known = core_.known();
  stream_->SetKnown(known);
  if (desired.epoch() < known.epoch() && Now() >= next_epoch_warning_) {
    next_epoch_warning_ = Now() + kWarningInterval;
    base::LogWarning(absl::StrCat(
        "ignores the driver: its epoch (", desired.epoch(),
        ") is older than the one that this "
        "agent serves (",
        known.epoch(),
        "), so it is another driver, or one on an older log; give this agent the address of its "
        "own driver, or end it and start it again, so that it serves this one"));
  }
  changed_ = true;
}

absl::Status AgentLoop::TakeExits() {
  ASSIGN_OR_RETURN(const std::vector<launch::ProcessExit> exits, keeper_->TakeExits());
  for (const launch::ProcessExit& exited : exits) {
    const auto found = children_.find(exited.token);
    if (found == children_.end()) continue;
    const std::unique_ptr<ChildProcess> child = std::move(found->second);
    children_.erase(found);
    ReadChild(child.get());  // all that it said and printed comes before its end
    if (child->name().rank == kStackRank) {
      // Not DeadlineExceeded: that would say that this agent is silent.
      v1::EvidenceChunk unanswered;
      unanswered.set_code(static_cast<int>(absl::StatusCode::kAborted));
      unanswered.set_message(
          absl::StrCat("its stacks were not read: ", launch::DescribeExit(exited.status)));
      OnStacks(exited.token, unanswered);
      continue;
    }
    base::LogInfo(absl::StrCat(Describe(child->name()), " (process ", exited.pid, ") ",
                               exited.killed ? "was ended, as it was no longer wanted"
                                             : launch::DescribeExit(exited.status)));
    ProcessEnd end;
    end.status = exited.status;
    end.killed = exited.killed;
    end.out_of_memory =
        out_of_memory_.OnEnded(exited.token, IsKill(exited.status) && !exited.killed);
    end.store_failure = stores_.OnEnded(exited.token);
    end.recent = RecentOf(child->name());
    end.last_lines = child->LastLines();
    core_.OnEnded(exited.token, end, Now());
    RefreshSnapshots(child->name().job_id);
    changed_ = true;
  }
  return absl::OkStatus();
}

// Returns the newest instructions of a rank, for the report of its end.
std::string AgentLoop::RecentOf(const ChildName& name) {
  const auto memory = memory_.find(name.job_id);
  if (memory == memory_.end()) return "";
  memory->second->DrainSpans();
  return memory->second->DescribeSpans(name.rank, Now());
}

void AgentLoop::ReadChild(ChildProcess* child) {
  child->DrainOutput();
  for (const std::string& message : child->ReadLink()) OnMessage(*child, message);
}

void AgentLoop::OnMessage(const ChildProcess& child, const std::string& message) {
  const int64_t process_id = child.name().process_id;
  if (child.name().rank >= 0) return OnWorkerMessage(child, message);
  changed_ = true;
  if (child.name().rank == kTestRank) {
    link::v1::FromTest from_test;
    if (!from_test.ParseFromString(message)) return;
    if (from_test.has_test()) core_.OnTestMessage(process_id, from_test.test());
    if (from_test.has_store()) stores_.OnRequest(process_id, from_test.store(), Now());
    return;
  }
  if (child.name().rank == kStackRank) {
    v1::EvidenceChunk chunk;
    if (chunk.ParseFromString(message)) OnStacks(process_id, chunk);
    return;
  }
  link::v1::FromHost from_host;
  if (!from_host.ParseFromString(message)) {
    base::LogError(absl::StrCat(Describe(child.name()), " sent a malformed message; ignored it"));
    return;
  }
  if (from_host.has_fetch_data_files()) {
    v1::AgentUp question;
    *question.mutable_fetch_data_files() = from_host.fetch_data_files();
    question.mutable_fetch_data_files()->set_request_id(absl::StrCat(process_id));
    stream_->Send(std::move(question));
    return;
  }
  core_.OnHostMessage(process_id, from_host);
}

void AgentLoop::OnWorkerMessage(const ChildProcess& child, const std::string& message) {
  const int64_t process_id = child.name().process_id;
  link::v1::FromWorker from_worker;
  if (!from_worker.ParseFromString(message)) {
    base::LogError(absl::StrCat(Describe(child.name()), " sent a malformed message; ignored it"));
    return;
  }
  if (from_worker.has_store()) {
    v1::StoreRequest* request = from_worker.mutable_store();
    request->set_job_id(child.name().job_id);
    request->set_attempt(child.name().attempt);
    stores_.OnRequest(process_id, std::move(*request), Now());
    changed_ = true;
    return;
  }
  if (core_.OnWorkerMessage(process_id, from_worker)) changed_ = true;
  if (from_worker.has_sealed()) RefreshSnapshots(child.name().job_id);
}

// --- acting ---------------------------------------------------------------------------------

void AgentLoop::Act() {
  for (;;) {
    const std::vector<Action> actions = core_.Reconcile(Now());
    if (actions.empty()) return;
    changed_ = true;
    for (const Action& action : actions) {
      std::visit([this](const auto& one) { Do(one); }, action);
    }
  }
}

JobMemory& AgentLoop::MemoryOf(const std::string& job_id) {
  std::unique_ptr<JobMemory>& memory = memory_[job_id];
  if (memory == nullptr) {
    memory = std::make_unique<JobMemory>(
        options_.node_id, absl::StrCat(options_.run_directory, "/t", ++num_socket_directories_));
  }
  return *memory;
}

void AgentLoop::Do(const PrepareMemory& action) {
  const std::string& job_id = action.job->job_id();
  const absl::Status prepared = MemoryOf(job_id).Prepare(*action.job);
  published_[job_id] = action.job->restore().step();
  if (!prepared.ok()) {
    base::LogError(
        absl::StrCat("job ", job_id, " attempt ", action.job->attempt(), ": ", prepared.message()));
    core_.OnPrepareFailed(job_id, prepared, Now());
  }
  RefreshSnapshots(job_id);
  const ChildName any = {0, job_id, action.job->attempt(), kHostRank};
  const std::filesystem::path logs(LogNameOf(options_.log_directory, any).directory);
  PruneDirectory(logs.parent_path().string(), kAttemptLogsKept - 1);
  std::set<std::string> present = {kTestLogs};
  for (const auto& [id, memory] : memory_) present.insert(id);
  PruneJobLogs(options_.log_directory, present);
}

void AgentLoop::Do(const StartProcess& action) {
  absl::StatusOr<int> pid = StartChild(action);
  const std::string what = absl::StrCat(RankWords(action.rank), " of job ", action.job->job_id(),
                                        " attempt ", action.job->attempt());
  if (pid.ok()) {
    base::LogInfo(absl::StrCat("started ", what, " as process ", *pid));
  } else {
    base::LogError(absl::StrCat(what, ": ", pid.status().message()));
  }
  core_.OnStarted(action.process_id, std::move(pid), Now());
}

absl::StatusOr<int> AgentLoop::StartChild(const StartProcess& action) {
  const ChildName name = {action.process_id, action.job->job_id(), action.job->attempt(),
                          action.rank};
  const auto& placements = action.job->placements();
  const auto ranks_here = std::count_if(placements.begin(), placements.end(), [&](const auto& p) {
    return p.node_id() == options_.node_id;
  });
  const std::vector<std::string> environment = base::ThreadEnvironment(base::HaveCores(
      static_cast<int>(ranks_here), action.job->spec().parallel().threads_per_rank(),
      base::SmallestCpuLimit().cores));
  ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> child,
                   ChildProcess::Start(keeper_, name, options_.log_directory, environment));
  stores_.OnStarted(name.process_id, *action.job);
  const int pid = child->pid();
  out_of_memory_.OnStarted(name.process_id, pid, Now());
  absl::Status introduced;
  const JobMemory& memory = MemoryOf(name.job_id);
  if (name.rank == kHostRank) {
    const auto introduction = memory.IntroduceHost(*action.job, action.preflight_only);
    introduced = child->Send(introduction.message, introduction.fds);
  } else {
    auto introduction = memory.IntroduceWorker(*action.job, name.rank);
    introduction.message.mutable_assignment()->set_interface(options_.interface);
    introduced = child->Send(introduction.message, introduction.fds);
  }
  KillUnlessTold(*(children_[name.process_id] = std::move(child)), introduced);
  if (drains()) TellThatItDrains(name);
  return pid;
}

void AgentLoop::Do(const CheckStore& action) {
  stores_.Check(options_.node_id, *action.job, Now());
}

void AgentLoop::Do(const KillProcess& action) {
  // If the keeper is gone, the next TakeExits reports it.
  keeper_->Kill(action.process_id, SIGKILL).IgnoreError();
}

void AgentLoop::Do(const SendToWorker& action) { SendToChild(action.process_id, action.message); }

void AgentLoop::Do(const SendToHost& action) { SendToChild(action.process_id, action.message); }

void AgentLoop::Do(const MarkPersisted& action) {
  MemoryOf(action.job_id).MarkPersisted(action.snapshot);
}

void AgentLoop::Do(const DropMemory& action) {
  if (const auto memory = memory_.find(action.job_id); memory != memory_.end()) {
    LastAttempt last = memory->second->ReadLast(Now());
    last.samples = machine_.Samples(action.job_id);
    // Without an attempt there is nothing to ask for.
    if (last.attempt > 0) last_attempts_.Keep(action.job_id, std::move(last));
    memory_.erase(memory);
  }
  published_.erase(action.job_id);
}

void AgentLoop::Do(const StartTest& action) {
  absl::StatusOr<int> pid = StartTestChild(action);
  if (pid.ok()) {
    base::LogInfo(absl::StrCat("tests the machine, process ", *pid));
  } else {
    base::LogError(absl::StrCat("machine test: ", pid.status().message()));
  }
  core_.OnStarted(action.process_id, std::move(pid), Now());
}

absl::StatusOr<int> AgentLoop::StartTestChild(const StartTest& action) {
  const ChildName name = {action.process_id, kTestLogs, action.request.id(), kTestRank};
  std::string sockets;
  if (action.request.has_exchange() && options_.interface.empty()) {
    sockets = absl::StrCat(options_.run_directory, "/exchange");
    std::error_code ignored;
    std::filesystem::remove_all(sockets, ignored);  // a killed process may have left its socket
    RETURN_IF_ERROR(base::MakeDirectories(sockets));
  }
  const std::vector<std::string> environment = base::ThreadEnvironment(/*has_cores=*/false);
  ASSIGN_OR_RETURN(std::unique_ptr<ChildProcess> child,
                   ChildProcess::Start(keeper_, name, options_.log_directory, environment));
  const std::filesystem::path logs(LogNameOf(options_.log_directory, name).directory);
  PruneDirectory(logs.parent_path().string(), kAttemptLogsKept);
  const int pid = child->pid();
  link::v1::ToTest message;
  link::v1::TestAssignment& assignment = *message.mutable_assignment();
  *assignment.mutable_request() = action.request;
  assignment.set_own_directory(options_.log_directory);
  assignment.set_socket_directory(sockets);
  assignment.set_interface(options_.interface);
  const absl::Status introduced = child->Send(message, {});
  KillUnlessTold(*(children_[name.process_id] = std::move(child)), introduced);
  return pid;
}

void AgentLoop::SendToChild(int64_t process_id, const google::protobuf::MessageLite& message) {
  const auto child = children_.find(process_id);
  if (child == children_.end()) return;
  KillUnlessTold(*child->second, child->second->Send(message, {}));
}

void AgentLoop::KillUnlessTold(const ChildProcess& child, const absl::Status& sent) {
  if (sent.ok() || absl::IsUnavailable(sent)) return;  // an end of it is on its way
  base::LogError(absl::StrCat(Describe(child.name()), " cannot be told anything (", sent.message(),
                              "); killing it"));
  Do(KillProcess{child.name().process_id});
}

void AgentLoop::TellThatItDrains(const ChildName& name) {
  link::v1::ToWorker to_worker;
  link::v1::ToHost to_host;
  to_worker.mutable_draining();
  to_host.mutable_draining();
  if (name.rank >= 0) SendToChild(name.process_id, to_worker);
  if (name.rank == kHostRank) SendToChild(name.process_id, to_host);
}

void AgentLoop::RefreshSnapshots(const std::string& job_id) {
  const auto memory = memory_.find(job_id);
  if (memory != memory_.end()) core_.OnSnapshots(job_id, memory->second->ListSnapshots());
}

// --- the store, exchanges and the machine ---------------------------------------------------

void AgentLoop::DriveStores() {
  stores_.Drive(Now());
  stores_.FlushToDriver();
  for (const StoreCheck& check : stores_.TakeChecks()) {
    core_.OnStoreChecked(check.job_id, check.attempt, check.outcome, Now());
    changed_ = true;
  }
}

void AgentLoop::SampleExchanges() {
  const absl::Duration now = Now();
  if (!is_recording_ || now < sampled_ + kSampleInterval) return;
  sampled_ = now;
  for (const auto& [job_id, memory] : memory_) memory->DrainExchanges(now);
}

void AgentLoop::SampleMachine() {
  const absl::Duration now = Now();
  if (!is_recording_ || !machine_.IsDue(now)) return;
  const int64_t end = absl::ToInt64Nanoseconds(now);
  const int64_t begin = end - absl::ToInt64Nanoseconds(MachineReader::kInterval);
  std::vector<SampledRank> ranks;
  for (const auto& [id, child] : children_) {
    const ChildName& name = child->name();
    const auto memory = memory_.find(name.job_id);
    if (name.rank == kHostRank || memory == memory_.end()) continue;
    memory->second->DrainSpans();
    const RecentSpans::Shares shares = memory->second->SharesOf(name.rank, begin, end);
    const std::optional<RecentExchanges::Shares> exchanges =
        memory->second->TakeExchangeShares(name.rank);
    ranks.push_back({.job_id = name.job_id,
                     .rank = name.rank,
                     .pid = child->pid(),
                     .step = memory->second->ReadStatus(name.rank, child->pid(), now).step(),
                     .compute_share = shares.compute,
                     .wait_share = shares.wait,
                     .exchanges = exchanges,
                     .tokens_per_second = static_cast<double>(shares.num_forwards) *
                                          memory->second->TokensOfForward() /
                                          absl::ToDoubleSeconds(MachineReader::kInterval)});
  }
  std::vector<telemetry::v1::GpuSample> gpus = gpus_.Take();
  core_.OnGpus(gpus);
  machine_.Read(now, ranks, std::move(gpus));
}

// --- reports --------------------------------------------------------------------------------

void AgentLoop::NoteHostProgress() {
  for (const auto& [id, child] : children_) {
    if (child->name().rank != kHostRank) continue;
    const auto memory = memory_.find(child->name().job_id);
    if (memory == memory_.end()) continue;
    const int64_t published = memory->second->PublishedStep();
    int64_t& known = published_[child->name().job_id];
    if (published > known) core_.OnHostProgress(id);
    known = std::max(known, published);
  }
}

// The answer comes with the exits, which the loop takes first.
void AgentLoop::PingKeeper() {
  const absl::Duration now = Now();
  core_.OnKeeperSilence(keeper_->SilenceAt(now));
  if (now < pinged_ + kPingInterval) return;
  pinged_ = now;
  keeper_->Ping(now);
}

namespace {

Heartbeat::ReadRank ReaderOf(std::map<std::pair<std::string, int>, JobMemory::ReadSlot> slots) {
  return [slots = std::move(slots)](
             const std::string& job_id, const telemetry::v1::RankStatus& reported,
             absl::Duration now) -> std::optional<telemetry::v1::RankStatus> {
    const auto slot = slots.find({job_id, reported.rank()});
    if (slot == slots.end() || slot->second == nullptr) return std::nullopt;
    telemetry::v1::RankStatus status = slot->second(now);
    if (status.pid() != reported.pid()) return std::nullopt;
    return status;
  };
}

}  // namespace

void AgentLoop::ReportWhenDue() {
  const absl::Duration now = Now();
  if (now < NextReport()) return;
  NoteHostProgress();
  for (const auto& [job_id, memory] : memory_) memory->DrainSpans();
  std::map<int64_t, telemetry::v1::RankStatus> heartbeats;
  std::map<std::pair<std::string, int>, JobMemory::ReadSlot> slots;  // by job and rank
  for (const auto& [id, child] : children_) {
    const ChildName& name = child->name();
    const auto memory = memory_.find(name.job_id);
    if (memory == memory_.end()) continue;
    heartbeats[id] = memory->second->ReadStatus(name.rank, child->pid(), now);
    slots[{name.job_id, name.rank}] = memory->second->SlotOf(name.rank);
  }
  for (const int64_t id : core_.HungHosts(heartbeats)) {
    base::LogWarning(absl::StrCat("kills a host process whose heartbeat stopped: process ",
                                  children_.at(id)->pid()));
    Do(KillProcess{id});
  }
  v1::ActualState report = core_.Report(heartbeats);
  if (report.too_large_bytes() > 0 && now >= next_size_warning_) {
    next_size_warning_ = now + kWarningInterval;
    base::LogError(absl::StrCat(
        "its report for the driver would have ", report.too_large_bytes(), " bytes, at most ",
        AgentCore::kReportBytesMax,
        " can be sent: the driver learns that this agent lives, and nothing of its jobs"));
  }
  core_.SpaceTexts(now, &report);
  for (telemetry::v1::GpuSample& gpu : core_.NextGpus(now)) *report.add_gpus() = std::move(gpu);
  heartbeat_.Report(std::move(report), core_.report_interval(), ReaderOf(std::move(slots)));
  reported_ = now;
  changed_ = false;
}

}  // namespace megascale::agent
