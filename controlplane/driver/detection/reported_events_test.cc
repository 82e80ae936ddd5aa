#include "controlplane/driver/detection/reported_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "controlplane/driver/detection/new_nodes.h"
#include "controlplane/driver/detection/testing/test_agents.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using ReportedEventsTest = AgentMonitorTest;

TEST_F(ReportedEventsTest, RepeatedReportsGiveEachVerdictOnce) {
  Train();
  EXPECT_THAT(Pass(absl::Seconds(3)), SizeIs(0));
  EXPECT_THAT(Hello("n0", "a"), SizeIs(0));
}

// Causes are ordered by when agents noticed them, however late they report them.
TEST_F(ReportedEventsTest, AFailureIsDatedByTheAgeThatItsAgentGivesIt) {
  Train();
  const absl::Duration now = now_;
  agent::ActualRank* rank = JobOn("n0")->mutable_ranks(0);
  rank->set_state(agent::ActualRank::STATE_FAILED);
  rank->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
  rank->mutable_failure()->set_age_seconds(2.5);
  const std::vector<Event> events = Report("n0", reports_["n0"]);
  ASSERT_TRUE(!events.empty() && events.back().has_rank_failed());
  const auto& noticed = events.back().rank_failed().noticed_at();
  EXPECT_EQ(absl::Seconds(noticed.seconds()) + absl::Nanoseconds(noticed.nanos()),
            now - absl::Milliseconds(2500));
}

// What an agent says of a failure stays in the log, in snapshots and in answers.
TEST_F(ReportedEventsTest, AFailureIsCutAndMadePrintableBeforeItIsLogged) {
  Train();
  agent::ActualRank* rank = JobOn("n0")->mutable_ranks(0);
  rank->set_state(agent::ActualRank::STATE_FAILED);
  rank->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
  rank->mutable_failure()->set_message("killed\nlast \x1b[2Jline\n" + std::string(1 << 20, 'x'));
  rank->mutable_failure()->set_age_seconds(std::nan(""));
  rank->mutable_failure()
      ->GetReflection()
      ->MutableUnknownFields(rank->mutable_failure())
      ->AddLengthDelimited(1000, std::string(1 << 20, 'x'));
  const std::vector<Event> events = Report("n0", reports_["n0"]);
  ASSERT_TRUE(!events.empty() && events.back().has_rank_failed());
  const std::string& message = events.back().rank_failed().failure().message();
  EXPECT_TRUE(absl::StartsWith(message, "killed\nlast \\x1b[2Jline\nxxx")) << message.substr(0, 99);
  EXPECT_LE(events.back().ByteSizeLong(), size_t{9} << 10);
}

TEST_F(ReportedEventsTest, APreflightIsCutAndMadePrintableBeforeItIsLogged) {
  agent::Preflight* preflight = JobOn("n0")->mutable_preflight();
  preflight->set_state(agent::Preflight::STATE_PASSED);
  for (int i = 0; i < 1000; ++i) preflight->add_warnings("\x1b" + std::string(10'000, 'x'));
  std::vector<Event> events = Report("n0", reports_["n0"]);
  ASSERT_TRUE(!events.empty() && events[0].has_preflight_passed());
  EXPECT_EQ(events[0].preflight_passed().preflight().warnings_size(), 16);
  EXPECT_TRUE(absl::StartsWith(events[0].preflight_passed().preflight().warnings(0), "\\x1bxxx"));
  EXPECT_LE(events[0].ByteSizeLong(), size_t{20} << 10);
  preflight = JobOn("n1")->mutable_preflight();
  preflight->set_state(agent::Preflight::STATE_REFUSED);
  preflight->set_message("/data\nis empty" + std::string(1 << 20, 'x'));
  events = Report("n1", reports_["n1"]);
  ASSERT_TRUE(!events.empty() && events[0].has_preflight_refused());
  EXPECT_TRUE(absl::StartsWith(events[0].preflight_refused().message(), "/data\\nis empty"));
  EXPECT_LE(events[0].ByteSizeLong(), size_t{2} << 10);
}

// n2 to n4 have no storage, and the job never ran there.
TEST_F(ReportedEventsTest, EveryNewMachineWhoseStorageIsAwayIsLeftIfThereIsRoomElsewhere) {
  Event started;
  started.mutable_driver_started()->set_rules(kRules);
  Apply(started, &state_);
  Train();
  for (const char* node_id : {"n2", "n3", "n4", "n5"}) Hello(node_id, "a");
  reports_.clear();
  Apply(Lost("n1", "a"), &state_);
  const auto fence = [&] {
    for (const std::string& node_id : NodesOf(job())) {
      Apply(Fenced(job().attempt(), node_id, {}), &state_);
    }
    Event elapsed;
    elapsed.mutable_backoff_elapsed()->set_job_id("j");
    elapsed.mutable_backoff_elapsed()->set_attempt(job().attempt());
    Apply(elapsed, &state_);
  };
  fence();
  for (const std::string bad : {"n2", "n3", "n4"}) {
    ASSERT_EQ(job().stage(), pb::STAGE_PREFLIGHT);
    ASSERT_EQ(NodesOf(job()), (std::vector<std::string>{"n0", bad}));
    JobOn(bad)->set_storage_error("/data is away");
    Report(bad, reports_[bad]);
    const std::vector<Event> events = Tick();
    ASSERT_TRUE(!events.empty() && events[0].preflight_refused().storage_away()) << bad;
    EXPECT_EQ(events[0].preflight_refused().node_id(), bad);
    fence();
  }
  EXPECT_EQ(NodesOf(job()), (std::vector<std::string>{"n0", "n5"})) << job().message();
}

TEST(NewNodesTest, ACertificateMakesABoundedNumberAnHour) {
  NewNodes nodes(2);
  absl::Duration now = absl::Hours(100);
  EXPECT_TRUE(nodes.Admit("a", now).ok());
  EXPECT_TRUE(nodes.Admit("a", now += absl::Minutes(30)).ok());
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(nodes.Admit("a", now),
              absl::ResourceExhaustedError(
                  "agents with the certificate 'a' have joined under 2 new node ids within an "
                  "hour, which is the driver's --new-nodes-per-hour; start agents with the ids "
                  "that they had before, or raise the limit"));
  }
  EXPECT_TRUE(nodes.Admit("b", now).ok()) << "another certificate is not to blame";
  EXPECT_TRUE(nodes.Admit("a", now + absl::Minutes(30)).ok());
  EXPECT_FALSE(nodes.Admit("a", now + absl::Minutes(30)).ok());
}

// A fleet that shares one certificate starts at once.
TEST(NewNodesTest, TheDefaultLetsAFleetOfOneCertificateStart) {
  NewNodes nodes(NewNodes::kPerHour);
  for (int i = 0; i < 1536; ++i) EXPECT_TRUE(nodes.Admit("fleet", absl::Hours(1)).ok());
}

// A repeated report is as old as it says, and so is what it tells.
TEST_F(ReportedEventsTest, AFailureInARepeatedReportIsDatedByTheAgeOfTheReportToo) {
  Train();
  const absl::Duration now = now_;
  RankOf(0)->set_state(agent::ActualRank::STATE_FAILED);
  RankOf(0)->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
  RankOf(0)->mutable_failure()->set_age_seconds(2.5);
  reports_["n0"].set_age_seconds(20);
  const std::vector<Event> events = Report("n0", reports_["n0"]);
  ASSERT_TRUE(!events.empty() && events.back().has_rank_failed());
  const auto& noticed = events.back().rank_failed().noticed_at();
  EXPECT_EQ(absl::Seconds(noticed.seconds()) + absl::Nanoseconds(noticed.nanos()),
            now - absl::Milliseconds(22'500));
}

// Its machine is not lost, its ranks are not judged by old reports, and people learn of it.
TEST_F(ReportedEventsTest, AReportThatIsTooLargeShowsThatItsAgentLives) {
  Train();
  const agent::ActualState whole = reports_["n0"];
  agent::ActualState too_large;
  too_large.set_incarnation(whole.incarnation());
  too_large.set_too_large_bytes(70 << 20);
  reports_["n0"] = too_large;
  EXPECT_THAT(Pass(absl::Minutes(3)), IsEmpty());
  EXPECT_TRUE(FindNode(state_, "n0")->alive());
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  const auto report = monitor_.reports().ReportOf("n0");
  ASSERT_EQ(report->jobs_size(), 1);
  EXPECT_THAT(report->jobs(0).warnings(),
              testing::ElementsAre("the report of node n0 is too large to be sent (73400320 "
                                   "bytes): what runs there now is not known"));
  reports_["n0"] = whole;
  EXPECT_THAT(Pass(absl::Seconds(3)), IsEmpty());
  EXPECT_THAT(monitor_.reports().ReportOf("n0")->jobs(0).warnings(), IsEmpty());
}

// The list of thousands of files has a megabyte.
class DataFilesTest : public AgentMonitorTest {
 protected:
  // Returns how many lists of files the preflights of both agents add to the log.
  int NumListsLogged(bool are_old) {
    int num_lists = 0;
    for (const char* node : {"n0", "n1"}) {
      agent::Hello hello = HelloOf(node, "a", 2);
      hello.set_data_digests(!are_old);
      Take(monitor_.OnHello(state_, hello, now_));
      agent::Preflight* preflight = JobOn(node)->mutable_preflight();
      preflight->set_state(agent::Preflight::STATE_PASSED);
      for (const char* sha256 : {"a", "b"}) preflight->mutable_data()->add_file_sha256(sha256);
    }
    for (const Event& event : Pass(absl::Seconds(1))) {
      if (!event.has_preflight_passed()) continue;
      const auto& data = event.preflight_passed().preflight().data();
      num_lists += data.file_sha256().empty() ? 0 : 1;
      EXPECT_TRUE(data.num_files() == 2 || data.file_sha256_size() == 2);
    }
    EXPECT_EQ(job().stage(), pb::STAGE_RUN) << "both have the same data";
    return num_lists;
  }
};

TEST_F(DataFilesTest, ADigestIsLoggedInPlaceOfTheList) { EXPECT_EQ(NumListsLogged(false), 0); }

TEST_F(DataFilesTest, OlderAgentsNeedTheListAndOneIsLogged) { EXPECT_EQ(NumListsLogged(true), 1); }

TEST_F(ReportedEventsTest, ReportOfAnotherIncarnationIsIgnored) {
  Train();
  agent::ActualState old = reports_["n0"];
  old.set_incarnation("before");
  old.mutable_jobs(0)->mutable_ranks(0)->set_state(agent::ActualRank::STATE_FAILED);
  EXPECT_THAT(Report("n0", old), SizeIs(0));
}

TEST_F(ReportedEventsTest, ProgressIsToldOnceAndAgainBeforeAFailure) {
  Train();
  monitor_.NoteStep("j", 3);
  std::vector<Event> events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].attempt_progressed().step(), 3);
  monitor_.NoteStep("j", 8);
  EXPECT_THAT(Pass(absl::Seconds(1)), SizeIs(0));
  RankOf(0)->set_state(agent::ActualRank::STATE_FAILED);
  events = Pass(absl::Milliseconds(500));
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].attempt_progressed().step(), 8);
  EXPECT_EQ(events[1].rank_failed().rank(), 0);
  EXPECT_EQ(job().best_step(), 8);
}

TEST_F(ReportedEventsTest, ShardsOfAllRanksAreFinalizedAndTheManifestIsTakenOver) {
  Train();
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(Pass(absl::Milliseconds(500)), SizeIs(0));
    auto* shard = JobOn(NodeOfRank(job(), rank))->add_shards();
    shard->set_rank(rank);
    shard->set_attempt(1);
    shard->set_step(10);
  }
  std::vector<Event> events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].shards_stored().step(), 10);
  auto* manifest = JobOn("n0")->add_manifests();
  manifest->set_attempt(1);
  manifest->set_step(10);
  manifest->set_directory(CheckpointDirectory(job()) + "/step-00000010-attempt-1");
  events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_TRUE(events[0].has_manifest_written());
  ASSERT_EQ(job().committed_size(), 1);
  EXPECT_EQ(job().finalize_size(), 0);
}

TEST_F(ReportedEventsTest, ManifestThatIsOlderThanACommitIsNotTakenOver) {
  Train();
  Take({Stored(1, 20), Stored(1, 10), Manifest(1, 20)});
  ASSERT_EQ(job().committed_size(), 1);
  auto* manifest = JobOn("n0")->add_manifests();
  manifest->set_attempt(1);
  manifest->set_step(10);
  EXPECT_THAT(Pass(absl::Seconds(1)), SizeIs(0)) << "the host may have deleted it";
  EXPECT_THAT(DesiredFor(state_, "n0").jobs(0).finalize(), SizeIs(0));
}

TEST_F(ReportedEventsTest, RetentionIsToldOnceAllRanksEndedAndForTheLastCheckpointOnly) {
  Train();
  Take({Manifest(1, 30)});
  JobOn("n1")->mutable_retained()->set_attempt(1);  // not the one that deletes
  JobOn("n1")->mutable_retained()->set_step(30);
  JobOn("n0")->mutable_retained()->set_attempt(1);
  JobOn("n0")->mutable_retained()->set_step(20);
  for (int rank = 0; rank < 4; ++rank) Take({Ended(1, rank, false, 30)});
  EXPECT_THAT(Pass(absl::Seconds(1)), SizeIs(0));
  JobOn("n0")->mutable_retained()->set_step(30);
  const std::vector<Event> events = Pass(absl::Seconds(1));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].retention_ended().step(), 30);
  EXPECT_FALSE(events[0].retention_ended().timed_out());
  EXPECT_EQ(job().state(), control::JOB_STATE_SUCCEEDED);
}

TEST_F(ReportedEventsTest, NodeIsFencedOnlyByAReportThatKnowsOfIt) {
  Train();
  RankOf(0)->set_state(agent::ActualRank::STATE_FAILED);
  Pass(absl::Milliseconds(500));
  ASSERT_EQ(job().stage(), pb::STAGE_FENCE);
  // No process is left, but the agent does not know yet that it must not start one.
  reports_["n0"].mutable_jobs(0)->set_num_processes(0);
  EXPECT_THAT(Report("n0", reports_["n0"]), SizeIs(0));
  JobOn("n0")->set_num_processes(1);
  EXPECT_THAT(Report("n0", reports_["n0"]), SizeIs(0));
  JobOn("n0")->set_num_processes(0);
  auto* snapshot = JobOn("n0")->add_snapshots();
  snapshot->set_rank(0);
  snapshot->set_step(12);
  const std::vector<Event> events = Report("n0", reports_["n0"]);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].node_fenced().snapshots_size(), 1);
  // A job that an agent does not know has no process there.
  reports_["n1"].clear_jobs();
  reports_["n1"].set_applied_version(VersionOfEvent(state_.num_events()));
  EXPECT_THAT(Report("n1", reports_["n1"]), SizeIs(1));
  EXPECT_NE(job().stage(), pb::STAGE_FENCE);
}

TEST_F(ReportedEventsTest, ADeathIsToldBeforeTheFenceThatCameWithIt) {
  Train();
  RankOf(0)->set_state(agent::ActualRank::STATE_FAILED);
  RankOf(0)->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_ABORTED);
  Pass(absl::Milliseconds(500));
  ASSERT_EQ(job().stage(), pb::STAGE_FENCE);
  JobOn("n1")->set_num_processes(0);
  RankOf(2)->set_state(agent::ActualRank::STATE_FAILED);
  RankOf(2)->mutable_failure()->set_failure_class(telemetry::FAILURE_CLASS_EXITED);
  const std::vector<Event> events = Report("n1", reports_["n1"]);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].rank_failed().rank(), 2);
  EXPECT_TRUE(events[1].has_node_fenced());
  EXPECT_EQ(job().culprit().rank(), 2);
}

TEST_F(ReportedEventsTest, EndedRanksAndFailedHostAreTold) {
  Train();
  RankOf(0)->set_state(agent::ActualRank::STATE_FINISHED);
  RankOf(0)->mutable_status()->set_step(30);
  std::vector<Event> events = Pass(absl::Milliseconds(500));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_ended().step(), 30);
  JobOn("n1")->mutable_host()->mutable_failure()->set_failure_class(
      telemetry::FAILURE_CLASS_EXITED);
  events = Pass(absl::Milliseconds(500));
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].rank_failed().rank(), -1);
  EXPECT_EQ(job().reason(), "HostFailed");
}

// It stays in the log, in snapshots and in answers.
TEST_F(ReportedEventsTest, OfAMachinesTestOnlyCheckedFieldsOfBoundedSizeAreTaken) {
  agent::MachineTest* due = FindNode(&state_, "n0")->mutable_test()->mutable_test();
  due->set_id(7);
  due->set_kind(agent::TEST_KIND_QUICK);
  due->set_state(agent::MachineTest::STATE_RUNNING);
  JobOn("n0");
  agent::MachineTest* test = reports_["n0"].mutable_machine_test();
  test->set_id(7);
  test->set_kind(agent::TEST_KIND_FULL);
  test->set_part(std::string(10'000, 'p'));
  test->set_evidence(std::string(10'000, 'e') + "\n");
  for (int i = 0; i < 1000; ++i) test->add_results()->set_note(std::string(10'000, 'n'));
  for (const int invented : {0, 1, 4, 99}) {
    test->set_state(static_cast<agent::MachineTest::State>(invented));
    EXPECT_THAT(Report("n0", reports_["n0"]), SizeIs(0)) << invented;
  }
  test->set_state(agent::MachineTest::STATE_FAILED);
  const std::vector<Event> events = Report("n0", reports_["n0"]);
  ASSERT_THAT(events, SizeIs(1));
  const agent::MachineTest& taken = events[0].machine_tested().test();
  EXPECT_EQ(taken.state(), agent::MachineTest::STATE_FAILED);
  EXPECT_EQ(taken.id(), 7);
  EXPECT_EQ(taken.kind(), agent::TEST_KIND_QUICK);
  EXPECT_EQ(taken.part(), "");
  EXPECT_LE(taken.evidence().size(), 303u) << "and an ellipsis";
  ASSERT_EQ(taken.results_size(), 16);
  EXPECT_LE(taken.results(0).note().size(), 303u);
}

TEST_F(ReportedEventsTest, TheEndOfAnExchangeIsToldOnceByEachMember) {
  pb::Exchange* exchange = state_.add_exchanges();
  exchange->set_id(9);
  exchange->set_kind(agent::TEST_KIND_QUICK);
  for (const char* node_id : {"n0", "n1"}) {
    JobOn(node_id);
    FindNode(&state_, node_id)->mutable_exchanges()->set_with(node_id[1] == '0' ? "n1" : "n0");
    exchange->add_members()->set_node_id(node_id);
  }
  agent::MachineTest* test = reports_["n0"].mutable_machine_test();
  test->set_id(8);
  test->set_state(agent::MachineTest::STATE_PASSED);
  test->add_results()->set_latency_seconds(0.5);
  EXPECT_THAT(Report("n0", reports_["n0"]), SizeIs(0)) << "of another test";
  test->set_id(9);
  exchange->mutable_members(0)->set_incarnation(FindNode(state_, "n0")->hello().incarnation());
  exchange->mutable_members(1)->set_incarnation(FindNode(state_, "n1")->hello().incarnation());
  const std::vector<Event> events = Report("n0", reports_["n0"]);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].exchange_tested().node_id(), "n0");
  EXPECT_EQ(events[0].exchange_tested().test().results(0).latency_seconds(), 0.5);
  EXPECT_THAT(Report("n0", reports_["n0"]), SizeIs(0));
}

// One member had given up before the other was told to begin.
TEST_F(ReportedEventsTest, AMissingPeerIsNotBlamedIfTheDriverStoodStill) {
  for (const int stall_seconds : {1, 8}) {
    state_.clear_exchanges();
    pb::Exchange* exchange = state_.add_exchanges();
    exchange->set_id(9 + stall_seconds);
    exchange->set_kind(agent::TEST_KIND_QUICK);
    JobOn("n0");
    FindNode(&state_, "n0")->mutable_exchanges()->set_with("n1");
    exchange->add_members()->set_node_id("n0");
    exchange->mutable_members(0)->set_incarnation(FindNode(state_, "n0")->hello().incarnation());
    exchange->add_members()->set_node_id("n1");
    agent::MachineTest* test = reports_["n0"].mutable_machine_test();
    *test = agent::MachineTest();
    test->set_id(9 + stall_seconds);
    test->set_state(agent::MachineTest::STATE_FAILED);
    test->add_results()->set_failure("n1 does not connect: no peer within 10s");
    test->mutable_results(0)->set_peer_missing(true);
    test->add_results()->set_failure("block 1 from n1: 1 byte is wrong");
    Tick();
    now_ += absl::Seconds(stall_seconds);
    const std::vector<Event> events = Report("n0", reports_["n0"]);
    ASSERT_THAT(events, SizeIs(1));
    const auto& results = events[0].exchange_tested().test().results();
    EXPECT_EQ(results[0].failure().empty(), stall_seconds > 5);
    EXPECT_EQ(results[0].note().empty(), stall_seconds < 5);
    EXPECT_FALSE(results[1].failure().empty()) << "wrong bytes are the link's in any case";
  }
}

TEST_F(ReportedEventsTest, AMachineWithoutProcessesOfAnOlderEpochFencesAllItsJobsByOneEvent) {
  state_.set_rules(kRules);
  state_.set_epoch(5);
  Apply(Submitted("k", SpecOf(1, 1, 30)), &state_);
  for (JobRecord& job : *state_.mutable_jobs()) {
    job.set_stage(pb::STAGE_FENCE);
    job.set_stage_event(state_.num_events());
    job.mutable_leave()->set_reason(kDriverRestored);
    job.clear_fenced();
  }
  JobOn("n0")->set_num_processes(1);
  reports_["n0"].set_epoch(5);
  const std::vector<Event> alone = Report("n0", reports_["n0"]);
  ASSERT_THAT(alone, SizeIs(1)) << "a process of j is left";
  EXPECT_EQ(alone[0].node_fenced().job_id(), "k");
  JobOn("n1");
  reports_["n1"].set_epoch(5);
  const std::vector<Event> all = Report("n1", reports_["n1"]);
  ASSERT_THAT(all, SizeIs(1));
  EXPECT_EQ(all[0].epoch_fenced().node_id(), "n1");
  EXPECT_THAT(Report("n1", reports_["n1"]), SizeIs(0));
}

TEST_F(ReportedEventsTest, ATestThatHangsIsToldOnceAndItsEndToo) {
  JobOn("n0");
  reports_["n0"].set_test_hangs(true);
  ASSERT_THAT(Report("n0", reports_["n0"]), SizeIs(1));
  EXPECT_TRUE(FindNode(state_, "n0")->busy());
  EXPECT_THAT(Report("n0", reports_["n0"]), SizeIs(0));
  reports_["n0"].set_test_hangs(false);
  EXPECT_THAT(Report("n0", reports_["n0"]), SizeIs(1));
  EXPECT_FALSE(FindNode(state_, "n0")->busy());
}

TEST_F(ReportedEventsTest, WhatOnlyANewerAgentKnowsBeginsAndEndsNothing) {
  for (const char* node : {"n0", "n1"}) {
    JobOn(node)->mutable_preflight()->set_state(static_cast<agent::Preflight::State>(77));
  }
  EXPECT_THAT(Pass(absl::Seconds(1)), IsEmpty());
  for (const char* node : {"n0", "n1"}) {
    JobOn(node)->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
  }
  Pass(absl::Seconds(1));
  ASSERT_EQ(job().stage(), pb::STAGE_RUN);
  for (int rank = 0; rank < 4; ++rank) {
    RankOf(rank)->mutable_status()->set_phase(static_cast<telemetry::Phase>(77));
  }
  EXPECT_THAT(Pass(absl::Seconds(1)), IsEmpty()) << "the phase is neither loading nor training";
  EXPECT_EQ(job().state(), control::JOB_STATE_STARTING);
  for (int rank = 0; rank < 4; ++rank) {
    RankOf(rank)->mutable_status()->set_phase(telemetry::PHASE_TRAINING);
  }
  Pass(absl::Seconds(1));
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  RankOf(1)->set_state(static_cast<agent::ActualRank::State>(77));
  EXPECT_THAT(Pass(absl::Seconds(1)), IsEmpty());
  RankOf(1)->set_state(agent::ActualRank::STATE_FAILED);
  RankOf(1)->mutable_failure()->set_failure_class(static_cast<telemetry::FailureClass>(77));
  EXPECT_THAT(Pass(absl::Seconds(1)), Not(IsEmpty()));
  EXPECT_EQ(job().reason(), "Failed");
  EXPECT_EQ(job().state(), control::JOB_STATE_RECOVERING) << "as a rank that exited";
}

// --- the cost of a report -----------------------------------------------------------------------

// Job "j" has two ranks on each of many nodes, which have all passed its preflight.
class LargeJobTest : public AgentMonitorTest {
 protected:
  static constexpr int kNodes = 50;

  void SetUp() override {
    Apply(Submitted("j", SpecOf(2 * kNodes, 1, 30)), &state_);
    for (int i = 0; i < kNodes; ++i) Hello(NodeId(i), "a");
    for (int i = 0; i < kNodes; ++i) {
      JobOn(NodeId(i))->mutable_preflight()->set_state(agent::Preflight::STATE_PASSED);
      Report(NodeId(i), reports_[NodeId(i)]);
    }
    ASSERT_EQ(job().stage(), pb::STAGE_RUN);
  }
  static std::string NodeId(int i) { return absl::StrFormat("n%02d", i); }
  std::vector<Event> ReachOn(int i, telemetry::Phase phase) {
    for (const int rank : {2 * i, 2 * i + 1}) RankOf(rank)->mutable_status()->set_phase(phase);
    return Report(NodeId(i), reports_[NodeId(i)]);
  }
  std::vector<Event> Store(int rank, int64_t step) {
    auto* shard = JobOn(NodeId(rank / 2))->add_shards();
    shard->set_rank(rank);
    shard->set_attempt(1);
    shard->set_step(step);
    return Report(NodeId(rank / 2), reports_[NodeId(rank / 2)]);
  }
  // Returns how often reports were looked at since the last call.
  int64_t Looks() {
    const int64_t before = std::exchange(num_looks_, monitor_.reports().num_looks());
    return num_looks_ - before;
  }

  int64_t num_looks_ = 0;
};

TEST_F(LargeJobTest, APhaseThatRanksReachOneAfterTheOtherCostsFewLooksAReport) {
  Looks();
  for (int i = 0; i < kNodes; ++i) {
    EXPECT_THAT(ReachOn(i, telemetry::PHASE_LOADING), SizeIs(i + 1 < kNodes ? 0 : 1));
  }
  EXPECT_EQ(job().time_book().phase(), pb::TimeBook::PHASE_LOAD);
  EXPECT_LE(Looks(), 4 * kNodes);
  for (int i = kNodes - 1; i >= 0; --i) {
    EXPECT_THAT(ReachOn(i, telemetry::PHASE_FIRST_STEP), SizeIs(i > 0 ? 0 : 1));
  }
  EXPECT_EQ(job().state(), control::JOB_STATE_RUNNING);
  EXPECT_LE(Looks(), 4 * kNodes);
}

TEST_F(LargeJobTest, ARankThatIsNotReportedYetHasReachedNothing) {
  for (int i = 0; i < kNodes; ++i) {
    RankOf(2 * i)->mutable_status()->set_phase(telemetry::PHASE_LOADING);
    if (i > 0) RankOf(2 * i + 1)->mutable_status()->set_phase(telemetry::PHASE_LOADING);
    EXPECT_THAT(Report(NodeId(i), reports_[NodeId(i)]), SizeIs(0));
  }
  *JobOn("n00")->add_ranks() = *RankOf(0);  // twice the same one
  EXPECT_THAT(Report("n00", reports_["n00"]), SizeIs(0));
  EXPECT_THAT(ReachOn(0, telemetry::PHASE_LOADING), SizeIs(1));
}

TEST_F(LargeJobTest, ShardsThatAreStoredOneAfterTheOtherCostFewLooksAReport) {
  for (int i = 0; i < kNodes; ++i) ReachOn(i, telemetry::PHASE_FIRST_STEP);
  for (int i = 0; i < kNodes; ++i) ReachOn(i, telemetry::PHASE_TRAINING);
  ASSERT_EQ(job().state(), control::JOB_STATE_RUNNING);
  Looks();
  for (int i = 0; i < kNodes; ++i) EXPECT_THAT(Store(2 * i, 10), SizeIs(0));
  EXPECT_LE(Looks(), 4 * kNodes) << "some shards of every node are stored";
  // The last node is slow, so that the next checkpoint overtakes it.
  for (int i = 0; i + 1 < kNodes; ++i) EXPECT_THAT(Store(2 * i + 1, 10), SizeIs(0));
  for (int i = 0; i + 1 < kNodes; ++i) EXPECT_THAT(Store(2 * i, 20), SizeIs(0));
  EXPECT_LE(Looks(), 12 * kNodes);
  const std::vector<Event> events = Store(2 * kNodes - 1, 10);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].shards_stored().step(), 10);
}

}  // namespace
}  // namespace megascale::driver
