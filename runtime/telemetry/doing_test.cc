#include "runtime/telemetry/doing.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace megascale::telemetry {
namespace {

using plan::InstructionId;
using plan::OpKind;

std::string Text(const Doing& doing) {
  v1::RankStatus status;
  SetDoing(doing, &status);
  return DescribeDoing(status);
}

TEST(DoingTest, TheTextOfAnInstructionEndsInItsId) {
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_INSTRUCTION,
                  .instruction = InstructionId(OpKind::kGatherParameters, 1)}),
            "all-gather of parameters G.c1");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_INSTRUCTION,
                  .instruction = InstructionId(OpKind::kForward, 0, 3).WithPiece(4)}),
            "forward F.c0.m3.p4");
}

TEST(DoingTest, EveryOperationHasWordsOfItsOwn) {
  std::set<std::string> words;
  for (const plan::Operation& operation : plan::AllOperations()) {
    const InstructionId id(operation.kind, 1, 2);
    const std::string text = Text({.activity = v1::ACTIVITY_INSTRUCTION, .instruction = id});
    EXPECT_EQ(text.find("unknown"), std::string::npos) << text;
    ASSERT_GT(text.size(), id.ToString().size() + 1);
    words.insert(text.substr(0, text.size() - id.ToString().size() - 1));
  }
  EXPECT_EQ(words.size(), plan::AllOperations().size());
}

TEST(DoingTest, OtherActivitiesNameThePeerAndTheExchangeInWhichTheyWait) {
  const InstructionId exchange(OpKind::kReduceNorm);
  EXPECT_EQ(Text({}), "");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_BETWEEN_INSTRUCTIONS}), "between instructions");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_WAIT_FOR_STORAGE}), "waiting for checkpoint storage");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_READ_CHECKPOINT}), "reading the checkpoint");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_READ_CHECKPOINT, .done = 37, .total = 100}),
            "reading weights: 37 %");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_READ_FOR_PEER, .peer = 3}),
            "reading the checkpoint for rank 3");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_WAIT_FOR_READS, .instruction = exchange}),
            "waiting for all ranks to read the checkpoint N");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_WAIT_FOR_READER, .instruction = exchange, .peer = 3}),
            "waiting for rank 3, which reads the checkpoint for this rank N");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_WAIT_FOR_ASKER, .instruction = exchange, .peer = 3}),
            "waiting for rank 3, to read the checkpoint for it N");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_TUNE_PRODUCTS, .done = 12, .total = 40}),
            "tuning matrix products: 12 of 40");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_WAIT_FOR_PRODUCTS, .instruction = exchange}),
            "waiting for the ranks that tune matrix products N");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_MAKE_WEIGHTS, .done = 37, .total = 100}),
            "making initial weights: 37 %");
}

// A process may write anything into its slot.
TEST(DoingTest, UnknownValuesAreNamed) {
  EXPECT_EQ(Text({.activity = static_cast<v1::Activity>(77)}), "unknown activity 77");
  EXPECT_EQ(Text({.activity = v1::ACTIVITY_INSTRUCTION,
                  .instruction = InstructionId::FromPacked(~uint64_t{0})}),
            "unknown instruction ?.b255.p65535");
}

TEST(SaveIsDueTest, AfterEachIntervalAndTheLastStep) {
  job::v1::JobSpec spec;
  spec.mutable_train()->set_steps(25);
  for (const int64_t step : {0, 1, 10, 24}) EXPECT_FALSE(SaveIsDue(spec, step)) << step;
  EXPECT_TRUE(SaveIsDue(spec, 25));
  spec.mutable_checkpoint()->set_interval(10);
  for (const int64_t step : {0, 1, 9, 11, 24}) EXPECT_FALSE(SaveIsDue(spec, step)) << step;
  for (const int64_t step : {10, 20, 25}) EXPECT_TRUE(SaveIsDue(spec, step)) << step;
}

}  // namespace
}  // namespace megascale::telemetry
