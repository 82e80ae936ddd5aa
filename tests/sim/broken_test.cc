// Every checker finds the violation of its invariant: each test breaks the product on purpose, at
// one of its seams, and expects that checker to report it. docs/invariants.md lists the pairs.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "tests/sim/checkers/job_checkers.h"
#include "tests/sim/checkers/status_checkers.h"
#include "tests/sim/checkpoint_storage.h"
#include "tests/sim/finds.h"
#include "tests/sim/simulation.h"
#include "tests/sim/worker_process.h"

namespace megascale::sim {
namespace {

// A log that loses events: it replaces those for which `lost` is true by events without effect. Its
// snapshots hold what `forget` leaves.
class EditedLog : public driver::EventLog {
 public:
  using Lost = std::function<bool(const driver::Event&)>;
  using Forget = std::function<void(DriverState*)>;
  EditedLog(std::unique_ptr<driver::EventLog> log, Lost lost, Forget forget = {})
      : log_(std::move(log)), lost_(std::move(lost)), forget_(std::move(forget)) {}

  absl::StatusOr<driver::LogContents> ReadAll() override {
    absl::StatusOr<driver::LogContents> contents = log_->ReadAll();
    if (!contents.ok()) return contents;
    for (driver::Event& event : contents->events) {
      if (lost_(event)) event.mutable_driver_started();
    }
    return contents;
  }
  absl::Status Append(int64_t num_before, const std::vector<driver::Event>& events) override {
    return log_->Append(num_before, events);
  }
  absl::Status WriteSnapshot(const DriverState& state) override {
    DriverState kept = state;
    if (forget_) forget_(&kept);
    return log_->WriteSnapshot(kept);
  }

 private:
  const std::unique_ptr<driver::EventLog> log_;
  const Lost lost_;
  const Forget forget_;
};

// A log that does not say that its end was lost: events without effect take the place of the lost
// ones. `num_events`: of all logs on this disk.
class PaddedLog : public driver::EventLog {
 public:
  PaddedLog(std::unique_ptr<driver::EventLog> log, std::shared_ptr<int64_t> num_events)
      : log_(std::move(log)), num_events_(std::move(num_events)) {}

  absl::StatusOr<driver::LogContents> ReadAll() override {
    absl::StatusOr<driver::LogContents> contents = log_->ReadAll();
    if (!contents.ok()) return contents;
    while (driver::NumEvents(*contents) < *num_events_) {
      contents->events.emplace_back().mutable_driver_started();
    }
    return contents;
  }
  absl::Status Append(int64_t num_before, const std::vector<driver::Event>& events) override {
    const absl::Status appended = log_->Append(num_before, events);
    if (appended.ok()) *num_events_ = num_before + static_cast<int64_t>(events.size());
    return appended;
  }
  absl::Status WriteSnapshot(const DriverState& state) override {
    return log_->WriteSnapshot(state);
  }

 private:
  const std::unique_ptr<driver::EventLog> log_;
  const std::shared_ptr<int64_t> num_events_;
};

Tampering LosesEvents(EditedLog::Lost lost) {
  Tampering tampering;
  tampering.log = [lost](std::unique_ptr<driver::EventLog> log) {
    return std::make_unique<EditedLog>(std::move(log), lost);
  };
  return tampering;
}

class BrokenTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { base::InitLog("broken", base::LogLevel::kError); }
};

TEST_F(BrokenTest, CheckpointOfAnOlderAttemptThatClaimsToBeOfThisOneIsFound) {
  const auto tamper = [] {
    auto older = std::make_shared<std::map<std::string, agent::StoredManifest>>();
    Tampering tampering;
    tampering.report = [older](agent::ActualState* report) {
      for (auto& job : *report->mutable_jobs()) {
        for (const auto& manifest : job.manifests()) (*older)[job.job_id()] = manifest;
        const auto known = older->find(job.job_id());
        if (known == older->end() || known->second.attempt() >= job.attempt()) continue;
        *job.add_manifests() = known->second;
        job.mutable_manifests()->rbegin()->set_attempt(job.attempt());
      }
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("NeverTwoAttemptsCommit", tamper));
}

TEST_F(BrokenTest, JobThatNoLongerOwnsItsDirectoryAfterARestartIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.log = [](std::unique_ptr<driver::EventLog> log) {
      return std::make_unique<EditedLog>(
          std::move(log), [](const driver::Event&) { return false; },
          [](DriverState* state) { state->set_secret("another"); });
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("OwnerIsKept", tamper));
}

TEST_F(BrokenTest, HostThatWritesIntoAnotherJobsDirectoryIsFound) {
  EXPECT_TRUE(Finds("OthersAreLeftAlone", [] { return Tampering{.no_owners = true}; }));
}

TEST_F(BrokenTest, JobThatStorageEndsForEverIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.desired = [](agent::DesiredState* desired) {
      for (auto& job : *desired->mutable_jobs()) job.clear_ran_here();
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("StorageComesBack", tamper));
}

TEST_F(BrokenTest, CheckpointThatIsDeletedTooEarlyIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.retain = [](std::vector<agent::CheckpointId>* committed) {
      committed->front().set_step(committed->front().step() + 1);
      committed->resize(1);
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("CommittedIsKept", tamper));
}

TEST_F(BrokenTest, AgentThatConfirmsAFenceBeforeItsProcessesAreGoneIsFound) {
  EXPECT_TRUE(Finds("OneAttemptAtATime", [](agent::ActualState* report) {
    report->set_applied_version(int64_t{1} << 60);
    for (auto& job : *report->mutable_jobs()) job.set_num_processes(0);
  }));
}

TEST_F(BrokenTest, ARankThatStartsWithoutAPreflightIsFound) {
  EXPECT_TRUE(Finds("PreflightComesFirst", [] {
    Tampering tampering;
    tampering.desired = [](agent::DesiredState* desired) {
      for (auto& job : *desired->mutable_jobs()) {
        if (job.phase() != agent::DesiredJob::PHASE_PREFLIGHT) continue;
        job.set_phase(agent::DesiredJob::PHASE_RUN);
      }
    };
    return tampering;
  }));
}

TEST_F(BrokenTest, SnapshotThatIsReportedButNotThereIsFound) {
  EXPECT_TRUE(Finds("RestorePointIsThere", [](agent::ActualState* report) {
    for (auto& job : *report->mutable_jobs()) {
      for (auto& snapshot : *job.mutable_snapshots()) snapshot.set_step(snapshot.step() + 1);
    }
  }));
}

TEST_F(BrokenTest, LogThatLosesTheEndOfAJobIsFound) {
  EXPECT_TRUE(Finds("TerminalNeverChanges", [] {
    return LosesEvents([](const driver::Event& event) {
      return event.has_manifest_written() || event.has_retention_ended();
    });
  }));
}

TEST_F(BrokenTest, LogThatLosesASubmitIsFound) {
  EXPECT_TRUE(Finds("AcknowledgedIsKept", [] {
    return LosesEvents([](const driver::Event& event) { return event.has_job_submitted(); });
  }));
}

TEST_F(BrokenTest, LogThatLosesACancelIsFound) {
  EXPECT_TRUE(Finds("AcknowledgedIsKept", [] {
    return LosesEvents([](const driver::Event& event) { return event.has_cancel_requested(); });
  }));
}

TEST_F(BrokenTest, LogThatGivesAnotherStateIsFound) {
  EXPECT_TRUE(Finds("ReplayGivesTheSameState", [] {
    return LosesEvents([](const driver::Event& event) { return event.has_training_started(); });
  }));
}

TEST_F(BrokenTest, LogThatHidesThatItsEndWasLostIsFound) {
  EXPECT_TRUE(Finds("DamagedLogIsRefused", [] {
    const auto num_events = std::make_shared<int64_t>(0);
    Tampering tampering;
    tampering.log = [num_events](std::unique_ptr<driver::EventLog> log) {
      return std::make_unique<PaddedLog>(std::move(log), num_events);
    };
    return tampering;
  }));
}

TEST_F(BrokenTest, RestartsWithoutEndAreFound) {
  // Every attempt fails at once, and reports a step that no rank computed.
  const auto tamper = [] {
    auto forged = std::make_shared<std::map<std::string, std::pair<int64_t, int64_t>>>();
    Tampering tampering;
    tampering.report = [forged](agent::ActualState* report) {
      for (auto& job : *report->mutable_jobs()) {
        if (job.ranks().empty()) continue;
        auto& [attempt, step] = (*forged)[job.job_id()];
        if (attempt < job.attempt()) {
          attempt = job.attempt();
          ++step;
        }
        auto* record = job.add_steps();
        record->set_step(step);
        record->set_attempt(attempt);
        auto* rank = job.mutable_ranks(0);
        rank->set_state(agent::ActualRank::STATE_FAILED);
        rank->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
      }
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("RestartsEnd", tamper, /*calm=*/true));
}

TEST_F(BrokenTest, JobThatForgetsItsCheckpointsAndBeginsAnewIsFound) {
  EXPECT_TRUE(Finds("NeverBeginsAnew", [] {
    return LosesEvents([](const driver::Event& event) { return event.has_manifest_written(); });
  }));
}

TEST_F(BrokenTest, RecoveryWithoutAFaultIsFound) {
  EXPECT_TRUE(Finds("RecoveryHasACause", [](agent::ActualState* report) {
    for (auto& job : *report->mutable_jobs()) {
      for (auto& rank : *job.mutable_ranks()) {
        rank.mutable_status()->set_alive_age_seconds(100);
      }
    }
  }));
}

// The agent of two ranks takes one for the other.
TEST_F(BrokenTest, CulpritThatIsAnotherProcessIsFound) {
  EXPECT_TRUE(Finds("RecoveryHasACause", [](agent::ActualState* report) {
    for (auto& job : *report->mutable_jobs()) {
      if (job.ranks_size() != 2) continue;
      const int first = job.ranks(0).status().rank();
      job.mutable_ranks(0)->mutable_status()->set_rank(job.ranks(1).status().rank());
      job.mutable_ranks(1)->mutable_status()->set_rank(first);
    }
  }));
}

TEST_F(BrokenTest, JobThatNeitherRunsNorEndsIsFound) {
  // The driver ignores all reports of this agent, because their incarnation is wrong.
  EXPECT_TRUE(Finds(
      "RunsOrEnds", [](agent::ActualState* report) { report->set_incarnation("nobody"); },
      /*calm=*/true));
}

TEST_F(BrokenTest, MachineThatIsUsedBeforeItsTestHasPassedIsFound) {
  EXPECT_TRUE(Finds(
      "TestsComeFirst",
      [](agent::ActualState* report) {
        if (report->machine_test().id() == 0) return;
        report->mutable_machine_test()->set_state(agent::MachineTest::STATE_PASSED);
      },
      /*calm=*/true));
}

TEST_F(BrokenTest, MachineThatIsBlamedForItsExchangesAlthoughItsLinkIsInOrderIsFound) {
  EXPECT_TRUE(Finds(
      "PairsBlameTheGuilty",
      [](agent::ActualState* report) {
        agent::MachineTest* test = report->mutable_machine_test();
        const bool is_exchange =
            test->results_size() > 0 && absl::StartsWith(test->results(0).part(), "exchange");
        if (!is_exchange || !absl::StartsWith(report->incarnation(), "n0-")) return;
        test->mutable_results(0)->set_failure("1 byte of 2 MiB read back wrong");
      },
      /*calm=*/true));
}

// Agents that do not hear of a new epoch keep the processes of the older one.
TEST_F(BrokenTest, ProcessesOfAnOlderEpochAreFound) {
  bool found = false;
  for (uint64_t seed = 1; seed <= 10 && !found; ++seed) {
    Tampering tampering;
    const auto first = std::make_shared<int64_t>(0);
    tampering.desired = [first](agent::DesiredState* desired) {
      if (*first == 0) *first = desired->epoch();
      desired->set_epoch(*first);
    };
    const Outcome outcome = Simulate({.seed = seed,
                                      .calm = true,
                                      .restore_after = absl::Seconds(15),
                                      .tampering = tampering,
                                      .keep_going = true});
    for (const Violation& violation : outcome.violations) {
      found = found || violation.invariant == "OneEpochAtATime";
    }
  }
  EXPECT_TRUE(found);
}

// The core itself has no seam; the checker is shown states that a broken one would make.
TEST_F(BrokenTest, AJobThatPassesOneWhichWouldFitIsFound) {
  World world(1, false, {});
  StarvationChecker checker(&world);
  DriverState before;
  driver::v1::NodeRecord* node = before.add_nodes();
  node->mutable_hello()->set_node_id("n0");
  node->mutable_hello()->set_num_slots(2);
  node->set_alive(true);
  for (const char* job_id : {"first", "second"}) {
    JobRecord* job = before.add_jobs();
    job->mutable_submitted()->set_job_id(job_id);
    auto* parallel = job->mutable_submitted()->mutable_spec()->mutable_parallel();
    parallel->set_data_parallel_size(2);
    parallel->set_tensor_model_parallel_size(1);
    parallel->set_pipeline_model_parallel_size(1);
    job->set_stage(driver::v1::STAGE_QUEUED);
  }
  DriverState after = before;
  after.mutable_jobs(1)->set_attempt(1);
  after.mutable_jobs(1)->set_stage(driver::v1::STAGE_PREFLIGHT);
  checker.OnState(before, after);
  ASSERT_EQ(world.violations.size(), 1u);
  EXPECT_EQ(world.violations[0].invariant, "NobodyStarves");

  World other(1, false, {});
  StarvationChecker fine(&other);
  before.mutable_jobs(1)->mutable_submitted()->mutable_spec()->set_priority(1);
  after.mutable_jobs(1)->mutable_submitted()->mutable_spec()->set_priority(1);
  fine.OnState(before, after);
  EXPECT_TRUE(other.violations.empty()) << "its priority is higher";
}

// As above: the core counts evictions in its own state.
TEST_F(BrokenTest, TooManyEvictionsOfSuspectsAreFound) {
  const auto violations_of = [](int num_jobs, int evictions_of_each, bool asks) {
    World world(1, false, {});
    SuspectChecker checker(&world);
    DriverState state;
    for (int i = 0; i < num_jobs; ++i) {
      JobRecord* job = state.add_jobs();
      job->mutable_submitted()->set_job_id(absl::StrCat("j", i));
      job->mutable_submitted()->mutable_spec()->mutable_fault()->set_on_suspect(
          asks ? job::v1::ON_SUSPECT_EVICT : job::v1::ON_SUSPECT_TELL);
      for (int k = 0; k < evictions_of_each; ++k)
        job->add_evictions(int64_t{1'000'000'000} * (i + k));
    }
    checker.OnState({}, state);
    return world.violations.size();
  };
  EXPECT_EQ(violations_of(2, 2, true), 0u);
  EXPECT_EQ(violations_of(1, 3, true), 1u) << "of one job";
  EXPECT_EQ(violations_of(3, 2, true), 1u) << "of all jobs";
  EXPECT_EQ(violations_of(1, 1, false), 1u) << "nobody asked for it";

  World world(1, false, {});
  SuspectChecker checker(&world);
  DriverState state;
  JobRecord* job = state.add_jobs();
  job->add_placements()->set_node_id("n0");
  job->mutable_suspicion()->set_node_id("n1");
  checker.OnState({}, state);
  EXPECT_EQ(world.violations.size(), 1u) << "n1 does not hold rank 0";
}

// As above: the core decides who gets ranks.
TEST_F(BrokenTest, RanksOnANodeThatTakesNoneAreFound) {
  const auto breaks = [](const std::function<void(driver::v1::NodeRecord*)>& bar, bool is_first) {
    World world(1, false, {});
    PoolChecker checker(&world);
    DriverState before;
    driver::v1::NodeRecord* node = before.add_nodes();
    node->mutable_hello()->set_node_id("n0");
    bar(node);
    JobRecord* job = before.add_jobs();
    job->mutable_submitted()->set_job_id("j");
    job->set_stage(is_first ? driver::v1::STAGE_QUEUED : driver::v1::STAGE_WAIT_FOR_SLOTS);
    DriverState after = before;
    after.mutable_jobs(0)->set_attempt(1);
    after.mutable_jobs(0)->add_placements()->set_node_id("n0");
    checker.OnState(before, after);
    return !world.violations.empty();
  };
  for (const bool is_first : {true, false}) {
    EXPECT_FALSE(breaks([](auto* node) {}, is_first));
    EXPECT_TRUE(breaks([](auto* node) { node->set_evicted(true); }, is_first));
    EXPECT_TRUE(breaks([](auto* node) { node->set_draining(true); }, is_first));
    EXPECT_TRUE(breaks([](auto* node) { node->mutable_quarantine(); }, is_first));
    EXPECT_EQ(breaks([](auto* node) { node->set_spare(true); }, is_first), is_first);
  }
}

// As above.
TEST_F(BrokenTest, RanksOfTwoNumericsVersionsAreFound) {
  struct Node {
    std::string told;     // to the driver
    std::string program;  // that its agent runs
  };
  const auto breaks = [](const std::vector<Node>& nodes) {
    World world(1, false, {});
    NumericsChecker checker(&world);
    DriverState after;
    JobRecord* job = after.add_jobs();
    job->mutable_submitted()->set_job_id("j");
    job->set_attempt(1);
    for (const Node& node : nodes) {
      const std::string node_id = absl::StrCat("n", after.nodes_size());
      auto* hello = after.add_nodes()->mutable_hello();
      hello->set_node_id(node_id);
      hello->set_numerics_version(node.told);
      if (!node.program.empty()) world.numerics[node_id + "-1"] = node.program;
      job->add_placements()->set_node_id(node_id);
    }
    checker.OnState({}, after);
    for (const auto& placement : job->placements()) {
      ProcessName process;
      process.node_id = placement.node_id();
      process.incarnation = placement.node_id() + "-1";
      process.job_id = "j";
      process.attempt = 1;
      checker.OnProcessStarted(process);
    }
    return !world.violations.empty();
  };
  EXPECT_TRUE(breaks({{"1", "1"}, {"2", "2"}}));
  EXPECT_TRUE(breaks({{"1", "1"}, {"2", "2"}, {"", ""}}));
  EXPECT_TRUE(breaks({{"1", "1"}, {"1", "2"}})) << "its agent was upgraded since";
  EXPECT_FALSE(breaks({{"2", "2"}, {"2", "2"}}));
  EXPECT_FALSE(breaks({{"1", "1"}, {"", "2"}})) << "an agent that does not tell may join each";
}

TEST_F(BrokenTest, AgentThatIsNeverToldThatItsJobsHaveLeftIsFound) {
  Tampering tampering;
  tampering.desired = [](agent::DesiredState* desired) { desired->clear_draining(); };
  bool found = false;
  for (uint64_t seed = 1; seed <= 10 && !found; ++seed) {
    const Outcome outcome =
        Simulate({.seed = seed, .calm = true, .drain = true, .tampering = tampering});
    for (const Violation& violation : outcome.violations) {
      found = found || violation.invariant == "DrainsEnd";
    }
  }
  EXPECT_TRUE(found);
}

TEST_F(BrokenTest, ListThatLacksAJobIsFound) {
  EXPECT_TRUE(Finds("ListsAreWhole", [] {
    Tampering tampering;
    tampering.list = [](control::ListJobsResponse* page) {
      if (page->next_page_token().empty() && page->jobs_size() > 1)
        page->mutable_jobs()->RemoveLast();
    };
    return tampering;
  }));
}

TEST_F(BrokenTest, AgentThatSpinsIsFound) {
  Tampering tampering;
  tampering.desired = [](agent::DesiredState* desired) {
    for (auto& job : *desired->mutable_jobs()) {
      job.mutable_spec()->mutable_fault()->mutable_heartbeat_interval()->set_seconds(0);
      job.mutable_spec()->mutable_fault()->mutable_heartbeat_interval()->set_nanos(1);
    }
  };
  const Outcome outcome = Simulate({.seed = 1, .calm = true, .tampering = tampering});
  ASSERT_EQ(outcome.violations.size(), 1u);
  EXPECT_EQ(outcome.violations[0].invariant, "AgentsSleep");
}

TEST_F(BrokenTest, StatusThatShowsAStepTooManyIsFound) {
  EXPECT_TRUE(Finds(
      "StatusWasTrue",
      [](agent::ActualState* report) {
        for (auto& job : *report->mutable_jobs()) {
          if (job.steps().empty()) continue;
          *job.add_steps() = *job.steps().rbegin();
          job.mutable_steps()->rbegin()->set_step(job.steps().rbegin()->step() + 1);
        }
      },
      /*calm=*/true));
}

TEST_F(BrokenTest, StatusThatShowsRunningTooEarlyIsFound) {
  EXPECT_TRUE(Finds(
      "StatusWasTrue",
      [](agent::ActualState* report) {
        for (auto& job : *report->mutable_jobs()) {
          for (auto& rank : *job.mutable_ranks()) {
            rank.mutable_status()->set_phase(telemetry::PHASE_TRAINING);
          }
        }
      },
      /*calm=*/true));
}

// The shell copies the culprit, so a made-up status names another one.
TEST_F(BrokenTest, StatusThatNamesAnotherCulpritIsFound) {
  World world(1, false, {});
  CheckpointStorage storage(&world);
  StatusChecker checker(&world, &storage);
  DriverState durable;
  JobRecord* record = durable.add_jobs();
  record->mutable_submitted()->set_job_id("j");
  record->mutable_culprit()->set_node_id("n0");
  record->mutable_culprit()->set_rank(1);
  control::Job job;
  job.set_job_id("j");
  *job.mutable_culprit() = record->culprit();
  checker.OnStatus(job, durable);
  EXPECT_TRUE(world.violations.empty());
  job.mutable_culprit()->set_node_id("n1");
  checker.OnStatus(job, durable);
  ASSERT_EQ(world.violations.size(), 1u);
  EXPECT_EQ(world.violations[0].invariant, "StatusWasTrue");
}

TEST_F(BrokenTest, SnapshotThatForgetsWhereTimeWentIsFound) {
  EXPECT_TRUE(Finds("TimeAddsUp", [] {
    Tampering tampering;
    tampering.log = [](std::unique_ptr<driver::EventLog> log) {
      return std::make_unique<EditedLog>(
          std::move(log), [](const driver::Event&) { return false; },
          [](DriverState* state) {
            for (auto& job : *state->mutable_jobs()) {
              job.mutable_time_book()->mutable_account()->clear_start_nanos();
            }
          });
    };
    return tampering;
  }));
}

TEST_F(BrokenTest, DurationsThatFollowTheWallClockAreFound) {
  EXPECT_TRUE(Finds("DurationsAreReal", [] { return Tampering{.log_follows_wall_clock = true}; }));
}

// As RocksDB's log was: of a state that is too large to be written it stored nothing, and deleted
// the events.
class EmptyingLog : public driver::EventLog {
 public:
  explicit EmptyingLog(std::unique_ptr<driver::EventLog> log) : log_(std::move(log)) {}

  absl::StatusOr<driver::LogContents> ReadAll() override { return log_->ReadAll(); }
  absl::Status Append(int64_t num_before, const std::vector<driver::Event>& events) override {
    return log_->Append(num_before, events);
  }
  absl::Status WriteSnapshot(const DriverState& state) override {
    const absl::Status written = log_->WriteSnapshot(state);
    if (!absl::IsResourceExhausted(written)) return written;
    DriverState nothing;
    nothing.set_num_events(state.num_events());
    return log_->WriteSnapshot(nothing);
  }

 private:
  const std::unique_ptr<driver::EventLog> log_;
};

TEST_F(BrokenTest, ALogThatIsEmptiedByARecordThatIsTooLargeIsFound) {
  const auto tamper = [] {
    Tampering tampering;
    tampering.log = [](std::unique_ptr<driver::EventLog> log) {
      return std::make_unique<EmptyingLog>(std::move(log));
    };
    return tampering;
  };
  // Rare: between the fault and the driver's next end a snapshot must be due.
  EXPECT_TRUE(Finds("ReplayGivesTheSameState", tamper, /*calm=*/false, /*num_seeds=*/300));
}

bool FindsWith(const std::string& invariant, ReporterFault fault, const Tampering& tampering) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome outcome = Simulate({.seed = seed,
                                      .calm = true,
                                      .reporter_fault = fault,
                                      .tampering = tampering,
                                      .keep_going = true,
                                      .stop_at = invariant});
    for (const Violation& violation : outcome.violations) {
      if (violation.invariant == invariant) return true;
    }
  }
  return false;
}

TEST_F(BrokenTest, StepsThatAllAgentsReportAreFound) {
  Tampering tampering;
  tampering.desired = [](agent::DesiredState* desired) {
    for (auto& job : *desired->mutable_jobs()) job.clear_step_duty();
  };
  EXPECT_TRUE(FindsWith("TwoAgentsKeepSteps", ReporterFault::kNone, tampering));
}

TEST_F(BrokenTest, DeputyThatDoesNotTakeOverIsFound) {
  const auto first = std::make_shared<std::map<std::string, std::string>>();  // by job
  Tampering tampering;
  tampering.desired = [first](agent::DesiredState* desired) {
    for (auto& job : *desired->mutable_jobs()) {
      if (job.step_duty() != agent::STEP_DUTY_REPORT) continue;
      const auto [known, is_new] = first->try_emplace(job.job_id(), desired->incarnation());
      if (known->second != desired->incarnation()) job.set_step_duty(agent::STEP_DUTY_KEEP);
    }
  };
  EXPECT_TRUE(FindsWith("StepsGoOn", ReporterFault::kCutOff, tampering));
}

// True when one of the first seeds, in which a link fails, violates `invariant`.
bool FindsWithLink(const std::string& invariant, const Tampering& tampering) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome outcome = Simulate({.seed = seed,
                                      .calm = true,
                                      .link_fault = LinkFault::kBothWays,
                                      .tampering = tampering,
                                      .keep_going = true,
                                      .stop_at = invariant});
    for (const Violation& violation : outcome.violations) {
      if (violation.invariant == invariant) return true;
    }
  }
  return false;
}

// Calls `change` with each failed rank that names a link.
Tampering ChangesUnreachedRanks(const std::function<void(agent::RankFailure*)>& change) {
  Tampering tampering;
  tampering.report = [change](agent::ActualState* report) {
    for (auto& job : *report->mutable_jobs()) {
      for (auto& rank : *job.mutable_ranks()) {
        if (!rank.failure().unreached_ranks().empty()) change(rank.mutable_failure());
      }
    }
  };
  return tampering;
}

TEST_F(BrokenTest, FailedLinksThatPlacementDoesNotKnowAreFound) {
  Tampering tampering;
  tampering.state = [](DriverState* state) { state->clear_failed_links(); };
  EXPECT_TRUE(FindsWithLink("LinksAreAvoided", tampering));
}

TEST_F(BrokenTest, RanksThatDoNotSayWhichMachineDoesNotAnswerAreFound) {
  EXPECT_TRUE(FindsWithLink("LinksEndNoJob", ChangesUnreachedRanks([](agent::RankFailure* failure) {
                              failure->clear_unreached_ranks();
                            })));
}

TEST_F(BrokenTest, LinkThatBlamesAHealthyMachineIsFound) {
  EXPECT_TRUE(FindsWithLink("LinksEndNoJob", ChangesUnreachedRanks([](agent::RankFailure* failure) {
                              failure->set_unreached_ranks(0, failure->unreached_ranks(0) + 1);
                            })));
}

TEST_F(BrokenTest, StepThatReadersMissIsFound) {
  for (const bool calm : {true, false}) {
    const auto tamper = [] {
      Tampering tampering;
      tampering.position = [](int64_t* position) { *position += *position == 3 ? 1 : 0; };
      return tampering;
    };
    EXPECT_TRUE(Finds("StepsComeOnce", tamper, calm));
  }
}

TEST_F(BrokenTest, StepThatComesTwiceIsFound) {
  EXPECT_TRUE(Finds("StepsComeOnce", [] {
    Tampering tampering;
    tampering.position = [](int64_t* position) { *position -= *position == 3 ? 1 : 0; };
    return tampering;
  }));
}

// Changes the message of the first job from its 30th round on.
Tampering ChangesAJobThatNoEventTouched() {
  const auto num_rounds = std::make_shared<int>(0);
  Tampering tampering;
  tampering.state = [num_rounds](DriverState* state) {
    if (state->jobs().empty() || ++*num_rounds != 30) return;
    state->mutable_jobs(0)->set_message("changed");
  };
  return tampering;
}

TEST_F(BrokenTest, EventThatChangesAJobWhichIsNotLookedAtIsFound) {
  EXPECT_TRUE(Finds("OnlyTouchedJobsChange", ChangesAJobThatNoEventTouched, /*calm=*/true));
}

TEST_F(BrokenTest, CountThatMissesALostNodeIsFound) {
  const auto tamper = [] {
    const auto num_rounds = std::make_shared<int>(0);
    Tampering tampering;
    tampering.state = [num_rounds](DriverState* state) {
      if (++*num_rounds < 30 || state->nodes().empty()) return;
      state->mutable_nodes(0)->set_alive(false);
    };
    return tampering;
  };
  EXPECT_TRUE(Finds("CountsAreKept", tamper, /*calm=*/true));
}

TEST_F(BrokenTest, ReadersThatAreShownAnOlderJobAreFound) {
  EXPECT_TRUE(Finds("ViewIsTheState", ChangesAJobThatNoEventTouched, /*calm=*/true));
}

TEST_F(BrokenTest, LossLogWithoutAStepIsFound) {
  EXPECT_TRUE(Finds(
      "LossLogIsWhole",
      [](agent::ActualState* report) {
        for (auto& job : *report->mutable_jobs()) {
          auto* steps = job.mutable_steps();
          steps->erase(std::remove_if(steps->begin(), steps->end(),
                                      [](const auto& record) { return record.step() == 3; }),
                       steps->end());
        }
      },
      /*calm=*/true));
}

}  // namespace
}  // namespace megascale::sim
