// What each check of a plan refuses: of a rank's list, of a step across ranks, of roles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/check/validate_rank.h"
#include "runtime/plan/check/validate_roles.h"
#include "runtime/plan/check/validate_step.h"
#include "runtime/plan/plan_options.h"

namespace megascale::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<RankPlan> BuildAll(MeshSizes sizes, int num_microbatches, bool has_trust_ratios = false,
                               int zero_stage = 1) {
  PlanOptions options;
  options.has_trust_ratios = has_trust_ratios;
  options.zero_stage = zero_stage;
  options.mesh = Mesh::Create(sizes).value();
  options.num_microbatches = num_microbatches;
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    plans.push_back(BuildTrainPlan(options, rank).value());
  }
  return plans;
}

int IndexOf(const RankPlan& plan, const std::string& id) {
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    if (plan.instructions[i].id.ToString() == id) return static_cast<int>(i);
  }
  ADD_FAILURE() << id << " is not in the plan of rank " << plan.rank;
  return 0;
}

Instruction& At(RankPlan& plan, const std::string& id) {
  return plan.instructions[IndexOf(plan, id)];
}

// Reorders the instructions; dependencies keep their meaning.
void Reorder(RankPlan& plan, const std::vector<int>& order) {
  std::vector<int> moved_to(order.size());
  for (size_t i = 0; i < order.size(); ++i) moved_to[order[i]] = static_cast<int>(i);
  std::vector<Instruction> instructions;
  for (const int from : order) {
    instructions.push_back(plan.instructions[from]);
    for (int& producer : instructions.back().depends_on) producer = moved_to[producer];
  }
  plan.instructions = std::move(instructions);
}

void Swap(RankPlan& plan, const std::string& one, const std::string& other) {
  std::vector<int> order(plan.instructions.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::swap(order[IndexOf(plan, one)], order[IndexOf(plan, other)]);
  Reorder(plan, order);
}

void Remove(RankPlan& plan, const std::string& id) {
  const int removed = IndexOf(plan, id);
  plan.instructions.erase(plan.instructions.begin() + removed);
  for (Instruction& instruction : plan.instructions) {
    std::vector<int> kept;
    for (const int producer : instruction.depends_on) {
      if (producer != removed) kept.push_back(producer - (producer > removed ? 1 : 0));
    }
    instruction.depends_on = kept;
  }
}

std::string Refusal(const std::vector<RankPlan>& plans) {
  const absl::Status status = ValidatePlans(plans);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ValidateRankPlan, RefusesACycleAndNamesIt) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 2);
  At(plans[0], "SA.c0.m0").depends_on.push_back(IndexOf(plans[0], "B.c0.m0"));
  EXPECT_THAT(Refusal(plans), AllOf(HasSubstr("rank 0: a cycle"), HasSubstr("SA.c0.m0"),
                                    HasSubstr("RG.c0.m0"), HasSubstr("B.c0.m0")));
}

TEST(ValidateRankPlan, RefusesACycleThroughTheOrderOfAStream) {
  std::vector<RankPlan> plans = BuildAll({}, 2);
  Swap(plans[0], "F.c0.m0", "B.c0.m0");
  EXPECT_THAT(Refusal(plans), AllOf(HasSubstr("a cycle"), HasSubstr("B.c0.m0 waits for F.c0.m0")));
}

TEST(ValidateRankPlan, RefusesAnInstructionThatDependsOnItself) {
  std::vector<RankPlan> plans = BuildAll({}, 1);
  At(plans[0], "N").depends_on.push_back(IndexOf(plans[0], "N"));
  EXPECT_THAT(Refusal(plans), HasSubstr("N waits for N"));
}

TEST(ValidateRankPlan, RefusesADependencyThatDoesNotExist) {
  for (const int missing : {-1, 1000}) {
    std::vector<RankPlan> plans = BuildAll({}, 1);
    At(plans[0], "O.c0").depends_on.push_back(missing);
    EXPECT_THAT(Refusal(plans), AllOf(HasSubstr("rank 0: O.c0 depends on instruction"),
                                      HasSubstr("does not exist")));
  }
}

TEST(ValidateRankPlan, RefusesAnIdThatOccursTwice) {
  std::vector<RankPlan> plans = BuildAll({}, 1);
  plans[0].instructions.push_back(At(plans[0], "F.c0.m0"));
  EXPECT_THAT(Refusal(plans), HasSubstr("F.c0.m0 occurs twice"));
}

TEST(ValidateRankPlan, RefusesStreamsOfTwoOwners) {
  std::vector<RankPlan> plans = BuildAll({}, 1);
  At(plans[0], "O.c0").stream = StreamKind::kCompute;
  EXPECT_THAT(Refusal(plans), HasSubstr("O.c0 of owner shard is on stream compute"));
}

TEST(ValidateRankPlan, RefusesAChannelOnTwoStreams) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 3}, 1);
  At(plans[1], "SA.c1.m0").channel = "activation.0";
  EXPECT_THAT(Refusal(plans), HasSubstr("SA.c1.m0 uses channel activation.0 on stream"));
}

TEST(ValidateRankPlan, RefusesAPeerOutsideTheGroup) {
  for (const int peer : {0, 2, kNoPeer}) {
    std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 1);
    At(plans[0], "SA.c0.m0").peer = peer;
    EXPECT_THAT(Refusal(plans), HasSubstr("SA.c0.m0 has peer"));
  }
}

TEST(ValidateRankPlan, RefusesASlotOutOfRange) {
  std::vector<RankPlan> plans = BuildAll({}, 1);
  At(plans[0], "F.c0.m0").activation_slot = 1;
  EXPECT_THAT(Refusal(plans), HasSubstr("F.c0.m0 uses activation slot 1; there are 1"));
}

TEST(ValidateRankPlan, RefusesAnEmptyPlan) {
  RankPlan plan;
  EXPECT_EQ(ValidateRankPlan(plan).code(), absl::StatusCode::kInvalidArgument);
}

TEST(ValidatePlans, RefusesPlansThatAreNotOfAllRanks) {
  std::vector<RankPlan> plans = BuildAll({.data = 2}, 1);
  plans.pop_back();
  EXPECT_THAT(Refusal(plans), HasSubstr("expected the plans of all ranks"));
  plans = BuildAll({.data = 2}, 1);
  plans[1] = BuildAll({.data = 2}, 2)[1];
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1 has another mesh, or other numbers"));
}

TEST(ValidatePlans, RefusesAMicrobatchThatIsNotPassedOn) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 2);
  Remove(plans[0], "B.c0.m1");
  At(plans[0], "R.c0").depends_on = {IndexOf(plans[0], "B.c0.m0")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: B.c0.m1 is missing"));
}

TEST(ValidatePlans, RefusesAForwardOfAnotherStagesChunk) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 1);
  Instruction foreign = At(plans[0], "F.c0.m0");
  foreign.id = InstructionId(OpKind::kForward, 1, 0);
  plans[0].instructions.push_back(foreign);
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: F.c1.m0 is not of a chunk of stage 0"));
}

TEST(ValidatePlans, RefusesATransferAcrossTheEndsOfTheModel) {
  for (const auto& [rank, id] :
       std::vector<std::pair<int, OpKind>>{{0, OpKind::kReceiveActivation},
                                           {0, OpKind::kSendGradient},
                                           {1, OpKind::kSendActivation},
                                           {1, OpKind::kReceiveGradient}}) {
    std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 1);
    Instruction extra = At(plans[rank], "F.c" + std::to_string(rank) + ".m0");
    extra.id = InstructionId(id, rank, 0);
    extra.group = GroupKind::kPipeline;
    extra.peer = 1 - rank;
    plans[rank].instructions.push_back(extra);
    EXPECT_THAT(Refusal(plans), HasSubstr(extra.id.ToString() + " has no chunk at its other end"));
  }
}

TEST(ValidatePlans, RefusesAMicrobatchThatDoesNotExist) {
  std::vector<RankPlan> plans = BuildAll({}, 1);
  Instruction extra = At(plans[0], "F.c0.m0");
  extra.id = InstructionId(OpKind::kForward, 0, 1);
  plans[0].instructions.push_back(extra);
  EXPECT_THAT(Refusal(plans), HasSubstr("F.c0.m1 names no micro-batch of 1"));
}

TEST(ValidatePlans, RefusesUseBeforeMade) {
  const std::vector<std::pair<std::string, std::string>> uses = {{"F.c1.m0", "RA.c1.m0"},
                                                                 {"SA.c1.m0", "F.c1.m0"},
                                                                 {"B.c1.m0", "RG.c1.m0"},
                                                                 {"SG.c1.m0", "B.c1.m0"},
                                                                 {"R.c1", "B.c1.m0"}};
  for (const auto& [consumer, producer] : uses) {
    std::vector<RankPlan> plans = BuildAll({.pipeline = 3}, 1);
    At(plans[1], consumer).depends_on.clear();
    EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: " + consumer + " uses what " + producer));
  }
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 1);
  At(plans[1], "F.c1.m0").depends_on = {IndexOf(plans[1], "RA.c1.m0"), IndexOf(plans[1], "G.c1")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: F.c1.m0 uses what L.c1 makes"));
  At(plans[1], "F.c1.m0").depends_on = {IndexOf(plans[1], "RA.c1.m0"), IndexOf(plans[1], "L.c1")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: F.c1.m0 uses what G.c1 makes"));
  plans = BuildAll({.pipeline = 2}, 1);
  At(plans[1], "O.c1").depends_on = {IndexOf(plans[1], "R.c1")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: O.c1 uses what N makes"));
}

TEST(ValidatePlans, RefusesAProducerThatIsNotThere) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 1);
  Remove(plans[1], "RA.c1.m0");
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: F.c1.m0 needs RA.c1.m0, which is not in"));
}

TEST(ValidatePlans, RefusesASlotThatIsTakenTooEarly) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 2);
  At(plans[1], "RA.c1.m1").depends_on = {IndexOf(plans[1], "B.c1.m0")};
  EXPECT_THAT(Refusal(plans),
              HasSubstr("RA.c1.m1 may begin in activation slot 0 before SG.c1.m0 has ended"));
}

TEST(ValidatePlans, RefusesAMicrobatchInTwoSlotsOrInNone) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 2);
  At(plans[0], "B.c0.m0").activation_slot = 1;
  EXPECT_THAT(Refusal(plans), HasSubstr("B.c0.m0 uses activation slot 1; its micro-batch is in"));
  At(plans[0], "B.c0.m0").activation_slot = kNoSlot;
  EXPECT_THAT(Refusal(plans), HasSubstr("B.c0.m0 has activation slot -1"));
}

TEST(ValidatePlans, RefusesAStepWithoutTheTrustSumsOfItsUpdate) {
  const std::vector<RankPlan> good = BuildAll({.data = 2}, 1, /*has_trust_ratios=*/true);
  ASSERT_TRUE(ValidatePlans(good).ok());
  std::vector<RankPlan> plans = good;
  At(plans[1], "O.c0").depends_on = {IndexOf(plans[1], "N")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: O.c0 uses what T.c0 makes"));
  plans = good;
  At(plans[1], "T.c0").depends_on = {};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: T.c0 uses what U.c0 makes"));
  plans = good;
  At(plans[1], "U.c0").depends_on = {};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: U.c0 uses what N makes"));
  plans = good;
  for (RankPlan& plan : plans) Remove(plan, "T.c0");
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: O.c0 needs T.c0, which is not in the plan"));
  plans = good;
  for (RankPlan& plan : plans) Remove(plan, "U.c0");
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: T.c0 needs U.c0, which is not in the plan"));
  plans = good;
  Remove(plans[1], "U.c0");
  Remove(plans[1], "T.c0");
  At(plans[1], "O.c0").depends_on = {IndexOf(plans[1], "N")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0's T.c0 waits for rank 1, which never joins"));
}

// Sums of squares and losses would have other bits, or not reach all ranks.
TEST(ValidatePlans, RefusesNormsThatAreNotAddedUpInTheirOrder) {
  const std::vector<RankPlan> good = BuildAll({.data = 2, .pipeline = 2, .tensor = 2}, 2);
  ASSERT_TRUE(ValidatePlans(good).ok());
  std::vector<RankPlan> plans = good;
  for (RankPlan& plan : plans) {
    Swap(plan, "NT", "ND");
    At(plan, "N").depends_on = {IndexOf(plan, "NT")};
    At(plan, "NT").depends_on = {IndexOf(plan, "ND")};
    At(plan, "ND").depends_on = {IndexOf(plan, "R.c" + std::to_string(plan.stage()))};
  }
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: ND uses what NT makes"));
  plans = good;
  for (RankPlan& plan : plans) Swap(plan, "ND", "N");
  EXPECT_FALSE(ValidatePlans(plans).ok());
  for (const char* missing : {"NT", "ND", "N"}) {
    plans = good;
    for (RankPlan& plan : plans) Remove(plan, missing);
    EXPECT_THAT(Refusal(plans), HasSubstr(absl::StrCat(missing, " is missing: ")));
  }
  plans = good;
  At(plans[3], "NT").depends_on = {};
  At(plans[3], "NT").stream = StreamKind::kOptimizer;
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 3: NT uses"));
}

// They are gathered among tensor ranks first.
TEST(ValidatePlans, RefusesTrustSumsOfReplicasBeforeThoseOfTensorRanks) {
  const std::vector<RankPlan> good =
      BuildAll({.data = 2, .tensor = 2}, 1, /*has_trust_ratios=*/true);
  ASSERT_TRUE(ValidatePlans(good).ok());
  std::vector<RankPlan> plans = good;
  for (RankPlan& plan : plans) {
    Swap(plan, "TT.c0", "T.c0");
    At(plan, "T.c0").depends_on = {IndexOf(plan, "U.c0")};
  }
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: T.c0 uses what TT.c0 makes"));
  plans = good;
  for (RankPlan& plan : plans) Remove(plan, "TT.c0");
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: T.c0 needs TT.c0, which is not in the plan"));
}

TEST(ValidatePlans, RefusesReplicatedGradientsThatAreNotSummed) {
  const std::vector<RankPlan> good = BuildAll({.tensor = 2}, 2);
  ASSERT_TRUE(ValidatePlans(good).ok());
  std::vector<RankPlan> plans = good;
  for (RankPlan& plan : plans) {
    Remove(plan, "S.c0");
    At(plan, "R.c0").depends_on = {IndexOf(plan, "B.c0.m1")};
  }
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: R.c0 needs S.c0, which is not in the plan"));
  plans = good;
  Swap(plans[1], "S.c0", "R.c0");
  At(plans[1], "R.c0").depends_on = {IndexOf(plans[1], "B.c0.m1")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: R.c0 uses what S.c0 makes"));
  plans = good;
  At(plans[1], "S.c0").depends_on = {IndexOf(plans[1], "B.c0.m0")};
  At(plans[1], "R.c0").depends_on = {IndexOf(plans[1], "B.c0.m1")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: S.c0 uses what B.c0.m1 makes"));
  plans = BuildAll({}, 1);
  Instruction sum = At(plans[0], "R.c0");
  sum.id = InstructionId(OpKind::kSumReplicated, 0);
  sum.group = GroupKind::kNone;
  plans[0].instructions.push_back(sum);
  EXPECT_THAT(Refusal(plans), HasSubstr("S.c0 is a collective; this mesh has no group for it"));
}

// Their exchanges within a pass would never meet.
TEST(ValidatePlans, RefusesTensorRanksThatComputeInAnotherOrder) {
  std::vector<RankPlan> plans = BuildAll({.tensor = 2}, 2);
  Swap(plans[1], "B.c0.m0", "F.c0.m1");
  plans[1].slots = {2};
  At(plans[1], "F.c0.m1").activation_slot = 1;
  At(plans[1], "B.c0.m1").activation_slot = 1;
  At(plans[1], "F.c0.m1").depends_on = {IndexOf(plans[1], "L.c0"), IndexOf(plans[1], "G.c0")};
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0's B.c0.m0 meets rank 1's F.c0.m1 on channel pass"));
  At(plans[1], "F.c0.m0").group = GroupKind::kNone;
  EXPECT_THAT(Refusal(plans), HasSubstr("F.c0.m0 communicates in group \"\"; expected \"tensor\""));
}

TEST(ValidatePlans, RefusesMoreSlotsThanAreUsed) {
  std::vector<RankPlan> plans = BuildAll({}, 4);
  plans[0].slots = {2};
  EXPECT_THAT(Refusal(plans), HasSubstr("1 activation slots are used, 2 declared"));
}

TEST(ValidatePlans, RefusesAReceiveWithoutItsSend) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 3}, 2);
  // The last one: no other pair is out of order.
  Instruction& send = At(plans[1], "SG.c1.m1");
  send.channel = "gradient.7";
  EXPECT_THAT(Refusal(plans), HasSubstr("RG.c0.m1 has no send at peer 1"));
}

TEST(ValidatePlans, RefusesASendWithoutItsReceive) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 2);
  At(plans[1], "RA.c1.m1").channel = "activation.7";
  At(plans[1], "RA.c1.m1").stream = StreamKind::kReceiveActivation;
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0's SA.c0.m1 has no receive at peer 1"));
}

TEST(ValidatePlans, RefusesSendsInAnotherOrderThanReceives) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 3}, 3);
  Swap(plans[0], "SA.c0.m0", "SA.c0.m1");
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0's SA.c0.m1 meets rank 1's RA.c1.m0"));
}

TEST(ValidatePlans, RefusesPairsThatDifferInBytes) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 1);
  At(plans[1], "RA.c1.m0").bytes = 8;
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0's SA.c0.m0 has 0 bytes, rank 1's RA.c1.m0 has 8"));
}

TEST(ValidatePlans, RefusesACollectiveThatAMemberNeverJoins) {
  std::vector<RankPlan> plans = BuildAll({.data = 2}, 1);
  At(plans[1], "G.c0").channel = "elsewhere";
  EXPECT_THAT(Refusal(plans), AllOf(HasSubstr("G.c0 waits for rank"), HasSubstr("never joins")));
}

// Builds the plans of a single stage, whose chunk has this many buckets.
std::vector<RankPlan> BuildBuckets(int num_buckets, int zero_stage = 1,
                                   Schedule schedule = Schedule::k1F1B) {
  PlanOptions options;
  options.mesh = Mesh::Create({.data = 2}).value();
  options.schedule = schedule;
  options.num_microbatches = 2;
  options.zero_stage = zero_stage;
  options.num_buckets = {num_buckets};
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < 2; ++rank) plans.push_back(BuildTrainPlan(options, rank).value());
  EXPECT_TRUE(ValidatePlans(plans).ok()) << ValidatePlans(plans);
  return plans;
}

TEST(ValidatePlans, RefusesCollectivesInAnotherOrder) {
  std::vector<RankPlan> plans = BuildBuckets(2);
  Swap(plans[1], "G.c0", "G.c0.b1");
  At(plans[1], "F.c0.m0").depends_on.push_back(IndexOf(plans[1], "G.c0.b1"));
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0's G.c0.b1 meets rank 1's G.c0 on channel shard"));
}

TEST(ValidatePlans, RefusesBucketsThatAreReducedBeforeTheyAreMade) {
  const auto refusal = [](const std::function<void(RankPlan&)>& change, int zero_stage = 1,
                          Schedule schedule = Schedule::k1F1B) {
    std::vector<RankPlan> plans = BuildBuckets(3, zero_stage, schedule);
    change(plans[1]);
    return Refusal(plans);
  };
  const auto make_wait_for = [](const std::string& reduction, const std::string& piece) {
    return [=](RankPlan& plan) { At(plan, reduction).depends_on = {IndexOf(plan, piece)}; };
  };
  EXPECT_THAT(refusal(make_wait_for("R.c0.b1", "B.c0.m1")),
              HasSubstr("rank 1: R.c0.b1 uses what B.c0.m1.b1 makes, and does not wait for it"));
  EXPECT_THAT(refusal(make_wait_for("R.c0.m1.b2", "B.c0.m1.b1"), 2),
              HasSubstr("rank 1: R.c0.m1.b2 uses what B.c0.m1.b2 makes"));
  EXPECT_THAT(refusal(make_wait_for("R.c0.b1", "W.c0.m1"), 1, Schedule::kZeroBubbleH1),
              HasSubstr("rank 1: R.c0.b1 uses what W.c0.m1.b1 makes"));
  // Leaves out layers.
  EXPECT_THAT(refusal([](RankPlan& plan) { Remove(plan, "B.c0.m1.b1"); }),
              HasSubstr("rank 1: B.c0.m1.b1 is missing"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m0").num_buckets = 2; }),
              HasSubstr("rank 1: B.c0.m0.b2 is missing"));
  // A bucket twice.
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m1").num_buckets = 2; }),
              HasSubstr("rank 1: B.c0.m1.b1 goes through layers that B.c0.m1 does"));
  // In another order: the gradient of a later layer's input is not there yet.
  EXPECT_THAT(refusal([](RankPlan& plan) { Swap(plan, "B.c0.m1.b1", "B.c0.m1.b2"); }),
              HasSubstr("rank 1: B.c0.m1.b2 uses what B.c0.m1.b1 makes"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m1.b2").num_buckets = 2; }),
              HasSubstr("rank 1: B.c0.m1.b2 is not of a bucket of its chunk"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m1.b2").num_buckets = 0; }),
              HasSubstr("rank 1: B.c0.m1.b2 goes through 0 buckets"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "F.c0.m1").num_buckets = 3; }),
              HasSubstr("rank 1: F.c0.m1 is not of a bucket of its chunk"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "F.c0.m1").num_buckets = 1; }),
              HasSubstr("rank 1: F.c0.m1 goes through 1 buckets; exactly what goes backward"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m0").input_only = true; }),
              HasSubstr("rank 1: B.c0.m0 gives the gradient of its input alone; exactly a B that"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m0").input_only = false; }, 1,
                      Schedule::kZeroBubbleH1),
              HasSubstr("rank 1: B.c0.m0 gives the gradient of its weights too; exactly a B that"));
  EXPECT_THAT(refusal([](RankPlan& plan) {
                InstructionId& id = At(plan, "B.c0.m1").id;
                id = id.WithPiece(1);
              }),
              HasSubstr("rank 1: B.c0.m1.p1 is not of a bucket of its chunk"));
}

TEST(ValidatePlans, RefusesABucketThatIsNotReducedOrNotGathered) {
  std::vector<RankPlan> plans = BuildBuckets(3);
  for (RankPlan& plan : plans) Remove(plan, "R.c0.b1");
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: R.c0.b1 is missing"));
  plans = BuildBuckets(3);
  for (RankPlan& plan : plans) Remove(plan, "G.c0.b1");
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: F.c0.m0 needs G.c0.b1, which is not in the plan"));
  plans = BuildBuckets(3);
  for (RankPlan& plan : plans) Remove(plan, "G.c0.b2");
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: B.c0.m0 is not of a bucket of its chunk"));
}

// With stage 2 a buffer holds one bucket at a time.
TEST(ValidatePlans, RefusesBucketsThatShareABufferAtOnce) {
  const auto refusal = [](const std::function<void(RankPlan&)>& change,
                          Schedule schedule = Schedule::k1F1B) {
    std::vector<RankPlan> plans = BuildBuckets(3, /*zero_stage=*/2, schedule);
    change(plans[0]);
    return Refusal(plans);
  };
  // Buckets of the same pass, and of the next one.
  EXPECT_THAT(refusal([](RankPlan& plan) {
                std::erase(At(plan, "B.c0.m0.b2").depends_on, IndexOf(plan, "R.c0.m0"));
              }),
              HasSubstr("rank 0: B.c0.m0.b2 may begin in gradient buffer 0 before R.c0.m0 has "
                        "ended there"));
  EXPECT_THAT(refusal([](RankPlan& plan) {
                std::vector<int>& producers = At(plan, "F.c0.m1").depends_on;
                std::replace(producers.begin(), producers.end(), IndexOf(plan, "R.c0.m0.b1"),
                             IndexOf(plan, "R.c0.m0"));
              }),
              HasSubstr("rank 0: F.c0.m1 may begin in gradient buffer 1 before R.c0.m0.b1 has "
                        "ended there"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m0.b1").begins_sum = false; }),
              HasSubstr("rank 0: B.c0.m0.b1 adds to a gradient buffer in which its bucket has no "
                        "turn"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "R.c0.m0.b1").gradient_buffer = 0; }),
              HasSubstr("rank 0: R.c0.m0.b1 finds its chunk's gradients in another buffer"));
  EXPECT_THAT(refusal([](RankPlan& plan) {
                At(plan, "B.c0.m0").num_buckets = 2;
                Remove(plan, "B.c0.m0.b1");
              }),
              HasSubstr("rank 0: B.c0.m0 goes through 2 buckets; where gradients are sharded"));
  // The part of a backward that is not reduced next.
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m0").gradient_buffer = 0; },
                      Schedule::kZeroBubbleH1),
              HasSubstr("rank 0: B.c0.m0 has gradient buffer 0; exactly what adds to gradients"));
}

// A bucket may begin within a layer, whose gradients the previous piece made.
TEST(ValidatePlans, RefusesAPassBetweenThePiecesOfAnother) {
  PlanOptions options;
  options.mesh = Mesh::Create({.data = 2, .pipeline = 3}).value();
  options.num_microbatches = 3;
  options.spare_slots = 1;  // so that no forward waits for a backward
  options.zero_stage = 2;
  options.num_buckets = {1, 3, 1};
  std::vector<RankPlan> roles = BuildRolePlans(options).value();
  ASSERT_TRUE(ValidateRolePlans(roles).ok()) << ValidateRolePlans(roles);
  Swap(roles[1], "B.c1.m0.b2", "F.c1.m2");
  EXPECT_THAT(ValidateRolePlans(roles).message(),
              HasSubstr("B.c1.m0.b2 does not follow B.c1.m0.b1 at once"));
}

TEST(ValidatePlans, RefusesAnOrderThatDeadlocksAndSaysWhoWaitsForWhom) {
  std::vector<RankPlan> plans = BuildAll({.pipeline = 2}, 2);
  // Stage 0 goes back before it goes forward with the second micro-batch; stage 1 goes forward with
  // both first.
  Swap(plans[0], "F.c0.m1", "B.c0.m0");
  At(plans[0], "SA.c0.m1").depends_on = {IndexOf(plans[0], "F.c0.m1")};
  ASSERT_TRUE(ValidateRankPlan(plans[0]).ok());
  Swap(plans[1], "B.c1.m0", "F.c1.m1");
  plans[1].slots = {2};
  for (const char* id : {"RA.c1.m1", "F.c1.m1", "B.c1.m1", "SG.c1.m1"}) {
    At(plans[1], id).activation_slot = 1;
  }
  At(plans[1], "RA.c1.m1").depends_on.clear();
  EXPECT_THAT(Refusal(plans),
              AllOf(HasSubstr("a deadlock: "), HasSubstr("rank 0's B.c0.m0 waits for"),
                    HasSubstr("rank 1's F.c1.m1 waits for"), HasSubstr("SA.c0.m1")));
}

TEST(ValidatePlans, RefusesGradientsThatAreAddedBeforeTheBuffersReduction) {
  std::vector<RankPlan> plans = BuildAll({.data = 2}, 3, false, 2);
  ASSERT_TRUE(ValidatePlans(plans).ok()) << ValidatePlans(plans);
  // With a single stage the forward also makes the head's gradients.
  std::vector<int>& producers = At(plans[0], "F.c0.m1").depends_on;
  std::erase(producers, IndexOf(plans[0], "R.c0.m0"));
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 0: F.c0.m1 may begin in gradient buffer 0 before "
                                        "R.c0.m0 has ended there"));
}

TEST(ValidatePlans, RefusesSumsOfGradientsThatAreNotWhole) {
  const auto refusal = [](const std::function<void(RankPlan&)>& change) {
    std::vector<RankPlan> plans = BuildAll({.data = 2, .pipeline = 2}, 2, false, 2);
    change(plans[0]);
    return Refusal(plans);
  };
  EXPECT_THAT(refusal([](RankPlan& plan) { Remove(plan, "R.c0.m1"); }),
              HasSubstr("rank 0: R.c0.m1 is missing"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "R.c0.m1").depends_on.clear(); }),
              HasSubstr("rank 0: R.c0.m1 uses what B.c0.m1 makes, and does not wait for it"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "R.c0.m0").begins_sum = false; }),
              HasSubstr("R.c0.m0 adds to a shard whose sum none has begun"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "R.c0.m1").begins_sum = true; }),
              HasSubstr("R.c0.m1 begins the shard's sum a second time"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m0").begins_sum = false; }),
              HasSubstr("B.c0.m0 adds to a gradient buffer in which its bucket has no turn"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m1").begins_sum = false; }),
              HasSubstr("R.c0.m0 may begin in gradient buffer 0 before B.c0.m1 has ended there"));
  EXPECT_THAT(refusal([](RankPlan& plan) {
                At(plan, "B.c0.m1").begins_sum = false;
                std::erase(At(plan, "B.c0.m1").depends_on, IndexOf(plan, "R.c0.m0"));
                At(plan, "R.c0.m0").depends_on.push_back(IndexOf(plan, "B.c0.m1"));
              }),
              HasSubstr("R.c0.m1 reduces a sum of gradients a second time"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m0").gradient_buffer = kNoBuffer; }),
              HasSubstr("B.c0.m0 has gradient buffer -1; exactly what adds to gradients"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "F.c0.m0").gradient_buffer = 0; }),
              HasSubstr("F.c0.m0 has gradient buffer 0; exactly what adds to gradients"));
  EXPECT_THAT(refusal([](RankPlan& plan) { At(plan, "B.c0.m0").gradient_buffer = 1; }),
              HasSubstr("B.c0.m0 uses gradient buffer 1; there are 1"));
  EXPECT_THAT(refusal([](RankPlan& plan) { plan.gradient_buffers = 2; }),
              HasSubstr("of 2 declared gradient buffers one is never used"));
  EXPECT_THAT(refusal([](RankPlan& plan) { plan.shards_gradients = false; }),
              HasSubstr("R.c0.m0 names no micro-batch of 2"));
  std::vector<RankPlan> plans = BuildAll({.data = 2}, 1);
  plans[1] = BuildAll({.data = 2}, 1, false, 2)[1];
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1 has another mesh, or other numbers of chunks or "
                                        "micro-batches, than rank 0, or one of them shards"));
}

TEST(ValidatePlans, RefusesReductionsOfAnotherBuffer) {
  PlanOptions options;
  options.mesh = Mesh::Create({.data = 2, .pipeline = 2}).value();
  options.schedule = Schedule::kInterleaved1F1B;
  options.chunks_per_stage = 3;
  options.num_microbatches = 2;
  options.zero_stage = 2;
  std::vector<RankPlan> roles = BuildRolePlans(options).value();
  ASSERT_TRUE(ValidateRolePlans(roles).ok()) << ValidateRolePlans(roles);
  EXPECT_EQ(roles[0].gradient_buffers, 2);
  At(roles[0], "R.c2.m0").gradient_buffer = 1 - At(roles[0], "R.c2.m0").gradient_buffer;
  EXPECT_EQ(ValidateRolePlans(roles).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ValidateRolePlans(roles).message(), HasSubstr("rank 0: "));
  EXPECT_THAT(ValidateRolePlans(roles).message(), HasSubstr("gradient"));
}

std::vector<RankPlan> BuildTied(int zero_stage, MeshSizes sizes = {.pipeline = 2}) {
  PlanOptions options;
  options.mesh = Mesh::Create(sizes).value();
  options.num_microbatches = 2;
  options.zero_stage = zero_stage;
  options.num_buckets = {2, 1};
  options.has_tied_ends = true;
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
    plans.push_back(BuildTrainPlan(options, rank).value());
  }
  return plans;
}

TEST(ValidatePlans, RefusesATiedEmbeddingThatIsNotExchanged) {
  ASSERT_TRUE(ValidatePlans(BuildTied(1)).ok()) << ValidatePlans(BuildTied(1));
  const auto refusal = [](int zero_stage, const auto& change) {
    std::vector<RankPlan> plans = BuildTied(zero_stage);
    change(plans);
    return Refusal(plans);
  };
  const auto without = [&](const std::string& sent, const std::string& received) {
    return refusal(1, [&](auto& plans) {
      const bool goes_forward = sent == "SE";
      if (!sent.empty()) Remove(plans[goes_forward ? 0 : 1], sent);
      if (!received.empty()) Remove(plans[goes_forward ? 1 : 0], received);
    });
  };
  EXPECT_THAT(without("SE", "RE"), HasSubstr("rank 0: SE is missing"));
  EXPECT_THAT(without("", "RH"), HasSubstr("A.c0.b1 needs RH, which is not in the plan"));
  EXPECT_THAT(without("SH", ""), HasSubstr("rank 1: SH is missing"));
  EXPECT_THAT(without("SE", ""), HasSubstr("rank 0: SE is missing"));
  EXPECT_THAT(refusal(1, [](auto& plans) { Remove(plans[1], "RE"); }),
              HasSubstr("rank 1: F.c1.m0 needs RE, which is not in the plan"));
  EXPECT_THAT(refusal(1, [](auto& plans) { Remove(plans[0], "A.c0.b1"); }),
              HasSubstr("rank 0: A.c0 is missing"));
  EXPECT_THAT(refusal(1,
                      [](auto& plans) {
                        for (RankPlan& plan : plans) plan.has_tied_ends = false;
                      }),
              HasSubstr("SE is in a plan without tied ends of the model"));
  EXPECT_THAT(refusal(1, [](auto& plans) { plans[1].has_tied_ends = false; }),
              HasSubstr("rank 1 has another mesh"));
}

TEST(ValidatePlans, RefusesATiedEmbeddingThatIsUsedTooEarly) {
  const auto refusal = [](int zero_stage, const auto& change) {
    std::vector<RankPlan> plans = BuildTied(zero_stage);
    change(plans);
    return Refusal(plans);
  };
  const auto without = [](RankPlan& plan, const std::string& consumer, const std::string& of) {
    std::erase(At(plan, consumer).depends_on, IndexOf(plan, of));
  };
  EXPECT_THAT(refusal(1, [&](auto& plans) { without(plans[0], "SE", "G.c0.b1"); }),
              HasSubstr("SE uses what G.c0.b1 makes, and does not wait"));
  EXPECT_THAT(refusal(1, [&](auto& plans) { without(plans[0], "ND", "SE"); }),
              HasSubstr("O.c0 uses what SE makes, and does not wait"));
  EXPECT_THAT(refusal(1, [&](auto& plans) { without(plans[0], "A.c0.b1", "RH"); }),
              HasSubstr("A.c0.b1 uses what RH makes, and does not wait"));
  EXPECT_THAT(refusal(1, [&](auto& plans) { without(plans[1], "F.c1.m0", "RE"); }),
              HasSubstr("F.c1.m0 uses what RE makes, and does not wait"));
  EXPECT_THAT(refusal(1, [&](auto& plans) { without(plans[1], "SH", "F.c1.m1"); }),
              HasSubstr("SH uses what F.c1.m0 makes, and does not wait"));
  EXPECT_THAT(refusal(1, [&](auto& plans) { without(plans[0], "A.c0.b1", "B.c0.m1.b1"); }),
              HasSubstr("R.c0.b1 uses what B.c0.m1.b1 makes, and does not wait"));
  EXPECT_THAT(refusal(1, [](auto& plans) { Swap(plans[0], "A.c0.b1", "R.c0.b1"); }),
              HasSubstr("cycle"));
  EXPECT_THAT(
      refusal(1,
              [&](auto& plans) {
                without(plans[0], "A.c0.b1", "B.c0.m1.b1");
                At(plans[0], "R.c0.b1").depends_on.push_back(IndexOf(plans[0], "B.c0.m1.b1"));
                Swap(plans[0], "A.c0.b1", "R.c0");
              }),
      HasSubstr("A.c0.b1 may begin in gradient buffer 0 before B.c0.m1"));
  // Exactly one micro-batch takes it, with the bucket that has the embedding.
  EXPECT_THAT(refusal(2,
                      [](auto& plans) {
                        Instruction again = At(plans[0], "A.c0.m1.b1");
                        again.id = InstructionId(OpKind::kAddHeadGradient, 0, 0, 1);
                        plans[0].instructions.push_back(again);
                      }),
              HasSubstr("A.c0.m0.b1 adds the gradient a second time"));
  EXPECT_THAT(refusal(1,
                      [](auto& plans) {
                        At(plans[0], "A.c0.b1").id = InstructionId(OpKind::kAddHeadGradient, 0);
                      }),
              HasSubstr("A.c0 is not of bucket 1, which has the embedding"));
}

TEST(ValidatePlans, RefusesATiedEmbeddingOnAnotherStage) {
  std::vector<RankPlan> plans = BuildTied(1);
  Instruction received = At(plans[1], "RE");
  received.peer = 1;
  Remove(plans[0], "SE");
  plans[0].instructions.push_back(received);
  EXPECT_THAT(Refusal(plans), HasSubstr("RE is on stage 0; expected that of the last chunk"));
  // Tensor ranks sum what includes the head's gradient.
  plans = BuildTied(1, {.pipeline = 2, .tensor = 2});
  ASSERT_TRUE(ValidatePlans(plans).ok()) << ValidatePlans(plans);
  std::erase(At(plans[0], "S.c0.b1").depends_on, IndexOf(plans[0], "A.c0.b1"));
  At(plans[0], "A.c0.b1").stream = StreamKind::kOptimizer;
  EXPECT_THAT(Refusal(plans), HasSubstr("S.c0.b1"));
}

TEST(ValidatePlans, RefusesCommunicationInAnotherGroup) {
  std::vector<RankPlan> plans = BuildAll({.data = 2}, 1);
  At(plans[1], "L.c0").group = GroupKind::kPipeline;
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: L.c0 communicates in group \"pipeline\""));
}

}  // namespace
}  // namespace megascale::plan
