#include "runtime/simulate/cost_model.h"

#include <gtest/gtest.h>

namespace megascale::simulate {
namespace {

using model::OperationKind;
using plan::Instruction;
using plan::InstructionId;
using plan::OpKind;

// Each second does 1,000 FLOPs, moves 100 bytes of memory, 10 over a link inside a machine and 2
// over one between machines.
CostOptions TwoChunks() {
  CostOptions options;
  options.plan.mesh = *plan::Mesh::Create({.data = 2, .pipeline = 2});
  options.plan.num_buckets = {2, 1};
  options.rates = {.flops_per_second = 1000,
                   .memory_bytes_per_second = 100,
                   .link_bytes_per_second = 10,
                   .network_bytes_per_second = 2};
  model::ChunkPasses passes;
  passes.forward = {{OperationKind::kProduct, "", 2000, 0},
                    {OperationKind::kElementwise, "", 0, 100}};
  passes.backward = {{OperationKind::kProduct, "", 4000, 0},
                     {OperationKind::kProduct, "", 1000, 0}};
  passes.pieces = {{passes.backward[0]}, {passes.backward[1]}};
  options.chunks = {{.passes = passes, .shard_elements = 100}, {.passes = passes}};
  return options;
}

double SecondsOf(const CostModel& costs, const Instruction& instruction,
                 Link link = Link::kInMachine) {
  return static_cast<double>(costs.NanosOf(instruction, link)) / 1e9;
}

TEST(CostModelTest, APassTakesItsProductsAndWhatMovesThroughMemory) {
  const CostModel costs(TwoChunks());
  EXPECT_DOUBLE_EQ(SecondsOf(costs, {.id = InstructionId(OpKind::kForward, 0, 0)}), 2 + 1);
  EXPECT_DOUBLE_EQ(
      SecondsOf(costs, {.id = InstructionId(OpKind::kBackward, 0, 0), .num_buckets = 2}), 5);
}

TEST(CostModelTest, APieceOfABackwardTakesItsPart) {
  const CostModel costs(TwoChunks());
  const auto piece = [](int bucket) {
    return Instruction{.id = InstructionId(OpKind::kBackward, 0, 0, bucket), .num_buckets = 1};
  };
  EXPECT_DOUBLE_EQ(SecondsOf(costs, piece(0)), 4);
  EXPECT_DOUBLE_EQ(SecondsOf(costs, piece(1)), 1);
}

TEST(CostModelTest, CollectivesMoveTheirPartOverARingAndSumsTwice) {
  const CostModel costs(TwoChunks());
  Instruction instruction = {.id = InstructionId(OpKind::kReduceGradients, 0),
                             .group = plan::GroupKind::kData,
                             .bytes = 60};
  EXPECT_DOUBLE_EQ(SecondsOf(costs, instruction), 3);
  instruction.id = InstructionId(OpKind::kSumReplicated, 0);
  EXPECT_DOUBLE_EQ(SecondsOf(costs, instruction), 6);
  instruction.id = InstructionId(OpKind::kSendActivation, 0, 0);
  instruction.group = plan::GroupKind::kPipeline;
  EXPECT_DOUBLE_EQ(SecondsOf(costs, instruction), 6) << "a message moves whole";
}

TEST(CostModelTest, AnExchangeBetweenMachinesTakesTheRateOfTheNetwork) {
  const CostModel costs(TwoChunks());
  const Instruction reduce = {.id = InstructionId(OpKind::kReduceGradients, 0),
                              .group = plan::GroupKind::kData,
                              .bytes = 60};
  EXPECT_DOUBLE_EQ(SecondsOf(costs, reduce, Link::kInMachine), 60 / 2 / 10.0);
  EXPECT_DOUBLE_EQ(SecondsOf(costs, reduce, Link::kBetweenMachines), 60 / 2 / 2.0);
  const Instruction send = {.id = InstructionId(OpKind::kSendActivation, 0, 0),
                            .group = plan::GroupKind::kPipeline,
                            .peer = 1,
                            .bytes = 60};
  EXPECT_DOUBLE_EQ(SecondsOf(costs, send, Link::kInMachine), 60 / 10.0);
  EXPECT_DOUBLE_EQ(SecondsOf(costs, send, Link::kBetweenMachines), 60 / 2.0);
  const Instruction load = {.id = InstructionId(OpKind::kLoadBatch), .bytes = 50};
  EXPECT_DOUBLE_EQ(SecondsOf(costs, load, Link::kBetweenMachines), 1) << "no exchange";
}

TEST(CostModelTest, ExchangesOfAPassTakeTheRateOfTheirLink) {
  CostOptions options = TwoChunks();
  options.plan.mesh = *plan::Mesh::Create({.pipeline = 2, .tensor = 2});
  options.tp_comm_overlap = false;
  options.chunks[0].passes.forward = {{OperationKind::kProduct, "", 2000, 0},
                                      {OperationKind::kGather, "", 0, 20}};
  const CostModel costs(options);
  const Instruction forward = {.id = InstructionId(OpKind::kForward, 0, 0),
                               .group = plan::GroupKind::kTensor};
  EXPECT_DOUBLE_EQ(SecondsOf(costs, forward, Link::kInMachine), 2 + 10 / 10.0);
  EXPECT_DOUBLE_EQ(SecondsOf(costs, forward, Link::kBetweenMachines), 2 + 10 / 2.0);
}

// fp32: gradient, weights, and both moments are read; weights and moments are written.
TEST(CostModelTest, TheOptimizerAndTheBatchTakeWhatTheyMoveThroughMemory) {
  CostOptions options = TwoChunks();
  const Instruction step = {.id = InstructionId(OpKind::kOptimizerStep, 0)};
  EXPECT_DOUBLE_EQ(SecondsOf(CostModel(options), step), 7 * 100 * 4 / 100.0);
  options.compute = tensor::DType::kBF16;  // and the rounded copy is written
  EXPECT_DOUBLE_EQ(SecondsOf(CostModel(options), step), (7 * 4 + 2) * 100 / 100.0);
  const Instruction load = {.id = InstructionId(OpKind::kLoadBatch), .bytes = 50};
  EXPECT_DOUBLE_EQ(SecondsOf(CostModel(options), load), 1);
}

TEST(CostModelTest, WithTrustRatiosTheUpdateAndItsScalingAreApart) {
  CostOptions options = TwoChunks();
  options.plan.has_trust_ratios = true;
  const CostModel costs(options);
  EXPECT_DOUBLE_EQ(SecondsOf(costs, {.id = InstructionId(OpKind::kOptimizerUpdate, 0)}),
                   7 * 100 * 4 / 100.0);
  EXPECT_DOUBLE_EQ(SecondsOf(costs, {.id = InstructionId(OpKind::kOptimizerStep, 0)}),
                   3 * 100 * 4 / 100.0);
}

TEST(CostModelTest, EveryOperationHasAPrice) {
  for (const plan::Operation& operation : plan::AllOperations()) {
    EXPECT_TRUE(HasPrice(operation.kind)) << operation.letters;
  }
  EXPECT_FALSE(HasPrice(static_cast<OpKind>(plan::AllOperations().size() + 1)));
}

}  // namespace
}  // namespace megascale::simulate
