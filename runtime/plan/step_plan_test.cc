#include "runtime/plan/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "runtime/plan/validate.h"

namespace megascale::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
                              .parameter_bytes = 300 + chunk});
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

// The time from the start of a step to the end of its last backward pass, when transfers take no
// time: the longest path through one pipeline. `plans` are those of a mesh of stages only.
int StepTime(const std::vector<RankPlan>& plans, int forward_time, int backward_time) {
  absl::flat_hash_map<uint64_t, int> ends;
  const auto end_of = [&](InstructionId id) { return ends[id.packed()]; };
  // Each instruction's end, by its rank's order and dependencies; of communication, before the peer
  // is seen.
  const auto inputs_end = [&](const RankPlan& plan, size_t index) {
    int time = 0;
    const Instruction& instruction = plan.instructions[index];
    for (const int producer : instruction.depends_on) {
      time = std::max(time, end_of(plan.instructions[producer].id));
    }
    for (size_t i = 0; i < index; ++i) {
      if (plan.instructions[i].stream != instruction.stream) continue;
      time = std::max(time, end_of(plan.instructions[i].id));
    }
    return time;
  };
  const auto peer_id = [](InstructionId id) {
    switch (id.operation()) {
      case OpKind::kSendActivation:
        return InstructionId(OpKind::kReceiveActivation, id.chunk() + 1, id.microbatch());
      case OpKind::kReceiveActivation:
        return InstructionId(OpKind::kSendActivation, id.chunk() - 1, id.microbatch());
      case OpKind::kSendGradient:
        return InstructionId(OpKind::kReceiveGradient, id.chunk() - 1, id.microbatch());
      case OpKind::kReceiveGradient:
        return InstructionId(OpKind::kSendGradient, id.chunk() + 1, id.microbatch());
      default:
        return id;
    }
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const RankPlan& plan : plans) {
      for (size_t i = 0; i < plan.instructions.size(); ++i) {
        const Instruction& instruction = plan.instructions[i];
        int time = inputs_end(plan, i);
        if (instruction.kind() == OpKind::kForward) time += forward_time;
        if (instruction.kind() == OpKind::kBackward) time += backward_time;
        time = std::max(time, end_of(peer_id(instruction.id)));
        int& end = ends[instruction.id.packed()];
        changed |= end != time;
        end = time;
      }
    }
  }
  int last = 0;
  for (const auto& [id, time] : ends) last = std::max(last, time);
  return last;
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
              ASSERT_EQ(plan.num_activation_slots,
                        std::min(microbatches, pipeline - plan.stage() + spare));
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

TEST(TrainPlan, BubbleIsStagesLessOneForwardsAndBackwards) {
  for (int pipeline = 1; pipeline <= 6; ++pipeline) {
    for (int microbatches = pipeline; microbatches <= 13; ++microbatches) {
      const std::vector<RankPlan> plans =
          BuildAll(Shape({.data = 1, .pipeline = pipeline}, microbatches));
      for (const auto& [forward_time, backward_time] :
           std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {3, 5}}) {
        const int both = forward_time + backward_time;
        EXPECT_EQ(StepTime(plans, forward_time, backward_time) - microbatches * both,
                  (pipeline - 1) * both)
            << pipeline << " stages, " << microbatches << " micro-batches";
      }
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

TEST(TrainPlan, CarriesCosts) {
  const RankPlan plan = BuildTrainPlan(Shape({.data = 2, .pipeline = 2}, 1), 2).value();
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
}

TEST(TrainPlan, UsesOnlyTheChannelsThatEveryRankOpens) {
  for (int pipeline = 1; pipeline <= 5; ++pipeline) {
    const PlanOptions options = Shape({.data = 2, .pipeline = pipeline}, 3);
    const std::vector<Channel> channels = ChannelsOf(options.mesh);
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
            "rank 1 (data 0, pipeline 1, tensor 0): 13 instructions, 1 activation slots\n"
            "  compute             F.c1.m0 B.c1.m0 F.c1.m1 B.c1.m1\n"
            "  load-batch          L.c1\n"
            "  receive-activation  RA.c1.m0 RA.c1.m1\n"
            "  send-gradient       SG.c1.m0 SG.c1.m1\n"
            "  data-parallel       R.c1 N G.c1\n"
            "  optimizer           O.c1\n");
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
  EXPECT_THAT(refusal(Shape({.data = 1, .pipeline = 65535}, 1), 0), HasSubstr("pipeline size"));
  PlanOptions options = Shape({.data = 1, .pipeline = 2}, 1);
  options.chunks.pop_back();
  EXPECT_THAT(refusal(options, 0), HasSubstr("costs of 1 chunks"));
}

}  // namespace
}  // namespace megascale::plan
