// The trigger on reports of sampled ranks, and which ranks are read of a job that has become slow.
#include "runtime/diagnose/sampling/trigger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "runtime/diagnose/sampling/slow_outliers.h"
#include "runtime/diagnose/sampling/slow_path.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/operation.h"
#include "runtime/simulate/step_time.h"

namespace megascale::diagnose {
namespace {

using plan::RankPlan;

plan::Mesh MeshOf(const plan::MeshSizes& sizes) { return plan::Mesh::Create(sizes).value(); }

// Eight ranks on each machine.
std::vector<int> MachinesOf(const plan::Mesh& mesh) {
  std::vector<int> machines;
  for (int rank = 0; rank < mesh.world_size(); ++rank) machines.push_back(rank / 8);
  return machines;
}

// --- the sample ---------------------------------------------------------------------------------

TEST(SampleRanksTest, HasOneRankOfEachDataGroupOnDifferentMachines) {
  const plan::Mesh mesh = MeshOf({.data = 8, .pipeline = 4, .tensor = 2});
  const std::vector<int> machines = MachinesOf(mesh);
  const std::vector<int> sample = SampleRanks(mesh, machines);
  std::set<std::pair<int, int>> groups;
  std::set<int> used;
  for (const int rank : sample) {
    const plan::Coordinate at = mesh.CoordinateOf(rank);
    EXPECT_TRUE(groups.insert({at.pipeline, at.tensor}).second) << rank;
    used.insert(machines[static_cast<size_t>(rank)]);
  }
  EXPECT_EQ(groups.size(), 8u);
  EXPECT_EQ(used.size(), 8u) << "of 8 machines";
}

TEST(SampleRanksTest, HasAtMostTenRanksHoweverLargeTheJobIs) {
  const plan::Mesh mesh = MeshOf({.data = 192, .pipeline = 8, .tensor = 8});
  const std::vector<int> sample = SampleRanks(mesh, MachinesOf(mesh));
  EXPECT_EQ(sample.size(), 10u);
  std::set<int> stages;
  for (const int rank : sample) stages.insert(mesh.CoordinateOf(rank).pipeline);
  EXPECT_EQ(stages.size(), 8u) << "groups are left out evenly";
}

TEST(SampleRanksTest, AJobOfOneRankIsItsOwnSample) {
  EXPECT_EQ(SampleRanks(plan::Mesh(), {-1}), std::vector<int>{0});
}

// --- the trigger --------------------------------------------------------------------------------

class TriggerTest : public ::testing::Test {
 protected:
  // Looks every ten seconds at two ranks whose steps take `step_seconds`; returns the last verdict.
  TriggerVerdict Run(int looks, double step_seconds) {
    TriggerVerdict verdict;
    for (int i = 0; i < looks; ++i) {
      now_ += 10;
      steps_ += 10 / step_seconds;
      verdict = Look(0.1);
    }
    return verdict;
  }
  TriggerVerdict Look(double quiet_seconds) {
    const auto step = static_cast<int64_t>(steps_);
    return trigger_.Look(now_,
                         {{.rank = 1,
                           .trains = trains_,
                           .saves = saves_ && do_all_save_,
                           .save_is_due = is_due_,
                           .step = step,
                           .quiet_seconds = 0.1},
                          {.rank = 5,
                           .trains = trains_,
                           .saves = saves_,
                           .save_is_due = is_due_,
                           .step = step,
                           .quiet_seconds = quiet_seconds}},
                         0, evaluation_);
  }

  Trigger trigger_;
  double now_ = 100;
  double steps_ = 2;
  bool trains_ = true;
  bool saves_ = false;
  bool do_all_save_ = false;
  bool is_due_ = true;
  EvaluationState evaluation_;
};

TEST_F(TriggerTest, AShorterWindowNoticesHalfTheThroughputSooner) {
  const auto look = [](Trigger* trigger, double seconds, int64_t step) {
    return trigger->Look(seconds, {{.rank = 0, .trains = true, .step = step, .quiet_seconds = 0.1}})
        .reason;
  };
  Trigger soon(2);
  Trigger usual;
  for (int i = 0; i <= 5; ++i) {
    EXPECT_EQ(look(&soon, 2.0 * i, 10 * i), TriggerReason::kNone) << i;
    EXPECT_EQ(look(&usual, 2.0 * i, 10 * i), TriggerReason::kNone) << i;
  }
  EXPECT_EQ(look(&soon, 12, 55), TriggerReason::kHalfThroughput);
  EXPECT_EQ(look(&usual, 12, 55), TriggerReason::kNone);
}

TEST_F(TriggerTest, AJobWithSteadyStepsRaisesNothing) {
  for (const double seconds : {0.05, 1.0, 7.0, 45.0}) {
    trigger_ = Trigger();
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(Run(1, seconds).reason, TriggerReason::kNone) << seconds << ", look " << i;
    }
  }
}

TEST_F(TriggerTest, ARankWithoutProgressIsStuckAndIsNamedAsTheOneThatShowsIt) {
  Run(10, 1);
  now_ += 10;
  const TriggerVerdict verdict = Look(9);
  EXPECT_EQ(verdict.reason, TriggerReason::kStuck);
  EXPECT_EQ(verdict.rank, 5);
  EXPECT_NEAR(verdict.usual_step_seconds, 1, 0.01);
}

TEST_F(TriggerTest, ALongStepIsNotStuckWhileItIsShorterThanThreeUsualOnes) {
  Run(60, 20);
  now_ += 10;
  EXPECT_EQ(Look(55).reason, TriggerReason::kNone);
  EXPECT_EQ(Look(65).reason, TriggerReason::kStuck);
}

TEST_F(TriggerTest, TheDriversMeanTellsHowLongAStepMayTakeBeforeAWindowDoes) {
  trigger_.Look(0, {{.trains = true, .step = 1}}, 30);
  EXPECT_EQ(trigger_.Look(50, {{.trains = true, .step = 1, .quiet_seconds = 40}}, 30).reason,
            TriggerReason::kNone);
  EXPECT_EQ(trigger_.Look(95, {{.trains = true, .step = 1, .quiet_seconds = 1}}, 30).reason,
            TriggerReason::kStuck)
      << "no step has ended";
}

TEST_F(TriggerTest, HalfTheThroughputTriggersAndFourFifthsDoNot) {
  Run(10, 1);
  EXPECT_EQ(Run(5, 1.25).reason, TriggerReason::kNone);
  const int64_t normal = static_cast<int64_t>(steps_);
  const TriggerVerdict verdict = Run(1, 2.5);
  EXPECT_EQ(verdict.reason, TriggerReason::kHalfThroughput);
  EXPECT_NEAR(verdict.step_seconds, 2.5, 0.01);
  EXPECT_EQ(verdict.normal_step, normal);
  EXPECT_EQ(Run(200, 2.5).reason, TriggerReason::kHalfThroughput) << "slow never becomes usual";
  EXPECT_EQ(Run(2, 1).reason, TriggerReason::kNone);
}

TEST_F(TriggerTest, AStepThatTakesTwiceAsLongTriggersBeforeItEnds) {
  Run(40, 8);
  now_ += 17;
  EXPECT_EQ(Look(0.1).reason, TriggerReason::kDoubledInterval);
}

TEST_F(TriggerTest, WhatACheckpointTakesIsNoFault) {
  Run(10, 1);
  saves_ = true;
  for (int i = 0; i < 5; ++i) {
    now_ += 10;
    EXPECT_EQ(Look(40).reason, TriggerReason::kNone);
  }
  saves_ = false;
  EXPECT_EQ(Run(3, 1).reason, TriggerReason::kNone);
}

TEST_F(TriggerTest, ARankThatSaysForEverThatItSavesIsBelievedForTenMinutes) {
  Run(10, 1);
  saves_ = true;
  now_ += 590;
  EXPECT_EQ(Look(590).reason, TriggerReason::kNone);
  now_ += 20;
  EXPECT_EQ(Look(610).reason, TriggerReason::kStuck);
}

TEST_F(TriggerTest, ARankThatAlwaysSaysThatItSavesHidesNoSlowSteps) {
  is_due_ = false;
  saves_ = true;
  EXPECT_EQ(Run(10, 1).usual_step_seconds, 0);
  EXPECT_EQ(Run(2, 2.5).reason, TriggerReason::kHalfThroughput);
  do_all_save_ = true;
  EXPECT_EQ(Run(2, 2.5).reason, TriggerReason::kNone) << "the driver may not know of a save";
  saves_ = false;
  EXPECT_EQ(Run(2, 2.5).reason, TriggerReason::kHalfThroughput);
}

// A job that saves after each step is judged all the same.
TEST_F(TriggerTest, SavesThatAreAlwaysDueHideSlowStepsForTenMinutesAtMost) {
  Run(10, 1);
  saves_ = true;
  bool has_triggered = false;
  for (int i = 0; i < 62; ++i) {
    const bool is_slow = Run(1, 2.5).reason == TriggerReason::kHalfThroughput;
    EXPECT_FALSE(is_slow && i < 58) << i;
    has_triggered = has_triggered || is_slow;
  }
  EXPECT_TRUE(has_triggered);
}

TEST_F(TriggerTest, WhatAnEvaluationTakesIsNoFault) {
  Run(10, 1);
  evaluation_.runs = true;
  for (int i = 0; i < 5; ++i) {
    now_ += 10;
    EXPECT_EQ(Look(9).reason, TriggerReason::kNone);
  }
  evaluation_ = {.runs = false, .seconds = 59};
  now_ += 10;
  EXPECT_EQ(Look(0.1).reason, TriggerReason::kNone) << "it has ended since the last look";
  EXPECT_EQ(Run(3, 1).reason, TriggerReason::kNone);
  now_ += 10;
  EXPECT_EQ(Look(0.1).reason, TriggerReason::kStuck) << "no step follows";
}

TEST_F(TriggerTest, AnEvaluationBetweenTwoLooksIsNoPartOfTheSteps) {
  Run(10, 1);
  for (int i = 0; i < 5; ++i) {
    now_ += 8;
    evaluation_.seconds += 8;
    EXPECT_EQ(Run(1, 1.25).reason, TriggerReason::kNone) << i;
  }
  evaluation_.seconds += 1000;
  EXPECT_EQ(Run(1, 2.5).reason, TriggerReason::kHalfThroughput) << "longer than the window";
}

TEST_F(TriggerTest, AnEvaluationThatNeverEndsExcusesAJobForTenMinutes) {
  Run(10, 1);
  evaluation_.runs = true;
  now_ += 590;
  EXPECT_EQ(Look(590).reason, TriggerReason::kNone);
  now_ += 20;
  EXPECT_EQ(Look(610).reason, TriggerReason::kStuck);
}

TEST_F(TriggerTest, RanksThatDoNotTrainRaiseNothing) {
  Run(10, 1);
  trains_ = false;
  now_ += 100;
  EXPECT_EQ(Look(90).reason, TriggerReason::kNone);
}

// --- the ranks that stand out -------------------------------------------------------------------

// Two stages of four replicas: rank r is of stage r / 4, and computes r + 1 seconds at first.
std::vector<ComputeTime> TimesOf(double factor) {
  std::vector<ComputeTime> times;
  for (int rank = 0; rank < 8; ++rank) {
    times.push_back({.rank = rank, .before = rank + 1.0, .now = factor * (rank + 1)});
  }
  return times;
}

TEST(SlowestRanksTest, ComparesARankWithItselfAndWithWhatAllHaveChanged) {
  const plan::Mesh mesh = MeshOf({.data = 4, .pipeline = 2});
  EXPECT_EQ(SlowestRanks(mesh, TimesOf(1)), std::vector<int>());
  EXPECT_EQ(SlowestRanks(mesh, TimesOf(3)), std::vector<int>()) << "all are slow alike";
  std::vector<ComputeTime> times = TimesOf(1.2);
  times[1].now = 5;
  times[6].now = 9.5;
  EXPECT_EQ(SlowestRanks(mesh, times), (std::vector<int>{1, 6}));
  times = TimesOf(0.5);
  times[7].now = 8;
  EXPECT_EQ(SlowestRanks(mesh, times), std::vector<int>()) << "the others have become faster";
}

TEST(SlowestRanksTest, ComparesRanksWithoutOlderStepsWithTheirDataGroup) {
  const plan::Mesh mesh = MeshOf({.data = 4, .pipeline = 2});
  std::vector<ComputeTime> times;
  for (int rank = 0; rank < 8; ++rank) times.push_back({.rank = rank, .now = rank < 4 ? 1.0 : 7.0});
  EXPECT_EQ(SlowestRanks(mesh, times), std::vector<int>()) << "stages may be unequal";
  times[2].now = 3;
  EXPECT_EQ(SlowestRanks(mesh, times), std::vector<int>{2});
  EXPECT_EQ(SlowestRanks(mesh, {}), std::vector<int>());
}

// --- the ranks to read --------------------------------------------------------------------------

struct Job {
  std::vector<RankPlan> plans;
  std::vector<timeline::TimedStep> before;
  std::vector<timeline::TimedStep> now;
};

timeline::TimedStep StepWith(const std::vector<RankPlan>& plans, int slow) {
  timeline::TimedStep step;
  step.time = simulate::TimeStep(plans, [&](const RankPlan& plan, const plan::Instruction& i) {
                const int64_t nanos = plan::IsPass(i.kind()) ? 1'000'000 : 100'000;
                return plan.rank == slow && plan::IsPass(i.kind()) ? 3 * nanos : nanos;
              }).value();
  step.exchanges.resize(plans.size());
  return step;
}

Job JobWith(const plan::MeshSizes& sizes, int slow) {
  Job job;
  plan::PlanOptions options;
  options.mesh = MeshOf(sizes);
  options.num_microbatches = 4;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    job.plans.push_back(plan::BuildTrainPlan(options, rank).value());
  }
  for (int i = 0; i < 3; ++i) job.before.push_back(StepWith(job.plans, -1));
  for (int i = 0; i < 3; ++i) job.now.push_back(StepWith(job.plans, slow));
  return job;
}

// Reads ranks until no more are awaited. Returns whether each was read.
std::vector<bool> ReadAwaited(const Job& job) {
  const plan::Mesh& mesh = job.plans.front().mesh;
  std::vector<bool> known(job.plans.size());
  std::vector<int> next = SampleRanks(mesh, MachinesOf(mesh));
  std::set<std::string> passed;
  while (!next.empty()) {
    for (const int rank : next) known[static_cast<size_t>(rank)] = true;
    if (RankThatComputesLonger(job.plans, known, {job.before, job.now}) >= 0) break;
    next = RanksAwaited(job.plans, known, {job.before, job.now}, &passed);
  }
  return known;
}

TEST(SlowPathTest, LeadsFromTheSampleToTheSlowRankWhereverItIs) {
  for (int slow = 0; slow < 64; slow += 5) {
    const Job job = JobWith({.data = 8, .pipeline = 8}, slow);
    const std::vector<bool> known = ReadAwaited(job);
    EXPECT_TRUE(known[static_cast<size_t>(slow)]) << slow;
    EXPECT_EQ(RankThatComputesLonger(job.plans, known, {job.before, job.now}), slow);
    EXPECT_LT(std::count(known.begin(), known.end(), true), 64) << slow;
  }
}

// Where a group has too many members to read, the next call goes on along another path.
TEST(SlowPathTest, AGroupIsReturnedOnce) {
  const Job job = JobWith({.data = 8, .pipeline = 8}, 42);
  const std::vector<int> sample = SampleRanks(job.plans.front().mesh, std::vector<int>(64, -1));
  std::vector<bool> known(64);
  for (const int rank : sample) known[static_cast<size_t>(rank)] = true;
  std::set<std::string> passed;
  std::set<std::vector<int>> returned;
  for (;;) {
    const std::vector<int> next = RanksAwaited(job.plans, known, {job.before, job.now}, &passed);
    if (next.empty()) break;
    EXPECT_TRUE(returned.insert(next).second);
  }
  EXPECT_GT(returned.size(), 1u);
  EXPECT_EQ(returned.size(), passed.size());
}

TEST(SlowPathTest, AJobThatIsNotSlowerNeedsNoFurtherRank) {
  const std::vector<bool> known = ReadAwaited(JobWith({.data = 8, .pipeline = 8}, -1));
  EXPECT_EQ(std::count(known.begin(), known.end(), true), 8);
}

}  // namespace
}  // namespace megascale::diagnose
