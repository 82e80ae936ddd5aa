// Whatever is proved for the roles holds for every rank, and nothing else is refused.
#include "runtime/plan/check/validate_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/check/launch_order.h"
#include "runtime/plan/check/validate_step.h"
#include "runtime/plan/testing/expert_mesh.h"
#include "tests/soak.h"

namespace megascale::plan {
namespace {

using ::testing::HasSubstr;

constexpr int kRanksMax = 64;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  // least <= result <= most.
  int Draw(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<unsigned>(most - least + 1));
  }
  template <typename T>
  T& Of(std::vector<T>& items) {
    return items[static_cast<size_t>(Draw(0, static_cast<int>(items.size()) - 1))];
  }

 private:
  std::mt19937 engine_;
};

PlanOptions RandomShape(Random* random) {
  PlanOptions options;
  const int pipeline = random->Draw(1, 8);
  const int data = random->Draw(1, std::min(8, kRanksMax / pipeline));
  const int tensor = random->Draw(1, std::min(4, kRanksMax / (pipeline * data)));
  options.mesh = Mesh::Create({.data = data, .pipeline = pipeline, .tensor = tensor}).value();
  options.schedule = std::array{Schedule::k1F1B, Schedule::kGPipe, Schedule::kInterleaved1F1B,
                                Schedule::kZeroBubbleH1}[static_cast<size_t>(random->Draw(0, 3))];
  options.num_microbatches = random->Draw(1, 6);
  options.spare_slots = random->Draw(0, 1);
  options.has_trust_ratios = random->Draw(0, 3) == 0;
  options.overlap = {.grad_reduce = random->Draw(0, 3) > 0,
                     .param_gather = random->Draw(0, 3) > 0,
                     .p2p_communication = random->Draw(0, 3) > 0};
  options.zero_stage = random->Draw(1, 2);
  options.schedule = ScheduleInUse({.schedule = options.schedule, .num_stages = pipeline});
  if (options.schedule == Schedule::kInterleaved1F1B) {
    options.chunks_per_stage = random->Draw(2, 4);
    options.num_microbatches = pipeline;
  }
  if (random->Draw(0, 2) > 0) return options;
  for (int chunk = 0; chunk < options.num_chunks(); ++chunk) {
    options.num_buckets.push_back(random->Draw(1, 4));
  }
  return options;
}

std::vector<RankPlan> AllRanks(const std::vector<RankPlan>& roles) {
  std::vector<RankPlan> plans;
  for (int rank = 0; rank < roles[0].mesh.world_size(); ++rank) {
    plans.push_back(PlanOfRank(roles, rank));
  }
  return plans;
}

// Reorders the instructions, or leaves some out; remaining dependencies keep their meaning.
void Keep(const std::vector<int>& order, RankPlan* plan) {
  std::vector<int> moved_to(plan->instructions.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    moved_to[static_cast<size_t>(order[i])] = static_cast<int>(i);
  }
  std::vector<Instruction> kept;
  for (const int from : order) {
    kept.push_back(plan->instructions[static_cast<size_t>(from)]);
    std::vector<int> producers;
    for (const int producer : kept.back().depends_on) {
      const int moved = moved_to[static_cast<size_t>(producer)];
      if (moved >= 0) producers.push_back(moved);
    }
    kept.back().depends_on = producers;
  }
  plan->instructions = std::move(kept);
}

std::vector<int> Indices(const RankPlan& plan) {
  std::vector<int> order(plan.instructions.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Breaks a role's plan in one way; returns false if there is nothing to break.
using Mutate = std::function<bool(Random*, RankPlan*)>;

// Changes one instruction that `wanted` accepts with `change`.
Mutate Change(std::function<bool(const Instruction&)> wanted,
              std::function<void(Random*, const RankPlan&, Instruction*)> change) {
  return [=](Random* random, RankPlan* plan) {
    std::vector<Instruction*> candidates;
    for (Instruction& instruction : plan->instructions) {
      if (wanted(instruction)) candidates.push_back(&instruction);
    }
    if (candidates.empty()) return false;
    change(random, *plan, random->Of(candidates));
    return true;
  };
}

bool Any(const Instruction&) { return true; }
bool Transfers(const Instruction& instruction) { return IsTransfer(instruction.kind()); }
bool Communicates(const Instruction& instruction) { return instruction.group != GroupKind::kNone; }

bool Drop(Random* random, RankPlan* plan) {
  std::vector<int> order = Indices(*plan);
  order.erase(order.begin() + random->Draw(0, static_cast<int>(order.size()) - 1));
  Keep(order, plan);
  return !plan->instructions.empty();
}

// Swaps two instructions of a stream; their dependencies do not change.
bool SwapOnStream(Random* random, RankPlan* plan) {
  std::vector<int> order = Indices(*plan);
  const StreamKind stream = random->Of(plan->instructions).stream;
  std::vector<int> on_stream;
  for (const int i : order) {
    if (plan->instructions[static_cast<size_t>(i)].stream == stream) on_stream.push_back(i);
  }
  if (on_stream.size() < 2) return false;
  const size_t at = static_cast<size_t>(random->Draw(0, static_cast<int>(on_stream.size()) - 2));
  const size_t other = std::min(on_stream.size() - 1, at + static_cast<size_t>(random->Draw(1, 3)));
  std::swap(order[static_cast<size_t>(on_stream[at])],
            order[static_cast<size_t>(on_stream[other])]);
  Keep(order, plan);
  return true;
}

const std::vector<std::pair<std::string, Mutate>>& Mutations() {
  static const auto* const kMutations = new std::vector<std::pair<std::string, Mutate>>{
      {"drop", Drop},
      {"swap", SwapOnStream},
      {"peer", Change(Transfers,
                      [](Random* random, const RankPlan& plan, Instruction* changed) {
                        changed->peer = random->Draw(-1, plan.mesh.pipeline_size());
                      })},
      {"slot", Change([](const Instruction& i) { return i.activation_slot != kNoSlot; },
                      [](Random* random, const RankPlan&, Instruction* changed) {
                        changed->activation_slot = random->Draw(-1, 3);
                      })},
      {"gradient buffer",
       Change([](const Instruction& i) { return i.gradient_buffer != kNoBuffer; },
              [](Random* random, const RankPlan&, Instruction* changed) {
                changed->gradient_buffer = random->Draw(-1, 2);
              })},
      {"begins a sum", Change([](const Instruction& i) { return i.gradient_buffer != kNoBuffer; },
                              [](Random*, const RankPlan&, Instruction* changed) {
                                changed->begins_sum = !changed->begins_sum;
                              })},
      {"buckets", Change([](const Instruction& i) { return i.num_buckets > 0; },
                         [](Random* random, const RankPlan&, Instruction* changed) {
                           changed->num_buckets += random->Draw(0, 1) == 0 ? 1 : -1;
                         })},
      {"split", Change([](const Instruction& i) { return i.kind() == OpKind::kBackward; },
                       [](Random*, const RankPlan&, Instruction* changed) {
                         changed->input_only = !changed->input_only;
                       })},
      {"bytes", Change(Communicates, [](Random*, const RankPlan&,
                                        Instruction* changed) { changed->bytes += 8; })},
      {"channel", Change(Communicates,
                         [](Random* random, const RankPlan&, Instruction* changed) {
                           const auto names = std::array{"activation.0", "gradient.1", "shard"};
                           changed->channel = names[static_cast<size_t>(random->Draw(0, 2))];
                         })},
      {"group", Change(Any,
                       [](Random* random, const RankPlan&, Instruction* changed) {
                         changed->group = static_cast<GroupKind>(
                             random->Draw(0, static_cast<int>(GroupKind::kTensor)));
                       })},
      {"id", Change(Any,
                    [](Random* random, const RankPlan& plan, Instruction* changed) {
                      changed->id =
                          plan.instructions[static_cast<size_t>(random->Draw(
                                                0, static_cast<int>(plan.instructions.size()) - 1))]
                              .id;
                    })},
      {"fewer dependencies", Change([](const Instruction& i) { return !i.depends_on.empty(); },
                                    [](Random* random, const RankPlan&, Instruction* changed) {
                                      changed->depends_on.erase(
                                          changed->depends_on.begin() +
                                          random->Draw(
                                              0, static_cast<int>(changed->depends_on.size()) - 1));
                                    })},
      {"more dependencies", Change(Any,
                                   [](Random* random, const RankPlan& plan, Instruction* changed) {
                                     changed->depends_on.push_back(random->Draw(
                                         0, static_cast<int>(plan.instructions.size()) - 1));
                                   })},
      {"slots", [](Random* random, RankPlan* plan) {
         random->Of(plan->slots) += random->Draw(0, 1) == 0 ? 1 : -1;
         return true;
       }}};
  return *kMutations;
}

std::string Describe(const PlanOptions& options) {
  const Mesh& mesh = options.mesh;
  return absl::StrCat(Name(options.schedule), ", data ", mesh.data_size(), ", stages ",
                      mesh.pipeline_size(), " x ", options.chunks_per_stage, ", tensor ",
                      mesh.tensor_size(), ", micro-batches ", options.num_microbatches,
                      ", zero stage ", options.zero_stage);
}

// `./dev soak` takes ten times as many shapes, and the next test four times as many.
TEST(ValidateRolePlans, AcceptsHundredsOfShapesAsValidatePlansDoesOverAllRanks) {
  Random random(20240301);
  for (int i = 0; i < (IsSoak() ? 2000 : 200); ++i) {
    const PlanOptions options = RandomShape(&random);
    const std::vector<RankPlan> roles = BuildRolePlans(options).value();
    const absl::Status of_roles = ValidateRolePlans(roles);
    ASSERT_TRUE(of_roles.ok()) << Describe(options) << ": " << of_roles;
    const absl::Status of_ranks = ValidatePlans(AllRanks(roles));
    ASSERT_TRUE(of_ranks.ok()) << Describe(options) << ": " << of_ranks;
  }
}

TEST(ValidateRolePlans, JudgesThousandsOfBrokenPlansAsValidatePlansDoesOverAllRanks) {
  Random random(20240302);
  std::map<std::string, int> num_refused;
  int num_allowed = 0;
  int num_deadlocks = 0;
  int num_unmet = 0;
  const int num_plans = IsSoak() ? 8000 : 2000;
  for (int i = 0; i < num_plans; ++i) {
    const PlanOptions options = RandomShape(&random);
    std::vector<RankPlan> roles = BuildRolePlans(options).value();
    const auto& [name, mutate] = Mutations()[static_cast<size_t>(i) % Mutations().size()];
    RankPlan& broken = random.Of(roles);
    if (!mutate(&random, &broken)) continue;
    // Sometimes mutates two roles, or one role twice: the errors may then agree with each other.
    if (random.Draw(0, 3) == 0) mutate(&random, &random.Of(roles));
    const absl::Status of_roles = ValidateRolePlans(roles);
    const absl::Status of_ranks = ValidatePlans(AllRanks(roles));
    ASSERT_EQ(of_roles.code(), of_ranks.code())
        << i << ": " << name << " of rank " << broken.rank << ", " << Describe(options)
        << "\nroles: " << of_roles << "\nranks: " << of_ranks;
    num_refused[name] += of_roles.ok() ? 0 : 1;
    num_allowed += of_roles.ok() ? 1 : 0;
    num_deadlocks += absl::StrContains(of_roles.message(), "a deadlock") ? 1 : 0;
    num_unmet += absl::StrContains(of_roles.message(), " meets ") ||
                         absl::StrContains(of_roles.message(), " has no ")
                     ? 1
                     : 0;
  }
  // The mutations are effective: each breaks plans, and some have no effect that matters.
  EXPECT_EQ(num_refused.size(), Mutations().size());
  for (const auto& [name, count] : num_refused) EXPECT_GT(count, num_plans / 160) << name;
  EXPECT_GT(num_allowed, num_plans / 80);
  EXPECT_GT(num_deadlocks, IsSoak() ? 10 : 0);
  EXPECT_GT(num_unmet, num_plans / 80);
}

// The orders of roles, checked for all their ranks with each exchange holding a whole device.
TEST(LaunchOrders, AgreeOverAllRanksAndContradictNoDependency) {
  Random random(20240305);
  for (int i = 0; i < 500; ++i) {
    const PlanOptions options = RandomShape(&random);
    SCOPED_TRACE(Describe(options));
    const std::vector<RankPlan> roles = BuildRolePlans(options).value();
    const auto orders = LaunchOrders(roles);
    ASSERT_TRUE(orders.ok()) << orders.status();
    ASSERT_EQ(CheckLaunchOrders(roles, *orders), absl::OkStatus());
    const RoleMap by_stage = RoleMap::ByStage(options.mesh);
    std::vector<std::vector<int>> of_ranks;
    for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
      of_ranks.push_back((*orders)[static_cast<size_t>(by_stage.RoleOf(rank))]);
    }
    ASSERT_EQ(CheckLaunchOrders(AllRanks(roles), of_ranks), absl::OkStatus());
  }
}

// Two neighbouring launches of one rank change places: another rank has them the other way round,
// or a dependency does, unless they are free to.
TEST(LaunchOrders, OneRankThatLaunchesInAnotherOrderIsADeadlock) {
  Random random(20240306);
  int num_deadlocks = 0;
  for (int i = 0; i < 200; ++i) {
    const std::vector<RankPlan> roles = BuildRolePlans(RandomShape(&random)).value();
    std::vector<std::vector<int>> orders = LaunchOrders(roles).value();
    std::vector<int>& order = random.Of(orders);
    if (order.size() < 2) continue;
    const int at = random.Draw(0, static_cast<int>(order.size()) - 2);
    std::swap(order[static_cast<size_t>(at)], order[static_cast<size_t>(at) + 1]);
    const absl::Status status = CheckLaunchOrders(roles, orders);
    if (status.ok()) continue;
    EXPECT_TRUE(absl::StrContains(status.message(), "a deadlock")) << status;
    ++num_deadlocks;
  }
  EXPECT_GT(num_deadlocks, 50);
}

// Stage 0 sends an activation before it receives a gradient, and stage 1 has the two groups the
// other way round: each holds its device for an exchange that the other has not launched.
TEST(LaunchOrders, RefusesTwoGroupsInOppositeOrdersAndSaysWhoWaitsForWhom) {
  const std::vector<RankPlan> roles =
      BuildRolePlans({.mesh = Mesh::Create({.pipeline = 2}).value(), .num_microbatches = 3})
          .value();
  std::vector<std::vector<int>> orders = LaunchOrders(roles).value();
  ASSERT_EQ(CheckLaunchOrders(roles, orders), absl::OkStatus());
  // Puts instruction `one` of a stage right before `other`, in its order of launches.
  const auto put_before = [&](size_t stage, const std::string& one, const std::string& other) {
    std::vector<int>& order = orders[stage];
    const auto find = [&](const std::string& id) {
      const auto found = std::find_if(order.begin(), order.end(), [&](int index) {
        return roles[stage].instructions[static_cast<size_t>(index)].id.ToString() == id;
      });
      EXPECT_NE(found, order.end()) << id;
      return found;
    };
    const int moved = *find(one);
    order.erase(find(one));
    order.insert(find(other), moved);
  };
  put_before(0, "SA.c0.m1", "RG.c0.m0");
  put_before(1, "SG.c1.m0", "RA.c1.m1");
  const absl::Status status = CheckLaunchOrders(roles, orders);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char* part : {"a deadlock: ", "rank 0's SA.c0.m1", "rank 1's RA.c1.m1",
                           "rank 1's SG.c1.m0", "rank 0's RG.c0.m0"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << part << ": " << status;
  }
}

TEST(LaunchOrders, EveryInstructionThatMeetsOthersIsLaunchedOnce) {
  const std::vector<RankPlan> roles =
      BuildRolePlans(
          {.mesh = Mesh::Create({.data = 2, .pipeline = 2}).value(), .num_microbatches = 2})
          .value();
  const std::vector<std::vector<int>> orders = LaunchOrders(roles).value();
  std::vector<std::vector<int>> lacks = orders;
  lacks[1].pop_back();
  EXPECT_TRUE(absl::StrContains(CheckLaunchOrders(roles, lacks).message(), "lacks"));
  std::vector<std::vector<int>> twice = orders;
  twice[0].push_back(orders[0][0]);
  EXPECT_TRUE(absl::StrContains(CheckLaunchOrders(roles, twice).message(), "launched before"));
  std::vector<std::vector<int>> unknown = orders;
  unknown[0].push_back(100'000);
  EXPECT_TRUE(absl::StrContains(CheckLaunchOrders(roles, unknown).message(), "index 100000"));
  EXPECT_TRUE(absl::StrContains(CheckLaunchOrders(roles, {}).message(), "one for each plan"));
}

// Roles that are not stages: by a further axis, by several axes, or every rank its own.
TEST(ValidateRolePlans, AgreesWithAllRanksHoweverRolesAreAssigned) {
  Random random(20240304);
  int num_allowed = 0;
  int num_refused = 0;
  for (int i = 0; i < 1000; ++i) {
    PlanOptions options = RandomShape(&random);
    if (options.mesh.world_size() <= kRanksMax / 2) {
      options.mesh = ExpertMesh({.data = options.mesh.data_size(),
                                 .pipeline = options.mesh.pipeline_size(),
                                 .tensor = options.mesh.tensor_size()},
                                2);
    }
    const AxisSet axes =
        std::array<AxisSet, 4>{{{Axis::kPipeline, Axis::kTensor},
                                {Axis::kPipeline, Axis::kData},
                                {Axis::kPipeline, kExpertAxis},
                                AxisSet::All()}}[static_cast<size_t>(random.Draw(0, 3))];
    const RoleMap roles = RoleMap::ByAxes(options.mesh, axes);
    std::vector<RankPlan> templates = BuildRolePlans(options, roles).value();
    EXPECT_EQ(ValidateRolePlans(templates, roles), absl::OkStatus()) << Describe(options);
    const auto& [name, mutate] = Mutations()[static_cast<size_t>(i) % Mutations().size()];
    if (!mutate(&random, &random.Of(templates))) continue;
    std::vector<RankPlan> plans;
    for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
      plans.push_back(PlanOfRank(templates, roles, rank));
    }
    const absl::Status of_roles = ValidateRolePlans(templates, roles);
    const absl::Status of_ranks = ValidatePlans(plans);
    ASSERT_EQ(of_roles.code(), of_ranks.code())
        << i << ": " << name << ", " << Describe(options) << "\nroles: " << of_roles
        << "\nranks: " << of_ranks;
    (of_roles.ok() ? num_allowed : num_refused) += 1;
  }
  EXPECT_GT(num_allowed, 15);
  EXPECT_GT(num_refused, 150);
}

TEST(ValidateRolePlans, RefusesRolesThatOnePlanCannotServe) {
  PlanOptions options;
  options.mesh = Mesh::Create({.data = 2, .pipeline = 2}).value();
  const auto refusal = [&](const RoleMap& roles) {
    std::vector<RankPlan> templates;
    for (int role = 0; role < roles.num_roles(); ++role) {
      templates.push_back(BuildTrainPlan(options, roles.FirstRankOf(role)).value());
    }
    const absl::Status status = ValidateRolePlans(templates, roles);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  // Ranks 0 and 1 are the replicas of stage 0, ranks 2 and 3 those of stage 1.
  EXPECT_EQ(refusal(RoleMap::Of({0, 0, 0, 0})),
            "role 0 has ranks 0 and 2, which are of two stages");
  EXPECT_THAT(refusal(RoleMap::Of({0, 0, 1, 2})),
              HasSubstr("has rank 3 of role 2 at 1; expected one of role 1"));
  EXPECT_EQ(BuildRolePlans(options, RoleMap::Of({0, 0, 0, 0})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ValidateRolePlans, ProvesTheWholeOfTheLargestJobThatMegaScaleReports) {
  PlanOptions options;
  options.mesh = Mesh::Create({.data = 192, .pipeline = 8, .tensor = 8}).value();
  options.schedule = Schedule::kInterleaved1F1B;
  options.chunks_per_stage = 6;
  options.num_microbatches = 32;
  std::vector<RankPlan> roles = BuildRolePlans(options).value();
  EXPECT_EQ(roles.size(), 8u);
  EXPECT_EQ(roles[0].mesh.world_size(), 12288);
  EXPECT_TRUE(ValidateRolePlans(roles).ok()) << ValidateRolePlans(roles);
  // The fifth stage's first rank is 4 * 192 * 8.
  for (Instruction& instruction : roles[4].instructions) {
    if (instruction.id.ToString() == "RA.c20.m7") instruction.bytes = 1;
  }
  EXPECT_THAT(ValidateRolePlans(roles).message(),
              HasSubstr("rank 4608's SA.c19.m7 has 0 bytes, rank 6144's RA.c20.m7 has 1"));
}

TEST(ValidateRolePlans, RefusesPlansThatAreNotOfEachStage) {
  PlanOptions options;
  options.mesh = Mesh::Create({.data = 2, .pipeline = 3}).value();
  const std::vector<RankPlan> roles = BuildRolePlans(options).value();
  const auto refusal = [](const std::vector<RankPlan>& plans) {
    const absl::Status status = ValidateRolePlans(plans);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({}), HasSubstr("no plans"));
  EXPECT_THAT(refusal({roles[0], roles[1]}), HasSubstr("plan 0 of 2 is of rank 0"));
  EXPECT_THAT(refusal({roles[0], roles[2], roles[1]}), HasSubstr("plan 1 of 3 is of rank 4"));
  EXPECT_THAT(refusal({roles[0], PlanOfRank(roles, 3), roles[2]}),
              HasSubstr("plan 1 of 3 is of rank 3"));
  std::vector<RankPlan> other = roles;
  options.num_microbatches = 2;
  other[1] = BuildRolePlans(options).value()[1];
  EXPECT_THAT(refusal(other), HasSubstr("rank 2 has another mesh, or other numbers"));
}

TEST(PlanOfRank, IsWhatIsBuiltForTheRankAlone) {
  Random random(20240303);
  for (int i = 0; i < 100; ++i) {
    const PlanOptions options = RandomShape(&random);
    const std::vector<RankPlan> roles = BuildRolePlans(options).value();
    for (int rank = 0; rank < options.mesh.world_size(); ++rank) {
      const RankPlan built = BuildTrainPlan(options, rank).value();
      const RankPlan expanded = PlanOfRank(roles, rank);
      ASSERT_EQ(expanded.rank, rank);
      ASSERT_EQ(expanded.stage(), built.stage());
      ASSERT_EQ(expanded.slots, built.slots);
      ASSERT_EQ(expanded.gradient_buffers, built.gradient_buffers);
      ASSERT_EQ(expanded.shards_gradients, built.shards_gradients);
      ASSERT_EQ(expanded.instructions, built.instructions) << Describe(options);
    }
  }
}

TEST(CheckGroups, AcceptsEveryMesh) {
  for (int data = 1; data <= 6; ++data) {
    for (int pipeline = 1; pipeline <= 6; ++pipeline) {
      for (int tensor = 1; tensor <= 4; ++tensor) {
        const Mesh mesh = Mesh::Create({data, pipeline, tensor}).value();
        const absl::Status status = CheckGroups(mesh, mesh.Groups());
        EXPECT_TRUE(status.ok()) << data << " x " << pipeline << " x " << tensor << ": " << status;
      }
    }
  }
}

TEST(CheckGroups, RefusesGroupsThatDoNotServeEveryRank) {
  const Mesh mesh = Mesh::Create({.data = 3, .pipeline = 2, .tensor = 2}).value();
  const auto refusal = [&](const std::function<void(std::vector<Group>*)>& change) {
    std::vector<Group> groups = mesh.Groups();
    change(&groups);
    const absl::Status status = CheckGroups(mesh, groups);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  const auto named = [](std::vector<Group>* groups, const std::string& name) -> Group& {
    return *std::find_if(groups->begin(), groups->end(),
                         [&](const Group& group) { return group.name == name; });
  };
  // Ranks of dp0.t0: 0, 2, 4; of dp1.t0: 6, 8, 10; of pp0.t0: 0, 6; of pp1.t0: 2, 8; of tp0.d0: 0,
  // 1.
  EXPECT_EQ(refusal([](auto* groups) { groups->pop_back(); }),
            "rank 10 is in no group of kind tensor");
  EXPECT_EQ(refusal([](auto* groups) { groups->erase(groups->begin()); }),
            "rank 0 is in no group of kind data");
  EXPECT_EQ(refusal([](auto* groups) { groups->push_back(groups->back()); }),
            "group tp1.d2 occurs twice");
  EXPECT_EQ(refusal([&](auto* groups) {
              std::swap(named(groups, "dp0.t0").ranks[1], named(groups, "dp1.t0").ranks[1]);
            }),
            "group dp0.t0 has rank 8 at 1; expected it in dp1.t0 at 1");
  EXPECT_EQ(refusal([&](auto* groups) {
              std::swap(named(groups, "dp0.t0").ranks[1], named(groups, "dp0.t0").ranks[2]);
            }),
            "group dp0.t0 has rank 4 at 1; expected it in dp0.t0 at 2");
  EXPECT_EQ(refusal([&](auto* groups) { named(groups, "pp0.t0").ranks.pop_back(); }),
            "group pp0.t0 has 1 members; expected 2");
  EXPECT_EQ(refusal([&](auto* groups) { named(groups, "pp0.t0").ranks[1] = 8; }),
            "group pp0.t0 has rank 8 at 1; rank 0 takes rank 6 for it");
  EXPECT_EQ(refusal([&](auto* groups) {
              std::swap(named(groups, "tp0.d0").ranks[0], named(groups, "tp0.d0").ranks[1]);
            }),
            "group tp0.d0 has rank 1 at 0; expected it in tp0.d0 at 1");
  EXPECT_EQ(refusal([&](auto* groups) { named(groups, "dp0.t0").ranks[2] = 0; }),
            "group dp0.t0 has rank 0, which another group of its kind has");
  EXPECT_EQ(refusal([&](auto* groups) { named(groups, "dp0.t0").ranks[2] = 12; }),
            "group dp0.t0 has rank 12, which does not exist");
  EXPECT_EQ(refusal([&](auto* groups) { named(groups, "dp0.t0").name = "dp7.t7"; }),
            "group dp7.t7 is no group of its first member, rank 0");
  EXPECT_EQ(refusal([&](auto* groups) { named(groups, "dp0.t0").ranks.clear(); }),
            "group dp0.t0 has no members");
}

TEST(CheckGroups, RefusesAGroupAlongSeveralAxesWithAnothersRank) {
  const Mesh mesh = ExpertMesh({.data = 3, .pipeline = 2}, /*experts=*/2);
  std::vector<Group> groups = mesh.Groups();
  ASSERT_EQ(groups[groups.size() - 2].name, "stage0");
  groups[groups.size() - 2].ranks[5] = 6;
  EXPECT_EQ(CheckGroups(mesh, groups).message(),
            "group stage0 has rank 6 at 5; expected it in stage1 at 0");
}

}  // namespace
}  // namespace megascale::plan
