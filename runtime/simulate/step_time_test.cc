// The bubbles of the schedules are those of their papers, and the production executor on a device
// whose clock is virtual takes exactly the time that the longest path says.
#include "runtime/simulate/step_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/plan_options.h"
#include "runtime/simulate/testing/test_virtual_device.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::simulate {
namespace {

using timeline::Beginning;
using timeline::BeginningOf;
using timeline::RankTime;
using timeline::SpanState;
using timeline::SpanTime;
using timeline::StepTime;
using timeline::Summarize;

using plan::Instruction;
using plan::OpKind;
using plan::PlanOptions;
using plan::RankPlan;
using plan::Schedule;
using ::testing::HasSubstr;

std::vector<RankPlan> BuildAll(const PlanOptions& options) {
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    plans.push_back(plan::BuildTrainPlan(options, rank).value());
  }
  return plans;
}

PlanOptions Shape(Schedule schedule, int stages, int chunks, int microbatches, int data = 1) {
  PlanOptions options;
  options.schedule = schedule;
  options.mesh = plan::Mesh::Create({.data = data, .pipeline = stages}).value();
  options.chunks_per_stage = chunks;
  options.num_microbatches = microbatches;
  return options;
}

PlanOptions WithBuckets(PlanOptions options, int num_buckets) {
  options.num_buckets.assign(static_cast<size_t>(options.num_chunks()), num_buckets);
  return options;
}

// Returns durations by kind of instruction; kinds that are not listed take no time.
DurationOf Takes(std::map<OpKind, int64_t> times) {
  return [times = std::move(times)](const plan::RankPlan&, const Instruction& instruction) {
    const auto it = times.find(instruction.kind());
    return it == times.end() ? 0 : it->second;
  };
}

// Returns the time beyond the computation of every stage.
int64_t Bubble(const PlanOptions& options, const std::map<OpKind, int64_t>& times) {
  const std::vector<RankPlan> plans = BuildAll(options);
  const StepTime time = TimeStep(plans, Takes(times)).value();
  int64_t work = 0;
  for (const auto& [kind, duration] : times) work += duration;
  work *= options.num_microbatches * options.chunks_per_stage;
  for (const RankTime& rank : Summarize(plans, time)) {
    EXPECT_EQ(rank.compute, work);
    EXPECT_EQ(rank.idle, time.end - work);
  }
  return time.end - work;
}

TEST(BubbleTest, OfOneForwardOneBackwardAndOfGPipeIsStagesLessOneOfBoth) {
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kGPipe}) {
    for (int stages = 1; stages <= 8; ++stages) {
      for (int microbatches = stages; microbatches <= 20; ++microbatches) {
        for (const auto& [forward, backward] :
             {std::pair(1, 1), std::pair(1, 2), std::pair(5, 7)}) {
          ASSERT_EQ(Bubble(Shape(schedule, stages, 1, microbatches),
                           {{OpKind::kForward, forward}, {OpKind::kBackward, backward}}),
                    (stages - 1) * (forward + backward))
              << Name(schedule) << ", " << stages << " stages, " << microbatches;
        }
      }
    }
  }
}

TEST(BubbleTest, OfInterleavedChunksIsThatMuchSmaller) {
  for (int stages = 2; stages <= 6; ++stages) {
    for (int chunks = 2; chunks <= 5; ++chunks) {
      for (int turns = 1; turns <= 4; ++turns) {
        for (const auto& [forward, backward] :
             {std::pair(1, 1), std::pair(1, 2), std::pair(5, 7)}) {
          // The times are of a chunk: a stage's share of the model takes `chunks` times as long.
          ASSERT_EQ(Bubble(Shape(Schedule::kInterleaved1F1B, stages, chunks, turns * stages),
                           {{OpKind::kForward, forward}, {OpKind::kBackward, backward}}),
                    (stages - 1) * (forward + backward))
              << stages << " stages of " << chunks << " chunks, " << turns * stages;
        }
      }
    }
  }
}

TEST(BubbleTest, OfZeroBubbleH1IsAThirdOfOneForwardOneBackward) {
  for (int stages = 1; stages <= 8; ++stages) {
    for (int microbatches = stages; microbatches <= 24; ++microbatches) {
      // (p - 1) (T_F + T_B - T_W); T_B of k1F1B is T_B + T_W here.
      ASSERT_EQ(
          Bubble(Shape(Schedule::kZeroBubbleH1, stages, 1, microbatches),
                 {{OpKind::kForward, 7}, {OpKind::kBackward, 7}, {OpKind::kWeightGradient, 7}}),
          (stages - 1) * 7)
          << stages << " stages, " << microbatches;
    }
  }
}

// --- the production executor --------------------------------------------------------------------

// Times that have nothing in common, links and collectives included, so that every order counts.
DurationOf Uneven(unsigned seed) {
  return [seed](const plan::RankPlan&, const Instruction& instruction) {
    std::mt19937_64 random(instruction.id.MessageId().packed() * 1'000'003 + seed);
    const bool computes = instruction.stream == plan::StreamKind::kCompute;
    return static_cast<int64_t>(random() % (computes ? 1000 : 300));
  };
}

// --- overlap ------------------------------------------------------------------------------------

const plan::Overlap kLessOverlap[] = {
    {.grad_reduce = false},
    {.param_gather = false},
    {.p2p_communication = false},
    {.grad_reduce = false, .param_gather = false, .p2p_communication = false}};

int64_t TimeWith(PlanOptions options, const plan::Overlap& overlap, const DurationOf& duration) {
  options.overlap = overlap;
  return TimeStep(BuildAll(options), duration)->end;
}

TEST(OverlapTest, WithoutItNoStepIsShorter) {
  for (const PlanOptions& options :
       {Shape(Schedule::k1F1B, 1, 1, 3, 2), Shape(Schedule::k1F1B, 4, 1, 6, 2),
        Shape(Schedule::kGPipe, 3, 1, 5), Shape(Schedule::kInterleaved1F1B, 2, 3, 4, 2),
        Shape(Schedule::kInterleaved1F1B, 4, 2, 8), Shape(Schedule::kZeroBubbleH1, 4, 1, 7),
        WithBuckets(Shape(Schedule::k1F1B, 1, 1, 3, 2), 4),
        WithBuckets(Shape(Schedule::kInterleaved1F1B, 2, 3, 4, 2), 2),
        WithBuckets(Shape(Schedule::kZeroBubbleH1, 4, 1, 7), 3)}) {
    for (unsigned seed = 1; seed <= 50; ++seed) {
      const int64_t whole = TimeWith(options, {}, Uneven(seed));
      for (const plan::Overlap& overlap : kLessOverlap) {
        EXPECT_GE(TimeWith(options, overlap, Uneven(seed)), whole)
            << Name(options.schedule) << ", seed " << seed;
      }
    }
  }
}

// The time that each option hides, worked out by hand for two stages of two chunks.
TEST(OverlapTest, EachHidesWhatItIsFor) {
  const PlanOptions options = Shape(Schedule::kInterleaved1F1B, 2, 2, 4, 2);
  const auto lost = [&](const plan::Overlap& overlap, std::map<OpKind, int64_t> times) {
    times[OpKind::kForward] = 10;
    times[OpKind::kBackward] = 20;
    return TimeWith(options, overlap, Takes(times)) - TimeWith(options, {}, Takes(times));
  };
  // One of the two reduces of a stage can be hidden, and one of the two gathers.
  EXPECT_EQ(lost({.grad_reduce = false}, {{OpKind::kReduceGradients, 7}}), 7);
  EXPECT_EQ(lost({.param_gather = false}, {{OpKind::kGatherParameters, 7}}), 7);
  // The first gather hides behind the loading, and the second behind the passes.
  EXPECT_EQ(
      lost({.param_gather = false}, {{OpKind::kGatherParameters, 7}, {OpKind::kLoadBatch, 9}}),
      2 * 7);
  EXPECT_GT(lost({.p2p_communication = false},
                 {{OpKind::kSendActivation, 3}, {OpKind::kSendGradient, 3}}),
            0);
  // Each option hides only its own communication.
  EXPECT_EQ(lost({.grad_reduce = false}, {{OpKind::kSendActivation, 3}}), 0);
  EXPECT_EQ(lost({.param_gather = false}, {{OpKind::kReduceGradients, 7}}), 0);
  EXPECT_EQ(lost({.p2p_communication = false}, {{OpKind::kGatherParameters, 7}}), 0);
}

// Returns by how much a step with `stages` stages is longer if links take 1 and passes 10.
int64_t Lengthened(PlanOptions options, bool p2p_communication, int spare_slots) {
  options.overlap.p2p_communication = p2p_communication;
  options.spare_slots = spare_slots;
  std::map<OpKind, int64_t> times = {
      {OpKind::kForward, 10}, {OpKind::kBackward, 10}, {OpKind::kWeightGradient, 10}};
  const int64_t without = TimeStep(BuildAll(options), Takes(times))->end;
  times[OpKind::kSendActivation] = times[OpKind::kSendGradient] = 1;
  return TimeStep(BuildAll(options), Takes(times))->end - without;
}

// Returns the part of that which each further micro-batch adds.
double LengthenedByMicrobatch(const PlanOptions& shape, bool p2p_communication, int spare_slots) {
  PlanOptions longer = shape;
  longer.num_microbatches += 4 * shape.mesh.pipeline_size();
  return static_cast<double>(Lengthened(longer, p2p_communication, spare_slots) -
                             Lengthened(shape, p2p_communication, spare_slots)) /
         (longer.num_microbatches - shape.num_microbatches);
}

TEST(OverlapTest, ShortLinksLengthenAStepOnceAndNotForEachMicrobatch) {
  for (const PlanOptions& options :
       {Shape(Schedule::kZeroBubbleH1, 2, 1, 8), Shape(Schedule::kZeroBubbleH1, 8, 1, 32),
        Shape(Schedule::kInterleaved1F1B, 2, 2, 8), Shape(Schedule::kInterleaved1F1B, 4, 3, 16),
        Shape(Schedule::kInterleaved1F1B, 8, 2, 32)}) {
    SCOPED_TRACE(absl::StrCat(Name(options.schedule), ", ", options.mesh.pipeline_size()));
    // Until the first gradient has come to the first stage, and after the last forward.
    EXPECT_LE(Lengthened(options, true, 1), 4 * (options.num_chunks() - 1));
    EXPECT_EQ(LengthenedByMicrobatch(options, true, 1), 0);
    // Without the spare slot a stage receives only after it has sent.
    EXPECT_GE(LengthenedByMicrobatch(options, true, 0), 1);
    EXPECT_GE(LengthenedByMicrobatch(options, false, 0), 2);
  }
  // GPipe keeps all micro-batches anyway.
  EXPECT_EQ(LengthenedByMicrobatch(Shape(Schedule::kGPipe, 4, 1, 16), true, 1), 0);
  EXPECT_EQ(LengthenedByMicrobatch(Shape(Schedule::kGPipe, 4, 1, 16), false, 0), 2);
}

// 1F1B keeps just the micro-batches that fill the stages: the forward that follows a backward on
// the first stage is awaited by the last one, so of p micro-batches one waits for the way there and
// back, whatever memory there is.
TEST(OverlapTest, ShortLinksLengthenOneForwardOneBackwardByTheWayThereAndBackOfOneInPMicrobatches) {
  for (const int stages : {2, 4, 8}) {
    const PlanOptions options = Shape(Schedule::k1F1B, stages, 1, 4 * stages);
    EXPECT_EQ(LengthenedByMicrobatch(options, true, 1), 2.0 * (stages - 1) / stages);
    EXPECT_EQ(LengthenedByMicrobatch(options, true, 2), 2.0 * (stages - 1) / stages);
    EXPECT_EQ(LengthenedByMicrobatch(options, true, 0), 2);
    EXPECT_GE(LengthenedByMicrobatch(options, false, 0), 2);
  }
}

// A forward takes 10; of 3 buckets each takes 10 backward, and `reduction` to be reduced.
DurationOf ByBucket(int64_t reduction) {
  return [reduction](const plan::RankPlan&, const Instruction& instruction) -> int64_t {
    switch (instruction.kind()) {
      case OpKind::kForward:
        return 10;
      case OpKind::kBackward:
      case OpKind::kWeightGradient:
        return 10 * instruction.num_buckets;
      case OpKind::kReduceGradients:
        return reduction;
      default:
        return 0;
    }
  };
}

// Worked out by hand: all but the last bucket's reduction hides behind the layers before it.
TEST(OverlapTest, BucketsHideReductionsBehindTheBackwardOfEarlierLayers) {
  const auto time = [](const PlanOptions& options, int64_t reduction) {
    return TimeStep(BuildAll(options), ByBucket(reduction))->end;
  };
  PlanOptions options = WithBuckets(Shape(Schedule::k1F1B, 1, 1, 2, 2), 3);
  EXPECT_EQ(time(options, 8), 2 * (10 + 30) + 8);
  EXPECT_EQ(time(options, 10), 2 * (10 + 30) + 10);
  // Slower than the backward: from its first bucket on they follow each other.
  EXPECT_EQ(time(options, 15), 2 * (10 + 30) - 20 + 3 * 15);
  options.overlap.grad_reduce = false;
  EXPECT_EQ(time(options, 8), 2 * (10 + 30) + 3 * 8);
  // Stage 2 hides the reductions of each micro-batch, including the last: two buffers take turns.
  options = WithBuckets(Shape(Schedule::k1F1B, 1, 1, 2, 2), 3);
  options.zero_stage = 2;
  EXPECT_EQ(time(options, 8), 2 * (10 + 30) + 8);
  // Slower than the backward: a piece, and the next forward, which makes the head's gradients, wait
  // for the reduction before the last one.
  EXPECT_EQ(time(options, 15), (10 + 10 + 15 + 10 + 5) + (10 + 10 + 15 + 10) + 5 + 15);
  options.overlap.grad_reduce = false;
  EXPECT_EQ(time(options, 8), 2 * (10 + 30 + 3 * 8));
  // The last stage ends first; the reductions hide behind the first stage's last backward.
  options = WithBuckets(Shape(Schedule::k1F1B, 2, 1, 2, 2), 3);
  EXPECT_EQ(time(options, 8), 3 * (10 + 30) + 8);
  // Backward, then the weights' part: the last of these is cut.
  options = WithBuckets(Shape(Schedule::kZeroBubbleH1, 1, 1, 2, 2), 3);
  EXPECT_EQ(time(options, 8), 2 * (10 + 30 + 30) + 8);
  // A chunk's last bucket hides behind the chunk before it.
  options = WithBuckets(Shape(Schedule::kInterleaved1F1B, 2, 2, 2, 2), 3);
  const int64_t passes = time(options, 0);
  EXPECT_EQ(time(options, 8), passes + 8);
}

// The time of every instruction of every rank.
void ExpectTheLongestPath(const PlanOptions& options, const DurationOf& duration) {
  const std::vector<RankPlan> plans = BuildAll(options);
  const StepTime expected = TimeStep(plans, duration).value();
  const StepTime time = VirtualDevice(plans, duration).Run();
  EXPECT_EQ(time.end, expected.end);
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t i = 0; i < plans[rank].instructions.size(); ++i) {
      const SpanTime& span = time.ranks[rank][i];
      const SpanTime& longest = expected.ranks[rank][i];
      ASSERT_TRUE(span == longest)
          << "rank " << rank << ": " << plans[rank].instructions[i].id.ToString()
          << " was ready at " << span.ready << " and took from " << span.begin << " to " << span.end
          << ", not " << longest.ready << ", " << longest.begin << " and " << longest.end;
    }
  }
}

TEST(VirtualTimeTest, TheExecutorTakesTheLongestPath) {
  PlanOptions stage_2 = WithBuckets(Shape(Schedule::kInterleaved1F1B, 2, 3, 4, 2), 2);
  stage_2.zero_stage = 2;
  PlanOptions stage_2_of_one_chunk = WithBuckets(Shape(Schedule::kZeroBubbleH1, 3, 1, 5, 2), 3);
  stage_2_of_one_chunk.zero_stage = 2;
  PlanOptions with_trust_ratios = Shape(Schedule::kInterleaved1F1B, 2, 2, 4, 2);
  with_trust_ratios.has_trust_ratios = true;
  PlanOptions tensor_parallel = WithBuckets(with_trust_ratios, 2);
  tensor_parallel.mesh = plan::Mesh::Create({.data = 2, .pipeline = 2, .tensor = 2}).value();
  PlanOptions split_tensor_parallel = Shape(Schedule::kZeroBubbleH1, 2, 1, 4);
  split_tensor_parallel.mesh = plan::Mesh::Create({.data = 1, .pipeline = 2, .tensor = 2}).value();
  const PlanOptions shapes[] = {stage_2,
                                stage_2_of_one_chunk,
                                with_trust_ratios,
                                tensor_parallel,
                                split_tensor_parallel,
                                WithBuckets(Shape(Schedule::k1F1B, 3, 1, 4, 2), 3),
                                WithBuckets(Shape(Schedule::kZeroBubbleH1, 3, 1, 4, 2), 4),
                                Shape(Schedule::k1F1B, 1, 1, 3),
                                Shape(Schedule::k1F1B, 4, 1, 6),
                                Shape(Schedule::k1F1B, 3, 1, 2, 2),
                                Shape(Schedule::kGPipe, 3, 1, 5),
                                Shape(Schedule::kGPipe, 2, 1, 3, 2),
                                Shape(Schedule::kInterleaved1F1B, 2, 3, 4, 2),
                                Shape(Schedule::kInterleaved1F1B, 3, 2, 6),
                                Shape(Schedule::kZeroBubbleH1, 4, 1, 7),
                                Shape(Schedule::kZeroBubbleH1, 2, 1, 5, 2)};
  for (PlanOptions options : shapes) {
    for (const unsigned seed : {1u, 2u, 3u}) {
      options.spare_slots = static_cast<int>(seed % 2);
      SCOPED_TRACE(absl::StrCat(Name(options.schedule), ", ", options.mesh.pipeline_size(),
                                " stages, seed ", seed));
      ExpectTheLongestPath(options, Uneven(seed));
    }
  }
}

TEST(VirtualTimeTest, TheExecutorTakesTheLongestPathWhereNothingOverlaps) {
  for (PlanOptions options :
       {Shape(Schedule::k1F1B, 4, 1, 6, 2), Shape(Schedule::kGPipe, 3, 1, 5),
        Shape(Schedule::kInterleaved1F1B, 3, 2, 6), Shape(Schedule::kZeroBubbleH1, 3, 1, 5)}) {
    for (const plan::Overlap& overlap : kLessOverlap) {
      options.overlap = overlap;
      SCOPED_TRACE(Name(options.schedule));
      ExpectTheLongestPath(options, Uneven(4));
    }
  }
}

// The device knows no dependencies: if an executor waits for more than these, the time shows it.
TEST(VirtualTimeTest, AnExecutorThatWaitsForMoreTakesLonger) {
  const DurationOf duration = Takes({{OpKind::kForward, 10},
                                     {OpKind::kBackward, 10},
                                     {OpKind::kWeightGradient, 10},
                                     {OpKind::kSendActivation, 1},
                                     {OpKind::kSendGradient, 1}});
  PlanOptions options = Shape(Schedule::kZeroBubbleH1, 3, 1, 6);
  options.spare_slots = 1;
  const std::vector<RankPlan> plans = BuildAll(options);
  std::vector<RankPlan> waiting = plans;
  int num_more = 0;
  for (RankPlan& plan : waiting) {
    int computed = -1;  // last
    for (size_t i = 0; i < plan.instructions.size(); ++i) {
      Instruction& instruction = plan.instructions[i];
      if (instruction.stream == plan::StreamKind::kCompute) computed = static_cast<int>(i);
      if (instruction.kind() != OpKind::kReceiveActivation || computed < 0) continue;
      instruction.depends_on.push_back(computed);
      ++num_more;
    }
  }
  EXPECT_EQ(num_more, 10);
  const int64_t time = VirtualDevice(plans, duration).Run().end;
  EXPECT_EQ(time, TimeStep(plans, duration)->end);
  EXPECT_GT(VirtualDevice(waiting, duration).Run().end, time);
}

// Without time for links the executor shows the bubble of the formula, too.
TEST(VirtualTimeTest, TheExecutorHasTheBubbleOfTheFormula) {
  const DurationOf equal =
      Takes({{OpKind::kForward, 5}, {OpKind::kBackward, 5}, {OpKind::kWeightGradient, 5}});
  EXPECT_EQ(VirtualDevice(BuildAll(Shape(Schedule::k1F1B, 4, 1, 8)), equal).Run().end,
            (8 + 3) * 10);
  EXPECT_EQ(VirtualDevice(BuildAll(Shape(Schedule::kGPipe, 4, 1, 8)), equal).Run().end,
            (8 + 3) * 10);
  EXPECT_EQ(VirtualDevice(BuildAll(Shape(Schedule::kInterleaved1F1B, 4, 2, 8)), equal).Run().end,
            (8 * 2 + 3) * 10);
  EXPECT_EQ(VirtualDevice(BuildAll(Shape(Schedule::kZeroBubbleH1, 4, 1, 8)), equal).Run().end,
            8 * 15 + 3 * 5);
}

// One bucket has one gradient buffer, so the next micro-batch waits for its reduction; three or
// more, of one chunk or of several, have two, and what is reduced hides behind the next pass.
TEST(VirtualTimeTest, Stage2HidesReductionsWhereThereAreTwoBuffers) {
  const DurationOf duration =
      Takes({{OpKind::kForward, 5}, {OpKind::kBackward, 5}, {OpKind::kReduceGradients, 4}});
  PlanOptions alone = Shape(Schedule::k1F1B, 1, 1, 8, 2);
  EXPECT_EQ(VirtualDevice(BuildAll(alone), duration).Run().end, 8 * 10 + 4);
  alone.zero_stage = 2;
  EXPECT_EQ(VirtualDevice(BuildAll(alone), duration).Run().end, 8 * (10 + 4));
  // Pieces of 5.
  EXPECT_EQ(VirtualDevice(BuildAll(WithBuckets(alone, 3)), duration).Run().end,
            8 * (5 + 3 * 5) + 4);
  PlanOptions turns = Shape(Schedule::kInterleaved1F1B, 4, 3, 8, 2);
  turns.zero_stage = 2;
  EXPECT_EQ(VirtualDevice(BuildAll(turns), duration).Run().end, (8 * 3 + 3) * 10 + 4);
}

// --- roles --------------------------------------------------------------------------------------

TEST(TimeStepTest, RolesTakeTheTimesOfEveryReplica) {
  PlanOptions tensor_parallel = Shape(Schedule::kInterleaved1F1B, 3, 2, 6);
  tensor_parallel.mesh = plan::Mesh::Create({.data = 2, .pipeline = 3, .tensor = 2}).value();
  PlanOptions with_trust_ratios = tensor_parallel;
  with_trust_ratios.has_trust_ratios = true;
  PlanOptions with_stage_2 = tensor_parallel;
  with_stage_2.zero_stage = 2;
  with_stage_2.num_buckets = {1, 2, 3, 1, 2, 3};
  for (const PlanOptions& options :
       {Shape(Schedule::k1F1B, 3, 1, 4, 3), Shape(Schedule::kZeroBubbleH1, 2, 1, 5, 2),
        Shape(Schedule::kGPipe, 1, 1, 3, 4), tensor_parallel, with_trust_ratios, with_stage_2}) {
    for (const unsigned seed : {1u, 2u}) {
      const std::vector<RankPlan> plans = BuildAll(options);
      const StepTime of_ranks = TimeStep(plans, Uneven(seed)).value();
      const StepTime of_roles =
          TimeStep(plan::BuildRolePlans(options).value(), Uneven(seed)).value();
      EXPECT_EQ(of_roles.end, of_ranks.end);
      ASSERT_EQ(of_roles.ranks.size(), static_cast<size_t>(options.mesh.pipeline_size()));
      for (size_t rank = 0; rank < plans.size(); ++rank) {
        const auto stage = static_cast<size_t>(plans[rank].stage());
        EXPECT_EQ(of_ranks.ranks[rank], of_roles.ranks[stage]) << "rank " << rank;
      }
      const auto roles =
          plan::RoleMap::ByAxes(options.mesh, {plan::Axis::kPipeline, plan::Axis::kTensor});
      const std::vector<RankPlan> templates = plan::BuildRolePlans(options, roles).value();
      const StepTime of_others = TimeStep(templates, roles, Uneven(seed)).value();
      for (size_t rank = 0; rank < plans.size(); ++rank) {
        const auto role = static_cast<size_t>(roles.RoleOf(static_cast<int>(rank)));
        EXPECT_EQ(of_ranks.ranks[rank], of_others.ranks[role]) << "rank " << rank;
      }
    }
  }
}

// --- the beginning ------------------------------------------------------------------------------

TEST(BeginningTest, HoldsWhatIsReadyFirstAndCountsTheRest) {
  const std::vector<RankPlan> plans = BuildAll(Shape(Schedule::k1F1B, 3, 1, 4));
  const StepTime time = TimeStep(plans, Uneven(1)).value();
  int64_t num_all = 0;
  for (const RankPlan& plan : plans) num_all += static_cast<int64_t>(plan.instructions.size());
  for (int64_t most = 0; most <= num_all; ++most) {
    const Beginning beginning = BeginningOf(time, most);
    int64_t num_shown = 0;
    int64_t earliest_left_out = time.end + 1;
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      for (size_t i = 0; i < time.ranks[rank].size(); ++i) {
        const SpanTime& span = beginning.time.ranks[rank][i];
        if (span.state == SpanState::kNotBegun) {
          earliest_left_out = std::min(earliest_left_out, time.ranks[rank][i].ready);
          continue;
        }
        ++num_shown;
        EXPECT_EQ(span, time.ranks[rank][i]);
        if (beginning.num_left_out > 0) {
          EXPECT_LT(span.ready, beginning.time.end);
        }
      }
    }
    EXPECT_LE(num_shown, most);
    EXPECT_EQ(num_shown + beginning.num_left_out, num_all);
    EXPECT_EQ(beginning.time.end, most < num_all ? earliest_left_out : time.end);
  }
}

// --- what cannot be timed -----------------------------------------------------------------------

TEST(TimeStepTest, APartThatNobodyDoesIsNamed) {
  std::vector<RankPlan> plans = BuildAll(Shape(Schedule::k1F1B, 2, 1, 1));
  for (Instruction& instruction : plans[1].instructions) {
    if (instruction.kind() == OpKind::kReceiveActivation) instruction.channel = "elsewhere";
  }
  const absl::Status status = TimeStep(plans, Takes({})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0: SA.c0.m0 never ends"));
  EXPECT_EQ(TimeStep({}, plan::RoleMap::ByStage(plans[0].mesh), Takes({})).status().code(),
            absl::StatusCode::kInvalidArgument);
  plans.pop_back();
  EXPECT_THAT(std::string(TimeStep(plans, Takes({})).status().message()),
              HasSubstr("plan 0 of 1 is of rank 0 of 2"));
}

TEST(TimeStepTest, WaitingForAPeerIsSeen) {
  const std::vector<RankPlan> plans = BuildAll(Shape(Schedule::k1F1B, 2, 1, 1));
  const StepTime time =
      TimeStep(plans, Takes({{OpKind::kForward, 10}, {OpKind::kReceiveActivation, 4}})).value();
  for (size_t i = 0; i < plans[1].instructions.size(); ++i) {
    if (plans[1].instructions[i].kind() != OpKind::kReceiveActivation) continue;
    EXPECT_EQ(time.ranks[1][i].ready, 0);
    EXPECT_EQ(time.ranks[1][i].begin, 10);
    EXPECT_EQ(time.ranks[1][i].end, 14);
  }
}

}  // namespace
}  // namespace megascale::simulate
