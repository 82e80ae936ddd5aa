// Processes that fail, are killed or cannot be started.
#include "controlplane/agent/core/agent_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/machine_check_core.h"
#include "controlplane/agent/core/testing/test_agent_core.h"

namespace megascale::agent {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST_F(AgentCoreTest, AKilledRankIsReportedAndNotStartedAgain) {
  Run();
  End(2, {SIGKILL, "", "", "step 5\nstep 6"});
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_FAILED);
  EXPECT_EQ(RankOf(0).failure().failure_class(), telemetry::v1::FAILURE_CLASS_EXITED);
  EXPECT_EQ(RankOf(0).failure().message(),
            "killed by signal 9 (Killed)\nits last lines:\nstep 5\nstep 6");
  EXPECT_EQ(RankOf(1).state(), ActualRank::STATE_RUNNING);
}

// The driver could never read a report with a message that is not valid text.
TEST_F(AgentCoreTest, LastLinesThatAreNoTextAreReportedAsText) {
  Run();
  End(2, {SIGKILL, "", "", "a\xff\n\x1b[2J"});
  EXPECT_EQ(RankOf(0).failure().message(),
            "killed by signal 9 (Killed)\nits last lines:\na\\xff\n\\x1b[2J");
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

// The peer's failure was known first, so HOLD arrived before this rank's end was noticed.
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
  ASSERT_EQ(Describe(core_.Reconcile(now_).at(0)), "prepare j/1");
  core_.OnPrepareFailed("j", absl::ResourceExhaustedError("needs 9 GiB"), now_);
  EXPECT_THAT(Settle(), IsEmpty());
  EXPECT_EQ(RankOf(1).failure().failure_class(), telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
  EXPECT_EQ(RankOf(1).failure().message(), "shared memory of the attempt: needs 9 GiB");
}

TEST_F(AgentCoreTest, AProcessThatCannotBeStartedIsAFailureOfItsRank) {
  Want(DesiredJob::PHASE_RUN, 1);
  core_.OnDesired(desired_, now_);
  core_.Reconcile(now_);
  const std::vector<Action> actions = core_.Reconcile(now_);
  ASSERT_EQ(Describe(actions.at(1)), "start rank 0 as 2");
  core_.OnStarted(2, absl::UnavailableError("no more processes"), now_);
  EXPECT_EQ(RankOf(0).state(), ActualRank::STATE_FAILED);
}

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

TEST_F(AgentCoreTest, NothingWakesItForAHostThatIsNotToBeStarted) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  Apply();
  End(1, Killed(SIGKILL));
  Settle();
  now_ = core_.NextWake();
  EXPECT_THAT(Settle(), ElementsAre("start preflight as 2"));
  link::v1::FromHost passed;
  passed.mutable_preflight()->set_state(v1::Preflight::STATE_PASSED);
  core_.OnHostMessage(2, passed);
  Settle();
  End(2, Exited(0));
  Settle();
  EXPECT_EQ(core_.NextWake(), absl::InfiniteDuration());
}

TEST_F(AgentCoreTest, NothingWakesItForAHostWhileAnOlderAttemptIsReaped) {
  Run();
  End(1, Killed(SIGKILL));
  Settle();
  Want(DesiredJob::PHASE_RUN, 2);
  Apply();
  EXPECT_EQ(core_.NextWake(), absl::InfiniteDuration());
}

TEST_F(AgentCoreTest, AHostThatIsToBeStartedAgainIsNotGone) {
  Run();
  Want(DesiredJob::PHASE_STOP, 1)->set_stop_with_checkpoint(true);
  Apply();
  Finish(2, true);
  Finish(3, true);
  EXPECT_EQ(Job().num_processes(), 1);
  End(1, Killed(SIGKILL));
  Settle();
  EXPECT_EQ(Job().num_processes(), 1) << "its checkpoint is not stored yet";
  Want(DesiredJob::PHASE_HOLD, 1);
  Apply();
  EXPECT_EQ(Job().num_processes(), 0);
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

// --- epochs -----------------------------------------------------------------------------------

TEST_F(AgentCoreTest, ARestoredDriverIsObeyedAlthoughItsVersionsAreLower) {
  version_ = 100;
  Want(DesiredJob::PHASE_RUN, 3);
  desired_.set_epoch(7);
  Apply();
  Step(2, 50);
  Hold(0, 3, 50);
  EXPECT_EQ(Report().epoch(), 7);

  version_ = 4;  // the copy knows attempt 1
  Want(DesiredJob::PHASE_RUN, 1);
  desired_.set_epoch(8);
  desired_.set_proof("proof");
  EXPECT_THAT(Apply(), ElementsAre("kill 1", "kill 2", "kill 3"));
  EXPECT_EQ(Report().epoch(), 8);
  EXPECT_EQ(Report().known_version(), 5);
  EXPECT_EQ(Report().known_proof(), "proof");
  EXPECT_EQ(Report().applied_version(), 0) << "what an older epoch applied proves nothing";
  EXPECT_EQ(Job().num_processes(), 3);
  EXPECT_EQ(Job().attempt(), 0) << "attempts of two epochs have no order";
  EXPECT_EQ(Job().steps_size() + Job().snapshots_size() + Job().ranks_size(), 0);
  for (const int64_t id : {1, 2, 3}) End(id, Ours());
  const std::vector<std::string> actions = Settle();
  EXPECT_THAT(actions, ElementsAre("drop j", "prepare j/1", "start host as 4", "start rank 0 as 5",
                                   "start rank 1 as 6"));
  EXPECT_EQ(Job().attempt(), 1);
  EXPECT_EQ(Job().steps_size(), 0) << "steps of the older epoch";
  EXPECT_EQ(Report().applied_version(), 5);

  version_ = 200;  // the driver before it is late
  Want(DesiredJob::PHASE_RUN, 3);
  desired_.set_epoch(7);
  EXPECT_THAT(Apply(), IsEmpty());
}

TEST_F(AgentCoreTest, AnEpochThatWantsNothingHereEndsEverything) {
  Want(DesiredJob::PHASE_RUN, 1);
  desired_.set_epoch(7);
  Apply();
  desired_.Clear();
  desired_.set_incarnation("i1");
  desired_.set_version(1);
  desired_.set_epoch(8);
  Apply();
  for (const int64_t id : {1, 2, 3}) End(id, Ours());
  EXPECT_THAT(Settle(), ElementsAre("drop j"));
  EXPECT_TRUE(Report().jobs().empty());
  EXPECT_EQ(Report().applied_version(), 1);
}

// --- tests of the machine ---------------------------------------------------------------------

class MachineCheckTest : public AgentCoreTest {
 protected:
  void WantTest(int64_t id) {
    desired_.Clear();
    desired_.set_version(++version_);
    desired_.set_incarnation("i1");
    AddTest(id);
  }
  void AddTest(int64_t id) {
    desired_.mutable_machine_test()->set_id(id);
    desired_.mutable_machine_test()->set_kind(v1::TEST_KIND_QUICK);
  }
  void Tell(int64_t process_id, int64_t id, v1::MachineTest::State state, const std::string& part) {
    v1::MachineTest test;
    test.set_id(id);
    test.set_state(state);
    test.set_part(part);
    core_.OnTestMessage(process_id, test);
  }
  v1::MachineTest Test() const { return Report().machine_test(); }
  // Lets this time pass for an agent that runs. Returns its actions.
  std::vector<std::string> Let(absl::Duration time) {
    std::vector<std::string> actions;
    for (const absl::Duration end = now_ + time; now_ < end;) {
      now_ = std::min(end, core_.NextWake());
      for (std::string& action : Settle()) actions.push_back(std::move(action));
    }
    return actions;
  }
};

TEST_F(MachineCheckTest, AResultIsReportedOnceTheProcessHasEnded) {
  WantTest(7);
  EXPECT_THAT(Apply(), testing::ElementsAre("start test 7 as 1"));
  EXPECT_TRUE(core_.has_processes());
  Tell(1, 7, v1::MachineTest::STATE_PASSED, "");
  EXPECT_EQ(Test().state(), v1::MachineTest::STATE_RUNNING);
  End(1, Exited(0));
  EXPECT_EQ(Test().id(), 7);
  EXPECT_EQ(Test().state(), v1::MachineTest::STATE_PASSED);
  EXPECT_THAT(Apply(), testing::IsEmpty()) << "it is not repeated";
}

TEST_F(MachineCheckTest, ATestWaitsForTheProcessesOfJobs) {
  Run();
  WantTest(8);  // and no job
  EXPECT_THAT(Apply(), testing::ElementsAre("kill 1", "kill 2", "kill 3"));
  for (const int64_t id : {1, 2}) End(id, Ours());
  EXPECT_THAT(Settle(), testing::IsEmpty());
  End(3, Ours());
  EXPECT_THAT(Settle(), testing::UnorderedElementsAre("start test 8 as 4", "drop j"));
}

// A restarted host would run on a machine that may have failed in between.
TEST_F(MachineCheckTest, ATestDoesNotComeBetweenTheEndOfAHostAndItsRestart) {
  Run();
  Want(DesiredJob::PHASE_RUN, 1);
  AddTest(8);
  Apply();
  for (const int64_t process : {2, 3, 1}) End(process, Killed(SIGKILL));
  EXPECT_THAT(Settle(), IsEmpty());
  now_ = core_.NextWake();
  EXPECT_THAT(Settle(), ElementsAre("start host as 4"));
  Want(DesiredJob::PHASE_HOLD, 1);
  AddTest(8);
  Apply();
  End(4, Ours());
  EXPECT_THAT(Settle(), ElementsAre("start test 8 as 5"));
}

TEST_F(MachineCheckTest, ATestThatIsNotWantedAnyMoreEndsBeforeAJobStarts) {
  WantTest(7);
  Apply();
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), testing::ElementsAre("kill 1"));
  End(1, Ours());
  EXPECT_THAT(Settle(), testing::Contains("start host as 2"));
  EXPECT_EQ(Test().id(), 0);
}

TEST_F(MachineCheckTest, ATestThatHangsIsStartedAgainAndFailsWithItsPartTheSecondTime) {
  WantTest(7);
  Apply();
  for (const int64_t process : {1, 2}) {
    Tell(process, 7, v1::MachineTest::STATE_RUNNING, "disk");
    EXPECT_THAT(Let(absl::Minutes(1)), testing::ElementsAre(absl::StrCat("kill ", process)));
    End(process, Ours());
    if (process == 2) break;
    EXPECT_NE(Test().state(), v1::MachineTest::STATE_FAILED);
    now_ = core_.NextWake();
    EXPECT_THAT(Settle(), testing::ElementsAre("start test 7 as 2"));
  }
  EXPECT_EQ(Test().state(), v1::MachineTest::STATE_FAILED);
  EXPECT_EQ(Test().evidence(), "disk: did not end within 1m, 2 times in a row");
}

TEST_F(MachineCheckTest, TimeInWhichTheAgentDidNotRunIsNotTheTests) {
  WantTest(7);
  Apply();
  Tell(1, 7, v1::MachineTest::STATE_RUNNING, "memory");
  now_ += absl::Hours(1);  // all processes here were stopped
  EXPECT_THAT(Settle(), testing::IsEmpty());
  EXPECT_EQ(core_.NextWake(), now_ + absl::Seconds(1));
  EXPECT_THAT(Let(absl::Minutes(1)), testing::ElementsAre("kill 1"));
}

TEST_F(MachineCheckTest, ADirectoryOfAJobThatHangsIsNoFaultOfTheMachine) {
  WantTest(7);
  Apply();
  v1::MachineTest test;
  test.set_id(7);
  test.set_state(v1::MachineTest::STATE_RUNNING);
  test.set_part("checkpoints in /mnt/c");  // words for people decide nothing
  test.set_uses_job_directory(true);
  core_.OnTestMessage(1, test);
  Let(absl::Minutes(1));
  End(1, Ours());
  EXPECT_EQ(Test().state(), v1::MachineTest::STATE_PASSED);
  EXPECT_EQ(Test().results(0).note(), "gave no answer in time");
}

TEST_F(MachineCheckTest, ATestThatCrashesFails) {
  int64_t id = 0;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
    WantTest(++id);
    Apply();
    Tell(id, id, v1::MachineTest::STATE_RUNNING, "memory");
    End(id, Killed(signal));
    EXPECT_EQ(Test().state(), v1::MachineTest::STATE_FAILED) << signal;
    EXPECT_THAT(Test().evidence(), testing::StartsWith("memory: its process killed by signal "));
  }
}

TEST_F(MachineCheckTest,
       ATestThatEndsForReasonsOutsideTheMachineIsTriedAgainAndThenPassesWithANote) {
  WantTest(7);
  Apply();
  int64_t process = 1;
  absl::Duration pause = absl::Seconds(1);
  const std::vector<ProcessEnd> ends = {Killed(SIGKILL), Killed(SIGTERM), Exited(1),
                                        Killed(SIGABRT)};
  for (const ProcessEnd& end : ends) {
    Tell(process, 7, v1::MachineTest::STATE_RUNNING, "memory");
    End(process, end);
    EXPECT_THAT(Settle(), testing::IsEmpty()) << "not at once";
    EXPECT_EQ(core_.NextWake(), now_ + pause);
    now_ += pause;
    pause *= 2;
    EXPECT_THAT(Settle(), testing::ElementsAre(absl::StrCat("start test 7 as ", ++process)));
  }
  Tell(process, 7, v1::MachineTest::STATE_RUNNING, "memory");
  End(process, Killed(SIGXFSZ));
  EXPECT_EQ(Test().state(), v1::MachineTest::STATE_PASSED);
  ASSERT_EQ(Test().results_size(), 1);
  EXPECT_EQ(Test().results(0).part(), "memory");
  EXPECT_THAT(Test().results(0).note(),
              testing::StartsWith("not tested: its process killed by signal 25"));
}

TEST_F(MachineCheckTest, AFaultThatAPartFoundCountsHoweverTheProcessEnds) {
  WantTest(7);
  Apply();
  v1::MachineTest test;
  test.set_id(7);
  test.set_state(v1::MachineTest::STATE_RUNNING);
  test.set_part("disk");
  test.set_evidence("memory: 1 byte of 64 MiB read back wrong");
  core_.OnTestMessage(1, test);
  End(1, Killed(SIGTERM));
  EXPECT_EQ(Test().state(), v1::MachineTest::STATE_FAILED);
  EXPECT_EQ(Test().evidence(), "memory: 1 byte of 64 MiB read back wrong");
}

TEST_F(MachineCheckTest, ATestThatIsNotWantedAndCannotBeEndedIsReportedAsHanging) {
  WantTest(7);
  Apply();
  Want(DesiredJob::PHASE_RUN, 1);
  EXPECT_THAT(Apply(), testing::ElementsAre("kill 1"));
  EXPECT_FALSE(Report().test_hangs()) << "it takes a moment";
  EXPECT_THAT(Let(absl::Seconds(10)), testing::IsEmpty());
  EXPECT_TRUE(Report().test_hangs());
  End(1, Ours());
  EXPECT_FALSE(Report().test_hangs());
}

// --- exchanges with other machines --------------------------------------------------------------

class ExchangeTest : public MachineCheckTest {
 protected:
  void WantExchange(int64_t id) {
    WantTest(id);
    desired_.mutable_machine_test()->mutable_exchange()->set_group("group");
  }
};

TEST_F(ExchangeTest, AnExchangeIsATestThatIsStartedOnlyOnce) {
  WantExchange(8);
  EXPECT_THAT(Apply(), ElementsAre("start test 8 as 1"));
  Tell(1, 8, v1::MachineTest::STATE_RUNNING, "exchange with n1");
  End(1, Killed(SIGTERM));
  EXPECT_THAT(Let(absl::Seconds(60)), IsEmpty());
  EXPECT_EQ(Test().state(), v1::MachineTest::STATE_PASSED);
  ASSERT_EQ(Test().results_size(), 1);
  EXPECT_THAT(Test().results(0).note(), HasSubstr("not tested: its process "));
}

TEST_F(ExchangeTest, TheOtherMachineIsNotLeftToWaitForTheEndOfProcessesHere) {
  Run();
  WantExchange(8);  // the job has ended, and a process hangs
  Apply();
  EXPECT_EQ(Test().id(), 0);
  Let(MachineCheckCore::kExchangeWait);
  EXPECT_EQ(Test().id(), 8);
  EXPECT_EQ(Test().state(), v1::MachineTest::STATE_PASSED);
  EXPECT_THAT(Test().results(0).note(), HasSubstr("processes of a job have not ended"));
  for (const int process : {1, 2, 3}) End(process, Ours());
  EXPECT_THAT(Settle(), ElementsAre("drop j")) << "it is too late";
}

// The list of thousands of files would be in each report.
TEST_F(AgentCoreTest, TheDigestOfTheDataIsReportedAndTheListToADriverOfAnOlderVersion) {
  Want(DesiredJob::PHASE_PREFLIGHT, 1);
  Apply();
  link::v1::FromHost answer;
  answer.mutable_preflight()->set_state(v1::Preflight::STATE_PASSED);
  for (const char* sha256 : {"a", "b"}) {
    answer.mutable_preflight()->mutable_data()->add_file_sha256(sha256);
  }
  core_.OnHostMessage(1, answer);
  EXPECT_EQ(Job().preflight().data().SerializeAsString(),
            answer.preflight().data().SerializeAsString());
  desired_.set_data_digests(true);
  Apply();
  EXPECT_EQ(Job().preflight().data().file_sha256_size(), 0);
  EXPECT_EQ(Job().preflight().data().num_files(), 2);
  EXPECT_NE(Job().preflight().data().files_sha256(), "");
  v1::FetchDataFiles fetch;
  fetch.set_job_id("j");
  EXPECT_THAT(core_.DataFilesOf(fetch).file_sha256(), testing::ElementsAre("a", "b"));
  fetch.set_job_id("another");
  EXPECT_EQ(core_.DataFilesOf(fetch).code(), static_cast<int>(absl::StatusCode::kNotFound));
}

TEST_F(AgentCoreTest, AReportThatIsTooLargeToBeSentSaysSo) {
  Want(DesiredJob::PHASE_RUN, 1);
  Apply();
  const v1::ActualState whole = core_.Report({});
  const v1::ActualState report = core_.Report({}, whole.ByteSizeLong() - 1);
  EXPECT_EQ(report.too_large_bytes(), static_cast<int64_t>(whole.ByteSizeLong()));
  EXPECT_EQ(report.jobs_size(), 0);
  EXPECT_EQ(report.incarnation(), whole.incarnation());
  EXPECT_EQ(report.known_version(), whole.known_version());
  EXPECT_EQ(core_.Report({}, whole.ByteSizeLong()).too_large_bytes(), 0);
}

// The job is about to end, and nothing of it runs any more.
TEST_F(AgentCoreTest, OnOrderAHostDeletesCheckpointsAndDoesNothingElse) {
  Run();
  Hold(0, 1, 20);
  End(1, Exited(1));  // the job's host failed before
  Want(DesiredJob::PHASE_HOLD, 1);
  Apply();
  for (const int64_t process : {2, 3}) End(process, Ours());
  Settle();
  DesiredJob* job = Want(DesiredJob::PHASE_RETAIN, 1);
  job->add_committed()->set_step(10);
  EXPECT_THAT(Apply(), IsEmpty()) << "another agent deletes";
  job->set_delete_checkpoints(true);
  desired_.set_version(++version_);
  EXPECT_THAT(Apply(), ElementsAre("start host as 4", "tell 4 retain 1"));
  link::v1::FromHost message;
  *message.mutable_retained()->mutable_newest() = job->committed(0);
  core_.OnHostMessage(4, message);
  EXPECT_EQ(Job().retained().step(), 10);
  EXPECT_EQ(Job().num_processes(), 1);
  desired_.clear_jobs();
  desired_.set_version(++version_);
  EXPECT_THAT(Apply(), ElementsAre("kill 4"));
}

TEST_F(AgentCoreTest, WhatIsKnownOfEpochsIsThatOfTheNewestDesiredState) {
  EXPECT_EQ(core_.known().epoch(), 0);
  Want(DesiredJob::PHASE_RUN, 1);
  desired_.set_epoch(7);
  desired_.set_proof("proof");
  Apply();
  desired_.set_epoch(6);  // of another driver: ignored
  Apply();
  EXPECT_EQ(core_.known().epoch(), 7);
  EXPECT_EQ(core_.known().version(), core_.Report({}).known_version());
  EXPECT_EQ(core_.known().proof(), "proof");
}

}  // namespace
}  // namespace megascale::agent
