// Which failure of an attempt is the cause, which ones follow, and when a job gives up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/driver_core.h"
#include "controlplane/driver/recovery.h"
#include "controlplane/driver/test_core.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
namespace telemetry = megascale::telemetry::v1;
using ::testing::ElementsAre;
using ::testing::SizeIs;

class DriverFailuresTest : public DriverCoreTest {
 protected:
  // Rank 0 and 1 are on n0, 2 and 3 on n1. Noticed so many seconds after the machine started.
  void FailAt(int64_t attempt, int rank, int64_t second,
              telemetry::FailureClass failure_class = telemetry::FAILURE_CLASS_EXITED) {
    Event event = Failed(attempt, rank, rank < 2 ? "n0" : "n1", failure_class);
    event.mutable_rank_failed()->mutable_noticed_at()->set_seconds(second);
    Do(event);
  }
  std::vector<int> RanksOfFailures() const {
    std::vector<int> ranks;
    for (const auto& failure : job().failures()) ranks.push_back(failure.culprit().rank());
    return ranks;
  }
};

TEST_F(DriverFailuresTest, TheFirstByTimeIsTheCauseWhoeverSaidItFirst) {
  Run();
  FailAt(1, 0, 100);
  EXPECT_EQ(job().message(), "rank 0 on n0: evidence of rank 0");
  FailAt(1, 3, 102);
  FailAt(1, 2, 99);
  FailAt(1, 1, 101);
  EXPECT_EQ(job().culprit().rank(), 2);
  EXPECT_EQ(job().message(), "rank 2 on n1: evidence of rank 2");
  EXPECT_THAT(RanksOfFailures(), ElementsAre(2, 0, 1, 3));
  EXPECT_EQ(job().num_failures(), 4);
}

TEST_F(DriverFailuresTest, ADeathThatFollowedFromAPeersIsNoCauseHoweverEarly) {
  Run();
  FailAt(1, 0, 90, telemetry::FAILURE_CLASS_ABORTED);
  EXPECT_EQ(job().reason(), "PeerLost");
  Event lost = Lost("n1", "a");
  lost.mutable_node_lost()->mutable_noticed_at()->set_seconds(95);
  Do(lost);
  EXPECT_EQ(job().reason(), "NodeLost");
  FailAt(1, 1, 80, telemetry::FAILURE_CLASS_ABORTED);
  EXPECT_EQ(job().reason(), "NodeLost");
  EXPECT_THAT(RanksOfFailures(), ElementsAre(-1, 1, 0));
}

TEST_F(DriverFailuresTest, WithoutATimeTheOneThatIsKnownStays) {
  Run();
  Do(Failed(1, 0, "n0", telemetry::FAILURE_CLASS_EXITED));
  FailAt(1, 1, 5);
  EXPECT_EQ(job().culprit().rank(), 0);
}

TEST_F(DriverFailuresTest, OnlyTheCauseKeepsItsLogLinesAndFewConsequencesAreKept) {
  JobRecord record;
  for (int rank = 0; rank < 100; ++rank) {
    pb::Failure failure;
    failure.mutable_culprit()->set_rank(rank);
    failure.mutable_culprit()->set_evidence(absl::StrCat("line ", rank, "\nits last lines:\nx"));
    failure.mutable_noticed_at()->set_seconds(1000 - rank);
    AddFailure(failure, rank == 0 || rank == 50, &record);
  }
  EXPECT_THAT(record.failures(), SizeIs(kFailuresMax));
  EXPECT_EQ(record.num_failures(), 100);
  EXPECT_EQ(record.failures(0).culprit().evidence(), "line 50\nits last lines:\nx");
  EXPECT_EQ(record.failures(1).culprit().evidence(), "line 99");
  EXPECT_EQ(record.failures(2).culprit().rank(), 98);
}

TEST_F(DriverFailuresTest, ACrashAtTheSameStepEveryTimeEndsTheJobWithItsCause) {
  Run();
  Do(Progressed(1, 7));
  for (int64_t attempt = 1; attempt <= 5; ++attempt) {
    ASSERT_EQ(job().attempt(), attempt);
    FailAt(attempt, 1, 100 * attempt + 1, telemetry::FAILURE_CLASS_ABORTED);
    FailAt(attempt, 2, 100 * attempt);
    for (const char* node_id : {"n0", "n1"}) Do(Fenced(attempt, node_id, {}));
    BackoffElapsed(attempt);
  }
  EXPECT_EQ(job().state(), control::JOB_STATE_FAILED);
  EXPECT_EQ(job().reason(), "RankExited");
  EXPECT_EQ(job().message(),
            "gave up after 4 attempts in a row without progress; the last: rank 2 on n1: evidence "
            "of rank 2");
  EXPECT_EQ(job().culprit().attempt(), 5);
  EXPECT_THAT(RanksOfFailures(), ElementsAre(2, 1));
}

TEST_F(DriverFailuresTest, TheNextAttemptsFailuresReplaceThoseBefore) {
  Run();
  FailAt(1, 0, 10);
  EXPECT_THAT(job().failures(), SizeIs(1));
  for (const char* node_id : {"n0", "n1"}) Do(Fenced(1, node_id, {}));
  BackoffElapsed(1);
  FailAt(2, 3, 5);
  EXPECT_THAT(RanksOfFailures(), ElementsAre(3));
  EXPECT_EQ(job().num_failures(), 1);
}

}  // namespace
}  // namespace megascale::driver
