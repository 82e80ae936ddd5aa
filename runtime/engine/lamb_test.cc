// Whole jobs that train with LAMB: trust ratios are those of whole tensors, however ranks hold
// them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/job.pb.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"

namespace megascale::engine {
namespace {

using job::v1::JobSpec;

constexpr int kWarmUpSteps = 4;
constexpr int kWindow = 5;

struct Layout {
  int data = 1;
  int pipeline = 1;
  int virtual_stages = 1;
  int tensor = 1;
  int zero_stage = 1;
  int64_t bucket_size = 0;
};
constexpr Layout kLayouts[] = {{},
                               {2},
                               {4},
                               {1, 2},
                               {2, 2},
                               {1, 2, 2},
                               {2, 2, 2},
                               {.tensor = 2},
                               {.data = 2, .tensor = 2},
                               {2, 2, 2, 2},
                               {2, 2, 2, 1, 2},
                               {.data = 2, .tensor = 2, .zero_stage = 2},
                               {.data = 4, .bucket_size = 1},
                               {.data = 2, .pipeline = 2, .tensor = 2, .bucket_size = 1}};

std::string Describe(const Layout& layout) {
  return absl::StrCat("data ", layout.data, ", pipeline ", layout.pipeline, ", virtual stages ",
                      layout.virtual_stages, ", tensor ", layout.tensor, ", ZeRO stage ",
                      layout.zero_stage, ", buckets of ", layout.bucket_size);
}

// LAMB is tested with the other algorithms of MegaScale, and there with one key/value head, which
// two tensor ranks share.
enum class Model { kSerial, kParallelBlockWithWindow };

JobSpec Lamb(const Layout& layout, job::v1::Precision precision, Model model = Model::kSerial) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  if (model == Model::kParallelBlockWithWindow) {
    spec.mutable_model()->set_parallel_block(true);
    spec.mutable_model()->set_num_key_value_heads(1);
    spec.mutable_model()->set_sliding_window(kWindow);
  }
  spec.mutable_train()->set_precision(precision);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(layout.virtual_stages);
  spec.mutable_parallel()->set_tensor_model_parallel_size(layout.tensor);
  spec.mutable_parallel()->clear_pipeline_schedule();
  spec.mutable_parallel()->set_zero_stage(layout.zero_stage);
  spec.mutable_parallel()->set_ddp_bucket_size(layout.bucket_size);
  spec.clear_optimizer();
  spec.mutable_optimizer()->set_type(job::v1::OPTIMIZER_TYPE_LAMB);
  spec.mutable_optimizer()->set_lr(4e-2);
  spec.mutable_optimizer()->set_warmup_steps(kWarmUpSteps);
  spec.mutable_optimizer()->set_weight_decay(0.01);
  spec.mutable_optimizer()->set_clip_grad(1.0);
  const auto resolved = job::ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.value_or(spec);
}

std::vector<double> Losses(const RunResult& result) {
  std::vector<double> losses;
  for (const auto& record : result.records[0]) losses.push_back(record.loss());
  return losses;
}

void ExpectNear(const std::vector<double>& found, const std::vector<double>& expected,
                double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], tolerance) << i;
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

void ExpectAgreeInFloat64(Model model) {
  const RunResult reference = RunJob(RunOptions(Lamb({}, job::v1::PRECISION_FP64, model)));
  const Tensors tensors = ReadTensors(reference);
  EXPECT_LT(Losses(reference).back(), Losses(reference).front() - 0.05);  // it trains
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(Describe(layout));
    const RunResult result = RunJob(RunOptions(Lamb(layout, job::v1::PRECISION_FP64, model)));
    ExpectNear(Losses(result), Losses(reference), 1e-10);
    const Tensors found = ReadTensors(result);
    ASSERT_EQ(found.size(), tensors.size());
    for (const auto& [name, values] : tensors) {
      SCOPED_TRACE(name);
      ExpectNear(found.at(name), values, 1e-10);
    }
  }
}

TEST(LambTest, LayoutsAgreeInFloat64To1em10) { ExpectAgreeInFloat64(Model::kSerial); }

TEST(LambTest, LayoutsOfParallelBlocksWithAWindowAgreeInFloat64To1em10) {
  ExpectAgreeInFloat64(Model::kParallelBlockWithWindow);
}

TEST(LambTest, LayoutsAgreeInFloat32) {
  const auto reference = Losses(RunJob(RunOptions(Lamb({}, job::v1::PRECISION_FP64))));
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(Describe(layout));
    const auto losses = Losses(RunJob(RunOptions(Lamb(layout, job::v1::PRECISION_FP32))));
    EXPECT_NEAR(losses[0], reference[0], 1e-5);
    ExpectNear(losses, reference, 1e-4);
  }
}

// For any update: scaled by its own norm and the weights', it moves a matrix by lr times its norm.
TEST(LambTest, AStepMovesEveryMatrixByItsNormTimesTheRate) {
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(Describe(layout));
    const RunOptions options(Lamb(layout, job::v1::PRECISION_FP64));
    const Tensors before = ReadTensors(RunJob(RunOptions(options).StopAfter(1)));
    const Tensors after = ReadTensors(RunJob(RunOptions(options).StopAfter(2)));
    const double rate = 4e-2 * 2 / kWarmUpSteps;
    int num_matrices = 0;
    for (const auto& [name, weights] : before) {
      if (absl::StartsWith(name, "optimizer.")) continue;
      std::vector<double> step = after.at(name);
      for (size_t i = 0; i < step.size(); ++i) step[i] -= weights[i];
      const double expected = rate * Norm(weights);
      const bool is_matrix = !absl::StrContains(name, "norm") && !absl::EndsWith(name, ".bias");
      if (is_matrix) {
        EXPECT_NEAR(Norm(step), expected, 1e-10 * expected) << name;
        ++num_matrices;
      } else {
        EXPECT_GT(std::abs(Norm(step) - expected), 1e-3 * expected) << name;
      }
    }
    EXPECT_EQ(num_matrices, 4 * 4 + 3);
  }
}

TEST(LambTest, RepeatsItselfToTheBit) {
  for (const auto precision : {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16}) {
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(Describe(layout));
      const RunOptions options(Lamb(layout, precision));
      EXPECT_EQ(RunJob(options).digest, RunJob(options).digest);
    }
  }
}

TEST(LambTest, ARestoredRunEndsWithTheBitsOfAnUndisturbedOne) {
  const JobSpec spec = Lamb({.data = 2, .tensor = 2, .bucket_size = 1}, job::v1::PRECISION_FP32);
  const RunResult first = RunJob(RunOptions(spec).StopAfter(3));
  RunOptions resumed(spec);
  resumed.attempt = 2;
  resumed.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
  resumed.restore.set_step(3);
  resumed.restore.set_directory(first.checkpoint);
  EXPECT_EQ(RunJob(resumed).digest, RunJob(RunOptions(spec)).digest);
}

TEST(LambTest, ACheckpointOfOneLayoutGoesOnUnderAnother) {
  const auto reference = Losses(RunJob(RunOptions(Lamb({}, job::v1::PRECISION_FP64))));
  const Layout layouts[] = {
      {4}, {2, 2, 2}, {.data = 2, .tensor = 2}, {.data = 4, .bucket_size = 1}};
  for (const Layout& from : layouts) {
    const RunResult saved = RunJob(RunOptions(Lamb(from, job::v1::PRECISION_FP64)).StopAfter(3));
    for (const Layout& to : layouts) {
      SCOPED_TRACE(absl::StrCat(Describe(from), " to ", Describe(to)));
      RunOptions resumed(Lamb(to, job::v1::PRECISION_FP64));
      resumed.attempt = 2;
      resumed.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
      resumed.restore.set_step(3);
      resumed.restore.set_directory(saved.checkpoint);
      ExpectNear(Losses(RunJob(resumed)), {reference[3], reference[4]}, 1e-10);
    }
  }
}

}  // namespace
}  // namespace megascale::engine
