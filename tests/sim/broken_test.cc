// Every checker finds the violation of its invariant: each test breaks the product on purpose, at
// one of its seams, and expects that checker to report it. docs/invariants.md lists the pairs.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "tests/sim/simulation.h"
#include "tests/sim/worker_process.h"

namespace megascale::sim {
namespace {

// True when one of the first seeds violates `invariant`. `tamper` makes new hooks for every seed.
bool Finds(const std::string& invariant, const std::function<Tampering()>& tamper,
           bool calm = false) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome outcome =
        Simulate({.seed = seed, .calm = calm, .tampering = tamper(), .keep_going = true});
    for (const Violation& violation : outcome.violations) {
      if (violation.invariant == invariant) return true;
    }
  }
  return false;
}

bool Finds(const std::string& invariant, std::function<void(agent::ActualState*)> report,
           bool calm = false) {
  return Finds(
      invariant, [report] { return Tampering{.report = report}; }, calm);
}

// A log that loses events: it replaces those for which `lost` is true by events without effect.
class EditedLog : public driver::LogStore {
 public:
  using Lost = std::function<bool(const driver::Event&)>;
  EditedLog(std::unique_ptr<driver::LogStore> log, Lost lost)
      : log_(std::move(log)), lost_(std::move(lost)) {}

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
    return log_->WriteSnapshot(state);
  }

 private:
  const std::unique_ptr<driver::LogStore> log_;
  const Lost lost_;
};

Tampering LosesEvents(EditedLog::Lost lost) {
  Tampering tampering;
  tampering.log = [lost](std::unique_ptr<driver::LogStore> log) {
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
  EXPECT_TRUE(Finds("RestartsEnd", tamper));
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

TEST_F(BrokenTest, JobThatNeitherRunsNorEndsIsFound) {
  // The driver ignores all reports of this agent, because their incarnation is wrong.
  EXPECT_TRUE(Finds(
      "RunsOrEnds", [](agent::ActualState* report) { report->set_incarnation("nobody"); },
      /*calm=*/true));
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
