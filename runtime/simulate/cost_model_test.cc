#include "runtime/simulate/cost_model.h"

#include <gtest/gtest.h>

namespace megascale::simulate {
namespace {

using model::OperationKind;
using plan::Instruction;
using plan::InstructionId;
using plan::OpKind;

// Each second does 1,000 FLOPs, moves 100 bytes of memory, and 10 over a link.
CostOptions TwoChunks() {
  CostOptions options;
  options.plan.mesh = *plan::Mesh::Create({.data = 2, .pipeline = 2});
  options.plan.num_buckets = {2, 1};
  options.rates = {
      .flops_per_second = 1000, .memory_bytes_per_second = 100, .link_bytes_per_second = 10};
  model::ChunkPasses passes;
  passes.forward = {{OperationKind::kProduct, "", 2000, 0},
                    {OperationKind::kElementwise, "", 0, 100}};
  passes.backward = {{OperationKind::kProduct, "", 4000, 0},
                     {OperationKind::kProduct, "", 1000, 0}};
  passes.pieces = {{passes.backward[0]}, {passes.backward[1]}};
  options.chunks = {{.passes = passes, .shard_elements = 100}, {.passes = passes}};
  return options;
}

double SecondsOf(const CostModel& costs, const Instruction& instruction) {
  return static_cast<double>(costs.NanosOf(instruction)) / 1e9;
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
