// What the first job of a launch runs: driver, agents, and the fleet until the end.
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/command_line/report.h"
#include "cli/launch/launch_command.h"
#include "cli/launch/launch_plan.h"
#include "cli/view/interrupt.h"
#include "cli/view/live_view.h"
#include "controlplane/launch/local_cluster.h"
#include "controlplane/launch/process_keeper.h"
#include "controlplane/nodes/fleet.h"
#include "controlplane/nodes/slurm/slurm_source.h"
#include "controlplane/security/authority.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"

namespace megascale::cli {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(250);
constexpr absl::Duration kSourceInterval = absl::Seconds(5);
constexpr absl::Duration kClusterInterval = absl::Seconds(1);
// How long an agent may be silent before another one is started on its machine, and how often.
constexpr absl::Duration kSilenceMax = absl::Seconds(20);
constexpr absl::Duration kRestartInterval = absl::Minutes(1);
constexpr absl::Duration kDriverLinger = absl::Hours(1);  // this process ends it
constexpr absl::Duration kLeaveBeforeKill = absl::Seconds(3);
constexpr absl::Duration kEndMax = absl::Seconds(30);
constexpr absl::Duration kDriverEndMax = absl::Seconds(10);
constexpr size_t kJobBytesMax = size_t{64} << 20;
constexpr int kDriverDeathsMax = 3;  // before it has answered once

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

absl::StatusOr<int> FreePort() {
  const base::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return base::ErrnoStatus(errno, "find a free port");
  }
  return ntohs(address.sin_port);
}

enum class EndReason { kNone, kSignal, kTimeLimit, kNoJobs, kJobEnded, kFailed };

class SlurmLaunchRun {
 public:
  SlurmLaunchRun(LaunchPlan plan, std::string slurm_job, Interrupt* interrupt,
                 std::unique_ptr<launch::ProcessKeeper> keeper)
      : plan_(std::move(plan)),
        slurm_job_(std::move(slurm_job)),
        interrupt_(interrupt),
        keeper_(std::move(keeper)),
        source_(&slurm_, {.job_id = slurm_job_,
                          .name = plan_.name,
                          .options = plan_.CommonOptions(),
                          .machine_script = plan_.Path("machine.sh"),
                          .log = plan_.Path("logs/machine-%j.log")}),
        fleet_(OptionsOf(plan_, slurm_job_)) {}

  absl::Status Start() {
    // Machines of an earlier first job would be more than were asked for.
    RETURN_IF_ERROR(source_.EndMachines(/*terminate=*/false));
    if (plan_.driver.address.empty()) RETURN_IF_ERROR(PrepareDriver());
    if (plan_.has_job) {
      ASSIGN_OR_RETURN(const std::string bytes, base::ReadFile(plan_.Path("job.pb"), kJobBytesMax));
      if (!request_.ParseFromString(bytes)) {
        return absl::DataLossError(absl::StrCat(plan_.Path("job.pb"), " is damaged"));
      }
    }
    const auto observed = source_.Observe();
    if (observed.ok() && source_.time_left() < absl::InfiniteDuration()) QueueSuccessor();
    ASSIGN_OR_RETURN(agents_token_, StartAgents(""));
    if (plan_.driver.address.empty()) RETURN_IF_ERROR(StartDriver(/*first=*/true));
    return absl::OkStatus();
  }

  EndReason Run() {
    for (;;) {
      const absl::Duration now = base::RealClock().Monotonic();
      if (interrupt_->Count() > 0) return EndReason::kSignal;
      if (const EndReason end = TakeExits(now); end != EndReason::kNone) return end;
      if (now >= source_at_) {
        source_at_ = now + kSourceInterval;
        LookAtSource(now);
      }
      if (now >= cluster_at_) {
        cluster_at_ = now + kClusterInterval;
        LookAtCluster(now);
      }
      if (const EndReason end = EndOf(now); end != EndReason::kNone) return end;
      absl::SleepFor(kTick);
    }
  }

  // Lets jobs leave with a checkpoint, gives all machines back, ends the driver.
  void End(EndReason reason) {
    const absl::Duration end = base::RealClock().Monotonic() + TimeToLeave(reason);
    if (reason == EndReason::kNoJobs || reason == EndReason::kJobEnded ||
        reason == EndReason::kFailed) {
      CancelSuccessors();
    }
    // After scancel of the whole job Slurm has sent it itself; a second one would end agents at
    // once.
    if (reason != EndReason::kSignal) {
      Warn(slurm_.Terminate(slurm_job_, /*batch=*/false));
    }
    Warn(source_.EndMachines(/*terminate=*/true));
    while (base::RealClock().Monotonic() < end && (agents_token_ != 0 || MachinesBusy())) {
      TakeExits(base::RealClock().Monotonic());
      absl::SleepFor(kTick);
    }
    Warn(source_.EndMachines(/*terminate=*/false));
    if (driver_token_ != 0) {
      keeper_->Kill(driver_token_, SIGINT).IgnoreError();
      const absl::Duration driver_end = base::RealClock().Monotonic() + kDriverEndMax;
      ending_ = true;
      while (driver_token_ != 0 && base::RealClock().Monotonic() < driver_end) {
        TakeExits(base::RealClock().Monotonic());
        absl::SleepFor(kTick);
      }
    }
    client_.reset();
    keeper_->Stop();
    std::error_code ignored;
    if (plan_.driver.address.empty()) std::filesystem::remove(plan_.Path("address"), ignored);
  }

  const control::v1::Job& job() const { return job_; }

 private:
  static nodes::FleetOptions OptionsOf(const LaunchPlan& plan, const std::string& slurm_job) {
    nodes::FleetOptions options;
    options.nodes = static_cast<int>(plan.nodes);
    options.spares = static_cast<int>(plan.spares);
    options.max = static_cast<int>(std::max(plan.nodes, plan.max_nodes));
    options.slots_per_machine = static_cast<int>(plan.slots);
    options.request_prefix = absl::StrCat(slurm_job, ".", ::getpid());
    return options;
  }

  static void Warn(const absl::Status& status) {
    if (!status.ok()) base::LogWarning(std::string(status.message()));
  }

  absl::Status PrepareDriver() {
    const std::string host = HostName();
    ASSIGN_OR_RETURN(const int port, FreePort());
    address_ = absl::StrCat(host, ":", port);
    certificate_ = absl::StrCat("driver-", slurm_job_);
    const auto issued =
        security::IssueCertificate(plan_.Path("certs"), {security::Role::kDriver,
                                                         certificate_,
                                                         {host, "localhost"},
                                                         absl::Now() + kLaunchCertificateLife});
    return absl::IsAlreadyExists(issued.status()) ? absl::OkStatus() : issued.status();
  }

  absl::Status StartDriver(bool first) {
    ASSIGN_OR_RETURN(const base::UniqueFd log, plan_.OpenLog("driver.log"));
    launch::SpawnRequest request;
    request.token = ++last_token_;
    request.program = plan_.program;
    request.arguments = {plan_.program,     "driver",
                         "--listen",        address_,
                         "--state-dir",     plan_.Path("driver"),
                         "--drain-timeout", absl::FormatDuration(kDriverLinger)};
    for (const std::string& word : TlsWords(plan_.Certificate(certificate_))) {
      request.arguments.push_back(word);
    }
    if (first) request.arguments.push_back("--agents-ended");
    if (!plan_.machine_tests.empty()) {
      request.arguments.insert(request.arguments.end(), {"--machine-tests", plan_.machine_tests});
    }
    request.output = log.get();
    RETURN_IF_ERROR(keeper_->Spawn(request).status());
    driver_token_ = request.token;
    driver_started_ = base::RealClock().Monotonic();
    return base::WriteFileDurably(plan_.Path("address"), address_ + "\n");
  }

  // Starts an agent on each machine of this job, or on one of them. Tasks that end do not end the
  // others.
  absl::StatusOr<int64_t> StartAgents(const std::string& node) {
    ASSIGN_OR_RETURN(const base::UniqueFd log, plan_.OpenLog("srun.log"));
    const std::string count = absl::StrCat(node.empty() ? plan_.nodes + plan_.spares : 1);
    launch::SpawnRequest request;
    request.token = ++last_token_;
    request.program = "/usr/bin/env";
    request.arguments = {"env",
                         "srun",
                         "--no-kill",
                         "--kill-on-bad-exit=0",
                         "--wait=0",
                         "--cpu-bind=none",
                         "--overlap",
                         "--nodes=" + count,
                         "--ntasks=" + count,
                         "--ntasks-per-node=1"};
    if (!node.empty()) request.arguments.push_back("--nodelist=" + node);
    request.arguments.insert(request.arguments.end(),
                             {plan_.program, "launch", "slurm-agent", plan_.folder});
    request.output = log.get();
    RETURN_IF_ERROR(keeper_->Spawn(request).status());
    return request.token;
  }

  // An agent that has ended for good on a machine of this job, or whose machine was down for a
  // moment, is started again.
  void RestartAgents(absl::Duration now) {
    for (const nodes::Machine& machine : *machines_) {
      if (machine.returnable || machine.state != nodes::MachineState::kPresent) continue;
      const auto node =
          std::find_if(cluster_->nodes.begin(), cluster_->nodes.end(),
                       [&](const auto& one) { return one.node_id() == machine.node_id; });
      if (node == cluster_->nodes.end() || node->alive()) {
        restart_at_.erase(machine.node_id);
        continue;
      }
      absl::Duration& at =
          restart_at_.try_emplace(machine.node_id, now + kSilenceMax).first->second;
      if (now < at) continue;
      at = now + kRestartInterval;
      base::LogInfo(absl::StrCat("starts an agent on ", machine.node_id, " again"));
      Warn(StartAgents(machine.node_id).status());
    }
  }

  EndReason TakeExits(absl::Duration now) {
    const auto exits = keeper_->TakeExits();
    if (!exits.ok()) return EndReason::kFailed;
    for (const launch::ProcessExit& exited : *exits) {
      if (exited.token == agents_token_) {
        agents_token_ = 0;
        base::LogInfo(absl::StrCat("srun ", launch::DescribeExit(exited.status),
                                   "; its output: ", plan_.Path("logs/srun.log")));
      }
      if (exited.token != driver_token_) continue;
      driver_token_ = 0;
      if (ending_) continue;
      const absl::Duration wait = driver_backoff_.OnDeath(now - driver_started_);
      base::LogWarning(absl::StrCat("the driver ", launch::DescribeExit(exited.status),
                                    "; starts again in ", absl::FormatDuration(wait),
                                    "; its output: ", plan_.Path("logs/driver.log")));
      if (!has_answered_ && driver_backoff_.times_in_a_row() >= kDriverDeathsMax) {
        return EndReason::kFailed;
      }
      driver_start_at_ = now + wait;
    }
    const bool driver_is_ours = plan_.driver.address.empty() && !ending_;
    if (driver_is_ours && driver_token_ == 0 && now >= driver_start_at_) {
      Warn(StartDriver(/*first=*/false));
    }
    // All agents ended by themselves: their logs say why.
    const bool all_ended = agents_token_ == 0 && interrupt_->Count() == 0 && !ending_;
    return all_ended ? EndReason::kFailed : EndReason::kNone;
  }

  absl::Status Connected() {
    if (client_ != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(ConnectionFlags flags, plan_.Connection());
    flags.retry_for = absl::ZeroDuration();
    ASSIGN_OR_RETURN(client_, Connect(flags));
    return absl::OkStatus();
  }

  void LookAtCluster(absl::Duration now) {
    cluster_.reset();
    if (!Connected().ok()) return;
    const auto cluster = client_->Cluster();
    const auto jobs = client_->List();
    if (!cluster.ok() || !jobs.ok()) return;
    if (!std::exchange(has_answered_, true)) base::LogInfo("the driver answers");
    SubmitOnce();
    nodes::ClusterView view;
    view.nodes.assign(cluster->nodes().begin(), cluster->nodes().end());
    bool any = plan_.has_job && !submitted_;
    for (const control::v1::Job& job : jobs->jobs()) {
      if (plan_.has_job && job.job_id() == request_.job_id()) job_ = job;
      if (IsTerminal(job.state())) continue;
      any = true;
      view.needed_slots += job::WorldSize(job.spec());
    }
    if (any || !idle_since_.has_value()) idle_since_ = now;
    cluster_ = std::move(view);
    // A machine that the driver has lost is replaced before Slurm is asked again.
    if (!machines_.has_value()) return;
    Act(now, fleet_.Decide(now, *machines_, *cluster_));
    RestartAgents(now);
  }

  // The same id is the same submit, so that a successor does it again.
  void SubmitOnce() {
    if (!plan_.has_job || submitted_) return;
    const auto job = client_->Submit(request_, {});
    if (job.ok()) {
      submitted_ = true;
      base::LogInfo(absl::StrCat("job ", request_.job_id(), " is submitted"));
    } else if (!absl::IsUnavailable(job.status()) && !absl::IsDeadlineExceeded(job.status())) {
      base::LogError(
          absl::StrCat("the driver refuses job ", request_.job_id(), ": ", job.status().message()));
      refused_ = true;
    }
  }

  void LookAtSource(absl::Duration now) {
    auto machines = source_.Observe();
    if (!machines.ok()) {
      if (machines_.has_value()) Warn(machines.status());
      machines_.reset();
      return;
    }
    machines_ = *std::move(machines);
    seen_at_ = now;
  }

  void Act(absl::Duration now, const nodes::FleetActions& actions) {
    for (const nodes::Eviction& eviction : actions.evict) {
      control::v1::EvictNodeRequest request;
      request.set_node_id(eviction.node_id);
      request.set_reason(eviction.reason);
      base::LogInfo(absl::StrCat("evicts ", eviction.node_id, ": ", eviction.reason));
      Warn(client_->Evict(request).status());
    }
    for (const std::string& node : actions.uncordon) {
      base::LogInfo(absl::StrCat("uncordons ", node, ": Slurm has taken its drain back"));
      Warn(client_->Uncordon(node).status());
    }
    for (const std::string& node : actions.make_spare) {
      control::v1::SetSpareRequest request;
      request.set_node_id(node);
      request.set_spare(true);
      Warn(client_->SetSpare(request).status());
    }
    for (const nodes::Machine& machine : actions.give_back) {
      base::LogInfo(absl::StrCat("gives ",
                                 machine.node_id.empty() ? machine.request : machine.node_id,
                                 " back, job ", machine.handle, " of Slurm"));
      Warn(source_.GiveBack(machine));
    }
    for (const nodes::Request& request : actions.ask) {
      const absl::Status asked = source_.Ask(request);
      base::LogInfo(absl::StrCat("asks Slurm for a machine, request ", request.id,
                                 request.exclude.empty() ? "" : ", without ",
                                 absl::StrJoin(request.exclude, ","), asked.ok() ? "" : ": ",
                                 asked.message()));
      if (asked.ok()) {
        fleet_.OnAsked(request.id, now);
      } else if (absl::IsUnavailable(asked)) {
        return fleet_.OnLost(request.id);
      } else {
        return fleet_.OnRefused(now);
      }
    }
  }

  // Slurm's last word on the time, and what has passed since.
  absl::Duration TimeLeft(absl::Duration now) const {
    return source_.time_left() == absl::InfiniteDuration() ? absl::InfiniteDuration()
                                                           : source_.time_left() - (now - seen_at_);
  }

  EndReason EndOf(absl::Duration now) {
    if (refused_) return EndReason::kFailed;
    if (TimeLeft(now) <= absl::Seconds(plan_.end_before_seconds)) return EndReason::kTimeLimit;
    if (plan_.has_job && submitted_ && IsTerminal(job_.state())) return EndReason::kJobEnded;
    const bool idle = plan_.idle_seconds > 0 && idle_since_.has_value() &&
                      now - *idle_since_ >= absl::Seconds(plan_.idle_seconds);
    return idle && !plan_.has_job ? EndReason::kNoJobs : EndReason::kNone;
  }

  absl::Duration TimeToLeave(EndReason reason) {
    if (reason == EndReason::kTimeLimit) {
      return std::max(kEndMax, TimeLeft(base::RealClock().Monotonic()) - 2 * kLeaveBeforeKill);
    }
    if (reason != EndReason::kSignal) return kEndMax;
    return slurm_.KillWait().value_or(kEndMax) - kLeaveBeforeKill;
  }

  // True while one of the launch's machines still works for a job.
  bool MachinesBusy() {
    if (!Connected().ok() || !machines_.has_value()) return false;
    const auto cluster = client_->Cluster();
    if (!cluster.ok()) return false;
    return std::any_of(machines_->begin(), machines_->end(), [&](const nodes::Machine& machine) {
      return std::any_of(cluster->nodes().begin(), cluster->nodes().end(), [&](const auto& node) {
        return node.node_id() == machine.node_id && node.alive() && node.num_slots_used() > 0;
      });
    });
  }

  void QueueSuccessor() {
    const auto jobs = slurm_.Jobs({plan_.name});
    if (!jobs.ok()) return Warn(jobs.status());
    for (const nodes::SlurmJob& job : *jobs) {
      if (job.id != slurm_job_ && job.state == "PD") return;
    }
    std::vector<std::string> options = plan_.FirstJobOptions();
    options.push_back("--dependency=singleton");
    const auto successor = slurm_.Submit(options, plan_.Path("batch.sh"));
    if (!successor.ok()) return Warn(successor.status());
    base::LogInfo(absl::StrCat("job ", *successor, " of Slurm is the successor at the time limit"));
  }

  void CancelSuccessors() {
    const auto jobs = slurm_.Jobs({plan_.name});
    if (!jobs.ok()) return Warn(jobs.status());
    for (const nodes::SlurmJob& job : *jobs) {
      if (job.id != slurm_job_) Warn(slurm_.Cancel(job.id, /*pending_only=*/false));
    }
  }

  const LaunchPlan plan_;
  const std::string slurm_job_;
  Interrupt* const interrupt_;
  std::unique_ptr<launch::ProcessKeeper> keeper_;
  nodes::Slurm slurm_;
  nodes::SlurmSource source_;
  nodes::Fleet fleet_;
  std::unique_ptr<client::JobClient> client_;

  std::string address_;      // of the launch's own driver
  std::string certificate_;  // its name
  int64_t last_token_ = 0;
  int64_t driver_token_ = 0;  // 0: it does not run
  int64_t agents_token_ = 0;  // the first srun's; 0: all its agents have ended
  absl::Duration driver_started_;
  absl::Duration driver_start_at_;
  launch::RestartBackoff driver_backoff_;
  bool has_answered_ = false;
  bool ending_ = false;

  control::v1::SubmitJobRequest request_;
  control::v1::Job job_;  // the launch's own, as the driver showed it last
  bool submitted_ = false;
  bool refused_ = false;
  std::optional<nodes::ClusterView> cluster_;  // nothing: the driver does not answer
  std::optional<absl::Duration> idle_since_;
  std::optional<std::vector<nodes::Machine>> machines_;  // nothing: Slurm does not answer
  std::map<std::string, absl::Duration> restart_at_;     // by node
  absl::Duration seen_at_;
  absl::Duration cluster_at_;
  absl::Duration source_at_;
};

std::string WordsOf(EndReason reason) {
  switch (reason) {
    case EndReason::kSignal:
      return "a signal of Slurm";
    case EndReason::kTimeLimit:
      return "the time limit is near";
    case EndReason::kNoJobs:
      return "there has been no job for a while";
    case EndReason::kJobEnded:
      return "its job has ended";
    case EndReason::kFailed:
    case EndReason::kNone:
      break;
  }
  return "it cannot go on";
}

}  // namespace

int RunSlurmLaunch(const std::string& folder) {
  Interrupt interrupt;
  auto keeper = launch::ProcessKeeper::Start({});  // before any thread
  if (!keeper.ok()) return ReportError(keeper.status());
  base::InitLog("launch", base::LogLevel::kInfo);
  const char* const slurm_job = std::getenv("SLURM_JOB_ID");
  if (slurm_job == nullptr || !nodes::IsJobNumber(slurm_job)) {
    return ReportError(absl::FailedPreconditionError(
        "SLURM_JOB_ID is not set: Slurm runs this; start a launch with `megascale launch slurm`"));
  }
  auto plan = LoadPlan(folder);
  if (!plan.ok()) {
    return ReportError(plan.status(),
                       "the folder of a launch must be one that all its machines see");
  }
  SlurmLaunchRun run(*std::move(plan), slurm_job, &interrupt, *std::move(keeper));
  const absl::Status started = run.Start();
  const EndReason reason = started.ok() ? run.Run() : EndReason::kFailed;
  base::LogInfo(absl::StrCat("the launch ends: ", WordsOf(reason)));
  run.End(reason);
  if (!started.ok()) return ReportError(started);
  if (reason == EndReason::kJobEnded) {
    base::LogInfo(absl::StrCat("job ", run.job().job_id(), " ", run.job().message()));
    return ExitCodeOf(run.job());
  }
  return reason == EndReason::kFailed ? kExitFailed : kExitGood;
}

}  // namespace megascale::cli
