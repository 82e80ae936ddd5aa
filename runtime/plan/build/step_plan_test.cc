#include "runtime/plan/build/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/plan/build/channels.h"
#include "runtime/plan/check/validate_step.h"
#include "tests/soak.h"

namespace megascale::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

PlanOptions Shape(MeshSizes sizes, int num_microbatches, int spare_slots = 0) {
  PlanOptions options;
  options.mesh = Mesh::Create(sizes).value();
  options.num_microbatches = num_microbatches;
  options.spare_slots = spare_slots;
  for (int chunk = 0; chunk < sizes.pipeline; ++chunk) {
    options.chunks.push_back({.forward_flops = 10 + chunk,
                              .backward_flops = 20 + chunk,
                              .output_bytes = 100 + chunk,
                              .gradient_bytes = 200 + chunk,
                              .parameter_bytes = 300 + chunk,
                              .trust_bytes = 400 + chunk,
                              .forward_bytes = 500 + chunk,
                              .backward_bytes = 700 + chunk,
                              .weight_bytes = 80 + chunk,
                              .replicated_bytes = 900 + chunk});
  }
  return options;
}

std::vector<RankPlan> BuildAll(const PlanOptions& options) {
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    plans.push_back(BuildTrainPlan(options, rank).value());
  }
  return plans;
}

TEST(TrainPlan, EveryShapeIsValidAndKeepsAsManyMicrobatchesAsItsStageNeeds) {
  int num_shapes = 0;
  for (int data = 1; data <= 4; ++data) {
    for (int pipeline = 1; pipeline <= 8; ++pipeline) {
      for (int microbatches = 1; microbatches <= 16; ++microbatches) {
        for (int tensor = 1; tensor <= 2; ++tensor) {
          for (int spare = 0; spare <= 1; ++spare) {
            const std::vector<RankPlan> plans =
                BuildAll(Shape({data, pipeline, tensor}, microbatches, spare));
            const absl::Status valid = ValidatePlans(plans);
            ASSERT_TRUE(valid.ok())
                << "data " << data << " pipeline " << pipeline << " tensor " << tensor
                << " micro-batches " << microbatches << " spare " << spare << ": " << valid;
            for (const RankPlan& plan : plans) {
              const int kept = pipeline - plan.stage() + (plan.stage() > 0 ? spare : 0);
              ASSERT_THAT(plan.slots, ElementsAre(std::min(microbatches, kept)));
            }
            ++num_shapes;
          }
        }
      }
    }
  }
  EXPECT_EQ(num_shapes, 2048);
}

TEST(TrainPlan, LargeRandomShapesAreValid) {
  std::mt19937 random(20240229);
  for (int i = 0; i < 20; ++i) {
    const MeshSizes sizes = {.data = static_cast<int>(1 + random() % 3),
                             .pipeline = static_cast<int>(1 + random() % 24),
                             .tensor = 1};
    const int microbatches = static_cast<int>(1 + random() % 96);
    const absl::Status valid = ValidatePlans(BuildAll(Shape(sizes, microbatches, random() % 4)));
    ASSERT_TRUE(valid.ok()) << sizes.data << " x " << sizes.pipeline << ", " << microbatches << ": "
                            << valid;
  }
}

std::string Describe(const PlanOptions& options) {
  return absl::StrCat(
      Name(options.schedule), ", data ", options.mesh.data_size(), ", stages ",
      options.mesh.pipeline_size(), " x ", options.chunks_per_stage, ", micro-batches ",
      options.num_microbatches, ", spare slots ", options.spare_slots, ", tensor ",
      options.mesh.tensor_size(), options.has_trust_ratios ? ", trust ratios" : "",
      options.overlap.grad_reduce ? "" : ", reduces last",
      options.overlap.param_gather ? "" : ", gathers first",
      options.overlap.p2p_communication ? "" : ", passes wait for transfers", ", zero stage ",
      options.zero_stage, ", buckets ", absl::StrJoin(options.num_buckets, "+"),
      options.has_tied_ends ? ", tied ends" : "");
}

PlanOptions RandomShape(std::mt19937* random) {
  const auto draw = [&](int least, int most) {
    return least + static_cast<int>((*random)() % static_cast<unsigned>(most - least + 1));
  };
  PlanOptions options;
  options.schedule = std::array{Schedule::k1F1B, Schedule::kGPipe, Schedule::kInterleaved1F1B,
                                Schedule::kZeroBubbleH1}[static_cast<size_t>(draw(0, 3))];
  const int tensor = draw(0, 3) == 0 ? 2 : 1;
  const bool takes_turns = options.schedule == Schedule::kInterleaved1F1B;
  const int pipeline = draw(takes_turns ? 2 : 1, 9);
  options.mesh = Mesh::Create({.data = draw(1, 3), .pipeline = pipeline, .tensor = tensor}).value();
  options.num_microbatches = draw(1, 20);
  options.spare_slots = draw(0, 2);
  options.has_trust_ratios = draw(0, 1) == 1;
  options.overlap = {.grad_reduce = draw(0, 1) == 1,
                     .param_gather = draw(0, 1) == 1,
                     .p2p_communication = draw(0, 1) == 1};
  options.zero_stage = draw(1, 2);
  if (takes_turns) {
    options.chunks_per_stage = draw(2, 4);
    options.num_microbatches = pipeline * draw(1, 4);
  }
  for (int chunk = 0; chunk < options.num_chunks(); ++chunk) {
    options.num_buckets.push_back(draw(0, 1) == 1 ? 1 : draw(1, 5));
  }
  options.has_tied_ends = pipeline > 1 && draw(0, 1) == 1;
  return options;
}

// `./dev soak` takes ten times as many.
TEST(TrainPlan, FourHundredRandomShapesOfEveryScheduleAreValid) {
  const int num_shapes_in_all = IsSoak() ? 4000 : 400;
  std::mt19937 random(20240223);
  std::map<Schedule, int> num_shapes;
  for (int i = 0; i < num_shapes_in_all; ++i) {
    const PlanOptions options = RandomShape(&random);
    const absl::Status valid = ValidatePlans(BuildAll(options));
    ASSERT_TRUE(valid.ok()) << Describe(options) << ": " << valid;
    ++num_shapes[options.schedule];
  }
  for (const auto& [schedule, count] : num_shapes) {
    EXPECT_GT(count, num_shapes_in_all / 5) << Name(schedule);
  }
  EXPECT_EQ(num_shapes.size(), 4u);
}

// The slots that stages need, by schedule: the price of a smaller bubble.
TEST(TrainPlan, KeepsAsManyMicrobatchesAsTheScheduleSays) {
  using Counts = std::vector<std::vector<int>>;  // by stage, by chunk of the stage
  const auto slots = [](Schedule schedule, int stages, int chunks, int microbatches,
                        int spare_slots = 0) {
    PlanOptions options;
    options.spare_slots = spare_slots;
    options.schedule = schedule;
    options.mesh = Mesh::Create({.data = 1, .pipeline = stages}).value();
    options.chunks_per_stage = chunks;
    options.num_microbatches = microbatches;
    Counts counts;
    for (const RankPlan& plan : BuildAll(options)) counts.push_back(plan.slots);
    return counts;
  };
  EXPECT_EQ(slots(Schedule::k1F1B, 4, 1, 8), Counts({{4}, {3}, {2}, {1}}));
  EXPECT_EQ(slots(Schedule::kGPipe, 4, 1, 8), Counts({{8}, {8}, {8}, {8}}));
  EXPECT_EQ(slots(Schedule::kZeroBubbleH1, 4, 1, 8), Counts({{4}, {4}, {4}, {4}}));
  EXPECT_EQ(slots(Schedule::kZeroBubbleH1, 4, 1, 2), Counts({{2}, {2}, {2}, {2}}));
  // Both chunks together hold (p - s - 1) * 2 + (v - 1) * p + 1 at once. Their maxima come at
  // different times, so there is one slot more where the first chunk is filled twice.
  EXPECT_EQ(slots(Schedule::kInterleaved1F1B, 4, 2, 8), Counts({{8, 4}, {8, 4}, {7, 3}, {5, 1}}));
  // One spare slot wherever activations are received, if there are that many micro-batches.
  EXPECT_EQ(slots(Schedule::k1F1B, 4, 1, 8, 1), Counts({{4}, {4}, {3}, {2}}));
  EXPECT_EQ(slots(Schedule::kGPipe, 4, 1, 8, 1), Counts({{8}, {8}, {8}, {8}}));
  EXPECT_EQ(slots(Schedule::kZeroBubbleH1, 4, 1, 8, 1), Counts({{4}, {5}, {5}, {5}}));
  EXPECT_EQ(slots(Schedule::kInterleaved1F1B, 4, 2, 8, 1),
            Counts({{8, 5}, {8, 5}, {8, 4}, {6, 2}}));
}

TEST(ScheduleTest, OneStageAlternatesWhateverIsAskedFor) {
  for (const Schedule schedule :
       {Schedule::k1F1B, Schedule::kGPipe, Schedule::kInterleaved1F1B, Schedule::kZeroBubbleH1}) {
    EXPECT_EQ(ScheduleInUse({.schedule = schedule, .num_stages = 1}), Schedule::k1F1B);
    EXPECT_EQ(ScheduleInUse({.schedule = schedule, .num_stages = 2}), schedule);
  }
}

TEST(ScheduleTest, TheDefaultFitsEveryNumberOfChunks) {
  for (int chunks = 1; chunks <= 4; ++chunks) {
    EXPECT_EQ(FindMisfit({.schedule = DefaultSchedule(chunks),
                          .num_stages = 2,
                          .chunks_per_stage = chunks,
                          .num_microbatches = 4}),
              std::nullopt);
  }
}

TEST(TrainPlan, MarksABackwardWhoseWeightsGradientsAreApart) {
  PlanOptions options = Shape({.data = 1, .pipeline = 2}, 2);
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kZeroBubbleH1}) {
    options.schedule = schedule;
    const RankPlan plan = BuildTrainPlan(options, 1).value();
    for (const Instruction& instruction : plan.instructions) {
      EXPECT_EQ(instruction.input_only,
                schedule == Schedule::kZeroBubbleH1 && instruction.kind() == OpKind::kBackward)
          << instruction.id.ToString();
    }
  }
}

TEST(TrainPlan, StageRunsAheadThenAlternates) {
  const RankPlan plan = BuildTrainPlan(Shape({.data = 1, .pipeline = 3}, 4), 1).value();
  std::vector<std::string> compute;
  for (const Instruction& instruction : plan.instructions) {
    if (instruction.stream == StreamKind::kCompute) compute.push_back(instruction.id.ToString());
  }
  EXPECT_THAT(compute, ElementsAre("F.c1.m0", "F.c1.m1", "B.c1.m0", "F.c1.m2", "B.c1.m1", "F.c1.m3",
                                   "B.c1.m2", "B.c1.m3"));
}

// As in the figure of the paper on ZB-H1.
TEST(TrainPlan, WeightsGradientsFillTheBubble) {
  PlanOptions options = Shape({.data = 1, .pipeline = 4}, 6);
  options.schedule = Schedule::kZeroBubbleH1;
  const auto compute = [&](int rank) {
    std::string text;
    const RankPlan plan = BuildTrainPlan(options, rank).value();
    for (const Instruction& i : plan.instructions) {
      if (i.stream != StreamKind::kCompute) continue;
      absl::StrAppend(&text, Letters(i.kind()), i.id.microbatch(), " ");
    }
    return text;
  };
  EXPECT_EQ(compute(0), "F0 F1 F2 F3 B0 W0 F4 B1 W1 F5 B2 W2 B3 W3 B4 W4 B5 W5 ");
  EXPECT_EQ(compute(3), "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 W3 W4 W5 ");
}

TEST(TrainPlan, ChunksTakeTurns) {
  PlanOptions options = Shape({.data = 1, .pipeline = 2}, 4);
  options.schedule = Schedule::kInterleaved1F1B;
  options.chunks_per_stage = 2;
  options.chunks.clear();
  std::string text;
  const RankPlan plan = BuildTrainPlan(options, 1).value();
  for (const Instruction& i : plan.instructions) {
    if (i.stream == StreamKind::kCompute) absl::StrAppend(&text, i.id.ToString(), " ");
  }
  EXPECT_EQ(text,
            "F.c1.m0 F.c1.m1 F.c3.m0 B.c3.m0 F.c3.m1 B.c3.m1 F.c1.m2 B.c1.m0 "
            "F.c1.m3 B.c1.m1 F.c3.m2 B.c3.m2 F.c3.m3 B.c3.m3 B.c1.m2 B.c1.m3 ");
}

TEST(TrainPlan, IsEqualForAllRanksOfAStage) {
  const PlanOptions options = Shape({.data = 3, .pipeline = 4, .tensor = 2}, 5);
  std::map<int, std::vector<Instruction>> by_stage;
  for (const RankPlan& plan : BuildAll(options)) {
    const auto [first, is_new] = by_stage.try_emplace(plan.stage(), plan.instructions);
    EXPECT_EQ(first->second, plan.instructions) << "rank " << plan.rank;
  }
  EXPECT_EQ(by_stage.size(), 4u);
}

TEST(TrainPlan, LoadsTheBatchOnFirstAndLastStageOnly) {
  for (const RankPlan& plan : BuildAll(Shape({.data = 2, .pipeline = 3}, 2))) {
    const auto loads = std::count_if(
        plan.instructions.begin(), plan.instructions.end(),
        [](const Instruction& instruction) { return instruction.kind() == OpKind::kLoadBatch; });
    EXPECT_EQ(loads, plan.stage() == 1 ? 0 : 1);
  }
  EXPECT_EQ(BuildTrainPlan(Shape({}, 2), 0).value().instructions[0].id.ToString(), "L.c0");
}

TEST(TrainPlan, LoadsTheBatchOnEveryStageWhoseChunksAllReadIt) {
  for (const int chunks_per_stage : {1, 2}) {
    PlanOptions options;
    options.mesh = Mesh::Create({.data = 2, .pipeline = 3}).value();
    options.num_microbatches = 3;
    options.chunks_per_stage = chunks_per_stage;
    if (chunks_per_stage > 1) options.schedule = Schedule::kInterleaved1F1B;
    options.every_chunk_reads_batch = true;
    std::vector<RankPlan> plans = BuildAll(options);
    EXPECT_EQ(ValidatePlans(plans), absl::OkStatus());
    const auto is_load = [](const Instruction& instruction) {
      return instruction.kind() == OpKind::kLoadBatch;
    };
    for (const RankPlan& plan : plans) {
      EXPECT_EQ(std::count_if(plan.instructions.begin(), plan.instructions.end(), is_load), 1);
    }
    for (Instruction& instruction : plans[2].instructions) {  // a rank of the middle stage
      if (instruction.kind() == OpKind::kForward) instruction.depends_on.clear();
    }
    EXPECT_EQ(plans[2].stage(), 1);
    EXPECT_FALSE(ValidatePlans(plans).ok());
  }
}

// No update waits for the exchange of another one.
TEST(TrainPlan, TrustSumsAreExchangedBetweenUpdateAndStep) {
  PlanOptions options = Shape({.data = 2, .pipeline = 2}, 2);
  options.schedule = Schedule::kInterleaved1F1B;
  options.chunks_per_stage = 2;
  options.chunks.clear();
  EXPECT_THAT(ToString(BuildTrainPlan(options, 1).value()),
              AllOf(HasSubstr(" G.c0 G.c2 R.c2 R.c0 ND N\n"), HasSubstr(" O.c0 O.c2\n")));
  options.has_trust_ratios = true;
  EXPECT_THAT(ToString(BuildTrainPlan(options, 1).value()),
              AllOf(HasSubstr(" ND N T.c0 T.c2\n"), HasSubstr(" U.c0 U.c2 O.c0 O.c2\n")));
}

// Returns the dependencies of each instruction, without the order on its stream.
std::map<std::string, std::set<std::string>> Waits(const PlanOptions& options, int rank) {
  std::map<std::string, std::set<std::string>> waits;
  const RankPlan plan = BuildTrainPlan(options, rank).value();
  for (const Instruction& instruction : plan.instructions) {
    std::set<std::string>& of = waits[instruction.id.ToString()];
    for (const int i : instruction.depends_on) of.insert(plan.instructions[i].id.ToString());
  }
  return waits;
}

TEST(TrainPlan, WhatDoesNotOverlapWaits) {
  PlanOptions options = Shape({.data = 2, .pipeline = 2}, 2);
  options.schedule = Schedule::kInterleaved1F1B;
  options.chunks_per_stage = 2;
  options.chunks.clear();
  // Computes F.c1.m0 F.c1.m1 F.c3.m0 B.c3.m0 F.c3.m1 B.c3.m1 B.c1.m0 B.c1.m1.
  constexpr int kRank = 2;
  auto waits = Waits(options, kRank);
  EXPECT_THAT(waits["R.c3"], ElementsAre("B.c3.m1"));
  EXPECT_THAT(waits["L.c3"], ElementsAre());
  EXPECT_THAT(waits["F.c1.m0"], ElementsAre("G.c1", "RA.c1.m0"));
  EXPECT_THAT(waits["RA.c1.m1"], ElementsAre());
  EXPECT_THAT(waits["F.c3.m0"], ElementsAre("G.c3", "L.c3", "RA.c3.m0"));

  options.overlap = {.grad_reduce = false};
  waits = Waits(options, kRank);
  EXPECT_THAT(waits["R.c3"], ElementsAre("B.c1.m1"));
  EXPECT_THAT(waits["R.c1"], ElementsAre("B.c1.m1"));
  EXPECT_THAT(ToString(BuildTrainPlan(options, kRank).value()),
              HasSubstr(" G.c1 G.c3 R.c3 R.c1 ND N\n"));

  options.overlap = {.param_gather = false};
  waits = Waits(options, kRank);
  EXPECT_THAT(waits["L.c3"], ElementsAre("G.c3"));
  EXPECT_THAT(waits["F.c1.m0"], ElementsAre("G.c3", "RA.c1.m0"));

  options.overlap = {.p2p_communication = false};
  waits = Waits(options, kRank);
  EXPECT_THAT(waits["RA.c1.m1"], ElementsAre("F.c1.m0"));
  EXPECT_THAT(waits["F.c1.m1"], ElementsAre("G.c1", "RA.c1.m1", "SA.c1.m0"));
  EXPECT_THAT(waits["RG.c1.m0"], ElementsAre("B.c3.m1", "SA.c1.m0"));
  EXPECT_THAT(waits["B.c1.m0"], ElementsAre("F.c1.m0", "RG.c1.m0", "SG.c3.m1"));
}

// With each switch off, each stream has the same instructions in the same order.
TEST(TrainPlan, OverlapIsAMatterOfDependenciesAlone) {
  PlanOptions options = Shape({.data = 2, .pipeline = 3, .tensor = 2}, 6);
  options.schedule = Schedule::kInterleaved1F1B;
  options.chunks_per_stage = 2;
  options.chunks.clear();
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    options.overlap = {};
    const std::string expected = ToString(BuildTrainPlan(options, rank).value());
    options.overlap = {.grad_reduce = false, .param_gather = false, .p2p_communication = false};
    EXPECT_EQ(ToString(BuildTrainPlan(options, rank).value()), expected);
  }
}

// Each rank of the group has a copy of these parameters, and a part of their gradients.
TEST(TrainPlan, TensorRanksSumReplicatedGradientsBeforeTheyAreReduced) {
  PlanOptions options = Shape({.data = 2, .pipeline = 2, .tensor = 2}, 2);
  options.has_trust_ratios = true;
  const RankPlan plan = BuildTrainPlan(options, 1).value();
  EXPECT_THAT(ToString(plan), HasSubstr("data-parallel       G.c0 S.c0 R.c0 NT ND N TT.c0 T.c0\n"));
  std::map<std::string, Channel> channels;
  for (const Instruction& instruction : plan.instructions) {
    channels[instruction.id.ToString()] = {instruction.group, instruction.channel};
  }
  EXPECT_EQ(channels["F.c0.m0"], (Channel{GroupKind::kTensor, "pass"}));
  EXPECT_EQ(channels["B.c0.m1"], (Channel{GroupKind::kTensor, "pass"}));
  EXPECT_EQ(channels["S.c0"], (Channel{GroupKind::kTensor, "replicated"}));
  EXPECT_EQ(channels["R.c0"], (Channel{GroupKind::kData, "shard"}));
  EXPECT_EQ(channels["NT"], (Channel{GroupKind::kTensor, "replicated"}));
  EXPECT_EQ(channels["ND"], (Channel{GroupKind::kData, "shard"}));
  EXPECT_EQ(channels["N"], (Channel{GroupKind::kPipeline, "norm"}));
  EXPECT_EQ(channels["TT.c0"], (Channel{GroupKind::kTensor, "replicated"}));
  EXPECT_EQ(channels["T.c0"], (Channel{GroupKind::kData, "shard"}));
}

// Everything that a stage does with gradients, as "B0>0" for a B.m0 into buffer 0 and "R0<0" for
// its reduction; "B0=0" where it begins a sum there; "B0.1>0" for that of bucket 1.
std::string Gradients(const RankPlan& plan, int chunk) {
  std::vector<std::string> text;
  for (const Instruction& i : plan.instructions) {
    if (i.gradient_buffer == kNoBuffer || i.id.chunk() != chunk) continue;
    const bool is_pass = IsPass(i.kind());
    text.push_back(absl::StrCat(Letters(i.kind()), i.id.microbatch(),
                                i.id.bucket() > 0 ? absl::StrCat(".", i.id.bucket()) : "",
                                is_pass ? (i.begins_sum ? "=" : ">") : "<", i.gradient_buffer));
  }
  return absl::StrJoin(text, " ");
}

TEST(TrainPlan, Stage2ReducesTheGradientsOfEveryMicrobatch) {
  PlanOptions options = Shape({.data = 2, .pipeline = 2}, 3);
  options.zero_stage = 2;
  const RankPlan first = BuildTrainPlan(options, 0).value();
  EXPECT_EQ(Gradients(first, 0), "B0=0 R0<0 B1=0 R1<0 B2=0 R2<0");
  EXPECT_THAT(ToString(first), HasSubstr(" G.c0 R.c0.m0 R.c0.m1 R.c0.m2 ND N\n"));
  // The head's gradients are made in the forward pass.
  EXPECT_EQ(Gradients(BuildTrainPlan(options, 2).value(), 1),
            "F0=0 B0>0 R0<0 F1=0 B1>0 R1<0 F2=0 B2>0 R2<0");
  for (const Instruction& instruction : first.instructions) {
    if (instruction.kind() != OpKind::kReduceGradients) continue;
    EXPECT_EQ(instruction.bytes, 200);
    EXPECT_EQ(instruction.begins_sum, instruction.id.microbatch() == 0);
  }
  // Gradients added between two W are reduced with the second.
  options.schedule = Schedule::kZeroBubbleH1;
  EXPECT_EQ(Gradients(BuildTrainPlan(options, 2).value(), 1),
            "F0=0 F1>0 W0>0 R0<0 F2=0 W1>0 R1<0 W2=0 R2<0");
}

// The head is in bucket 0. A buffer is awaited only until the reduction of its last turn.
TEST(TrainPlan, Stage2CutsEveryBackwardAtBucketsThatTakeTurnsInTwoBuffers) {
  PlanOptions options = Shape({.data = 2}, 2);
  options.chunks.clear();
  options.zero_stage = 2;
  options.num_buckets = {3};
  EXPECT_EQ(Gradients(BuildTrainPlan(options, 0).value(), 0),
            "F0=0 B0>0 R0<0 B0.1=1 R0.1<1 B0.2=0 R0.2<0 "
            "F1=1 B1>1 R1<1 B1.1=0 R1.1<0 B1.2=1 R1.2<1");
  auto waits = Waits(options, 0);
  EXPECT_THAT(waits["R.c0.m0.b1"], ElementsAre("B.c0.m0.b1"));
  EXPECT_THAT(waits["B.c0.m0.b1"], ElementsAre());
  EXPECT_THAT(waits["B.c0.m0.b2"], ElementsAre("R.c0.m0"));
  EXPECT_THAT(waits["F.c0.m1"], ElementsAre("B.c0.m0.b2", "G.c0", "L.c0", "R.c0.m0.b1"));
  EXPECT_THAT(waits["B.c0.m1.b1"], ElementsAre("R.c0.m0.b2"));
  options.overlap.grad_reduce = false;
  waits = Waits(options, 0);
  EXPECT_THAT(waits["B.c0.m0.b1"], ElementsAre("R.c0.m0"));
  EXPECT_THAT(waits["B.c0.m0.b2"], ElementsAre("R.c0.m0", "R.c0.m0.b1"));
  options.overlap = {};
  // Forwards add to bucket 0 for as long as they come before any backward.
  options.mesh = Mesh::Create({.data = 2, .pipeline = 2}).value();
  options.num_buckets = {1, 3};
  options.schedule = Schedule::kGPipe;
  EXPECT_EQ(Gradients(BuildTrainPlan(options, 2).value(), 1),
            "F0=0 F1>0 B0>0 R0<0 B0.1=1 R0.1<1 B0.2=0 R0.2<0 B1=1 R1<1 B1.1=0 R1.1<0 B1.2=1 "
            "R1.2<1");
}

TEST(TrainPlan, Stage2SharesTwoBuffersAmongThreeBucketsOrMore) {
  PlanOptions options = Shape({.data = 2, .pipeline = 2}, 2);
  options.chunks.clear();
  const auto buffers = [&](int chunks, int zero_stage) {
    options.schedule = chunks > 1 ? Schedule::kInterleaved1F1B : Schedule::k1F1B;
    options.chunks_per_stage = chunks;
    options.zero_stage = zero_stage;
    return BuildTrainPlan(options, 0).value().gradient_buffers;
  };
  EXPECT_EQ(buffers(2, 1), 2);
  EXPECT_EQ(buffers(2, 2), 1);
  EXPECT_EQ(buffers(3, 1), 3);
  EXPECT_EQ(buffers(3, 2), 2);
  EXPECT_EQ(buffers(6, 2), 2);
  // The number of buckets of the stage's own chunks counts.
  options.num_buckets = {1, 3};
  EXPECT_EQ(buffers(1, 2), 1);
  options.num_buckets = {2, 1};
  EXPECT_EQ(buffers(1, 2), 1);
  options.num_buckets = {3, 1};
  EXPECT_EQ(buffers(1, 2), 2);
  EXPECT_EQ(buffers(1, 1), 1);
  options.num_buckets = {2, 1, 1, 1};
  EXPECT_EQ(buffers(2, 2), 2);
  options.num_buckets.clear();
  // They take turns, so that one is reduced while the next pass adds to the other.
  ASSERT_EQ(buffers(3, 2), 2);
  const RankPlan plan = BuildTrainPlan(options, 0).value();
  EXPECT_EQ(Gradients(plan, 4), "B0=0 R0<0 B1=1 R1<1");
  EXPECT_EQ(Gradients(plan, 2), "B0=0 R0<0 B1=1 R1<1");
  EXPECT_EQ(Gradients(plan, 0), "B0=0 R0<0 B1=1 R1<1");
}

TEST(TrainPlan, Stage1KeepsABufferForEachChunk) {
  PlanOptions options = Shape({.data = 2, .pipeline = 2}, 2);
  options.chunks.clear();
  options.schedule = Schedule::kInterleaved1F1B;
  options.chunks_per_stage = 2;
  const RankPlan plan = BuildTrainPlan(options, 0).value();
  const std::string none = absl::StrCat(InstructionId::kNoMicrobatch);
  EXPECT_EQ(Gradients(plan, 2), "B0=0 B1>0 R" + none + "<0");
  EXPECT_EQ(Gradients(plan, 0), "B0=1 B1>1 R" + none + "<1");
}

TEST(TrainPlan, ReducesABucketOnceItsPieceOfTheLastBackwardHasEnded) {
  PlanOptions options = Shape({.data = 2}, 2);
  options.chunks.clear();
  options.num_buckets = {3};
  EXPECT_EQ(ToString(BuildTrainPlan(options, 0).value()),
            "rank 0 (data 0, pipeline 0, tensor 0): 16 instructions, 1 activation slots\n"
            "  compute             F.c0.m0 B.c0.m0 F.c0.m1 B.c0.m1 B.c0.m1.b1 B.c0.m1.b2\n"
            "  load-batch          L.c0\n"
            "  data-parallel       G.c0.b2 G.c0.b1 G.c0 R.c0 R.c0.b1 R.c0.b2 ND N\n"
            "  optimizer           O.c0\n");
  auto waits = Waits(options, 0);
  EXPECT_THAT(waits["R.c0"], ElementsAre("B.c0.m1"));
  EXPECT_THAT(waits["R.c0.b1"], ElementsAre("B.c0.m1.b1"));
  EXPECT_THAT(waits["R.c0.b2"], ElementsAre("B.c0.m1.b2"));
  EXPECT_THAT(waits["F.c0.m0"], ElementsAre("G.c0", "L.c0"));
  options.overlap.grad_reduce = false;
  waits = Waits(options, 0);
  EXPECT_THAT(waits["R.c0"], ElementsAre("B.c0.m1.b2"));
  EXPECT_THAT(waits["R.c0.b1"], ElementsAre("B.c0.m1.b2"));
}

TEST(TrainPlan, CutsTheBackwardThatIsReducedNext) {
  PlanOptions options = Shape({.data = 2, .pipeline = 2, .tensor = 2}, 2);
  options.chunks.clear();
  options.num_buckets = {2, 3};
  options.zero_stage = 2;
  EXPECT_THAT(ToString(BuildTrainPlan(options, 0).value()),
              AllOf(HasSubstr(" B.c0.m0 B.c0.m0.b1 B.c0.m1 B.c0.m1.b1\n"),
                    HasSubstr(" S.c0.m0 R.c0.m0 S.c0.m0.b1 R.c0.m0.b1 S.c0.m1 R.c0.m1 ")));
  options.zero_stage = 1;
  EXPECT_THAT(ToString(BuildTrainPlan(options, 0).value()),
              HasSubstr(" B.c0.m0 B.c0.m1 B.c0.m1.b1\n"));
  options.schedule = Schedule::kZeroBubbleH1;
  const std::string text = ToString(BuildTrainPlan(options, 4).value());
  EXPECT_THAT(text, HasSubstr(" B.c1.m1 W.c1.m0 W.c1.m1 W.c1.m1.b1 W.c1.m1.b2\n"));
  EXPECT_THAT(text, HasSubstr(" S.c1 R.c1 S.c1.b1 R.c1.b1 S.c1.b2 R.c1.b2 NT ND N\n"));
}

TEST(TrainPlan, CarriesCostsOfBuckets) {
  PlanOptions options = Shape({.data = 2, .tensor = 2}, 2);
  options.num_buckets = {2};
  options.chunks[0].buckets = {
      {.flops = 1, .bytes = 2, .gradient_bytes = 3, .parameter_bytes = 4, .replicated_bytes = 5},
      {.flops = 10,
       .bytes = 20,
       .gradient_bytes = 30,
       .parameter_bytes = 40,
       .replicated_bytes = 50}};
  std::map<std::string, std::pair<int64_t, int64_t>> costs;
  const RankPlan plan = BuildTrainPlan(options, 0).value();
  for (const Instruction& instruction : plan.instructions) {
    costs[instruction.id.ToString()] = {instruction.bytes, instruction.flops};
  }
  EXPECT_EQ(costs["B.c0.m0"], (std::pair<int64_t, int64_t>(700, 20)));
  EXPECT_EQ(costs["B.c0.m1"], (std::pair<int64_t, int64_t>(2, 1)));
  EXPECT_EQ(costs["B.c0.m1.b1"], (std::pair<int64_t, int64_t>(20, 10)));
  EXPECT_EQ(costs["R.c0.b1"], (std::pair<int64_t, int64_t>(30, 0)));
  EXPECT_EQ(costs["G.c0"], (std::pair<int64_t, int64_t>(4, 0)));
  EXPECT_EQ(costs["S.c0.b1"], (std::pair<int64_t, int64_t>(50, 0)));
}

TEST(TrainPlan, CarriesWhatTensorRanksExchange) {
  PlanOptions options = Shape({.data = 1, .pipeline = 2, .tensor = 2}, 1);
  const auto bytes = [&] {
    std::map<std::string, int64_t> found;
    const RankPlan plan = BuildTrainPlan(options, 2).value();
    for (const Instruction& instruction : plan.instructions) {
      found[instruction.id.ToString()] = instruction.bytes;
    }
    return found;
  };
  EXPECT_EQ(bytes()["F.c1.m0"], 501);
  EXPECT_EQ(bytes()["B.c1.m0"], 701);
  EXPECT_EQ(bytes()["S.c1"], 901);
  options.schedule = Schedule::kZeroBubbleH1;
  EXPECT_EQ(bytes()["B.c1.m0"], 701 - 81);
  EXPECT_EQ(bytes()["W.c1.m0"], 81);
}

TEST(TrainPlan, CarriesCosts) {
  PlanOptions options = Shape({.data = 2, .pipeline = 2}, 1);
  options.has_trust_ratios = true;
  const RankPlan plan = BuildTrainPlan(options, 2).value();
  std::map<std::string, std::pair<int64_t, int64_t>> costs;
  for (const Instruction& instruction : plan.instructions) {
    costs[instruction.id.ToString()] = {instruction.bytes, instruction.flops};
  }
  EXPECT_EQ(costs["RA.c1.m0"], std::pair(int64_t{100}, int64_t{0}));
  EXPECT_EQ(costs["F.c1.m0"], std::pair(int64_t{0}, int64_t{11}));
  EXPECT_EQ(costs["B.c1.m0"], std::pair(int64_t{0}, int64_t{21}));
  EXPECT_EQ(costs["SG.c1.m0"], std::pair(int64_t{100}, int64_t{0}));
  EXPECT_EQ(costs["R.c1"], std::pair(int64_t{201}, int64_t{0}));
  EXPECT_EQ(costs["G.c1"], std::pair(int64_t{301}, int64_t{0}));
  EXPECT_EQ(costs["T.c1"], std::pair(int64_t{401}, int64_t{0}));
}

TEST(TrainPlan, UsesOnlyTheChannelsThatEveryRankOpens) {
  for (int pipeline = 1; pipeline <= 11; ++pipeline) {
    PlanOptions options = Shape({.data = 2, .pipeline = pipeline}, 3);
    if (pipeline > 5) {  // 2 to 7 stages of three chunks
      options = Shape({.data = 2, .pipeline = pipeline - 4}, 2 * (pipeline - 4));
      options.schedule = Schedule::kInterleaved1F1B;
      options.chunks_per_stage = 3;
      options.chunks.clear();
    }
    if (pipeline % 2 == 0) {
      options.mesh =
          Mesh::Create({.data = 2, .pipeline = options.mesh.pipeline_size(), .tensor = 2}).value();
      options.has_trust_ratios = pipeline % 4 == 0;
    }
    options.has_tied_ends = pipeline % 3 == 0;
    const std::vector<Channel> channels =
        ChannelsOf(options.mesh, {.chunks_per_stage = options.chunks_per_stage,
                                  .has_trust_ratios = options.has_trust_ratios,
                                  .has_tied_ends = options.has_tied_ends});
    std::set<std::pair<GroupKind, std::string>> used;
    for (const RankPlan& plan : BuildAll(options)) {
      for (const Instruction& instruction : plan.instructions) {
        if (instruction.group == GroupKind::kNone) continue;
        used.emplace(instruction.group, instruction.channel);
        EXPECT_EQ(std::count(channels.begin(), channels.end(),
                             Channel{instruction.group, instruction.channel}),
                  1)
            << instruction.id.ToString();
      }
    }
    EXPECT_EQ(used.size(), channels.size());
  }
}

TEST(TrainPlan, IsPrintedWithOneLinePerStream) {
  const RankPlan plan = BuildTrainPlan(Shape({.data = 1, .pipeline = 2}, 2), 1).value();
  EXPECT_EQ(ToString(plan),
            "rank 1 (data 0, pipeline 1, tensor 0): 14 instructions, 1 activation slots\n"
            "  compute             F.c1.m0 B.c1.m0 F.c1.m1 B.c1.m1\n"
            "  load-batch          L.c1\n"
            "  receive-activation  RA.c1.m0 RA.c1.m1\n"
            "  send-gradient       SG.c1.m0 SG.c1.m1\n"
            "  data-parallel       G.c1 R.c1 ND N\n"
            "  optimizer           O.c1\n");
}

TEST(TrainPlan, TheEndsOfAModelExchangeATiedEmbeddingAndItsGradient) {
  PlanOptions options = Shape({.data = 2, .pipeline = 3}, 2);
  options.chunks.clear();
  options.has_tied_ends = true;
  options.embedding_bytes = 40;
  options.head_gradient_bytes = 80;
  options.num_buckets = {2, 1, 1};
  EXPECT_EQ(ToString(BuildTrainPlan(options, 0).value()),
            "rank 0 (data 0, pipeline 0, tensor 0): 20 instructions, 2 activation slots\n"
            "  compute             F.c0.m0 F.c0.m1 B.c0.m0 B.c0.m1 B.c0.m1.b1\n"
            "  load-batch          L.c0\n"
            "  send-activation     SA.c0.m0 SA.c0.m1\n"
            "  receive-activation  RH\n"
            "  send-gradient       SE\n"
            "  receive-gradient    RG.c0.m0 RG.c0.m1\n"
            "  data-parallel       G.c0.b1 G.c0 R.c0 A.c0.b1 R.c0.b1 ND N\n"
            "  optimizer           O.c0\n");
  auto waits = Waits(options, 0);
  EXPECT_THAT(waits["SE"], ElementsAre("G.c0.b1"));
  EXPECT_THAT(waits["RH"], ElementsAre());
  EXPECT_THAT(waits["A.c0.b1"], ElementsAre("B.c0.m1.b1", "RH"));
  EXPECT_THAT(waits["R.c0.b1"], ElementsAre("A.c0.b1"));
  EXPECT_THAT(waits["ND"], ElementsAre("R.c0.b1", "SE"));
  EXPECT_THAT(ToString(BuildTrainPlan(options, 2).value()), Not(HasSubstr("E")));
  waits = Waits(options, 4);
  EXPECT_THAT(waits["F.c2.m0"], ElementsAre("G.c2", "L.c2", "RA.c2.m0", "RE"));
  EXPECT_THAT(waits["SH"], ElementsAre("F.c2.m1"));
  const RankPlan last = BuildTrainPlan(options, 4).value();
  for (const Instruction& instruction : last.instructions) {
    if (instruction.kind() == OpKind::kReceiveEmbedding) {
      EXPECT_EQ(instruction.bytes, 40);
    } else if (instruction.kind() == OpKind::kSendHeadGradient) {
      EXPECT_EQ(instruction.bytes, 80);
    }
  }
  // Stage 2 adds it to the sum of the last micro-batch.
  options.zero_stage = 2;
  waits = Waits(options, 0);
  EXPECT_THAT(waits["A.c0.m1.b1"], ElementsAre("B.c0.m1.b1", "RH"));
  EXPECT_THAT(waits["R.c0.m1.b1"], ElementsAre("A.c0.m1.b1"));
  EXPECT_THAT(waits["R.c0.m0.b1"], ElementsAre("B.c0.m0.b1"));
  // Without overlap they come before and after all passes.
  options.overlap.p2p_communication = false;
  waits = Waits(options, 0);
  EXPECT_THAT(waits["F.c0.m0"], ElementsAre("G.c0", "L.c0", "SE"));
  EXPECT_THAT(waits["RH"], ElementsAre("B.c0.m1.b1"));
  EXPECT_THAT(Waits(options, 4)["SH"], ElementsAre("B.c2.m1"));
}

TEST(TrainPlan, RefusesWhatCannotBePlanned) {
  const auto refusal = [](const PlanOptions& options, int rank) {
    const absl::Status status = BuildTrainPlan(options, rank).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal(Shape({}, 1), 1), HasSubstr("rank 1 is not in the mesh"));
  EXPECT_THAT(refusal(Shape({}, 1), -1), HasSubstr("rank -1"));
  EXPECT_THAT(refusal(Shape({}, 0), 0), HasSubstr("num_microbatches is 0"));
  EXPECT_THAT(refusal(Shape({}, 1, -1), 0), HasSubstr("spare_slots is -1"));
  PlanOptions stage3 = Shape({}, 1);
  stage3.zero_stage = 3;
  EXPECT_THAT(refusal(stage3, 0), HasSubstr("zero_stage is 3; expected 1 or 2"));
  EXPECT_THAT(refusal(Shape({.data = 1, .pipeline = 65535}, 1), 0), HasSubstr("pipeline size"));
  PlanOptions tied = Shape({}, 1);
  tied.has_tied_ends = true;
  EXPECT_THAT(refusal(tied, 0), HasSubstr("has_tied_ends is true with one pipeline stage"));
  PlanOptions turns = Shape({.data = 1, .pipeline = 3}, 4);
  turns.chunks.clear();
  turns.chunks_per_stage = 2;
  EXPECT_THAT(
      refusal(turns, 0),
      HasSubstr("1f1b has 1 chunk per stage, not 2; expected interleaved_1f1b, or 1 chunk"));
  turns.schedule = Schedule::kInterleaved1F1B;
  EXPECT_THAT(refusal(turns, 0), HasSubstr("4 / 3 leaves 1"));
  turns.chunks_per_stage = 1;
  EXPECT_THAT(refusal(turns, 0), HasSubstr("interleaved_1f1b needs 2 or more chunks per stage"));
  turns.chunks_per_stage = 2;
  turns.mesh = Mesh();
  EXPECT_THAT(refusal(turns, 0), HasSubstr("2 chunks per stage need 2 or more stages, not 1"));
  turns.chunks_per_stage = 0;
  EXPECT_THAT(refusal(turns, 0), HasSubstr("chunks per stage is 0; expected 1 or more"));
  PlanOptions buckets = Shape({.data = 1, .pipeline = 2}, 1);
  buckets.num_buckets = {1};
  EXPECT_THAT(refusal(buckets, 0), HasSubstr("numbers of buckets of 1 chunks were given"));
  buckets.num_buckets = {1, 0};
  EXPECT_THAT(refusal(buckets, 0), HasSubstr("chunk 1 has 0 buckets; expected 1 to 256"));
  buckets.num_buckets = {257, 1};
  EXPECT_THAT(refusal(buckets, 0), HasSubstr("chunk 0 has 257 buckets"));
  buckets.num_buckets = {1, 2};
  EXPECT_THAT(refusal(buckets, 0),
              HasSubstr("costs of 0 buckets of chunk 1 were given; expected 2"));
  PlanOptions options = Shape({.data = 1, .pipeline = 2}, 1);
  options.chunks.pop_back();
  EXPECT_THAT(refusal(options, 0), HasSubstr("costs of 1 chunks"));
}

}  // namespace
}  // namespace megascale::plan
