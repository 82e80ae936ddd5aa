// The order in which jobs get slots; no job waits for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/desired_states.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/placement.h"
#include "controlplane/driver/core/testing/test_core.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class DriverQueueTest : public DriverCoreTest {
 protected:
  const JobRecord& Job(const std::string& job_id) const { return *FindJob(state_, job_id); }
  // Returns the job's place in the queue, from 1; 0: it is not in the queue.
  static int64_t QueuePosition(const DriverState& state, const JobRecord& job) {
    const std::vector<const JobRecord*> queue = Queue(state);
    const auto place = std::find(queue.begin(), queue.end(), &job);
    return place == queue.end() ? 0 : place - queue.begin() + 1;
  }
  void PassPreflight(const std::string& job_id) {
    for (const std::string& node_id : NodesOf(Job(job_id))) {
      Do(Passed(job_id, Job(job_id).attempt(), node_id));
    }
  }
  // Confirms the fence of the job on every living node where it has ranks.
  void Fence(const std::string& job_id) {
    for (const std::string& node_id : UnfencedNodesOf(state_, Job(job_id))) {
      Event fenced = Fenced(Job(job_id).attempt(), node_id, {});
      fenced.mutable_node_fenced()->set_job_id(job_id);
      Do(fenced);
    }
  }
  void ElapseBackoff(const std::string& job_id) {
    Event event;
    event.mutable_backoff_elapsed()->set_job_id(job_id);
    event.mutable_backoff_elapsed()->set_attempt(Job(job_id).attempt());
    Do(event);
  }
  void Cancel(const std::string& job_id) {
    Event event = Cancelled(false);
    event.mutable_cancel_requested()->set_job_id(job_id);
    Do(event);
  }
  // Places jobs j and k of 4 ranks on two nodes each; then each job loses one node.
  void LetTwoJobsLoseANodeEach() {
    Do(Submitted("j", SpecOf(2, 2, 30)));
    Do(Submitted("k", SpecOf(2, 2, 30)));
    for (const char* node_id : {"n0", "n1", "n2", "n3"}) Do(Joined(node_id, "a", 2));
    PassPreflight("j");
    PassPreflight("k");
    ASSERT_THAT(NodesOf(Job("k")), ElementsAre("n2", "n3"));
    Do(Lost("n1", "a"));
    Do(Lost("n3", "a"));
  }
};

TEST_F(DriverQueueTest, EveryQueuedJobHasAPositionAndSaysWhatItNeeds) {
  Do(Submitted("j", SpecOf(2, 2, 30)));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  Do(Submitted("l", SpecOf(2, 1, 30)));
  Do(Joined("n0", "a", 2));
  EXPECT_EQ(Job("j").message(),
            "position 1 in the queue; needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 1 node "
            "offers 2 (n0 2)");
  EXPECT_EQ(Job("k").message(), "position 2 in the queue, behind job j; needs 1 slot");
  EXPECT_EQ(Job("l").message(),
            "position 3 in the queue, behind job k; needs data × tensor × pipeline = 2 × 1 × 1 = 2 "
            "slots");
  EXPECT_EQ(QueuePosition(state_, Job("l")), 3);
  Cancel("j");
  EXPECT_EQ(QueuePosition(state_, Job("j")), 0);
  EXPECT_EQ(Job("k").state(), control::JOB_STATE_STARTING);
  EXPECT_EQ(QueuePosition(state_, Job("k")), 0);
  EXPECT_EQ(Job("l").message(),
            "position 1 in the queue; needs data × tensor × pipeline = 2 × 1 × 1 = 2 slots; 1 node "
            "offers 1 (n0 1)");
}

TEST_F(DriverQueueTest, QueuedJobsWaitBehindOneThatRecovers) {
  Do(Joined("n0", "a", 1));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  PassPreflight("k");
  Do(Submitted("l", SpecOf(1, 1, 30)));
  Do(Lost("n0", "a"));
  ASSERT_EQ(Job("k").state(), control::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job("l").message(),
            "position 1 in the queue, behind job k, which recovers; needs 1 slot");
  Do(Joined("n1", "a", 1));
  EXPECT_EQ(Job("l").state(), control::JOB_STATE_PENDING);
}

TEST_F(DriverQueueTest, TwoRecoveringJobsDoNotHoldSlotsAgainstEachOther) {
  LetTwoJobsLoseANodeEach();
  Fence("k");
  ElapseBackoff("k");
  EXPECT_EQ(Job("k").message(),
            "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 2 nodes offer 2 (n0 0, n2 2)");
  Fence("j");
  EXPECT_EQ(Job("j").attempt(), 1);
  ElapseBackoff("j");
  EXPECT_EQ(Job("j").attempt(), 2);
  EXPECT_THAT(NodesOf(Job("j")), ElementsAre("n0", "n2"));
  EXPECT_THAT(NodesOf(Job("k")), IsEmpty());
  EXPECT_EQ(Job("k").state(), control::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job("k").message(),
            "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 2 nodes offer 0 (n0 0, n2 0)");
  EXPECT_EQ(DesiredFor(state_, "n2").jobs_size(), 1);
  Do(Joined("n1", "b", 2));
  Do(Joined("n3", "b", 2));
  EXPECT_EQ(Job("k").attempt(), 2);
  EXPECT_THAT(NodesOf(Job("k")), ElementsAre("n1", "n3"));
}

TEST_F(DriverQueueTest, ALaterJobTakesNoSlotsFromAnEarlierOne) {
  LetTwoJobsLoseANodeEach();
  Fence("j");
  Fence("k");
  ElapseBackoff("k");
  EXPECT_EQ(Job("k").attempt(), 1);
  EXPECT_THAT(NodesOf(Job("j")), ElementsAre("n0", "n1"));
  EXPECT_EQ(Desired("n0").phase(), agent::DesiredJob::PHASE_HOLD);
}

TEST_F(DriverQueueTest, AJobWhoseProcessesMayLiveGivesNothing) {
  LetTwoJobsLoseANodeEach();
  Fence("j");
  ElapseBackoff("j");
  EXPECT_EQ(Job("j").attempt(), 1);
  EXPECT_EQ(Job("j").message(),
            "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; 2 nodes offer 2 (n0 2, n2 0)");
  Fence("k");
  EXPECT_EQ(Job("j").attempt(), 2);
}

TEST_F(DriverQueueTest, AHigherPriorityStartsFirstAndAnHourOfWaitingCountsAsMuchAsOneStep) {
  job::v1::JobSpec urgent = SpecOf(1, 1, 30);
  urgent.set_priority(1);
  Do(Submitted("j", SpecOf(1, 1, 30)));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  Do(Submitted("l", urgent));
  EXPECT_EQ(QueuePosition(state_, Job("l")), 1);
  EXPECT_EQ(QueuePosition(state_, Job("j")), 2);
  EXPECT_EQ(Job("k").message(), "position 3 in the queue, behind job j; needs 1 slot");
  seconds_ += 3601;
  Do(Submitted("m", urgent));
  EXPECT_EQ(QueuePosition(state_, Job("m")), 4) << "nobody starves";
  Do(Joined("n0", "a", 1));
  EXPECT_EQ(Job("l").stage(), v1::STAGE_PREFLIGHT);
  EXPECT_EQ(Job("j").stage(), v1::STAGE_QUEUED);
}

// Job j of 4 ranks lost n1 and waits; k needs one slot.
class DriverPassingTest : public DriverQueueTest {
 protected:
  void LoseANode() {
    Do(Submitted("j", SpecOf(2, 2, 30)));
    for (const char* node_id : {"n0", "n1"}) Do(Joined(node_id, "a", 2));
    PassPreflight("j");
    Do(Progressed(1, 5));
    Do(Lost("n1", "a"));
    Fence("j");
    ASSERT_EQ(Job("j").stage(), v1::STAGE_WAIT_FOR_SLOTS);
  }
};

TEST_F(DriverPassingTest, ASmallJobPassesARecoveringOneThatNeedsMoreSlotsThanThereAre) {
  LoseANode();
  Do(Joined("n2", "a", 1));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  EXPECT_THAT(NodesOf(Job("k")), ElementsAre("n2"));
  EXPECT_THAT(NodesOf(Job("j")), ElementsAre("n0", "n1")) << "it keeps its slots and memory";
}

TEST_F(DriverPassingTest, NoJobPassesARecoveringOneForLong) {
  LoseANode();
  seconds_ += 600;
  Do(Joined("n2", "a", 1));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  EXPECT_EQ(Job("k").message(),
            "position 1 in the queue, behind job j, which recovers; needs 1 slot");
}

TEST_F(DriverPassingTest, AttemptsWithoutProgressDoNotRestartTheTimeInWhichAJobMayBePassed) {
  LoseANode();
  seconds_ += 500;
  Do(Joined("n1", "b", 2));
  Fence("j");
  ASSERT_EQ(Job("j").attempt(), 2);
  Do(Lost("n1", "b"));
  Fence("j");
  ElapseBackoff("j");
  ASSERT_EQ(Job("j").stage(), v1::STAGE_WAIT_FOR_SLOTS);
  seconds_ += 100;
  Do(Joined("n2", "a", 1));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  EXPECT_EQ(Job("k").stage(), v1::STAGE_QUEUED);
}

TEST_F(DriverPassingTest, AClockThatStepsBackDoesNotProlongTheTimeInWhichAJobMayBePassed) {
  seconds_ = 10'000;
  LoseANode();
  seconds_ -= 7200;
  Do(Submitted("k", SpecOf(1, 1, 30)));
  seconds_ += 600;
  Do(Joined("n2", "a", 1));
  EXPECT_EQ(Job("k").stage(), v1::STAGE_QUEUED);
}

TEST_F(DriverPassingTest, NoJobPassesARecoveringOneThatWaitsForSlotsOfOthers) {
  Do(Joined("n9", "a", 3));
  Do(Submitted("big", SpecOf(3, 1, 30)));
  PassPreflight("big");
  LoseANode();
  ASSERT_FALSE(NeedsMoreThanThereIs(state_, Job("j"))) << "but big has 3 of the 5 slots";
  Do(Joined("n2", "a", 1));
  Do(Submitted("k", SpecOf(1, 1, 30)));
  EXPECT_EQ(Job("k").stage(), v1::STAGE_QUEUED);
}

// The log of an older program is replayed by that program's rules.
TEST(DriverRulesTest, EventsBeforeTheFirstNewDriverAreAppliedByTheOlderRules) {
  DriverState state;
  int64_t seconds = 0;
  const auto apply = [&](Event event) {
    event.set_time_unix_nanos(1'000'000'000 * ++seconds);
    Apply(event, &state);
  };
  Event started;
  started.mutable_driver_started();
  apply(started);
  apply(Submitted("j", SpecOf(2, 2, 30)));
  apply(Submitted("k", SpecOf(1, 1, 30)));
  EXPECT_EQ(FindJob(state, "k")->message(), "waits behind job j");
  started.mutable_driver_started()->set_rules(kRules);
  apply(started);
  EXPECT_EQ(FindJob(state, "k")->message(), "position 2 in the queue, behind job j; needs 1 slot");
}

// --- the cost of an event -----------------------------------------------------------------------

// Many jobs that have ended, and as many that run, each on a node of its own.
class DriverCostTest : public ::testing::Test {
 protected:
  static constexpr int kJobs = 200;

  void SetUp() override {
    Event started;
    started.mutable_driver_started()->set_rules(kRules);
    Do(started);
    for (int i = 0; i < kJobs; ++i) {
      Do(Submitted(absl::StrCat("ended", i), SpecOf(1, 1, 30)));
      Event cancel;
      cancel.mutable_cancel_requested()->set_job_id(absl::StrCat("ended", i));
      Do(cancel);
    }
    for (int i = 0; i < kJobs; ++i) {
      const std::string node_id = absl::StrCat("n", i);
      Do(Joined(node_id, "a", 1));
      Do(Submitted(absl::StrCat("j", i), SpecOf(1, 1, 30)));
      Do(Passed(absl::StrCat("j", i), 1, node_id));
    }
  }
  // Returns how many jobs the event settled.
  int64_t Do(Event event) {
    event.set_time_unix_nanos(1'000'000'000 * ++seconds_);
    const int64_t before = index_.num_settled();
    EXPECT_TRUE(Apply(event, &state_, &index_)) << event.ShortDebugString();
    return index_.num_settled() - before;
  }

  DriverState state_;
  JobIndex index_{state_};
  int64_t seconds_ = 0;
};

TEST_F(DriverCostTest, AnEventSettlesTheJobsThatItTouches) {
  ASSERT_EQ(index_.Find(state_, "j7")->stage(), v1::STAGE_RUN);
  index_.TakeTouched();
  Event progressed;
  progressed.mutable_attempt_progressed()->set_job_id("j7");
  progressed.mutable_attempt_progressed()->set_attempt(1);
  progressed.mutable_attempt_progressed()->set_step(1);
  EXPECT_EQ(Do(progressed), 1);
  const JobIndex::Touched touched = index_.TakeTouched();
  EXPECT_THAT(touched.jobs, ElementsAre("j7"));
  EXPECT_THAT(touched.nodes, ElementsAre("n7"));
  EXPECT_THAT(touched.node_records, IsEmpty());
  EXPECT_EQ(Do(Submitted("queued", SpecOf(1, 1, 30))), 1);
}

TEST_F(DriverCostTest, TheNodesOfAJobAreNotedOnceForManyEvents) {
  index_.TakeTouched();
  const int64_t before = index_.num_noted();
  Event progressed;
  progressed.mutable_attempt_progressed()->set_job_id("j7");
  progressed.mutable_attempt_progressed()->set_attempt(1);
  for (int step = 1; step <= 5; ++step) {
    progressed.mutable_attempt_progressed()->set_step(step);
    Do(progressed);
  }
  EXPECT_EQ(index_.num_noted() - before, 1) << "five events of a job with one node";
  EXPECT_THAT(index_.TakeTouched().nodes, ElementsAre("n7"));
  progressed.mutable_attempt_progressed()->set_step(6);
  Do(progressed);
  EXPECT_THAT(index_.TakeTouched().nodes, ElementsAre("n7")) << "the next look has them again";
  Event cancel;
  cancel.mutable_cancel_requested()->set_job_id("j7");
  Do(cancel);
  EXPECT_THAT(index_.TakeTouched().nodes, ElementsAre("n7"));
}

TEST_F(DriverCostTest, ARankHasEndedOnceItsEndWasApplied) {
  const JobRecord& job = *index_.Find(state_, "j7");
  EXPECT_FALSE(index_.HasEnded(job, 0));
  EXPECT_FALSE(index_.HasEnded(job, 99));
  Event ended;
  ended.mutable_rank_ended()->set_job_id("j7");
  ended.mutable_rank_ended()->set_attempt(1);
  ended.mutable_rank_ended()->set_step(30);
  Do(ended);
  EXPECT_TRUE(index_.HasEnded(*index_.Find(state_, "j7"), 0));
  EXPECT_FALSE(index_.HasEnded(*index_.Find(state_, "j8"), 0));
}

TEST_F(DriverCostTest, JobsThatHaveEndedAreNeverLookedAtAgain) {
  EXPECT_THAT(index_.open(), testing::SizeIs(kJobs));
  EXPECT_THAT(index_.waiting(), IsEmpty());
  EXPECT_EQ(Do(Lost("n3", "a")), kJobs) << "nodes may concern every job that has not ended";
  EXPECT_THAT(index_.waiting(), testing::SizeIs(1));
  EXPECT_THAT(index_.On("n4"), testing::SizeIs(1));
  Event forgotten;
  for (int i = 0; i < kJobs; ++i) {
    forgotten.mutable_jobs_forgotten()->add_job_ids(absl::StrCat("ended", i));
  }
  Do(forgotten);
  EXPECT_EQ(index_.PlaceOf("ended0"), -1);
  EXPECT_EQ(index_.Find(state_, "j9")->submitted().job_id(), "j9");
  EXPECT_THAT(index_.On("n9"), ElementsAre(index_.PlaceOf("j9")));
}

}  // namespace
}  // namespace megascale::driver
