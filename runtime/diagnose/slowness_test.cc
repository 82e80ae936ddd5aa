// The what-if analysis and its verdicts on steps that are computed with a fault in them.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/diagnose/heat_map.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/operation_graph.h"
#include "runtime/diagnose/slow_verdict.h"
#include "runtime/diagnose/straggler_table.h"
#include "runtime/diagnose/traced_job.h"
#include "runtime/diagnose/what_if.h"
#include "runtime/diagnose/what_if_json.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/simulate/step_time.h"

namespace megascale::diagnose {
namespace {

using plan::Instruction;
using plan::OpClass;
using plan::RankPlan;
using timeline::TimedStep;

// --- replay -------------------------------------------------------------------------------------

TEST(OperationGraphTest, AnOperationWaitsForItsDependenciesAndItsMeeting) {
  // Worker 0: a, then sends; worker 1: receives, then b.
  const auto graph = OperationGraph::Create(
      {{"compute", "compute"}, {"transfer", "transfer", Ideal::kMedian, Role::kTransfer}},
      {{0, 0, 0}, {1, 0, 1}},
      {{.kind = 0, .worker = 0},
       {.kind = 1, .worker = 0, .depends_on = {0}, .meeting = 4},
       {.kind = 1, .worker = 1, .meeting = 4},
       {.kind = 0, .worker = 1, .depends_on = {2}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_DOUBLE_EQ(graph->Replay({{0, 0, 0, 0}, {5, 1, 2, 10}}), 5 + 2 + 10);
  EXPECT_DOUBLE_EQ(graph->Replay({{0, 1, 9, 0}, {5, 1, 2, 10}}), 9 + 2 + 10);
  EXPECT_EQ(graph->DelaysOf({0, 5, 0.5, 7.5}, {5, 7, 7, 17.5}),
            (std::vector<double>{0, 0, 0.5, 0.5}));
}

TEST(OperationGraphTest, OperationsThatWaitForEachOtherAreRefused) {
  const auto graph = OperationGraph::Create(
      {{"compute", "compute"}}, {{0, 0, 0}},
      {{.kind = 0, .worker = 0, .depends_on = {1}}, {.kind = 0, .worker = 0, .depends_on = {0}}});
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
}

// --- our own steps -------------------------------------------------------------------------------

// Changes an instruction's time in a step, in nanoseconds.
using Fault =
    std::function<int64_t(const RankPlan&, const Instruction&, int64_t step, int64_t nanos)>;

struct Job {
  std::vector<RankPlan> plans;
  std::vector<TimedStep> steps;
};

std::vector<RankPlan> PlansOf(const plan::MeshSizes& sizes) {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create(sizes).value();
  options.num_microbatches = 4;
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    plans.push_back(plan::BuildTrainPlan(options, rank).value());
  }
  return plans;
}

// Runs `num_steps` steps of data 2 x pipeline 2 in which a pass takes 1 ms and all else 0.1 ms, one
// after another on one clock.
Job RunSteps(const Fault& fault, plan::MeshSizes sizes = {.data = 2, .pipeline = 2},
             int64_t num_steps = 6) {
  Job job = {.plans = PlansOf(sizes), .steps = {}};
  int64_t begin = 0;
  for (int64_t step = 1; step <= num_steps; ++step) {
    TimedStep timed;
    timed.step = step;
    timed.time = simulate::TimeStep(job.plans, [&](const RankPlan& plan, const Instruction& i) {
                   const int64_t nanos = plan::IsPass(i.kind()) ? 1'000'000 : 100'000;
                   return fault(plan, i, step, nanos);
                 }).value();
    for (std::vector<timeline::SpanTime>& rank : timed.time.ranks) {
      for (timeline::SpanTime& span : rank) {
        span.ready += begin;
        span.begin += begin;
        span.end += begin;
      }
    }
    timed.exchanges.resize(job.plans.size());
    timed.time.end += begin;
    begin = timed.time.end;
    job.steps.push_back(std::move(timed));
  }
  return job;
}

struct Result {
  MeasuredJob measured;
  WhatIf what_if;
  SlowVerdict verdict;
};

Result Judge(const Job& job, std::vector<bool> known = {}) {
  known.resize(job.plans.size(), true);
  Result result;
  result.measured = JobOfSteps(job.plans, known, job.steps).value();
  result.what_if = AnalyzeSteps(result.measured.graph, result.measured.steps, kMeasuredJobOptions);
  result.verdict = ExplainSlowness(result.measured.graph, result.measured.steps,
                                   kMeasuredJobOptions, result.what_if);
  return result;
}

int64_t Calm(const RankPlan&, const Instruction&, int64_t, int64_t nanos) { return nanos; }

TEST(SlownessTest, CalmStepsAreHealthyAndTheReplayTakesAsLongAsTheStep) {
  const Result result = Judge(RunSteps(Calm));
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kNone);
  EXPECT_NEAR(result.what_if.slowdown, 1, 1e-9);
  EXPECT_NEAR(result.what_if.launch_slowdown, 1, 1e-6);
  EXPECT_FALSE(result.verdict.grows);
}

TEST(SlownessTest, NamesTheOneRankThatComputesSlowly) {
  for (int slow = 0; slow < 4; ++slow) {
    const Result result =
        Judge(RunSteps([&](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
          return plan.rank == slow && plan::IsPass(i.kind()) ? 3 * nanos : nanos;
        }));
    ASSERT_EQ(result.verdict.cause.cause, SlowCause::kOneWorker) << slow;
    EXPECT_EQ(result.verdict.cause.worker, slow);
    EXPECT_NEAR(result.verdict.cause.times_slower, 3, 0.3);
    EXPECT_GT(result.verdict.cause.share, 0.7);
    EXPECT_GT(result.what_if.by_worker.all[static_cast<size_t>(slow)], 1.2);
  }
}

// Rank 1 is slow in steps 1 to 3 only.
TEST(SlownessTest, WhatEachStepWouldRecoverAddsUpToTheTotal) {
  const Job job =
      RunSteps([](const RankPlan& plan, const Instruction& i, int64_t step, int64_t nanos) {
        return plan.rank == 1 && step <= 3 && plan::IsPass(i.kind()) ? (1 + step) * nanos : nanos;
      });
  const MeasuredJob measured = JobOfSteps(job.plans, {true, true, true, true}, job.steps).value();
  for (const bool is_exact : {true, false}) {
    WhatIfOptions options = kMeasuredJobOptions;
    if (!is_exact) options.exact_workers_max = 0;
    const WhatIf result = AnalyzeSteps(measured.graph, measured.steps, options);
    for (const Recovery* recovery : {&result.fix_slowest_workers, &result.fix_last_stage}) {
      ASSERT_EQ(recovery->share_per_step.size(), 6u);
      double lost = 0;
      double recovered = 0;
      double seconds = 0;
      for (size_t s = 0; s < 6; ++s) {
        const double lost_here = result.actual_seconds[s] - result.ideal_seconds[s];
        if (lost_here > 0) recovered += recovery->share_per_step[s] * lost_here;
        if (lost_here <= 0) recovered += result.actual_seconds[s] - recovery->seconds_per_step[s];
        lost += lost_here;
        seconds += recovery->seconds_per_step[s];
      }
      EXPECT_NEAR(recovered / lost, recovery->share, 1e-9);
      EXPECT_NEAR(seconds / 6, recovery->seconds_without, 1e-12);
    }
    EXPECT_GT(result.fix_slowest_workers.share_per_step[2], 0.5);
    ASSERT_EQ(result.by_worker.per_step.size(), 6u);
    for (size_t worker = 0; worker < 4; ++worker) {
      double sum = 0;
      for (size_t s = 0; s < 6; ++s) {
        sum += result.by_worker.per_step[s][worker] * result.ideal_seconds[s];
      }
      if (!is_exact) continue;  // the smaller of two is no sum
      EXPECT_NEAR(sum / 6 / result.mean_ideal(), result.by_worker.all[worker], 1e-9);
    }
    EXPECT_GT(result.by_worker.per_step[2][1], result.by_worker.per_step[5][1]);
  }
}

TEST(SlownessTest, NamesTheSlowRankAmongTensorParallelOnes) {
  for (int slow = 0; slow < 8; ++slow) {
    Job job = RunSteps(Calm, {.data = 2, .pipeline = 2, .tensor = 2});
    // All ranks of a pass take as long as the slow one; the others wait for it in their exchanges.
    job = RunSteps(
        [&](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
          return plan.rank / 2 == slow / 2 && plan::IsPass(i.kind()) ? 3 * nanos : nanos;
        },
        {.data = 2, .pipeline = 2, .tensor = 2});
    for (TimedStep& step : job.steps) {
      for (size_t rank = 0; rank < job.plans.size(); ++rank) {
        const bool waits = static_cast<int>(rank) / 2 == slow / 2 && static_cast<int>(rank) != slow;
        for (size_t i = 0; i < job.plans[rank].instructions.size() && waits; ++i) {
          if (!plan::IsPass(job.plans[rank].instructions[i].kind())) continue;
          step.time.ranks[rank][i].exchange = 2'000'000;
        }
      }
    }
    const Result result = Judge(job);
    ASSERT_EQ(result.verdict.cause.cause, SlowCause::kOneWorker) << slow;
    EXPECT_EQ(result.verdict.cause.worker, slow);
  }
}

// A throttled process is late within exchanges, too: they take long for all of their members.
TEST(SlownessTest, CountsTheExchangesOfASlowRankAsItsOwn) {
  const Result result = Judge(
      RunSteps([](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) -> int64_t {
        if (plan.rank != 3) return nanos;
        return plan::IsPass(i.kind()) ? nanos * 3 / 2 : 20 * nanos;
      }));
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kOneWorker);
  EXPECT_EQ(result.verdict.cause.worker, 3);
}

// A process that is stopped now and then stands still in a pass in some steps, and in a transfer in
// others.
TEST(SlownessTest, NamesARankThatIsSlowByTurnsInComputingAndInExchanges) {
  const Result result = Judge(RunSteps(
      [](const RankPlan& plan, const Instruction& i, int64_t step, int64_t nanos) -> int64_t {
        if (plan.rank == 0 && plan::IsPass(i.kind())) return nanos * 13 / 10;  // costs less
        if (plan.rank != 3) return nanos;
        const bool is_receive =
            plan::OperationOf(i.kind()).op_class == OpClass::kReceive && i.id.microbatch() < 2;
        if (step % 2 == 0) return is_receive ? 30 * nanos : nanos;
        return plan::IsPass(i.kind()) ? 2 * nanos : nanos;
      }));
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kOneWorker);
  EXPECT_EQ(result.verdict.cause.worker, 3);
  EXPECT_TRUE(result.verdict.cause.stands_out);
}

// A receive that is slow for its link alone is no sign of a slow rank.
TEST(SlownessTest, ASlowWayInOneDirectionIsASlowLink) {
  Job job = RunSteps([](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
    return plan.rank == 3 && i.kind() == plan::OpKind::kReceiveActivation ? 20 * nanos : nanos;
  });
  for (TimedStep& step : job.steps) {  // the send goes into a buffer and ends at once
    for (size_t i = 0; i < job.plans[1].instructions.size(); ++i) {
      timeline::SpanTime& span = step.time.ranks[1][i];
      if (job.plans[1].instructions[i].kind() == plan::OpKind::kSendActivation) {
        span.end = span.begin + 1000;
      }
    }
  }
  const Result result = Judge(job);
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kSlowLink);
  EXPECT_EQ(result.verdict.cause.worker, 1);
  EXPECT_EQ(result.verdict.cause.peer, 3);
}

// With one rank in each stage, a slow rank and a stage with more work look alike.
TEST(SlownessTest, OfAStageOfOneRankSaysWhichRankItIs) {
  const Result result = Judge(RunSteps(
      [](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
        return plan.rank == 2 && plan::IsPass(i.kind()) ? 2 * nanos : nanos;
      },
      {.pipeline = 4}));
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kUnequalStages);
  EXPECT_EQ(result.verdict.cause.stage, 2);
  EXPECT_EQ(result.verdict.cause.worker, 2);
}

TEST(SlownessTest, TellsAStageWithMoreWorkFromASlowRank) {
  const Result result =
      Judge(RunSteps([](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
        return plan.stage() == 1 && plan::IsPass(i.kind()) ? 2 * nanos : nanos;
      }));
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kUnequalStages);
  EXPECT_EQ(result.verdict.cause.stage, 1);
  EXPECT_NEAR(result.verdict.cause.times_slower, 2, 0.2);
  EXPECT_GT(result.what_if.fix_last_stage.share, 0.9);
}

TEST(SlownessTest, NamesTheTwoEndsOfASlowLink) {
  // Replica 1: ranks 1 and 3.
  const Result result =
      Judge(RunSteps([](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
        return plan::IsTransfer(i.kind()) && plan.rank % 2 == 1 ? 20 * nanos : nanos;
      }));
  ASSERT_EQ(result.verdict.cause.cause, SlowCause::kSlowLink);
  EXPECT_EQ(result.verdict.cause.worker, 1);
  EXPECT_EQ(result.verdict.cause.peer, 3);
}

TEST(SlownessTest, NamesWaitingForDataThoughAllRanksWaitAlike) {
  const Result result =
      Judge(RunSteps([](const RankPlan&, const Instruction& i, int64_t, int64_t nanos) {
        return plan::OperationOf(i.kind()).op_class == OpClass::kLoad ? 100 * nanos : nanos;
      }));
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kDataWait);
  EXPECT_GT(result.verdict.cause.share, 0.4);
  EXPECT_EQ(result.verdict.cause.worker, -1);
}

TEST(SlownessTest, NamesTheOneRankThatWaitsForData) {
  for (int slow = 0; slow < 2; ++slow) {  // ranks 0 and 1 are the first stage
    const Result result =
        Judge(RunSteps([&](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
          const bool is_load = plan::OperationOf(i.kind()).op_class == OpClass::kLoad;
          return is_load && plan.rank == slow ? 100 * nanos : nanos;
        }));
    EXPECT_EQ(result.verdict.cause.cause, SlowCause::kDataWait);
    EXPECT_EQ(result.verdict.cause.worker, slow);
  }
}

TEST(SlownessTest, NamesACollectiveThatIsSlowInSomeSteps) {
  const Result result =
      Judge(RunSteps([](const RankPlan&, const Instruction& i, int64_t step, int64_t nanos) {
        return i.kind() == plan::OpKind::kReduceGradients && step % 3 == 0 ? 200 * nanos : nanos;
      }));
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kSlowCollective);
  EXPECT_EQ(result.verdict.cause.label, "reduce-scatter of gradients");
}

TEST(SlownessTest, BlamesNoRankIfTheSlowOneChanges) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const Result result = Judge(RunSteps(
        [&](const RankPlan&, const Instruction& i, int64_t, int64_t nanos) {
          return plan::IsPass(i.kind()) && random() % 4 == 0 ? 4 * nanos : nanos;
        },
        {.data = 4, .pipeline = 2}, 9));
    EXPECT_GT(result.verdict.slowdown, kSlowdownMin);
    EXPECT_TRUE(result.verdict.cause.cause == SlowCause::kJitter ||
                result.verdict.cause.cause == SlowCause::kUnknown)
        << "seed " << seed;
  }
}

TEST(SlownessTest, ComputingThatIsSlowOnAnotherRankInEachStepIsJitter) {
  for (const int num_steps : {8, 16}) {
    const Result result = Judge(RunSteps(
        [](const RankPlan& plan, const Instruction& i, int64_t step, int64_t nanos) {
          return plan::IsPass(i.kind()) && plan.rank == step % 8 ? 4 * nanos : nanos;
        },
        {.data = 4, .pipeline = 2}, num_steps));
    EXPECT_EQ(result.verdict.cause.cause, SlowCause::kJitter);
    EXPECT_EQ(result.verdict.cause.worker, -1);
    EXPECT_GT(result.verdict.cause.share, 0.5);
    EXPECT_FALSE(result.verdict.grows);
  }
}

// MegaScale, NSDI '24, section 6.3: launch times of changing ranks drift apart, and MFU declines.
TEST(SlownessTest, JitterThatGrowsIsSeenToGrow) {
  const Result result = Judge(RunSteps(
      [](const RankPlan& plan, const Instruction& i, int64_t step, int64_t nanos) {
        return plan::IsPass(i.kind()) && plan.rank == step % 8 ? (1 + step) * nanos : nanos;
      },
      {.data = 4, .pipeline = 2}, 16));
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kJitter);
  EXPECT_TRUE(result.verdict.grows);
}

TEST(SlownessTest, SeesStepsThatGrow) {
  const Result result = Judge(RunSteps([](const RankPlan&, const Instruction&, int64_t step,
                                          int64_t nanos) { return nanos * (10 + step) / 10; }));
  EXPECT_TRUE(result.verdict.grows);
}

// A stopped process begins late, which is its own time and not that of those who wait.
TEST(SlownessTest, CountsTheDelayOfARankAsItsWork) {
  Job job = RunSteps(Calm);
  for (TimedStep& step : job.steps) {
    step.time = simulate::TimeStep(job.plans, [](const RankPlan& plan, const Instruction& i) {
                  const int64_t nanos = plan::IsPass(i.kind()) ? 1'000'000 : 100'000;
                  return plan.rank == 2 && plan::IsPass(i.kind()) ? 3 * nanos : nanos;
                }).value();
    for (size_t i = 0; i < job.plans[2].instructions.size(); ++i) {
      timeline::SpanTime& span = step.time.ranks[2][i];
      if (!plan::IsPass(job.plans[2].instructions[i].kind())) continue;
      span.ready += 2'000'000;
      span.begin += 2'000'000;
    }
  }
  const Result result = Judge(job);
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kOneWorker);
  EXPECT_EQ(result.verdict.cause.worker, 2);
}

TEST(SlownessTest, LeavesOutRanksThatAreNotKnownAndStepsThatAreNotWhole) {
  Job job = RunSteps(Calm);
  job.steps.back().whole = false;
  const Result result = Judge(job, {true, false, true, true});
  EXPECT_EQ(result.measured.graph.workers().size(), 3u);
  EXPECT_EQ(result.measured.steps.size(), 5u);
  EXPECT_EQ(result.verdict.cause.cause, SlowCause::kNone);
  for (TimedStep& step : job.steps) step.whole = false;
  EXPECT_EQ(JobOfSteps(job.plans, {true, true, true, true}, job.steps).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// --- what has changed ----------------------------------------------------------------------------

// The newest of 40 steps, of which the fault began with step 25 or `since`, and older ones to
// compare them with. Machines hold two ranks each.
struct Compared {
  MeasuredJob measured;
  std::vector<MeasuredStep> before;
  std::vector<int> machine_of;

  History history() const { return {.before = before, .machine_of = machine_of}; }
};

Compared CompareSteps(plan::MeshSizes sizes, const Fault& fault, int64_t since = 25) {
  const Job job =
      RunSteps([&](const RankPlan& plan, const Instruction& i, int64_t step,
                   int64_t nanos) { return step >= since ? fault(plan, i, step, nanos) : nanos; },
               sizes, 40);
  const std::vector<bool> known(job.plans.size(), true);
  Compared compared = {JobOfSteps(job.plans, known, job.steps).value(), {}, {}};
  std::vector<MeasuredStep>& steps = compared.measured.steps;
  compared.before.assign(steps.begin(), steps.begin() + 24);
  steps.erase(steps.begin(), steps.begin() + 32);
  for (const Worker& worker : compared.measured.graph.workers()) {
    compared.machine_of.push_back(worker.rank / 2);
  }
  return compared;
}

SlowVerdict Explain(const MeasuredJob& measured, const History& history) {
  const auto& [graph, steps] = measured;
  const WhatIf result = AnalyzeSteps(graph, steps, kMeasuredJobOptions);
  return ExplainSlowness(graph, steps, kMeasuredJobOptions, result, history);
}

SlowVerdict JudgeChange(plan::MeshSizes sizes, const Fault& fault, int64_t since = 25) {
  const Compared compared = CompareSteps(sizes, fault, since);
  return Explain(compared.measured, compared.history());
}

const plan::MeshSizes kWide = {.data = 4, .pipeline = 2};
const plan::MeshSizes kLong = {.data = 2, .pipeline = 4};

bool IsOn(int machine, const RankPlan& plan) { return plan.rank / 2 == machine; }

// True if the instruction exchanges something with a rank of another machine.
bool IsOutside(const RankPlan& plan, const Instruction& i) {
  if (i.group == plan::GroupKind::kNone || plan::IsPass(i.kind())) return false;
  if (plan::IsTransfer(i.kind())) {
    return !IsOn(plan.mesh.RankInGroup(i.group, plan.rank, i.peer) / 2, plan);
  }
  for (const int rank : plan.mesh.GroupOf(i.group, plan.rank).ranks) {
    if (!IsOn(rank / 2, plan)) return true;
  }
  return false;
}

// True if a rank of the machine takes part in an exchange between machines.
bool IsOnLinkOf(int machine, const RankPlan& plan, const Instruction& i) {
  if (!IsOutside(plan, i)) return false;
  if (IsOn(machine, plan)) return true;
  if (plan::IsTransfer(i.kind())) {
    return plan.mesh.RankInGroup(i.group, plan.rank, i.peer) / 2 == machine;
  }
  for (const int rank : plan.mesh.GroupOf(i.group, plan.rank).ranks) {
    if (rank / 2 == machine) return true;
  }
  return false;
}

TEST(SlowChangeTest, NamesAMachineWhoseRanksAllComputeSlowly) {
  for (const plan::MeshSizes& sizes : {kWide, kLong}) {
    for (int slow = 0; slow < 4; ++slow) {
      const SlowVerdict verdict = JudgeChange(
          sizes, [&](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
            return IsOn(slow, plan) && plan::IsPass(i.kind()) ? 2 * nanos : nanos;
          });
      EXPECT_EQ(verdict.cause.cause, SlowCause::kSlowMachine) << slow;
      EXPECT_EQ(verdict.cause.worker, 2 * slow);
      EXPECT_NEAR(verdict.cause.times_slower, 2, 0.3);
      EXPECT_TRUE(verdict.cause.has_witnesses) << slow;
    }
  }
}

TEST(SlowChangeTest, TheSlowestOfRanksThatAllChangeUnevenlyIsNotNamed) {
  for (const double other : {1.0, 0.8}) {
    const std::vector<double> times = {2, 2.8, 2, 2, 2, 2, 2, 2 * other};
    const Compared compared = CompareSteps(
        kLong, [&](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
          const double factor = times[static_cast<size_t>(plan.rank)];
          return plan::IsPass(i.kind()) ? static_cast<int64_t>(factor * static_cast<double>(nanos))
                                        : nanos;
        });
    const SlowChange change =
        FindChange(compared.measured.graph, compared.measured.steps, compared.history());
    EXPECT_EQ(change.what, other == 1.0 ? Change::kWorker : Change::kNone);
  }
}

TEST(SlowChangeTest, NamesTheMachineWhoseRanksWaitForData) {
  for (int slow = 0; slow < 2; ++slow) {  // of the first stage
    const SlowVerdict verdict =
        JudgeChange(kWide, [&](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
          const bool is_load = plan::OperationOf(i.kind()).op_class == OpClass::kLoad;
          return is_load && IsOn(slow, plan) ? 100 * nanos : nanos;
        });
    EXPECT_EQ(verdict.cause.cause, SlowCause::kDataWait);
    EXPECT_TRUE(verdict.cause.is_machine);
    EXPECT_EQ(verdict.cause.worker, 2 * slow);
  }
}

TEST(SlowChangeTest, NoMachineIsNamedIfAllWaitForDataAlike) {
  const SlowVerdict verdict =
      JudgeChange(kWide, [&](const RankPlan&, const Instruction& i, int64_t, int64_t nanos) {
        return plan::OperationOf(i.kind()).op_class == OpClass::kLoad ? 100 * nanos : nanos;
      });
  EXPECT_EQ(verdict.cause.cause, SlowCause::kDataWait);
  EXPECT_FALSE(verdict.cause.is_machine);
  EXPECT_EQ(verdict.cause.worker, -1);
}

TEST(SlowChangeTest, NamesTheMachineWhoseLinkIsSlow) {
  for (const plan::MeshSizes& sizes : {kWide, kLong}) {
    for (int slow = 0; slow < 4; ++slow) {
      const SlowVerdict verdict = JudgeChange(
          sizes, [&](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
            return IsOnLinkOf(slow, plan, i) ? 40 * nanos : nanos;
          });
      // A machine at an end of the pipeline has exchanges with one other machine only. That one is
      // exonerated by those that it has with a third one.
      EXPECT_EQ(verdict.cause.cause, SlowCause::kSlowMachineLink) << slow;
      EXPECT_EQ(verdict.cause.worker, 2 * slow);
    }
  }
}

// Another program used all machines but the first; it ends when the link of the third becomes slow.
TEST(SlowChangeTest, AMachineIsNotSlowBecauseTheOthersHaveBecomeFaster) {
  const Compared compared =
      CompareSteps(kWide, [](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
        if (plan::IsPass(i.kind()) && !IsOn(0, plan)) return nanos / 2;
        return IsOnLinkOf(2, plan, i) ? 60 * nanos : nanos;
      });
  const SlowChange change =
      FindChange(compared.measured.graph, compared.measured.steps, compared.history());
  EXPECT_EQ(change.what, Change::kMachineLink);
  EXPECT_EQ(change.worker, 4);
}

TEST(SlowChangeTest, NamesARankThatIsLateInExchangesOnly) {
  for (const plan::MeshSizes& sizes : {kWide, kLong}) {
    for (const int late : {1, 4, 6}) {
      const SlowVerdict verdict = JudgeChange(
          sizes, [&](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
            if (i.group == plan::GroupKind::kNone || plan::IsPass(i.kind())) return nanos;
            if (plan::IsTransfer(i.kind())) {
              const int peer = plan.mesh.RankInGroup(i.group, plan.rank, i.peer);
              return plan.rank == late || peer == late ? 40 * nanos : nanos;
            }
            for (const int rank : plan.mesh.GroupOf(i.group, plan.rank).ranks) {
              if (rank == late) return 40 * nanos;
            }
            return nanos;
          });
      EXPECT_EQ(verdict.cause.cause, SlowCause::kLateWorker) << late;
      EXPECT_EQ(verdict.cause.worker, late);
    }
  }
}

TEST(SlowChangeTest, NamesNobodyIfAllHaveBecomeSlowAlike) {
  for (const plan::MeshSizes& sizes : {kWide, kLong}) {
    const SlowVerdict verdict = JudgeChange(sizes, [](const RankPlan&, const Instruction&, int64_t,
                                                      int64_t nanos) { return 3 * nanos; });
    EXPECT_EQ(verdict.cause.cause, SlowCause::kNone);
  }
}

TEST(SlowChangeTest, ThreeThatExchangeSlowlyAlikeBlameNotTheMiddleOne) {
  const auto transfers = [](const RankPlan&, const Instruction& i, int64_t, int64_t nanos) {
    return plan::IsTransfer(i.kind()) ? 40 * nanos : nanos;
  };
  EXPECT_EQ(JudgeChange({.data = 1, .pipeline = 3}, transfers).cause.step_times, 0);
  const auto outside = [](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
    return IsOutside(plan, i) ? 40 * nanos : nanos;
  };
  EXPECT_EQ(JudgeChange({.data = 2, .pipeline = 3}, outside).cause.step_times, 0);
}

TEST(SlowChangeTest, TheOnlyMachineIsNotNamedForAllOfIt) {
  const SlowVerdict verdict = JudgeChange(
      {.data = 2},
      [](const RankPlan&, const Instruction&, int64_t, int64_t nanos) { return 3 * nanos; });
  EXPECT_EQ(verdict.cause.step_times, 0);
}

// Makes the passes of a stage `times` as long.
Fault StageTakes(int stage, double times) {
  return [=](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
    const bool is_slow = plan.stage() == stage && plan::IsPass(i.kind());
    return is_slow ? static_cast<int64_t>(times * static_cast<double>(nanos)) : nanos;
  };
}

TEST(SlowChangeTest, NamesTheMachineThatHasAllRanksOfAStageAlsoAmongTwoOrThree) {
  for (const int num_machines : {2, 3, 4}) {
    for (const double times : {2.0, 10.0}) {
      const SlowVerdict verdict =
          JudgeChange({.data = 2, .pipeline = num_machines}, StageTakes(num_machines - 1, times));
      EXPECT_EQ(verdict.cause.cause, SlowCause::kSlowMachine) << num_machines;
      EXPECT_EQ(verdict.cause.worker, 2 * (num_machines - 1));
      EXPECT_EQ(verdict.cause.num_workers, 2);
      EXPECT_EQ(verdict.cause.has_witnesses, num_machines > 2) << num_machines;
    }
  }
}

TEST(SlowChangeTest, NamesTheMachineOfWhichSeveralRanksComputeSlowly) {
  Compared compared =
      CompareSteps(kWide, [](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
        return plan.rank > 4 && plan::IsPass(i.kind()) ? 3 * nanos : nanos;
      });
  for (int& machine : compared.machine_of) machine /= 2;
  const SlowVerdict verdict = Explain(compared.measured, compared.history());
  EXPECT_EQ(verdict.cause.cause, SlowCause::kSlowMachine);
  EXPECT_EQ(verdict.cause.worker, 5);
  EXPECT_EQ(verdict.cause.num_workers, 3);
}

// Other programs use the only machine, so that its ranks change unevenly.
TEST(SlowChangeTest, TheSlowestRankOfABusyMachineAloneIsNotNamed) {
  Compared compared =
      CompareSteps(kWide, [](const RankPlan& plan, const Instruction& i, int64_t, int64_t nanos) {
        return plan::IsPass(i.kind()) ? nanos * (plan.rank == 3 ? 3 : 1 + plan.rank % 2) : nanos;
      });
  compared.machine_of.assign(8, 0);
  EXPECT_EQ(Explain(compared.measured, compared.history()).cause.step_times, 0);
}

// Its ranks are on two machines: none is named, and the plan is not at fault.
TEST(SlowChangeTest, AStageThatWasLikeTheOthersIsNotUnequal) {
  for (const double times : {1.5, 2.0}) {
    const SlowVerdict verdict = JudgeChange(kWide, StageTakes(1, times));
    EXPECT_EQ(verdict.cause.cause, SlowCause::kSlowerStage) << times;
    EXPECT_EQ(verdict.cause.worker, -1);
    EXPECT_NEAR(verdict.cause.times_before, 1, 0.05);
    EXPECT_GT(verdict.step_times, 1.1);
  }
}

TEST(SlowChangeTest, AStageThatHasMoreWorkFromTheBeginningIsUnequalAndNoSlowMachine) {
  for (const double later : {1.0, 1.3}) {  // all ranks
    const SlowVerdict verdict = JudgeChange(
        kLong,
        [&](const RankPlan& plan, const Instruction& i, int64_t step, int64_t nanos) {
          const auto all = static_cast<double>(nanos) * (step > 24 ? later : 1);
          return StageTakes(3, 2)(plan, i, step, static_cast<int64_t>(all));
        },
        1);
    EXPECT_EQ(verdict.cause.cause, SlowCause::kUnequalStages) << later;
    EXPECT_EQ(verdict.cause.stage, 3);
    EXPECT_EQ(verdict.cause.step_times, 0);
  }
}

// Most of the older steps are slow, too.
TEST(SlowChangeTest, AStageThatWasLikeTheOthersInAQuarterOfTheOlderStepsIsNotUnequal) {
  EXPECT_EQ(JudgeChange(kLong, StageTakes(3, 2), 8).cause.cause, SlowCause::kSlowerStage);
  EXPECT_EQ(JudgeChange(kLong, StageTakes(3, 2), 3).cause.cause, SlowCause::kUnequalStages);
}

// Older steps are gone, but the job reported how long they took.
TEST(SlowChangeTest, AJobThatWasFasterWithTheSameStagesHasNoUnequalOnes) {
  const Compared slow = CompareSteps(kLong, StageTakes(3, 2), 1);
  const auto explain = [&](double times_usual) {
    return Explain(slow.measured, {.machine_of = slow.machine_of, .times_usual = times_usual});
  };
  EXPECT_EQ(explain(0).cause.cause, SlowCause::kUnequalStages);
  EXPECT_EQ(explain(1.1).cause.cause, SlowCause::kUnequalStages) << "that explains little of it";
  EXPECT_EQ(explain(1.6).cause.cause, SlowCause::kSlowerStage);
  EXPECT_EQ(explain(1.6).cause.times_usual, 1.6);
}

// An attempt that begins on a slow machine knows no faster steps, but its plan. The last stage also
// computes the loss, of which the plan does not know how long it takes.
TEST(SlowChangeTest, AStageWithoutMoreWorkByThePlanIsNotUnequal) {
  struct Case {
    int stage;
    double times;
    int percent_planned;
    SlowCause cause;
  };
  for (const Case& c :
       {Case{3, 3, 100, SlowCause::kSlowerStage}, Case{3, 3, 300, SlowCause::kUnequalStages},
        Case{3, 1.6, 100, SlowCause::kUnequalStages}, Case{1, 3, 180, SlowCause::kSlowerStage},
        Case{1, 3, 300, SlowCause::kUnequalStages}}) {
    Job job = RunSteps(StageTakes(c.stage, c.times), kLong);
    for (RankPlan& plan : job.plans) {
      for (Instruction& i : plan.instructions) {
        if (plan::IsPass(i.kind())) i.flops = plan.stage() == c.stage ? c.percent_planned : 100;
      }
    }
    const SlowVerdict verdict = Judge(job).verdict;
    EXPECT_EQ(verdict.cause.cause, c.cause) << c.stage << " " << c.times;
    const bool is_slower = c.cause == SlowCause::kSlowerStage;
    EXPECT_DOUBLE_EQ(verdict.cause.times_planned, is_slower ? c.percent_planned / 100.0 : 0);
  }
}

// All ranks wait for data as they always did.
TEST(SlowChangeTest, NamesASlowMachineRatherThanAShorterWaitForData) {
  const SlowVerdict verdict = JudgeChange(
      kWide,
      [](const RankPlan& plan, const Instruction& i, int64_t step, int64_t nanos) {
        if (plan::OperationOf(i.kind()).op_class == OpClass::kLoad) return 60 * nanos;
        return step > 24 && IsOn(3, plan) && plan::IsPass(i.kind()) ? 4 * nanos : nanos;
      },
      1);
  EXPECT_EQ(verdict.cause.cause, SlowCause::kSlowMachine);
  EXPECT_EQ(verdict.cause.worker, 6);
}

// --- output --------------------------------------------------------------------------------------

TEST(WhatIfJsonTest, HasTheNamesOfThePublishedResults) {
  const Result result = Judge(RunSteps(Calm));
  const nlohmann::json object = WhatIfJson(result.measured.graph, result.what_if);
  EXPECT_EQ(object["step_t_base"].size(), 6u);
  EXPECT_NEAR(object["blocking_slowdown"].get<double>(), 1, 1e-9);
  EXPECT_EQ(object["blocking_decompose_by_stage"].size(), 2u);
  EXPECT_EQ(object["blocking_decompose_by_optype_per_step"]["3"].size(),
            object["blocking_decompose_by_optype"].size());
  EXPECT_EQ(object["decompose_by_rank"].size(), 4u);
  EXPECT_TRUE(object.contains("M_W") && object.contains("M_S"));
  for (const char* name : {"M_W_per_step", "M_S_per_step", "decompose_by_rank_per_step"}) {
    EXPECT_EQ(object[name].size(), 6u) << name;
  }
  EXPECT_EQ(object["decompose_by_rank_per_step"]["3"].size(), 4u);
}

// The rows of our steps have what the published tool's dependencies need: our reader of its traces
// has the same ones.
TEST(StragglerTableTest, OurStepsAreATraceThatTheAnalysisOfTheToolAccepts) {
  for (const plan::MeshSizes& sizes :
       {plan::MeshSizes{.data = 2, .pipeline = 2}, plan::MeshSizes{.pipeline = 4},
        plan::MeshSizes{.data = 4}, plan::MeshSizes{}}) {
    const Job job = RunSteps(Calm, sizes, 3);
    const std::vector<bool> known(job.plans.size(), true);
    const std::vector<StragglerRow> rows = StragglerRows(job.plans, known, job.steps);
    ChromeTrace trace;
    for (const StragglerRow& row : rows) {
      trace.events.push_back({.name = static_cast<int>(trace.names.size()),
                              .pid = row.dp_rank,
                              .tid = 5 * row.rank,
                              .begin_seconds = row.start_ts,
                              .seconds = row.duration,
                              .step = row.step,
                              .model_chunk = row.mc,
                              .microbatch = row.mb_id,
                              .sequence = row.seq_id});
      trace.names.emplace_back(row.optype);
    }
    const auto traced = JobOfTrace(trace);
    ASSERT_TRUE(traced.ok()) << traced.status();
    EXPECT_EQ(traced->steps.size(), 3u);
    EXPECT_EQ(traced->graph.workers().size(), job.plans.size());
    EXPECT_EQ(traced->graph.size() * 3, rows.size());
    EXPECT_TRUE(traced->ignored_names.empty());
  }
}

TEST(StragglerTableTest, PiecesOfABackwardAreOneRowAndTheOptimizerIsAnother) {
  Job job = RunSteps(Calm, {.data = 2}, 1);
  const std::string csv = ToCsv(StragglerRows(job.plans, {true, false}, job.steps));
  EXPECT_EQ(
      csv.rfind("dp_rank,tp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,gmc,mb_id\n",
                0),
      0u);
  const auto count = [&](const std::string& word) {
    int found = 0;
    for (size_t at = csv.find(word); at != std::string::npos; at = csv.find(word, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count(",backward-compute,"), 4);
  EXPECT_EQ(count(",optimizer,"), 1);
  EXPECT_EQ(count("\n1,"), 0);  // the rank that is not known
}

TEST(HeatMapTest, EscapesNamesAndColoursTheHot) {
  const std::string svg = HeatMapSvg(
      "a < b",
      std::vector<HeatMapCell>{
          {.row = 1, .label = "rank 0", .value = "2.00", .note = "node \"n\" & more", .heat = 1}});
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  EXPECT_NE(svg.find("node &quot;n&quot; &amp; more"), std::string::npos);
  EXPECT_NE(svg.find("#ff6950"), std::string::npos);
  EXPECT_NE(svg.find("stage 1"), std::string::npos);
}

}  // namespace
}  // namespace megascale::diagnose
