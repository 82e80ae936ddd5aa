// The order in which jobs get slots; no job waits for ever. Which checkpoints a job keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

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
  EXPECT_THAT(touched.nodes, IsEmpty());
  EXPECT_THAT(touched.node_records, IsEmpty());
  EXPECT_EQ(Do(Submitted("queued", SpecOf(1, 1, 30))), 1);
}

TEST_F(DriverCostTest, TheAgentsOfAJobAreNotedOnlyWhenTheyAreToldSomethingElse) {
  DesiredParts parts;
  parts.Update({state_, index_}, index_.TakeTouched());
  const int64_t before = index_.num_noted();
  const auto listeners = [&] { return parts.Update({state_, index_}, index_.TakeTouched()); };
  Event progressed;
  progressed.mutable_attempt_progressed()->set_job_id("j7");
  progressed.mutable_attempt_progressed()->set_attempt(1);
  for (int step = 1; step <= 5; ++step) {
    progressed.mutable_attempt_progressed()->set_step(step);
    Do(progressed);
  }
  EXPECT_THAT(listeners(), IsEmpty());
  EXPECT_EQ(index_.num_noted(), before);
  Event cancel;
  cancel.mutable_cancel_requested()->set_job_id("j7");
  Do(cancel);
  EXPECT_THAT(listeners(), ElementsAre("n7"));
  Event fenced;
  fenced.mutable_node_fenced()->set_job_id("j7");
  fenced.mutable_node_fenced()->set_attempt(1);
  fenced.mutable_node_fenced()->set_node_id("n7");
  Do(fenced);
  EXPECT_THAT(listeners(), ElementsAre("n7"));
  EXPECT_EQ(index_.num_noted() - before, 1) << "once, when the job lost its slot";
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

TEST_F(DriverCostTest, SlotsForAQueuedJobAreLookedForOnlyWhenTheyMayHaveChanged) {
  Do(Submitted("queued", SpecOf(2, 1, 30)));
  const auto tries_of = [&](Event event) {
    const int64_t before = index_.num_placement_tries();
    Do(std::move(event));
    return index_.num_placement_tries() - before;
  };
  Event training;
  training.mutable_training_started()->set_job_id("j7");
  training.mutable_training_started()->set_attempt(1);
  EXPECT_EQ(tries_of(training), 0);
  Event progressed;
  progressed.mutable_attempt_progressed()->set_job_id("j7");
  progressed.mutable_attempt_progressed()->set_attempt(1);
  for (int step = 1; step <= 5; ++step) {
    progressed.mutable_attempt_progressed()->set_step(step);
    EXPECT_EQ(tries_of(progressed), 0);
  }
  EXPECT_EQ(tries_of(Submitted("behind it", SpecOf(1, 1, 30))), 0);
  megascale::job::v1::JobSpec urgent = SpecOf(3, 1, 30);
  urgent.set_priority(1);
  EXPECT_EQ(tries_of(Submitted("urgent", urgent)), 1) << "another job is the first";
  Event gives_up;
  gives_up.mutable_cancel_requested()->set_job_id("urgent");
  EXPECT_EQ(tries_of(gives_up), 1) << "and now it is the first again";
  EXPECT_EQ(tries_of(Joined("free", "a", 1)), 1) << "one slot is too few";
  EXPECT_EQ(tries_of(Evicted("free", "")), 1);
  EXPECT_EQ(tries_of(Uncordoned("free")), 1);
  EXPECT_EQ(index_.Find(state_, "queued")->stage(), v1::STAGE_QUEUED);
  Event cancel;
  cancel.mutable_cancel_requested()->set_job_id("j7");
  EXPECT_EQ(tries_of(cancel), 0) << "it holds its slot until it has stopped";
  Event stopped;
  stopped.mutable_rank_ended()->set_job_id("j7");
  stopped.mutable_rank_ended()->set_attempt(1);
  stopped.mutable_rank_ended()->set_stopped(true);
  Do(stopped);
  Event fenced;
  fenced.mutable_node_fenced()->set_job_id("j7");
  fenced.mutable_node_fenced()->set_attempt(1);
  fenced.mutable_node_fenced()->set_node_id("n7");
  EXPECT_GE(tries_of(fenced), 1);
  EXPECT_EQ(index_.Find(state_, "queued")->stage(), v1::STAGE_PREFLIGHT);
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

// --- decisions do not depend on what is kept between events --------------------------------------

// Events about few jobs and machines at random times. Most fit the state; the others are refused.
class RandomEvents {
 public:
  explicit RandomEvents(uint32_t seed) : random_(seed), rules_(2 + static_cast<int>(seed) % 5) {}

  Event Begin() {
    Event event;
    event.mutable_driver_started()->set_rules(rules_);
    event.mutable_driver_started()->set_epoch(1);
    return event;
  }

  Event Next(const DriverState& state) {
    Event event = Below(10) < 6 && !state.jobs().empty() ? OfJob(state) : OfMachineOrUser(state);
    now_ += 1'000'000 * Below(2000);
    if (Below(20) == 0) now_ += 60'000'000'000 * Below(12);
    if (Below(40) == 0) now_ -= 60'000'000'000 * Below(15);  // a clock that is set back
    event.set_time_unix_nanos(now_);
    return event;
  }

 private:
  int64_t Below(int64_t end) {
    return static_cast<int64_t>(random_() % static_cast<uint32_t>(end));
  }
  template <typename Repeated>
  auto& OneOf(const Repeated& repeated) {
    return repeated[static_cast<int>(Below(static_cast<int64_t>(repeated.size())))];
  }
  std::string Node() { return absl::StrCat("n", Below(6)); }

  Event OfMachineOrUser(const DriverState& state) {
    const std::string node_id = Node();
    const NodeRecord* node = FindNode(state, node_id);
    const std::string incarnation = node == nullptr ? "" : node->hello().incarnation();
    Event event;
    switch (Below(14)) {
      case 0:
      case 1: {
        megascale::job::v1::JobSpec spec = SpecOf(1 + Below(3), 1 + Below(2), 30);
        spec.set_priority(static_cast<int>(Below(2)));
        return Submitted(absl::StrCat("j", state.jobs_size()), spec);
      }
      case 2:
        if (state.jobs().empty()) return Evicted(node_id, "");
        event = Cancelled(Below(2) == 0);
        event.mutable_cancel_requested()->set_job_id(JobId(OneOf(state.jobs())));
        return event;
      case 3:
        return Lost(node_id, incarnation);
      case 4:
        return Below(2) == 0 ? Evicted(node_id, "") : Draining(node_id, incarnation);
      case 5:
      case 6:
        return Uncordoned(node_id);
      case 7:
        event.mutable_node_spare_set()->set_node_id(node_id);
        event.mutable_node_spare_set()->set_spare(Below(2) == 0);
        return event;
      case 8:
        event.mutable_node_busy()->set_node_id(node_id);
        event.mutable_node_busy()->set_incarnation(incarnation);
        event.mutable_node_busy()->set_busy(Below(3) == 0);
        return event;
      case 9:
        return Tested(state);
      case 10:
        return Below(5) == 0 ? Restarted(state) : Tested(state);
      default: {
        const bool is_new = node == nullptr || Below(3) == 0;
        event = Joined(node_id, is_new ? absl::StrCat("i", Below(1'000'000)) : incarnation,
                       1 + static_cast<int>(Below(3)));
        auto* hello = event.mutable_node_joined()->mutable_hello();
        hello->set_tests_machine(Below(2) == 0);
        if (Below(4) == 0) hello->set_instruction_set("neon");
        return event;
      }
    }
  }

  Event Tested(const DriverState& state) {
    Event event;
    auto* tested = event.mutable_machine_tested();
    for (const NodeRecord& node : state.nodes()) {
      if (!IsTestDue(node)) continue;
      tested->set_node_id(node.hello().node_id());
      tested->set_incarnation(node.hello().incarnation());
      *tested->mutable_test() = node.test().test();
      tested->mutable_test()->set_state(Below(5) == 0 ? agent::MachineTest::STATE_FAILED
                                                      : agent::MachineTest::STATE_PASSED);
      if (Below(2) == 0) break;
    }
    return event;
  }

  // Another driver goes on with the log, or with a copy of it.
  Event Restarted(const DriverState& state) {
    Event event = Begin();
    auto* started = event.mutable_driver_started();
    started->set_machine_tests(Below(2) == 0 ? agent::TEST_KIND_QUICK
                                             : agent::TEST_KIND_UNSPECIFIED);
    started->set_restored(Below(2) == 0);
    started->set_epoch(state.epoch() + (started->restored() ? 1 : 0));
    return event;
  }

  Event OfJob(const DriverState& state) {
    const JobRecord& job = OneOf(state.jobs());
    Event event = job.placements().empty() ? Stored(job.attempt(), 10) : OfAttempt(state, job);
    // Those that the short ways make are about job "j".
    google::protobuf::Message* part = MutablePart(&event);
    const auto* job_id = part->GetDescriptor()->FindFieldByName("job_id");
    if (job_id != nullptr) part->GetReflection()->SetString(part, job_id, JobId(job));
    return event;
  }

  static google::protobuf::Message* MutablePart(Event* event) {
    const auto* which = event->GetReflection()->GetOneofFieldDescriptor(
        *event, Event::descriptor()->FindOneofByName("event"));
    return event->GetReflection()->MutableMessage(event, which);
  }

  Event OfAttempt(const DriverState& state, const JobRecord& job) {
    const int64_t attempt = job.attempt();
    const auto& placement = OneOf(job.placements());
    const std::string& node_id = placement.node_id();
    switch (job.stage()) {
      case v1::STAGE_PREFLIGHT:
        return Below(10) == 0 ? Refused(attempt, node_id) : Passed("j", attempt, node_id);
      case v1::STAGE_RUN:
        return OfRun(job, placement);
      case v1::STAGE_STOP:
      case v1::STAGE_LEAVE:
        if (Below(3) == 0) return Fenced(attempt, node_id, {});
        return Ended(attempt, placement.rank(), true, 7);
      case v1::STAGE_BACKOFF:
        if (Below(2) == 0) return BackoffElapsed(attempt);
        [[fallthrough]];
      default:
        if (Below(30) == 0) return TimedOut(job);
        if (Below(6) == 0 && state.epoch() > 1) return EpochFenced(state, node_id);
        if (Below(6) == 0) {
          return Failed(attempt, placement.rank(), node_id,
                        megascale::telemetry::v1::FAILURE_CLASS_ABORTED);
        }
        return Fenced(attempt, node_id, {{placement.rank(), 5}});
    }
  }

  Event OfRun(const JobRecord& job, const agent::Placement& placement) {
    const int64_t attempt = job.attempt();
    switch (Below(12)) {
      case 0:
        return Failed(attempt, placement.rank(), placement.node_id(),
                      megascale::telemetry::v1::FAILURE_CLASS_HUNG);
      case 1:
        return FailedToRead(attempt, placement.rank(), placement.node_id());
      case 2:
      case 3:
      case 4:
        return Ended(attempt, placement.rank(), Below(8) == 0, 30);
      case 5:
      case 6:
        return Manifest(attempt, Below(8) == 0 ? 30 : 10 + Below(10));
      case 7:
      case 8:
        return Started(attempt);
      default:
        return Progressed(attempt, job.best_step() + 1);
    }
  }

  static Event Refused(int64_t attempt, const std::string& node_id) {
    Event event;
    event.mutable_preflight_refused()->set_attempt(attempt);
    event.mutable_preflight_refused()->set_node_id(node_id);
    event.mutable_preflight_refused()->set_message("no such file");
    return event;
  }
  static Event BackoffElapsed(int64_t attempt) {
    Event event;
    event.mutable_backoff_elapsed()->set_attempt(attempt);
    return event;
  }
  static Event TimedOut(const JobRecord& job) {
    Event event;
    event.mutable_stage_timed_out()->set_attempt(job.attempt());
    event.mutable_stage_timed_out()->set_stage(job.stage());
    return event;
  }
  static Event EpochFenced(const DriverState& state, const std::string& node_id) {
    Event event;
    event.mutable_epoch_fenced()->set_node_id(node_id);
    const NodeRecord* node = FindNode(state, node_id);
    if (node != nullptr) event.mutable_epoch_fenced()->set_incarnation(node->hello().incarnation());
    event.mutable_epoch_fenced()->set_epoch(state.epoch());
    return event;
  }

  std::mt19937 random_;
  int rules_;
  int64_t now_ = int64_t{1'000'000} * 1'000'000'000;
};

using DriverDecisionsTest = DriverCoreTest;

TEST_F(DriverDecisionsTest, AreTheSameAsWhenEverythingIsLookedAtAfterEachEvent) {
  int64_t kept_tries = 0;
  int64_t all_tries = 0;
  int64_t num_attempts = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomEvents events(seed);
    state_.Clear();
    JobIndex index(state_);
    parts_ = DesiredParts();
    prints_.clear();
    Apply(events.Begin(), &state_, &index);
    for (size_t i = 0; i < 300; ++i) {
      const Event event = events.Next(state_);
      DriverState expected = state_;
      JobIndex anew(expected);
      Apply(event, &expected, &anew);
      Apply(event, &state_, &index);
      ASSERT_EQ(state_.SerializeAsString(), expected.SerializeAsString())
          << "after " << event.ShortDebugString();
      CheckListeners(state_, &index, i);
      all_tries += anew.num_placement_tries();
    }
    kept_tries += index.num_placement_tries();
    for (const JobRecord& job : state_.jobs()) num_attempts += job.attempt() % kAttemptsOfAnEpoch;
  }
  EXPECT_GT(num_attempts, 100) << "jobs came into their stages";
  EXPECT_LT(kept_tries, all_tries);
}

// --- which checkpoints are kept --------------------------------------------------------------

Event HeldOut(int64_t step, double loss) {
  Event event;
  event.mutable_held_out_improved()->set_job_id("j");
  event.mutable_held_out_improved()->set_attempt(1);
  event.mutable_held_out_improved()->mutable_held_out()->set_step(step);
  event.mutable_held_out_improved()->mutable_held_out()->set_loss(loss);
  return event;
}

std::vector<int64_t> Kept(const JobRecord& job) {
  std::vector<int64_t> steps;
  for (const auto& manifest : job.committed()) steps.push_back(manifest.step());
  return steps;
}

TEST_F(DriverCoreTest, KeepsTheCheckpointAfterTheLowestLossOnHeldOutTextBesideTheLastOnes) {
  job::v1::JobSpec spec = SpecOf(2, 2, 90);
  spec.mutable_checkpoint()->set_keep_best(true);
  Do(Submitted("j", spec));
  for (const std::string id : {"n0", "n1"}) Do(Joined(id, "a", 2));
  for (const std::string id : {"n0", "n1"}) Do(Passed("j", 1, id));
  EXPECT_TRUE(Do(HeldOut(15, 3.0)));
  for (const int64_t step : {10, 20, 30, 40, 50}) Do(Manifest(1, step));
  EXPECT_EQ(Kept(job()), (std::vector<int64_t>{20, 40, 50})) << "20 is the first after step 15";
  EXPECT_EQ(job().best_checkpoint().step(), 20);
  EXPECT_FALSE(Do(HeldOut(45, 3.0))) << "not lower";
  EXPECT_TRUE(Do(HeldOut(55, 2.5)));
  EXPECT_EQ(Kept(job()), (std::vector<int64_t>{20, 40, 50})) << "there is none after step 55 yet";
  for (const int64_t step : {60, 70, 80}) Do(Manifest(1, step));
  EXPECT_EQ(Kept(job()), (std::vector<int64_t>{60, 70, 80}));
  EXPECT_TRUE(Do(HeldOut(80, 2.0))) << "its checkpoint was committed first";
  Do(Manifest(1, 90));
  EXPECT_EQ(Kept(job()), (std::vector<int64_t>{80, 90}));
  EXPECT_EQ(job().best_checkpoint().step(), 80);
  EXPECT_EQ(job().lowest_held_out().loss(), 2.0);
}

TEST_F(DriverCoreTest, KeepsNoBestCheckpointUnlessTheJobAsksForIt) {
  Run();
  EXPECT_TRUE(Do(HeldOut(5, 3.0)));
  for (const int64_t step : {10, 20, 29}) Do(Manifest(1, step));
  EXPECT_EQ(Kept(job()), (std::vector<int64_t>{20, 29}));
  EXPECT_FALSE(job().has_best_checkpoint());
}

}  // namespace
}  // namespace megascale::driver
