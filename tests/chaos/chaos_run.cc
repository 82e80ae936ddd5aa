#include "tests/chaos/chaos_run.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/clock.h"
#include "runtime/telemetry/doing.h"

namespace megascale::chaos {
namespace {

using control::v1::Job;

constexpr int kAimSeconds = 30;
// A moment while processes start may be over before the probe sees it: then they are started again.
constexpr int kStarts = 5;
constexpr absl::Duration kAskAgain = absl::Milliseconds(100);
constexpr int kHealSeconds = 150;
constexpr int64_t kStepsToBeHealed = 3;
constexpr int64_t kStartsWithoutStore = 8;
// From the start of the agents to the return of their file system.
constexpr absl::Duration kStorageAway = absl::Seconds(3);

absl::Duration Now() { return base::RealClock().Monotonic(); }

// Lets other processes run, for so short a time that the probe can still catch an instruction.
void Breathe() { ::poll(nullptr, 0, 0); }

bool IsTerminal(const Job& job) {
  return job.state() == control::v1::JOB_STATE_SUCCEEDED ||
         job.state() == control::v1::JOB_STATE_FAILED ||
         job.state() == control::v1::JOB_STATE_CANCELLED;
}

bool IsOnARank(Aim aim) {
  return aim != Aim::kAnyTime && aim != Aim::kSockets && aim != Aim::kShardWrite &&
         aim != Aim::kCommit && aim != Aim::kRecovery;
}

}  // namespace

ChaosRun::ChaosRun(uint64_t seed, ChaosJob job, std::function<void(const std::string&)> say)
    : job_(std::move(job)), say_(std::move(say)) {
  report_.seed = seed;
}

void ChaosRun::Problem(const std::string& text) {
  cluster_.KeepLogs();
  report_.problems.push_back(text);
  say_(absl::StrCat("PROBLEM: ", text));
}

void ChaosRun::StartAll() {
  if (report_.setting == Setting::kMutualTls) cluster_.UseTls();
  if (report_.setting == Setting::kRedis) redis_.emplace();
  cluster_.StartDriver();
  for (int i = 0; i < kNumAgents; ++i) {
    cluster_.StartAgent(i, kSlots);
    probes_.emplace_back(cluster_.agent_pid(i));
  }
  disk_ = cluster_.directory() + "/disk";
  std::filesystem::create_directory(disk_);
  std::vector<std::string> fields = JobFields(job_);
  fields.push_back("checkpoint.directory=" + disk_);
  if (redis_.has_value()) fields.push_back("store=" + redis_->unix_url());
  cluster_.Submit(kJobId, fields);
  checkpoints_ = absl::StrCat(disk_, "/", kJobId);
}

Report ChaosRun::Run(int num_faults, CalmRun* calm) {
  const absl::Duration begin = Now();
  const std::vector<Fault> faults = DrawFaults(report_.seed, num_faults, kNumRanks, kNumAgents);
  report_.setting = SettingOf(report_.seed, faults);
  say_(Describe(report_.setting));
  StartAll();
  for (const Fault& fault : faults) {
    if (IsTerminal(Job())) {
      Problem(absl::StrCat("the job ended before fault ", report_.faults.size() + 1));
      break;
    }
    Inject(fault);
  }
  Finish();
  report_.took = Now() - begin;
  Compare(calm->At(report_.ending.step));
  return report_;
}

// Waits for a checkpoint with weights that were trained after the last fault.
void ChaosRun::Finish() {
  const int64_t healed = Job().last_step();
  control::v1::Job job;
  const auto has_checkpoint = [&] {
    job = Job();
    return IsTerminal(job) || job.last_checkpoint().step() > healed;
  };
  if (!e2e::WaitUntil(has_checkpoint, kEndSeconds) || IsTerminal(job)) {
    Problem(absl::StrCat("no checkpoint after step ", healed, ": the job is ",
                         control::v1::JobState_Name(job.state()), ": ", job.message()));
    return;
  }
  const e2e::CommandResult cancelled = cluster_.Megascale({"cancel", kJobId});
  if (cancelled.exit_code != 0 || !e2e::WaitUntil([&] { return IsTerminal(Job()); }, kEndSeconds)) {
    Problem(absl::StrCat("the job is not cancelled: ", cancelled.err));
    return;
  }
  job = Job();
  report_.ending.step = job.last_checkpoint().step();
  report_.ending.digest = cluster_.Digest(kJobId);
  report_.ending.losses = LossesUpTo(cluster_.LossLog(kJobId), report_.ending.step);
}

void ChaosRun::Compare(const Ending& calm) {
  const std::string at = absl::StrCat(" of step ", report_.ending.step);
  if (report_.ending.digest.empty() || report_.ending.digest != calm.digest) {
    Problem(absl::StrCat("the digest", at, " is '", report_.ending.digest,
                         "', that of the calm run '", calm.digest, "'"));
  }
  if (report_.ending.losses != calm.losses ||
      static_cast<int64_t>(calm.losses.size()) != report_.ending.step) {
    Problem(absl::StrCat("the loss log up to the checkpoint", at, " is not that of the calm run"));
  }
}

// Returns the job; an empty one while the driver is away, because the last known one may be wrong.
Job ChaosRun::Job() { return cluster_.Status(kJobId); }

void ChaosRun::Inject(const Fault& fault) {
  FaultReport report;
  report.fault = fault;
  control::v1::Job before;
  report.aimed = false;
  int64_t openers = 0;
  Prepare(fault);
  const int tries = IsAtAStart(fault.aim) ? kStarts : 1;
  for (int i = 0; i < tries && !report.aimed; ++i) {
    before = Job();
    attempt_with_sockets_ = 0;
    if (IsAtAStart(fault.aim) && before.last_step() > 0) {
      attempt_with_sockets_ = e2e::NewestAttemptWithSockets(cluster_.directory());
      OpenRecovery();
      ++openers;
    }
    report.aimed = WaitForAim(fault, before.attempt());
  }
  if (!report.aimed) {
    Problem(absl::StrCat("fault ", report_.faults.size() + 1, ": nothing was seen ",
                         Describe(fault.aim), "; ", WhatIsSeen()));
  }
  if (!e2e::WaitUntil([&] { return IsThere(fault.strikes[0]); }, kAimSeconds)) {
    Problem(absl::StrCat("fault ", report_.faults.size() + 1, ": no process to send ",
                         Describe(fault.strikes[0]), "; ", WhatIsSeen()));
  }
  before = Job();
  report.step = before.last_step();
  report.attempt = before.attempt();
  const absl::Duration struck = Now();
  std::vector<Aftermath> aftermath;
  to_end_.clear();
  for (const Strike& strike : fault.strikes) {
    if (strike.blow.victim == Victim::kWorker) {
      const auto ranks = probes_[strike.rank / kSlots].Ranks();
      const size_t slot = static_cast<size_t>(strike.rank % kSlots);
      if (slot < ranks.size()) report.seen = telemetry::DescribeDoing(ranks[slot]);
    }
    Hit(strike, &aftermath);
  }
  // Reports lag behind by a few steps, so ask the ranks themselves how far they were at the strike.
  const int64_t reached = std::max(before.last_step(), StepOfRanks());
  std::stable_sort(aftermath.begin(), aftermath.end(),
                   [](const Aftermath& a, const Aftermath& b) { return a.due < b.due; });
  for (const Aftermath& next : aftermath) {
    while (Now() < next.due) Breathe();
    next.act();
  }
  WaitUntilHealed(reached, &report);
  report.healed_after = Now() - struck;
  Judge(fault, openers, &report);
  report_.faults.push_back(report);
  say_(Describe(static_cast<int>(report_.faults.size()), report));
}

// Ends an attempt, so that a fault can hit its successor while it starts.
void ChaosRun::OpenRecovery() {
  Strike opener;
  opener.blow = {Victim::kWorker, SIGKILL, absl::ZeroDuration()};
  std::vector<Aftermath> none;
  Hit(opener, &none);
}

// Waits for the fault's moment. Returns false at once if the awaited start, of an attempt after
// `attempt`, is over.
bool ChaosRun::WaitForAim(const Fault& fault, int64_t attempt) {
  const absl::Duration deadline = Now() + absl::Seconds(kAimSeconds);
  absl::Duration ask = Now() + kAskAgain;
  while (Now() < deadline) {
    if (IsNow(fault)) return true;
    if (IsAtAStart(fault.aim) && Now() >= ask) {
      const control::v1::Job job = Job();
      const bool steps = job.state() == control::v1::JOB_STATE_RUNNING && job.last_step() > 0;
      if (steps && job.attempt() > attempt) return false;
      ask = Now() + kAskAgain;
    }
    Breathe();
  }
  return false;
}

// Describes what the probe sees, for people who ask why a moment was missed.
std::string ChaosRun::WhatIsSeen() {
  const control::v1::Job job = Job();
  std::string text = absl::StrCat("the job is ", control::v1::JobState_Name(job.state()),
                                  ", attempt ", job.attempt(), ", step ", job.last_step());
  for (int agent = 0; agent < kNumAgents; ++agent) {
    absl::StrAppend(&text, "; on n", agent, ":");
    for (const auto& rank : probes_[agent].Ranks()) {
      absl::StrAppend(&text, " [process ", rank.pid(), e2e::IsAlive(rank.pid()) ? "" : " (gone)",
                      " ", telemetry::v1::Phase_Name(rank.phase()), " step ", rank.step(), " '",
                      telemetry::DescribeDoing(rank), "']");
    }
  }
  return text;
}

bool ChaosRun::IsNow(const Fault& fault) {
  if (!IsOnARank(fault.aim)) {
    switch (fault.aim) {
      case Aim::kSockets:
        return e2e::NewestAttemptWithSockets(cluster_.directory()) > attempt_with_sockets_;
      case Aim::kShardWrite:
        return IsBeingWritten(checkpoints_);
      case Aim::kCommit:
        return NewestComplete(checkpoints_) > Job().last_checkpoint().step();
      case Aim::kRecovery: {
        const control::v1::Job job = Job();
        return job.state() == control::v1::JOB_STATE_RECOVERING ||
               (job.state() == control::v1::JOB_STATE_STARTING && job.last_step() > 0) ||
               (job.state() == control::v1::JOB_STATE_STARTING && job.attempt() == 1);
      }
      default:
        return Job().last_step() > 0;
    }
  }
  // If the victim is a worker, watch that rank; for other victims any rank will do.
  const bool own = !fault.strikes.empty() && fault.strikes[0].blow.victim == Victim::kWorker;
  for (int agent = 0; agent < kNumAgents; ++agent) {
    const auto ranks = probes_[agent].Ranks();
    for (size_t slot = 0; slot < ranks.size(); ++slot) {
      const int rank = agent * kSlots + static_cast<int>(slot);
      if (own && rank != fault.strikes[0].rank) continue;
      if (IsAt(fault.aim, ranks[slot]) && e2e::IsAlive(ranks[slot].pid())) return true;
    }
  }
  return false;
}

pid_t ChaosRun::PidOf(const Strike& strike) {
  switch (strike.blow.victim) {
    case Victim::kStore:
    case Victim::kStorage:
    case Victim::kDirectory:
      return 0;
    case Victim::kDriver:
      return cluster_.driver_pid();
    case Victim::kAgent:
      return cluster_.agent_pid(strike.agent);
    case Victim::kHost:
      return probes_[strike.agent].HostPid();
    case Victim::kWorker: {
      // Ranks are placed in order, and keep their node.
      const auto ranks = probes_[strike.rank / kSlots].Ranks();
      const size_t slot = static_cast<size_t>(strike.rank % kSlots);
      return slot < ranks.size() ? ranks[slot].pid() : 0;
    }
  }
  return 0;
}

bool ChaosRun::IsThere(const Strike& strike) {
  if (strike.blow.victim == Victim::kStore || strike.blow.victim == Victim::kDirectory) return true;
  if (strike.blow.victim == Victim::kStorage) return std::filesystem::exists(checkpoints_);
  const pid_t pid = PidOf(strike);
  return pid > 0 && e2e::IsAlive(pid);
}

void ChaosRun::HitStore(const Strike& strike, std::vector<Aftermath>* aftermath) {
  redis_->Signal(strike.blow.signal);
  if (strike.blow.signal == SIGSTOP) {
    aftermath->push_back({Now() + strike.blow.pause, [this] { redis_->Signal(SIGCONT); }});
  } else {
    aftermath->push_back({Now() + strike.absence, [this] { redis_->Start(); }});
  }
}

// A job that has not run yet neither waits for its storage nor owns its checkpoint directory.
void ChaosRun::Prepare(const Fault& fault) {
  const auto hits = [&](Victim victim) {
    return std::any_of(fault.strikes.begin(), fault.strikes.end(),
                       [&](const Strike& strike) { return strike.blow.victim == victim; });
  };
  if (!hits(Victim::kStorage) && !hits(Victim::kDirectory)) return;
  e2e::WaitUntil([&] { return IsTerminal(Job()) || Job().last_step() > 0; }, kAimSeconds);
  if (!hits(Victim::kDirectory)) return;
  other_.emplace();
  other_->StartDriver();
  other_->StartAgent(0, kNumRanks);
}

// A power cut: the agents are back before the file system is. Where it was mounted, an empty folder
// is left, in which nothing may be made.
void ChaosRun::HitStorage(const Strike& strike, std::vector<Aftermath>* aftermath) {
  const std::string path = strike.of_data ? cluster_.directory() + "/text" : disk_;
  const std::string away = path + ".away";
  for (int i = 0; i < kNumAgents; ++i) {
    ::kill(cluster_.agent_pid(i), SIGKILL);
  }
  std::filesystem::rename(path, away);
  if (!strike.of_data) std::filesystem::create_directory(path);
  const absl::Duration back = Now() + strike.absence;
  for (int i = 0; i < kNumAgents; ++i) {
    Strike agent = strike;
    agent.blow.victim = Victim::kAgent;
    agent.agent = i;
    aftermath->push_back({back, [this, agent] { Reap(agent); }});
  }
  aftermath->push_back({back + kStorageAway, [this, path, away] {
                          std::error_code error;
                          std::filesystem::remove(path, error);
                          if (error) Problem(absl::StrCat(path, ": ", error.message()));
                          std::filesystem::rename(away, path, error);
                          if (error) Problem(absl::StrCat(away, ": ", error.message()));
                        }});
}

// The claim is refused, and the job that owns the directory trains on.
void ChaosRun::HitDirectory(std::vector<Aftermath>* aftermath) {
  std::vector<std::string> fields = JobFields(job_);
  fields.push_back("checkpoint.directory=" + disk_);
  other_->Submit(kJobId, fields);
  aftermath->push_back({Now(), [this] {
                          other_->WaitForEnd(kJobId);
                          const control::v1::Job refused = other_->Status(kJobId);
                          const bool of_owner = absl::StrContains(
                              refused.message(), "belongs to job chaos of the driver's log ");
                          if (refused.reason() != "Refused" || !of_owner) {
                            Problem(absl::StrCat("another driver's job was not refused: ",
                                                 control::v1::JobState_Name(refused.state()), " ",
                                                 refused.message()));
                          }
                          other_.reset();
                        }});
}

void ChaosRun::Hit(const Strike& strike, std::vector<Aftermath>* aftermath) {
  if (strike.blow.victim == Victim::kStore) return HitStore(strike, aftermath);
  if (strike.blow.victim == Victim::kStorage) return HitStorage(strike, aftermath);
  if (strike.blow.victim == Victim::kDirectory) return HitDirectory(aftermath);
  const pid_t pid = PidOf(strike);
  if (pid <= 0 || !e2e::IsAlive(pid)) return;  // the first strike's consequence
  const bool is_child =
      strike.blow.victim == Victim::kDriver || strike.blow.victim == Victim::kAgent;
  if (strike.delay > absl::ZeroDuration()) {  // a child's only: its id stays its own until Reap
    aftermath->push_back(
        {Now() + strike.delay, [pid, signal = strike.blow.signal] { ::kill(pid, signal); }});
  } else {
    ::kill(pid, strike.blow.signal);
  }
  if (strike.blow.signal == SIGSTOP) {
    if (strike.blow.pause == absl::InfiniteDuration()) {
      to_end_.push_back(pid);
      return;
    }
    aftermath->push_back({Now() + strike.blow.pause, [pid] { ::kill(pid, SIGCONT); }});
  } else if (!is_child) {
    to_end_.push_back(pid);
  } else {
    aftermath->push_back({Now() + strike.delay + strike.absence, [this, strike] { Reap(strike); }});
  }
}

void ChaosRun::Reap(const Strike& strike) {
  const bool is_driver = strike.blow.victim == Victim::kDriver;
  const int status = is_driver ? cluster_.AwaitDriverExit() : cluster_.AwaitAgentExit(strike.agent);
  const int expected = strike.blow.signal == SIGTERM ? 0 : SIGKILL;
  if (status != expected) {
    Problem(absl::StrCat("after ", Describe(strike), " the status of its exit was ", status));
  }
  if (is_driver) {
    cluster_.StartDriver();
  } else {
    cluster_.StartAgent(strike.agent, kSlots);
    probes_[strike.agent] = AgentProbe(cluster_.agent_pid(strike.agent));
  }
}

int64_t ChaosRun::StepOfRanks() {
  int64_t step = 0;
  for (AgentProbe& probe : probes_) {
    for (const auto& rank : probe.Ranks()) step = std::max(step, rank.step());
  }
  return step;
}

bool ChaosRun::VictimsLive() const {
  return std::any_of(to_end_.begin(), to_end_.end(), e2e::IsAlive);
}

// True when processes that must end are gone and the job trains again.
bool ChaosRun::IsHealed(int64_t reached, const control::v1::Job& now) const {
  if (VictimsLive()) return false;
  return now.state() == control::v1::JOB_STATE_RUNNING &&
         now.last_step() >= reached + kStepsToBeHealed;
}

void ChaosRun::WaitUntilHealed(int64_t reached, FaultReport* report) {
  control::v1::Job job;
  const bool healed = e2e::WaitUntil(
      [&] {
        // A process that gets SIGTERM works on until its agent has had the time to answer.
        if (VictimsLive()) reached = std::max(reached, StepOfRanks());
        job = Job();
        return IsTerminal(job) || IsHealed(reached, job);
      },
      kHealSeconds);
  if (!healed) {
    Problem(absl::StrCat("no step for ", kHealSeconds, " s after fault ", report_.faults.size() + 1,
                         ": ", control::v1::JobState_Name(job.state()), " ", job.message()));
  }
  report->attempt_after = job.attempt();
  if (job.attempt() > report->attempt && job.has_culprit()) {
    report->said = absl::StrCat("rank ", job.culprit().rank(), " on ", job.culprit().node_id(),
                                ": ", job.culprit().evidence());
    report->said = report->said.substr(0, report->said.find('\n'));
  }
}

void ChaosRun::Judge(const Fault& fault, int64_t openers, FaultReport* report) {
  const std::string where = absl::StrCat("fault ", report_.faults.size() + 1, " (",
                                         Describe(fault.strikes[0]), " ", Describe(fault.aim), ")");
  const int64_t recoveries = report->attempt_after - report->attempt;
  int64_t most = IsSurvived(fault) ? 0 : openers;
  for (const Strike& strike : fault.strikes) {
    if (IsSurvived(fault)) break;
    // While the store is away, every start fails.
    most += strike.blow.victim == Victim::kStore     ? kStartsWithoutStore
            : strike.blow.victim == Victim::kStorage ? kNumAgents
                                                     : 1;
  }
  if (recoveries > most) {
    Problem(absl::StrCat(where, ": ", recoveries, " recoveries, at most ", most,
                         " have a cause; said: ", report->said));
  }
  if (fault.strikes[0].blow.before_agent && recoveries > 0) {
    const std::string there = absl::StrCat(" on n", fault.strikes[1].agent, ":");
    if (report->said.find(there) == std::string::npos) {
      Problem(absl::StrCat(where, ": the culprit is '", report->said, "', not one", there));
    }
  }
  if (fault.strikes.size() > 1 || IsAtAStart(fault.aim)) return;
  if (fault.strikes[0].blow.victim != Victim::kWorker) return;
  const std::string named = absl::StrCat("rank ", fault.strikes[0].rank, " on ");
  if (report->said.rfind(named, 0) != 0) {
    Problem(absl::StrCat(where, ": the culprit is '", report->said, "'"));
  }
}

std::string Describe(int number, const FaultReport& report) {
  std::string text = absl::StrCat("fault ", number, ": ");
  for (size_t i = 0; i < report.fault.strikes.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " and ", Describe(report.fault.strikes[i]));
  }
  absl::StrAppend(&text, " ", Describe(report.fault.aim), report.aimed ? "" : " (never seen)");
  if (!report.seen.empty()) absl::StrAppend(&text, ", in '", report.seen, "'");
  absl::StrAppendFormat(&text, "; attempt %d step %d", report.attempt, report.step);
  if (report.attempt_after > report.attempt) {
    absl::StrAppendFormat(&text, " -> attempt %d", report.attempt_after);
  }
  absl::StrAppendFormat(&text, ", stepped on after %.1f s",
                        absl::ToDoubleSeconds(report.healed_after));
  if (!report.said.empty()) absl::StrAppend(&text, "; said: ", report.said);
  return text;
}

}  // namespace megascale::chaos
