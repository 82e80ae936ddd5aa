// The core and the detector against fake agents, under a seeded storm of crashes, lost, repeated
// and reordered messages, partitions, and restarts of the driver. Invariants hold at every step,
// and once the storm ends every job ends as it should.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/driver_core.h"
#include "controlplane/driver/event_log.h"
#include "controlplane/driver/failure_detector.h"
#include "controlplane/driver/test_events.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;

constexpr int64_t kSteps = 100;
constexpr int64_t kInterval = 10;
constexpr absl::Duration kTick = absl::Milliseconds(250);

// What one agent has of one job.
struct FakeJob {
  agent::DesiredJob desired;
  int64_t attempt = 0;
  std::map<int, agent::ActualRank> ranks;
  std::map<int, std::map<int64_t, int64_t>> snapshots;  // rank -> step -> attempt, two newest
  std::set<std::pair<int64_t, int>> shards;             // step, rank
  std::map<int64_t, agent::StoredManifest> manifests;
  std::map<int64_t, telemetry::StepRecord> steps;
  agent::CheckpointId retained;
  bool preflight = false;
};

struct FakeAgent {
  std::string node_id;
  int num_incarnations = 0;
  bool up = false;
  bool reachable = true;
  bool hello_due = false;
  int64_t version = 0;
  std::map<std::string, FakeJob> jobs;

  std::string incarnation() const { return absl::StrCat(node_id, "-", num_incarnations); }
  void Boot() {
    ++num_incarnations;
    up = true;
    hello_due = true;
    version = 0;
    jobs.clear();
  }
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    for (const char* node_id : {"n0", "n1", "n2"}) {
      agents_.push_back({});
      agents_.back().node_id = node_id;
      agents_.back().Boot();
    }
    StartDriver();
  }

  void Submit(const std::string& job_id) {
    auto spec = SpecOf(2, 2, kSteps);
    // The first job starts again at once and for ever, which leaves fences the least time.
    if (job_id == "j") {
      spec.mutable_fault()->mutable_restart_backoff()->set_seconds(0);
      spec.mutable_fault()->set_max_restarts_without_progress(1000);
    }
    Feed(Submitted(job_id, spec));
  }
  void Cancel(const std::string& job_id) {
    Event event = Cancelled(Chance(0.5));
    event.mutable_cancel_requested()->set_job_id(job_id);
    Feed(event);
  }

  void Round(bool storm) {
    now_ += kTick;
    storm_ = storm;
    if (storm) Harm();
    for (FakeAgent& fake : agents_) {
      if (!fake.up) fake.Boot();
      if (!storm) fake.reachable = true;
    }
    Exchange(storm);
    for (FakeAgent& fake : agents_) Work(&fake);
    CheckFencesHold();
    Train();
    FeedAll(detector_->OnTick(state_, now_));
    std::map<std::string, absl::Duration> kept;
    for (const Timer& timer : TimersFor(state_)) {
      const auto known = timers_.find(timer.key);
      const absl::Duration due = known != timers_.end() ? known->second : now_ + timer.delay;
      kept[timer.key] = due;
      if (due <= now_) Feed(timer.when_due);
    }
    timers_ = std::move(kept);
    for (const LossLogCut& cut : LossLogCutsFor(state_)) {
      auto& log = loss_logs_[cut.job_id];
      std::erase_if(log, [&](const auto& entry) {
        return entry.first > cut.restore_step && entry.second < cut.attempt;
      });
    }
  }

  const DriverState& state() const { return state_; }
  const std::map<int64_t, int64_t>& LossLogOf(const std::string& job_id) {
    return loss_logs_[job_id];
  }
  // The newest checkpoint for which an agent did the deleting; 0: none.
  int64_t RetainedStepOf(const std::string& job_id) { return retained_[job_id]; }
  // Attempts after the first, by where they started.
  const std::map<int, int>& restores() const { return restores_; }
  std::string Hash() const { return state_.SerializeAsString(); }

  void RestartDriver() {
    DriverState replayed = contents_.state;
    for (const Event& event : contents_.events) Apply(event, &replayed);
    ASSERT_EQ(replayed.SerializeAsString(), state_.SerializeAsString());
    if (Chance(0.5)) {
      ASSERT_TRUE(log_->WriteSnapshot(state_).ok());
    }
    StartDriver();
  }

 private:
  bool Chance(double probability) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < probability;
  }
  size_t Pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }

  void StartDriver() {
    log_ = MakeMemoryLog(&contents_);
    detector_ = std::make_unique<FailureDetector>(now_);
    timers_.clear();
    for (FakeAgent& fake : agents_) fake.hello_due = true;
    Event started;
    started.mutable_driver_started();
    Feed(started);
  }

  void Feed(Event event) {
    event.set_time_unix_nanos(absl::ToInt64Nanoseconds(now_));
    ASSERT_TRUE(log_->Append(state_.num_events(), {event}).ok());
    const DriverState before = state_;
    Apply(event, &state_);
    CheckTransition(before);
  }
  void FeedAll(const std::vector<Event>& events) {
    for (const Event& event : events) Feed(event);
  }

  void CheckTransition(const DriverState& before) {
    for (const JobRecord& old : before.jobs()) {
      const JobRecord* job = FindJob(state_, JobId(old));
      ASSERT_NE(job, nullptr) << "an acknowledged submit was lost";
      if (IsTerminal(old)) {
        ASSERT_EQ(old.SerializeAsString(), job->SerializeAsString()) << "a terminal job changed";
      }
      for (const auto& manifest : job->committed()) {
        bool known = false;
        for (const auto& earlier : old.committed()) known |= earlier.step() == manifest.step();
        ASSERT_TRUE(known || manifest.attempt() == old.attempt()) << "commit of an older attempt";
      }
      if (job->attempt() > old.attempt() && old.attempt() > 0) {
        CheckFenced(old);
        ++restores_[job->restore().source()];
      }
    }
  }

  // No process of the attempt before is left where the driver believes that agents live.
  void CheckFenced(const JobRecord& old) {
    for (const FakeAgent& fake : agents_) {
      const NodeRecord* node = FindNode(state_, fake.node_id);
      if (node == nullptr || !node->alive() || node->hello().incarnation() != fake.incarnation()) {
        continue;
      }
      const auto it = fake.jobs.find(JobId(old));
      if (it == fake.jobs.end()) continue;
      const bool placed = it->second.attempt == old.attempt();
      ASSERT_FALSE(placed && NumProcesses(it->second) > 0) << "attempt raised before the fence";
      if (placed) fenced_[{fake.incarnation(), JobId(old)}] = old.attempt();
    }
  }

  // Whoever confirmed a fence starts nothing of that attempt afterwards.
  void CheckFencesHold() const {
    for (const FakeAgent& fake : agents_) {
      for (const auto& [job_id, job] : fake.jobs) {
        const auto it = fenced_.find({fake.incarnation(), job_id});
        if (it == fenced_.end() || NumProcesses(job) == 0) continue;
        ASSERT_GT(job.attempt, it->second) << "a process was started behind the fence";
      }
    }
  }

  static int NumProcesses(const FakeJob& job) {
    int count = 0;
    for (const auto& [rank, actual] : job.ranks) {
      count += actual.state() == agent::ActualRank::STATE_RUNNING;
    }
    return count;
  }

  void Harm() {
    FakeAgent& fake = agents_[Pick(agents_.size())];
    if (Chance(0.03)) fake.up = false;
    if (Chance(0.05)) fake.reachable = !fake.reachable;
    if (Chance(0.01)) RestartDriver();
    if (Chance(0.01)) now_ += absl::Seconds(20);  // the driver stood still
    if (!Chance(0.03)) return;
    for (auto& [job_id, job] : fake.jobs) {
      for (auto& [rank, actual] : job.ranks) {
        if (actual.state() == agent::ActualRank::STATE_RUNNING && Chance(0.5)) {
          Fail(&actual, telemetry::FAILURE_CLASS_EXITED);
        }
      }
    }
  }

  static void Fail(agent::ActualRank* rank, telemetry::FailureClass failure_class) {
    rank->set_state(agent::ActualRank::STATE_FAILED);
    rank->mutable_failure()->set_failure_class(failure_class);
  }

  // Messages both ways; some are lost, repeated, or come late.
  void Exchange(bool storm) {
    for (FakeAgent& fake : agents_) {
      if (!fake.reachable) continue;
      if (fake.hello_due) {
        FeedAll(detector_->OnHello(state_, HelloOf(fake.node_id, fake.incarnation(), 2), now_));
        fake.hello_due = false;
      }
      reports_.emplace_back(fake.node_id, Report(fake));
      if (storm && Chance(0.1)) reports_.emplace_back(fake.node_id, Report(fake));
    }
    if (storm && reports_.size() > 1 && Chance(0.2)) std::swap(reports_.front(), reports_.back());
    const size_t late = storm ? Pick(3) : 0;
    while (reports_.size() > late) {
      const auto [node_id, report] = reports_.front();
      reports_.erase(reports_.begin());
      if (storm && Chance(0.1)) continue;
      TakeSteps(report);
      FeedAll(detector_->OnReport(state_, node_id, report, now_));
    }
    for (FakeAgent& fake : agents_) {
      if (!fake.reachable || (storm && Chance(0.2))) continue;
      const agent::DesiredState desired = DesiredFor(state_, fake.node_id);
      if (desired.incarnation() == fake.incarnation() && desired.version() >= fake.version) {
        Take(desired, &fake);
      }
    }
  }

  void TakeSteps(const agent::ActualState& report) {
    for (const auto& actual : report.jobs()) {
      const JobRecord* job = FindJob(state_, actual.job_id());
      if (job == nullptr || IsTerminal(*job)) continue;
      auto& log = loss_logs_[actual.job_id()];
      for (const auto& record : actual.steps()) {
        const int64_t next = log.empty() ? 1 : log.rbegin()->first + 1;
        if (record.attempt() == job->attempt() && record.step() == next)
          log[next] = record.attempt();
      }
      detector_->NoteStep(actual.job_id(), log.empty() ? 0 : log.rbegin()->first);
    }
  }

  agent::ActualState Report(const FakeAgent& fake) const {
    agent::ActualState report;
    report.set_incarnation(fake.incarnation());
    report.set_applied_version(fake.version);
    for (const auto& [job_id, job] : fake.jobs) {
      agent::ActualJob* actual = report.add_jobs();
      actual->set_job_id(job_id);
      actual->set_attempt(job.attempt);
      if (job.preflight) actual->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
      for (const auto& [rank, state] : job.ranks) *actual->add_ranks() = state;
      actual->set_num_processes(NumProcesses(job));
      for (const auto& [rank, steps] : job.snapshots) {
        for (const auto& [step, attempt] : steps) {
          auto* snapshot = actual->add_snapshots();
          snapshot->set_rank(rank);
          snapshot->set_attempt(attempt);
          snapshot->set_step(step);
        }
      }
      for (const auto& [step, rank] : job.shards) {
        auto* shard = actual->add_shards();
        shard->set_rank(rank);
        shard->set_attempt(job.attempt);
        shard->set_step(step);
      }
      for (const auto& [step, manifest] : job.manifests) *actual->add_manifests() = manifest;
      for (const auto& [step, record] : job.steps) *actual->add_steps() = record;
      *actual->mutable_retained() = job.retained;
    }
    return report;
  }

  void Take(const agent::DesiredState& desired, FakeAgent* fake) {
    fake->version = desired.version();
    std::set<std::string> wanted;
    for (const auto& job : desired.jobs()) {
      wanted.insert(job.job_id());
      fake->jobs[job.job_id()].desired = job;
    }
    std::erase_if(fake->jobs, [&](const auto& entry) { return wanted.count(entry.first) == 0; });
  }

  void Work(FakeAgent* fake) {
    for (auto& [job_id, job] : fake->jobs) {
      const agent::DesiredJob& desired = job.desired;
      if (desired.phase() == agent::DesiredJob::PHASE_HOLD) {
        for (auto& [rank, actual] : job.ranks) {
          if (actual.state() == agent::ActualRank::STATE_RUNNING) {
            Fail(&actual, telemetry::FAILURE_CLASS_ABORTED);
          }
        }
        continue;
      }
      if (desired.attempt() > job.attempt) Begin(*fake, &job);
      if (desired.phase() == agent::DesiredJob::PHASE_PREFLIGHT) job.preflight = true;
      const bool launches = desired.phase() == agent::DesiredJob::PHASE_RUN && job.ranks.empty();
      if (launches && !(storm_ && Chance(0.5))) Launch(*fake, &job);
      for (const auto& id : desired.finalize()) {
        agent::StoredManifest& manifest = job.manifests[id.step()];
        manifest.set_attempt(id.attempt());
        manifest.set_step(id.step());
        manifest.set_directory(absl::StrCat("/c/", id.step(), "-", id.attempt()));
      }
      if (desired.delete_checkpoints() && desired.committed_size() > 0 &&
          !(storm_ && Chance(0.5))) {
        job.retained = *desired.committed().rbegin();
        retained_[job_id] = job.retained.step();
      }
      if (desired.phase() != agent::DesiredJob::PHASE_STOP) continue;
      for (auto& [rank, actual] : job.ranks) {
        if (actual.state() == agent::ActualRank::STATE_RUNNING) {
          actual.set_state(agent::ActualRank::STATE_STOPPED);
        }
      }
    }
  }

  static void Begin(const FakeAgent& fake, FakeJob* job) {
    job->attempt = job->desired.attempt();
    job->ranks.clear();
    job->shards.clear();
    job->manifests.clear();
    job->steps.clear();
    job->retained.Clear();
  }

  static void Launch(const FakeAgent& fake, FakeJob* job) {
    const agent::RestorePoint& restore = job->desired.restore();
    for (const auto& placement : job->desired.placements()) {
      if (placement.node_id() != fake.node_id) continue;
      if (restore.source() == agent::RestorePoint::SOURCE_MEMORY) {
        EXPECT_EQ(job->snapshots[placement.rank()].count(restore.step()), 1u)
            << "the restore point is not in memory";
      }
      agent::ActualRank& rank = job->ranks[placement.rank()];
      rank.set_state(agent::ActualRank::STATE_RUNNING);
      rank.mutable_status()->set_rank(placement.rank());
      rank.mutable_status()->set_step(restore.step());
      rank.mutable_status()->set_phase(telemetry::PHASE_TRAINING);
    }
  }

  // One step of each attempt of which all ranks run; the others notice a lost peer.
  void Train() {
    std::map<std::pair<std::string, int64_t>, std::vector<std::pair<FakeJob*, int>>> attempts;
    for (FakeAgent& fake : agents_) {
      for (auto& [job_id, job] : fake.jobs) {
        for (auto& [rank, actual] : job.ranks) {
          if (actual.state() == agent::ActualRank::STATE_RUNNING) {
            attempts[{job_id, job.attempt}].emplace_back(&job, rank);
          }
        }
      }
    }
    for (auto& [key, ranks] : attempts) {
      bool failed = false;
      for (FakeAgent& fake : agents_) {
        const auto it = fake.jobs.find(key.first);
        if (it == fake.jobs.end() || it->second.attempt != key.second) continue;
        for (auto& [rank, actual] : it->second.ranks) {
          failed |= actual.state() == agent::ActualRank::STATE_FAILED;
        }
      }
      for (auto& [job, rank] : ranks) {
        agent::ActualRank& actual = job->ranks[rank];
        if (failed) {
          Fail(&actual, telemetry::FAILURE_CLASS_ABORTED);
        } else if (ranks.size() == 4) {
          Step(job, rank, &actual);
        }
      }
    }
  }

  static void Step(FakeJob* job, int rank, agent::ActualRank* actual) {
    const int64_t step = std::min(actual->status().step() + 1, kSteps);
    actual->mutable_status()->set_step(step);
    job->steps[step].set_step(step);
    job->steps[step].set_attempt(job->attempt);
    if (step % kInterval == 0) {
      auto& snapshots = job->snapshots[rank];
      snapshots[step] = job->attempt;
      if (snapshots.size() > 2) snapshots.erase(snapshots.begin());
      job->shards.insert({step, rank});
    }
    if (step == kSteps) actual->set_state(agent::ActualRank::STATE_FINISHED);
  }

  std::mt19937_64 random_;
  absl::Duration now_ = absl::Seconds(1000);
  std::vector<FakeAgent> agents_;
  LogContents contents_;
  std::unique_ptr<LogStore> log_;
  DriverState state_;
  std::unique_ptr<FailureDetector> detector_;
  std::map<std::string, absl::Duration> timers_;
  std::vector<std::pair<std::string, agent::ActualState>> reports_;
  std::map<int, int> restores_;
  std::map<std::pair<std::string, std::string>, int64_t> fenced_;  // incarnation, job -> attempt
  std::map<std::string, int64_t> retained_;                        // job -> step
  bool storm_ = false;
  std::map<std::string, std::map<int64_t, int64_t>> loss_logs_;  // job -> step -> attempt
};

std::string RunSeed(uint64_t seed, std::map<int, int>* restores) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  Simulation simulation(seed);
  simulation.Submit("j");
  simulation.Submit("k");
  simulation.Submit("l");
  for (int round = 0; round < 400; ++round) {
    simulation.Round(true);
    if (round == 300) simulation.Cancel("l");
  }
  for (int round = 0; round < 3000; ++round) simulation.Round(false);
  for (const JobRecord& job : simulation.state().jobs()) {
    EXPECT_TRUE(IsTerminal(job)) << "seed " << seed << ": " << job.ShortDebugString();
    if (job.state() != control::JOB_STATE_SUCCEEDED) continue;
    EXPECT_EQ(job.committed().rbegin()->step(), kSteps);
    EXPECT_EQ(simulation.LossLogOf(JobId(job)).size(), static_cast<size_t>(kSteps));
  }
  EXPECT_EQ(FindJob(simulation.state(), "j")->state(), control::JOB_STATE_SUCCEEDED);
  for (const auto& [source, count] : simulation.restores()) (*restores)[source] += count;
  return simulation.Hash();
}

TEST(DriverSimulationTest, InvariantsHoldUnderAStormAndJobsEndAfterIt) {
  std::map<int, int> restores;
  for (uint64_t seed = 1; seed <= 100 && !::testing::Test::HasFailure(); ++seed) {
    RunSeed(seed, &restores);
  }
  // The storm was one: every way to start again was taken.
  EXPECT_GT(restores[agent::RestorePoint::SOURCE_INITIAL], 10);
  EXPECT_GT(restores[agent::RestorePoint::SOURCE_MEMORY], 10);
  EXPECT_GT(restores[agent::RestorePoint::SOURCE_STORAGE], 10);
}

TEST(DriverSimulationTest, SameSeedGivesTheSameState) {
  std::map<int, int> restores;
  EXPECT_EQ(RunSeed(7, &restores), RunSeed(7, &restores));
}

TEST(DriverSimulationTest, CalmRunSucceedsInOneAttempt) {
  Simulation simulation(1);
  simulation.Submit("j");
  for (int round = 0; round < 400; ++round) simulation.Round(false);
  const JobRecord& job = *FindJob(simulation.state(), "j");
  EXPECT_EQ(job.state(), control::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.attempt(), 1);
  EXPECT_EQ(simulation.RetainedStepOf("j"), kSteps);
}

}  // namespace
}  // namespace megascale::driver
