#include "controlplane/agent/agent_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"

namespace megascale::agent {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using v1::ActualRank;
using v1::DesiredJob;

// An action in a few words: "start rank 0 as 2".
std::string Words(const Action& action) {
  struct Visitor {
    std::string operator()(const PrepareMemory& a) {
      return absl::StrCat("prepare ", a.job->job_id(), "/", a.job->attempt());
    }
    std::string operator()(const StartProcess& a) {
      const std::string what = a.rank == kHostRank ? (a.preflight_only ? "preflight" : "host")
                                                   : absl::StrCat("rank ", a.rank);
      return absl::StrCat("start ", what, " as ", a.process_id);
    }
    std::string operator()(const KillProcess& a) { return absl::StrCat("kill ", a.process_id); }
    std::string operator()(const SendToWorker& a) {
      return absl::StrCat("tell ", a.process_id,
                          a.message.stop().checkpoint() ? " stop with checkpoint" : " stop");
    }
    std::string operator()(const SendToHost& a) {
      if (a.message.has_persist()) {
        return absl::StrCat("tell ", a.process_id, " persist rank ", a.message.persist().rank(),
                            " step ", a.message.persist().step());
      }
      if (a.message.has_finalize()) {
        return absl::StrCat("tell ", a.process_id, " finalize ", a.message.finalize().step());
      }
      return absl::StrCat("tell ", a.process_id, " retain ", a.message.retain().committed_size());
    }
    std::string operator()(const MarkPersisted& a) {
      return absl::StrCat("mark rank ", a.snapshot.rank, " step ", a.snapshot.step);
    }
    std::string operator()(const DropMemory& a) { return absl::StrCat("drop ", a.job_id); }
  };
  return std::visit(Visitor(), action);
}

ProcessEnd Exited(int status) { return {status << 8, "", "", ""}; }
// By somebody else.
ProcessEnd Killed(int signal) { return {signal, "", "", ""}; }
// By the KillProcess that the core asked for.
ProcessEnd Ours() { return {SIGKILL, "", "", "", /*killed=*/true}; }

// Two ranks of job "j" here, two elsewhere.
class AgentCoreTest : public testing::Test {
 protected:
  // A desired state with job "j" in `phase`.
  DesiredJob* Want(DesiredJob::Phase phase, int64_t attempt) {
    desired_.Clear();
    desired_.set_version(++version_);
    desired_.set_incarnation("i1");
    DesiredJob* job = desired_.add_jobs();
    job->set_job_id("j");
    job->set_attempt(attempt);
    job->set_phase(phase);
    job->mutable_stop_grace()->set_seconds(30);
    for (int rank = 0; rank < 4; ++rank) {
      v1::Placement* placement = job->add_placements();
      placement->set_rank(rank);
      placement->set_node_id(rank < 2 ? "n0" : "n1");
    }
    return job;
  }

  // Tells `desired_` and carries out what follows, as a shell would.
  std::vector<std::string> Apply() {
    core_.OnDesired(desired_, now_);
    return Settle();
  }

  std::vector<std::string> Settle() {
    std::vector<std::string> words;
    for (;;) {
      const std::vector<Action> actions = core_.Reconcile(now_);
      if (actions.empty()) return words;
      for (const Action& action : actions) {
        words.push_back(Words(action));
        if (const auto* start = std::get_if<StartProcess>(&action)) {
          core_.OnStarted(start->process_id, 1000 + static_cast<int>(start->process_id), now_);
        }
      }
    }
  }

  // Attempt 1 runs: host is process 1, rank 0 process 2, rank 1 process 3.
  void Run() {
    Want(DesiredJob::PHASE_RUN, 1);
    Apply();
  }

  void End(int64_t process_id, const ProcessEnd& end) { core_.OnEnded(process_id, end, now_); }

  v1::ActualState Report() const { return core_.Report({}); }
  v1::ActualJob Job() const {
    const v1::ActualState state = core_.Report({});
    return state.jobs_size() == 1 ? state.jobs(0) : v1::ActualJob();
  }
  ActualRank RankOf(int rank) const {
    const v1::ActualJob job = Job();
    for (const ActualRank& actual : job.ranks()) {
      if (actual.status().rank() == rank) return actual;
    }
    return {};
  }

  void Step(int64_t process_id, int64_t step) {
    link::v1::FromWorker message;
    message.mutable_step()->set_step(step);
    core_.OnWorkerMessage(process_id, message);
  }
  void Finish(int64_t process_id, bool stopped) {
    link::v1::FromWorker message;
    message.mutable_finished()->set_stopped(stopped);
    message.mutable_finished()->set_step(42);
    core_.OnWorkerMessage(process_id, message);
    End(process_id, Exited(0));
  }
  void Fail(int64_t process_id, telemetry::v1::FailureClass failure_class) {
    link::v1::FromWorker message;
    message.mutable_failure()->set_failure_class(failure_class);
    message.mutable_failure()->set_message("said so");
    core_.OnWorkerMessage(process_id, message);
  }
  void StoreShard(int64_t process_id, int rank, int64_t step) {
    link::v1::FromHost message;
    message.mutable_shard()->set_rank(rank);
    message.mutable_shard()->set_attempt(1);
    message.mutable_shard()->set_step(step);
    core_.OnHostMessage(process_id, message);
  }
  void Hold(int rank, int64_t attempt, int64_t step) {
    checkpoint::SealedSnapshot snapshot;
    snapshot.rank = rank;
    snapshot.attempt = attempt;
    snapshot.step = step;
    held_.push_back(snapshot);
    core_.OnSnapshots("j", held_);
  }

  AgentCore core_{"n0", "i1"};
  v1::DesiredState desired_;
  int64_t version_ = 0;
  absl::Duration now_ = absl::Seconds(100);
  std::vector<checkpoint::SealedSnapshot> held_;
};

// --- phases
// -------------------------------------------------------------------------------------------

TEST_F(AgentCoreTest, RunPreparesMemoryThenStartsHostAndLocalRanks) {
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), ElementsAre("prepare j/1", "start host as 1", "start rank 0 as 2",
                                   "start rank 1 as 3"));
  EXPECT_EQ(Report().applied_version(), 1);
  EXPECT_EQ(Job().attempt(), 1);
  EXPECT_EQ(Job().num_processes(), 3);
  EXPECT_EQ(Job().host().pid(), 1001);
  EXPECT_EQ(RankOf(1).status().pid(), 1003);
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_RUNNING);
  EXPECT_THAT(Apply(), IsEmpty());  // told again
}

TEST_F(AgentCoreTest, AJobWithoutARankHereNeedsNoProcess) {
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  for (v1::Placement& placement : *job->mutable_placements()) placement.set_node_id("n1");
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 1);
}

TEST_F(AgentCoreTest, PreflightRunsTheHostAloneUntilItAnswers) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  EXPECT_THAT(Apply(), ElementsAre("start preflight as 1"));
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_RUNNING);
  link::v1::FromHost answer;
  answer.mutable_preflight()->set_state(v1::Preflight::STATE_PASSED);
  core_.OnHostMessage(1, answer);
  EXPECT_THAT(Settle(), ElementsAre("kill 1"));
  End(1, Ours());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 1);
  EXPECT_EQ(Job().preflight().state(), v1::Preflight::STATE_PASSED);
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), ElementsAre("prepare j/1", "start host as 2", "start rank 0 as 3",
                                   "start rank 1 as 4"));
}

TEST_F(AgentCoreTest, RunWaitsUntilThePreflightIsReaped) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  Apply();
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), ElementsAre("kill 1"));
  End(1, Ours());
  EXPECT_EQ(Settle().size(), 4u);
}

TEST_F(AgentCoreTest, HoldKillsEverythingAndKeepsWhatIsKnown) {
  Run();
  Step(2, 1);
  Hold(0, 1, 10);
  Want(DesiredJob::PHASE_HOLD, 1);
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2", "kill 3"));
  EXPECT_EQ(Report().applied_version(), 1);
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 2);
  EXPECT_EQ(Job().num_processes(), 0);
  EXPECT_EQ(Job().ranks_size(), 0);  // they did not fail
  EXPECT_EQ(Job().snapshots_size(), 1);
  EXPECT_EQ(Job().steps_size(), 1);
}

TEST_F(AgentCoreTest, AJobThatIsNotListedIsEndedAndForgotten) {
  Run();
  Want(DesiredJob::PHASE_RUN, 1);
  desired_.clear_jobs();
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2", "kill 3"));
  for (const int64_t process : {1, 2}) End(process, Ours());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 1);
  End(3, Ours());
  EXPECT_THAT(Settle(), ElementsAre("drop j"));
  EXPECT_EQ(Report().jobs_size(), 0);
  EXPECT_EQ(Report().applied_version(), 2);
}

TEST_F(AgentCoreTest, StopAsksOnceAndReportsStoppedRanks) {
  Run();
  Want(DesiredJob::PHASE_STOP, 1)->set_stop_with_checkpoint(true);
  EXPECT_THAT(Apply(), ElementsAre("tell 2 stop with checkpoint", "tell 3 stop with checkpoint"));
  EXPECT_THAT(Settle(), IsEmpty());
  Finish(2, /*stopped=*/true);
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_STOPPED);
  EXPECT_EQ(RankOf(0).status().step(), 42);
  Finish(3, /*stopped=*/true);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Job().num_processes(), 1);  // the host may still write the checkpoint
}

TEST_F(AgentCoreTest, StopKillsRanksAfterTheGrace) {
  Run();
  Want(DesiredJob::PHASE_STOP, 1);
  Apply();
  EXPECT_EQ(core_.NextWake(), now_ + absl::Seconds(30));
  now_ += absl::Seconds(20);
  Want(DesiredJob::PHASE_STOP, 1);  // said again: the grace does not begin anew
  EXPECT_THAT(Apply(), IsEmpty());
  now_ += absl::Seconds(10);
  EXPECT_THAT(Settle(), ElementsAre("kill 2", "kill 3"));
  End(2, Ours());
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_FAILED);
  EXPECT_EQ(RankOf(0).failure().message(), "did not stop within 30s and was killed");
}

TEST_F(AgentCoreTest, StopBeforeTheRanksStartedLeavesNothingToStop) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  Apply();
  Want(DesiredJob::PHASE_STOP, 1);
  EXPECT_THAT(Apply(), ElementsAre("kill 1"));
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_STOPPED);
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_STOPPED);
}

// --- attempts and stale messages
// ------------------------------------------------------------------------

TEST_F(AgentCoreTest, ANewAttemptWaitsUntilTheOldOneIsReaped) {
  Run();
  Want(DesiredJob::PHASE_RUN, 2);
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2", "kill 3"));
  End(1, Ours());
  End(2, Ours());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Job().attempt(), 1);
  EXPECT_EQ(Report().applied_version(), 1);
  End(3, Ours());
  EXPECT_THAT(Settle(), ElementsAre("prepare j/2", "start host as 4", "start rank 0 as 5",
                                    "start rank 1 as 6"));
  EXPECT_EQ(Job().attempt(), 2);
}

TEST_F(AgentCoreTest, ANewAttemptForgetsTheStepsBehindItsRestorePoint) {
  Run();
  for (const int64_t step : {1, 2, 3, 4}) Step(2, step);
  StoreShard(1, 0, 2);
  Want(DesiredJob::PHASE_RUN, 2)->mutable_restore()->set_step(2);
  Apply();
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  Settle();
  ASSERT_EQ(Job().steps_size(), 2);  // 1 and 2 are still not acknowledged
  EXPECT_EQ(Job().steps(1).step(), 2);
  EXPECT_EQ(Job().shards_size(), 0);
}

TEST_F(AgentCoreTest, AnOlderVersionIsIgnored) {
  Run();
  const v1::DesiredState newest = desired_;
  Want(DesiredJob::PHASE_HOLD, 1);
  desired_.set_version(newest.version() - 1);
  EXPECT_THAT(Apply(), IsEmpty());
  Want(DesiredJob::PHASE_HOLD, 1);
  desired_.set_incarnation("i0");
  EXPECT_THAT(Apply(), IsEmpty());
}

TEST_F(AgentCoreTest, AnOlderAttemptIsRefused) {
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), IsEmpty());
  EXPECT_EQ(Job().attempt(), 2);
}

TEST_F(AgentCoreTest, WhatIsSaidOfAReapedProcessIsIgnored) {
  Run();
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  Settle();
  Step(2, 7);
  StoreShard(1, 0, 7);
  Fail(3, telemetry::v1::FAILURE_CLASS_DIVERGED);
  End(3, Exited(1));
  core_.OnHostProgress(1);
  EXPECT_EQ(Job().steps_size(), 0);
  EXPECT_EQ(Job().shards_size(), 0);
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_RUNNING);
}

// --- deaths
// -------------------------------------------------------------------------------------------

TEST_F(AgentCoreTest, AKilledRankIsReportedAndNotStartedAgain) {
  Run();
  End(2, {SIGKILL, "", "", "step 5\nstep 6"});
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_FAILED);
  EXPECT_EQ(RankOf(0).failure().failure_class(), telemetry::v1::FAILURE_CLASS_EXITED);
  EXPECT_EQ(RankOf(0).failure().message(),
            "killed by signal 9 (Killed); its last lines:\nstep 5\nstep 6");
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_RUNNING);
}

TEST_F(AgentCoreTest, AKillWhileTheKernelRanOutOfMemoryIsThat) {
  Run();
  End(2, {SIGKILL, "killed by the kernel: out of memory (why)", "in F.c0.m3 of step 6", "line"});
  EXPECT_EQ(RankOf(0).failure().failure_class(), telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
  EXPECT_THAT(RankOf(0).failure().message(),
              AllOf(StartsWith("killed by the kernel: out of memory (why); make "),
                    HasSubstr("train.micro_batch_size"),
                    EndsWith("\nin F.c0.m3 of step 6\nits last lines:\nline")));
  End(3, {SIGSEGV, "killed by the kernel: out of memory (why)", "", ""});
  EXPECT_EQ(RankOf(1).failure().failure_class(), telemetry::v1::FAILURE_CLASS_EXITED);
}

TEST_F(AgentCoreTest, ARefusedAllocationIsOutOfMemoryToo) {
  Run();
  End(2, {SIGABRT, "", "",
          "terminate called after throwing an instance of 'std::bad_alloc'\n"
          "  what():  std::bad_alloc"});
  EXPECT_EQ(RankOf(0).failure().failure_class(), telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
  EXPECT_THAT(RankOf(0).failure().message(), HasSubstr("train.micro_batch_size"));
  End(3, {SIGABRT, "", "", "check failed"});
  EXPECT_EQ(RankOf(1).failure().failure_class(), telemetry::v1::FAILURE_CLASS_EXITED);
}

TEST_F(AgentCoreTest, WhatARankSaidOfItsFailureGoesBeforeItsExitStatus) {
  Run();
  Fail(2, telemetry::v1::FAILURE_CLASS_DIVERGED);
  End(2, Exited(1));
  EXPECT_EQ(RankOf(0).failure().failure_class(), telemetry::v1::FAILURE_CLASS_DIVERGED);
  EXPECT_EQ(RankOf(0).failure().message(), "said so");
  Fail(3, telemetry::v1::FAILURE_CLASS_ABORTED);
  End(3, Exited(1));
  EXPECT_EQ(RankOf(1).failure().failure_class(), telemetry::v1::FAILURE_CLASS_ABORTED);
}

TEST_F(AgentCoreTest, AFailureSaidBeforeHoldKilledTheRankIsReported) {
  Run();
  Fail(2, telemetry::v1::FAILURE_CLASS_DIVERGED);
  Want(DesiredJob::PHASE_HOLD, 1);
  Apply();
  End(2, Ours());
  EXPECT_EQ(RankOf(0).failure().failure_class(), telemetry::v1::FAILURE_CLASS_DIVERGED);
}

// Its peer's failure was known first: HOLD came before its own end was.
TEST_F(AgentCoreTest, ARankThatDiedBeforeHoldKilledItIsReported) {
  Run();
  Fail(3, telemetry::v1::FAILURE_CLASS_ABORTED);
  End(3, Exited(1));
  Want(DesiredJob::PHASE_HOLD, 1);
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2"));
  End(1, Ours());
  End(2, {SIGKILL, "", "in F.c0.m3 of step 6", ""});
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_FAILED);
  EXPECT_EQ(RankOf(0).failure().failure_class(), telemetry::v1::FAILURE_CLASS_EXITED);
  EXPECT_EQ(RankOf(0).failure().message(), "killed by signal 9 (Killed)\nin F.c0.m3 of step 6");
  EXPECT_EQ(RankOf(1).failure().failure_class(), telemetry::v1::FAILURE_CLASS_ABORTED);
  // The fence is reported no earlier than that.
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Report().applied_version(), 2);
}

TEST_F(AgentCoreTest, ARankThatDiedBeforeItsGraceEndedIsNotSaidToHaveBeenTooSlow) {
  Run();
  Want(DesiredJob::PHASE_STOP, 1);
  Apply();
  now_ += absl::Seconds(30);
  EXPECT_THAT(Settle(), ElementsAre("kill 2", "kill 3"));
  End(2, Killed(SIGSEGV));
  EXPECT_THAT(RankOf(0).failure().message(), StartsWith("killed by signal 11"));
}

TEST_F(AgentCoreTest, AnExitBeforeTheWorkIsDoneIsAFailure) {
  Run();
  End(2, Exited(0));
  EXPECT_EQ(RankOf(0).failure().message(), "exited with status 0 before its work was done");
  Finish(3, /*stopped=*/false);
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_FINISHED);
  EXPECT_EQ(RankOf(1).status().step(), 42);
}

TEST_F(AgentCoreTest, MemoryThatCannotBeMadeFailsTheRanksAndStartsNothing) {
  Want(DesiredJob::PHASE_RUN, 1);
  core_.OnDesired(desired_, now_);
  ASSERT_EQ(Words(core_.Reconcile(now_).at(0)), "prepare j/1");
  core_.OnPrepareFailed("j", absl::ResourceExhaustedError("needs 9 GiB"));
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(RankOf(1).failure().failure_class(), telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
  EXPECT_EQ(RankOf(1).failure().message(), "shared memory of the attempt: needs 9 GiB");
}

TEST_F(AgentCoreTest, AProcessThatCannotBeStartedIsAFailureOfItsRank) {
  Want(DesiredJob::PHASE_RUN, 1);
  core_.OnDesired(desired_, now_);
  core_.Reconcile(now_);
  const std::vector<Action> actions = core_.Reconcile(now_);
  ASSERT_EQ(Words(actions.at(1)), "start rank 0 as 2");
  core_.OnStarted(2, absl::UnavailableError("no more processes"), now_);
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_FAILED);
}

// --- the host process
// ---------------------------------------------------------------------------------

TEST_F(AgentCoreTest, TheHostIsRestartedInPlaceWithBackoff) {
  Run();
  End(1, Killed(SIGKILL));
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(core_.NextWake(), now_ + absl::Milliseconds(200));
  now_ += absl::Milliseconds(200);
  EXPECT_THAT(Settle(), ElementsAre("start host as 4"));
  EXPECT_EQ(Job().host().num_restarts(), 1);
  EXPECT_EQ(Job().attempt(), 1);
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_RUNNING);
}

TEST_F(AgentCoreTest, AHostWhoseTimerStoppedIsToBeKilledAndStartedAgain) {
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  job->mutable_spec()->mutable_fault()->mutable_heartbeat_timeout()->set_seconds(5);
  Apply();
  std::map<int64_t, telemetry::v1::RankStatus> heartbeats;
  heartbeats[1].set_alive_age_seconds(4);
  heartbeats[2].set_alive_age_seconds(60);  // a rank: the driver's to judge
  EXPECT_THAT(core_.HungHosts(heartbeats), IsEmpty());
  heartbeats[1].set_alive_age_seconds(6);
  EXPECT_THAT(core_.HungHosts(heartbeats), ElementsAre(1));
  End(1, Killed(SIGKILL));
  now_ += absl::Seconds(1);
  EXPECT_THAT(Settle(), ElementsAre("start host as 4"));
}

TEST_F(AgentCoreTest, AHostThatKeepsDyingIsGivenUp) {
  Run();
  int64_t host = 1;
  for (int restart = 1; restart <= 5; ++restart) {
    End(host, Exited(3));
    now_ = core_.NextWake();
    ASSERT_THAT(Settle(), ElementsAre(testing::StartsWith("start host")));
    host = 3 + restart;
    EXPECT_FALSE(Job().host().has_failure());
  }
  End(host, Exited(3));
  EXPECT_EQ(core_.NextWake(), absl::InfiniteDuration());
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Job().host().failure().message(), "exited with status 3");
}

TEST_F(AgentCoreTest, ProgressForgivesTheHostItsDeaths) {
  Run();
  int64_t host = 1;
  for (int restart = 1; restart <= 20; ++restart) {
    if (restart % 2 == 0) {
      core_.OnHostProgress(host);
    } else {
      StoreShard(host, 0, restart);
    }
    End(host, Exited(3));
    EXPECT_EQ(core_.NextWake(), now_ + absl::Milliseconds(200));
    now_ = core_.NextWake();
    Settle();
    host = 3 + restart;
  }
  EXPECT_FALSE(Job().host().has_failure());
  EXPECT_EQ(Job().host().num_restarts(), 20);
}

TEST_F(AgentCoreTest, ARefusalOfTheHostIsFinal) {
  Run();
  link::v1::FromHost message;
  message.mutable_failure()->set_failure_class(telemetry::v1::FAILURE_CLASS_REFUSED);
  message.mutable_failure()->set_message("data changed");
  core_.OnHostMessage(1, message);
  End(1, Exited(1));
  EXPECT_EQ(Job().host().failure().message(), "data changed");
  EXPECT_EQ(core_.NextWake(), absl::InfiniteDuration());
}

TEST_F(AgentCoreTest, ARestartedHostIsToldEverythingThatIsNotDone) {
  Run();
  Hold(0, 1, 10);
  Hold(1, 1, 10);
  EXPECT_THAT(Settle(),
              ElementsAre("tell 1 persist rank 0 step 10", "tell 1 persist rank 1 step 10"));
  StoreShard(1, 0, 10);
  EXPECT_THAT(Settle(), ElementsAre("mark rank 0 step 10"));
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  job->add_finalize()->set_step(10);
  EXPECT_THAT(Apply(), ElementsAre("tell 1 finalize 10"));
  End(1, Killed(SIGKILL));
  now_ += absl::Seconds(1);
  EXPECT_THAT(Settle(), ElementsAre("start host as 4", "tell 4 persist rank 1 step 10",
                                    "tell 4 finalize 10"));
}

TEST_F(AgentCoreTest, SnapshotsOfAnOlderAttemptAreReportedButNotWritten) {
  Run();
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  for (const int64_t process : {1, 2, 3}) End(process, Ours());
  Settle();
  Hold(0, 1, 10);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(Job().snapshots(0).attempt(), 1);
}

// --- checkpoints and reports
// ------------------------------------------------------------------------------

TEST_F(AgentCoreTest, ShardsAndManifestsAreReportedUntilCommittedOrSuperseded) {
  Run();
  StoreShard(1, 0, 10);
  StoreShard(1, 1, 20);
  link::v1::FromHost message;
  message.mutable_manifest()->set_attempt(1);
  message.mutable_manifest()->set_step(20);
  core_.OnHostMessage(1, message);
  EXPECT_EQ(Job().shards_size(), 2);
  EXPECT_EQ(Job().manifests_size(), 1);
  v1::CheckpointId* committed = Want(DesiredJob::PHASE_RUN, 1)->add_committed();
  committed->set_attempt(1);
  committed->set_step(20);
  EXPECT_THAT(Apply(), IsEmpty());  // deleting is another agent's duty
  EXPECT_EQ(Job().shards_size(), 0);
  EXPECT_EQ(Job().manifests_size(), 0);
}

TEST_F(AgentCoreTest, TheDeletingHostIsToldEachNewSetOfCommits) {
  Run();
  DesiredJob* job = Want(DesiredJob::PHASE_RUN, 1);
  job->set_delete_checkpoints(true);
  job->add_committed()->set_step(10);
  EXPECT_THAT(Apply(), ElementsAre("tell 1 retain 1"));
  desired_.set_version(++version_);
  EXPECT_THAT(Apply(), IsEmpty());
  job->add_committed()->set_step(20);
  EXPECT_THAT(Apply(), ElementsAre("tell 1 retain 2"));
}

TEST_F(AgentCoreTest, RetentionIsReportedUntilTheNextAttempt) {
  Run();
  EXPECT_FALSE(Job().has_retained());
  link::v1::FromHost message;
  message.mutable_retained()->mutable_newest()->set_attempt(1);
  message.mutable_retained()->mutable_newest()->set_step(20);
  core_.OnHostMessage(1, message);
  EXPECT_EQ(Job().retained().step(), 20);
  End(1, Killed(SIGKILL));  // the deletion was done
  EXPECT_EQ(Job().retained().step(), 20);
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  for (const int64_t process : {2, 3}) End(process, Ours());
  Settle();
  EXPECT_EQ(Job().attempt(), 2);
  EXPECT_FALSE(Job().has_retained());
}

TEST_F(AgentCoreTest, AStorageErrorIsReportedUntilAWriteSucceeds) {
  Run();
  link::v1::FromHost message;
  message.mutable_storage_error()->set_message("disk is full");
  core_.OnHostMessage(1, message);
  EXPECT_EQ(Job().storage_error(), "disk is full");
  StoreShard(1, 0, 10);
  EXPECT_EQ(Job().storage_error(), "");
}

TEST_F(AgentCoreTest, AStepIsReportedOnceUntilItIsAcknowledged) {
  Run();
  for (const int64_t step : {1, 2, 3}) {
    Step(2, step);
    Step(3, step);
  }
  ASSERT_EQ(Job().steps_size(), 3);
  Want(DesiredJob::PHASE_RUN, 1)->set_acked_step(2);
  Apply();
  ASSERT_EQ(Job().steps_size(), 1);
  EXPECT_EQ(Job().steps(0).step(), 3);
  Step(3, 2);  // late
  EXPECT_EQ(Job().steps_size(), 1);
}

TEST_F(AgentCoreTest, HeartbeatsShowInTheReport) {
  Run();
  telemetry::v1::RankStatus status;
  status.set_phase(telemetry::v1::PHASE_TRAINING);
  status.set_step(5);
  status.set_alive_age_seconds(0.25);
  const v1::ActualState state = core_.Report({{2, status}, {1, status}});
  EXPECT_EQ(state.jobs(0).ranks(0).status().step(), 5);
  EXPECT_EQ(state.jobs(0).ranks(0).status().pid(), 1002);
  EXPECT_EQ(state.jobs(0).host().alive_age_seconds(), 0.25);
}

TEST_F(AgentCoreTest, TheReportIntervalIsTheShortestHeartbeat) {
  EXPECT_EQ(core_.report_interval(), absl::Seconds(1));
  Want(DesiredJob::PHASE_RUN, 1)
      ->mutable_spec()
      ->mutable_fault()
      ->mutable_heartbeat_interval()
      ->set_nanos(250'000'000);
  Apply();
  EXPECT_EQ(core_.report_interval(), absl::Milliseconds(250));
}

}  // namespace
}  // namespace megascale::agent
