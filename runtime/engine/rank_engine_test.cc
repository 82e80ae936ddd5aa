#include "runtime/engine/rank_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "proto/job.pb.h"
#include "runtime/engine/test_job.h"

namespace megascale::engine {
namespace {

using job::v1::JobSpec;

struct Layout {
  int data;
  int pipeline;
};
constexpr Layout kLayouts[] = {{1, 1}, {2, 1}, {1, 2}, {1, 4}, {2, 2}};

JobSpec Toy(const Layout& layout, job::v1::Precision precision) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  spec.mutable_train()->set_precision(precision);
  return spec;
}

std::vector<double> Losses(const RunResult& result) {
  std::vector<double> losses;
  for (const auto& record : result.records[0]) losses.push_back(record.loss());
  return losses;
}

TEST(RankEngineTest, EveryRankReportsTheSameRecordOfEveryStep) {
  const RunResult result = RunJob(RunOptions(Toy({2, 2}, job::v1::PRECISION_FP32)));
  ASSERT_EQ(result.records[0].size(), 5u);
  for (const auto& records : result.records) {
    ASSERT_EQ(records.size(), result.records[0].size());
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].SerializeAsString(), result.records[0][i].SerializeAsString());
    }
  }
}

TEST(RankEngineTest, FirstLossIsNearThatOfAGuessAndTrainingLowersIt) {
  const std::vector<double> losses =
      Losses(RunJob(RunOptions(Toy({1, 1}, job::v1::PRECISION_FP32))));
  EXPECT_NEAR(losses.front(), std::log(256.0), 0.3);
  EXPECT_LT(losses.back(), losses.front() - 0.3);
}

TEST(RankEngineTest, LayoutsAgreeInFloat64To1em10) {
  const std::vector<double> reference =
      Losses(RunJob(RunOptions(Toy(kLayouts[0], job::v1::PRECISION_FP64))));
  for (const Layout& layout : kLayouts) {
    const std::vector<double> losses =
        Losses(RunJob(RunOptions(Toy(layout, job::v1::PRECISION_FP64))));
    ASSERT_EQ(losses.size(), reference.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], reference[i], 1e-10)
          << "data " << layout.data << " pipeline " << layout.pipeline << " step " << i + 1;
    }
  }
}

TEST(RankEngineTest, LayoutsAgreeInFloat32) {
  const std::vector<double> reference =
      Losses(RunJob(RunOptions(Toy(kLayouts[0], job::v1::PRECISION_FP64))));
  for (const Layout& layout : kLayouts) {
    const std::vector<double> losses =
        Losses(RunJob(RunOptions(Toy(layout, job::v1::PRECISION_FP32))));
    ASSERT_EQ(losses.size(), reference.size());
    // The first loss has only the forward's rounding; later ones the updates' as well.
    EXPECT_NEAR(losses[0], reference[0], 1e-5);
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], reference[i], 1e-4);
  }
}

TEST(RankEngineTest, TheSameJobTwiceGivesTheSameBits) {
  for (const auto precision : {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16}) {
    const RunResult first = RunJob(RunOptions(Toy({2, 2}, precision)));
    const RunResult second = RunJob(RunOptions(Toy({2, 2}, precision)));
    EXPECT_EQ(first.digest, second.digest);
    EXPECT_EQ(Losses(first), Losses(second));
  }
}

TEST(RankEngineTest, OneMachineAndTwoGiveTheSameBits) {
  const RunResult one = RunJob(RunOptions(Toy({2, 2}, job::v1::PRECISION_FP32)));
  const RunResult two =
      RunJob(RunOptions(Toy({2, 2}, job::v1::PRECISION_FP32)).On({"n0", "n0", "n1", "n1"}));
  const RunResult crossed =
      RunJob(RunOptions(Toy({2, 2}, job::v1::PRECISION_FP32)).On({"n0", "n1", "n0", "n1"}));
  EXPECT_EQ(one.digest, two.digest);
  EXPECT_EQ(one.digest, crossed.digest);
}

TEST(RankEngineTest, ARestoredRunEndsWithTheBitsOfAnUndisturbedOne) {
  const JobSpec whole = Toy({2, 2}, job::v1::PRECISION_FP32);
  const RunResult calm = RunJob(RunOptions(whole));
  const RunResult first = RunJob(RunOptions(whole).StopAfter(3));
  ASSERT_EQ(first.records[0].size(), 3u);
  RunOptions resumed(whole);
  resumed.attempt = 2;
  resumed.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
  resumed.restore.set_step(3);
  resumed.restore.set_directory(first.checkpoint);
  const RunResult second = RunJob(resumed);
  EXPECT_EQ(second.digest, calm.digest);
}

TEST(RankEngineTest, AStopFlagOfOneRankStopsAllAtTheSameStep) {
  const RunResult result = RunJob(RunOptions(Toy({2, 2}, job::v1::PRECISION_FP32)).StopAfter(2));
  for (const auto& records : result.records) EXPECT_EQ(records.size(), 2u);
}

}  // namespace
}  // namespace megascale::engine
