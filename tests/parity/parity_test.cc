// One job under many layouts gives the same training. See README.md. Here each layout runs with one
// of the models in turn; `./dev soak` runs every layout with every model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/job.pb.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/job/job_spec.h"
#include "tests/soak.h"

namespace megascale::engine {
namespace {

using job::v1::JobSpec;
using Gradients = std::map<std::string, std::vector<double>>;

constexpr auto k1F1B = job::v1::PIPELINE_SCHEDULE_1F1B;
constexpr auto kGPipe = job::v1::PIPELINE_SCHEDULE_GPIPE;
constexpr auto kInterleaved = job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B;
constexpr auto kZeroBubble = job::v1::PIPELINE_SCHEDULE_ZB_H1;

struct Layout {
  int data = 1;
  int pipeline = 1;
  int virtual_stages = 1;
  job::v1::PipelineSchedule schedule = k1F1B;
  int micro_batch_size = 2;
  int tensor = 1;
  int zero_stage = 1;
  int64_t bucket_size = 0;  // 0: the default, one bucket of all here; 1: one of each layer
};

// Layouts of a model with 8 layers and 16 samples a step.
const Layout kLayouts[] = {
    {},
    {.micro_batch_size = 8},
    {.data = 2},
    {.data = 2, .micro_batch_size = 1},
    {.data = 4},
    {.data = 8},
    {.pipeline = 2},
    {.pipeline = 3},
    {.pipeline = 4},
    {.pipeline = 8},
    {.pipeline = 4, .schedule = kGPipe},
    {.data = 2, .pipeline = 2},
    {.data = 2, .pipeline = 2, .schedule = kGPipe},
    {.data = 4, .pipeline = 2},
    {.data = 2, .pipeline = 4, .micro_batch_size = 4},
    {.pipeline = 2, .virtual_stages = 2, .schedule = kInterleaved},
    {.pipeline = 2, .virtual_stages = 4, .schedule = kInterleaved},
    {.pipeline = 4, .virtual_stages = 2, .schedule = kInterleaved},
    {.pipeline = 4, .virtual_stages = 2, .schedule = kInterleaved, .micro_batch_size = 4},
    {.data = 2, .pipeline = 2, .virtual_stages = 3, .schedule = kInterleaved},
    {.data = 4, .pipeline = 2, .virtual_stages = 4, .schedule = kInterleaved},
    {.data = 2, .pipeline = 4, .virtual_stages = 2, .schedule = kInterleaved},
    {.pipeline = 4, .schedule = kZeroBubble},
    {.pipeline = 4, .schedule = kZeroBubble, .micro_batch_size = 1},
    {.data = 2, .pipeline = 2, .schedule = kZeroBubble},
    {.data = 2, .pipeline = 4, .schedule = kZeroBubble},
    {.tensor = 2},
    {.tensor = 4},
    {.micro_batch_size = 1, .tensor = 4},
    {.data = 2, .tensor = 2},
    {.data = 2, .micro_batch_size = 8, .tensor = 4},
    {.pipeline = 2, .tensor = 2},
    {.pipeline = 2, .schedule = kGPipe, .tensor = 4},
    {.pipeline = 3, .schedule = kZeroBubble, .tensor = 2},
    {.pipeline = 2, .schedule = kZeroBubble, .micro_batch_size = 1, .tensor = 4},
    {.pipeline = 2, .virtual_stages = 2, .schedule = kInterleaved, .tensor = 2},
    {.data = 2, .pipeline = 2, .micro_batch_size = 4, .tensor = 2},
    {.data = 2, .pipeline = 2, .virtual_stages = 3, .schedule = kInterleaved, .tensor = 2},
    {.data = 2, .zero_stage = 2},
    {.data = 2, .pipeline = 2, .zero_stage = 2},
    {.data = 4, .pipeline = 2, .micro_batch_size = 1, .zero_stage = 2},
    {.data = 2, .pipeline = 2, .virtual_stages = 2, .schedule = kInterleaved, .zero_stage = 2},
    {.data = 4, .pipeline = 2, .virtual_stages = 4, .schedule = kInterleaved, .zero_stage = 2},
    {.data = 2, .pipeline = 3, .schedule = kZeroBubble, .zero_stage = 2},
    {.data = 4, .pipeline = 2, .schedule = kZeroBubble, .micro_batch_size = 1, .zero_stage = 2},
    {.data = 2, .pipeline = 2, .schedule = kGPipe, .zero_stage = 2},
    {.data = 2, .pipeline = 2, .tensor = 2, .zero_stage = 2},
    {.data = 2,
     .pipeline = 2,
     .virtual_stages = 4,
     .schedule = kInterleaved,
     .tensor = 2,
     .zero_stage = 2},
    {.data = 2, .bucket_size = 1},
    {.data = 4, .bucket_size = 8000},
    {.data = 2, .pipeline = 2, .micro_batch_size = 1, .bucket_size = 1},
    {.data = 2, .pipeline = 2, .schedule = kZeroBubble, .bucket_size = 1},
    {.data = 2, .pipeline = 2, .virtual_stages = 2, .schedule = kInterleaved, .bucket_size = 1},
    {.data = 2, .pipeline = 2, .tensor = 2, .bucket_size = 1},
    {.data = 4, .zero_stage = 2, .bucket_size = 8000},
    {.data = 2, .pipeline = 2, .schedule = kZeroBubble, .zero_stage = 2, .bucket_size = 1},
    {.data = 2, .pipeline = 2, .schedule = kGPipe, .zero_stage = 2, .bucket_size = 1},
    {.data = 2,
     .pipeline = 2,
     .virtual_stages = 2,
     .schedule = kInterleaved,
     .tensor = 2,
     .zero_stage = 2,
     .bucket_size = 1},
};

std::string Describe(const Layout& layout) {
  return absl::StrCat("data ", layout.data, ", pipeline ", layout.pipeline, ", virtual stages ",
                      layout.virtual_stages, ", ", job::v1::PipelineSchedule_Name(layout.schedule),
                      ", micro-batches of ", layout.micro_batch_size, ", tensor ", layout.tensor,
                      ", ZeRO stage ", layout.zero_stage, ", buckets of ", layout.bucket_size);
}

struct Model {
  const char* name;
  bool parallel_block;
  int sliding_window;
  int num_key_value_heads;  // tensor ranks share them where there are more ranks
  bool within_documents;
  bool tied;  // on several stages both ends of the model use one matrix
};
constexpr Model kModels[] = {{"Serial", false, 0, 4, false, true},
                             {"SerialWindow", false, 5, 2, true, true},
                             {"Parallel", true, 0, 1, true, false},
                             {"ParallelWindow", true, 5, 4, false, false}};

JobSpec JobOf(const Model& model, const Layout& layout, job::v1::Precision precision,
              int64_t steps) {
  JobSpec spec = ToyJob(WriteTestText("text"), 1, 1);
  spec.mutable_parallel()->set_data_parallel_size(layout.data);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(layout.pipeline);
  spec.mutable_parallel()->set_tensor_model_parallel_size(layout.tensor);
  spec.mutable_model()->set_num_hidden_layers(8);
  spec.mutable_model()->set_num_attention_heads(4);
  spec.mutable_model()->set_num_key_value_heads(model.num_key_value_heads);
  spec.mutable_model()->set_head_dim(4);
  spec.mutable_model()->set_parallel_block(model.parallel_block);
  spec.mutable_model()->set_sliding_window(model.sliding_window);
  // In a serial block two of three layers have the window, wherever stages begin.
  for (int i = 0; i < 8 && model.sliding_window > 0 && !model.parallel_block; ++i) {
    spec.mutable_model()->add_layer_types(i % 3 == 1 ? "full_attention" : "sliding_attention");
  }
  spec.mutable_model()->set_tie_word_embeddings(model.tied);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->set_precision(precision);
  spec.mutable_train()->set_global_batch_size(16);
  spec.mutable_train()->set_micro_batch_size(layout.micro_batch_size);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(layout.virtual_stages);
  spec.mutable_parallel()->set_pipeline_schedule(layout.schedule);
  spec.mutable_parallel()->set_zero_stage(layout.zero_stage);
  spec.mutable_parallel()->set_ddp_bucket_size(layout.bucket_size);
  const auto resolved = job::ResolveJobSpec(spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  spec = resolved.value_or(spec);
  // Not before, because it is refused for bytes.
  if (model.within_documents) {
    spec.mutable_data()->set_attention(job::v1::ATTENTION_WITHIN_DOCUMENTS);
  }
  return spec;
}

std::vector<double> Losses(const RunResult& result) {
  std::vector<double> losses;
  for (const auto& record : result.records[0]) losses.push_back(record.loss());
  return losses;
}

// The same on held-out text, after the steps that are evaluated.
std::vector<double> HeldOutLosses(const RunResult& result) {
  std::vector<double> losses;
  for (const auto& record : result.records[0]) {
    if (record.has_held_out_loss()) losses.push_back(record.held_out_loss());
  }
  return losses;
}

// Returns the job with an evaluation after every second step, of a batch and a part of one.
JobSpec WithEvaluations(JobSpec spec) {
  spec.mutable_train()->set_eval_interval(2);
  spec.mutable_train()->set_eval_batches(2);
  return spec;
}

// Returns the gradient norms before clipping.
std::vector<double> GradientNorms(const RunResult& result) {
  std::vector<double> norms;
  for (const auto& record : result.records[0]) norms.push_back(record.grad_norm());
  return norms;
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// Expects ‖Δg‖ <= tolerance * max(‖g‖, 1e-3 * ‖g of all tensors‖) for every tensor.
void ExpectSameGradients(const Gradients& found, const Gradients& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  std::vector<double> norms;
  for (const auto& [name, values] : expected) norms.push_back(Norm(values));
  const double least = 1e-3 * Norm(norms);
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(found.count(name), 1u) << name;
    std::vector<double> difference = found.at(name);
    ASSERT_EQ(difference.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) difference[i] -= values[i];
    EXPECT_LE(Norm(difference), tolerance * std::max(Norm(values), least)) << name;
  }
}

// The model's number in kModels.
size_t TurnOf(const Model& model) {
  return (model.parallel_block ? 2 : 0) + (model.sliding_window > 0 ? 1 : 0);
}

// True if the case with this number runs with this model.
bool IsTurnOf(const Model& model, size_t number) {
  return IsSoak() || number % std::size(kModels) == TurnOf(model);
}

std::vector<Layout> LayoutsOf(const Model& model) {
  std::vector<Layout> layouts;
  for (size_t i = 0; i < std::size(kLayouts); ++i) {
    if (IsTurnOf(model, i)) layouts.push_back(kLayouts[i]);
  }
  return layouts;
}

class ParityTest : public testing::TestWithParam<Model> {};

INSTANTIATE_TEST_SUITE_P(Models, ParityTest, testing::ValuesIn(kModels),
                         [](const auto& info) { return info.param.name; });

TEST_P(ParityTest, LayoutsAgreeInFloat64To1em10) {
  const auto spec = [&](const Layout& layout) {
    return WithEvaluations(JobOf(GetParam(), layout, job::v1::PRECISION_FP64, IsSoak() ? 5 : 3));
  };
  const RunResult one = RunJob(RunOptions(spec({})));
  const std::vector<double> reference = Losses(one);
  const std::vector<double> held_out = HeldOutLosses(one);
  ASSERT_EQ(held_out.size(), IsSoak() ? 3u : 2u);
  const std::vector<double> norms = GradientNorms(one);
  const Gradients gradients = FirstGradients(spec({}));
  EXPECT_LT(reference.back(), reference.front() - 0.1);  // it trains
  for (const Layout& layout : LayoutsOf(GetParam())) {
    SCOPED_TRACE(Describe(layout));
    const RunResult result = RunJob(RunOptions(spec(layout)));
    const std::vector<double> losses = Losses(result);
    ASSERT_EQ(losses.size(), reference.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], reference[i], 1e-10) << i;
      EXPECT_NEAR(GradientNorms(result)[i], norms[i], 1e-10 * norms[i]) << i;
    }
    ASSERT_EQ(HeldOutLosses(result).size(), held_out.size());
    for (size_t i = 0; i < held_out.size(); ++i) {
      EXPECT_NEAR(HeldOutLosses(result)[i], held_out[i], 1e-9) << i;
    }
    ExpectSameGradients(FirstGradients(spec(layout)), gradients, 1e-10);
  }
}

// Outside the soak it uses another model than in float64, one that differs in block and window.
TEST_P(ParityTest, LayoutsAgreeInFloat32) {
  const int num_steps = IsSoak() ? 20 : 5;
  const JobSpec exact = WithEvaluations(JobOf(GetParam(), {}, job::v1::PRECISION_FP64, num_steps));
  const RunResult one = RunJob(RunOptions(exact));
  const std::vector<double> reference = Losses(one);
  const std::vector<double> held_out = HeldOutLosses(one);
  const Gradients gradients = FirstGradients(exact);
  for (size_t i = 0; i < std::size(kLayouts); ++i) {
    if (!IsTurnOf(GetParam(), std::size(kModels) - 1 - i % std::size(kModels))) continue;
    const Layout& layout = kLayouts[i];
    SCOPED_TRACE(Describe(layout));
    const JobSpec spec =
        WithEvaluations(JobOf(GetParam(), layout, job::v1::PRECISION_FP32, num_steps));
    const RunResult result = RunJob(RunOptions(spec));
    const std::vector<double> losses = Losses(result);
    ASSERT_EQ(losses.size(), static_cast<size_t>(num_steps));
    // The first loss has only the forward's rounding; later ones the updates' as well.
    EXPECT_NEAR(losses[0], reference[0], 1e-5);
    for (size_t step = 0; step < losses.size(); ++step) {
      EXPECT_NEAR(losses[step], reference[step], 1e-4) << step;
    }
    ASSERT_EQ(HeldOutLosses(result).size(), held_out.size());
    for (size_t i = 0; i < held_out.size(); ++i) {
      EXPECT_NEAR(HeldOutLosses(result)[i], held_out[i], 1e-4) << i;
    }
    ExpectSameGradients(FirstGradients(spec), gradients, 1e-5);
  }
}

// The second run is on the strict device, which the host cannot reach into, and which runs late and
// in another order. Outside the soak it uses one of the two precisions in turn.
TEST_P(ParityTest, EveryLayoutRepeatsItselfToTheBitOnTheStrictDevice) {
  size_t number = 0;
  for (const Layout& layout : LayoutsOf(GetParam())) {
    SCOPED_TRACE(Describe(layout));
    const bool is_fp32_turn = number++ % 2 == 0;
    for (const auto precision : {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16}) {
      if (!IsSoak() && (precision == job::v1::PRECISION_FP32) != is_fp32_turn) continue;
      RunOptions options(JobOf(GetParam(), layout, precision, 3));
      const std::string expected = RunJob(options).digest;
      options.make_device = [number](int rank) {
        return device::StrictDevice::Create({.seed = 100 * number + static_cast<uint64_t>(rank)});
      };
      EXPECT_EQ(RunJob(options).digest, expected);
    }
  }
}

// Memory and overlap differ, but the sums are the same, in the same order.
TEST_P(ParityTest, SchedulesOfOneChunkPerStageHaveTheSameBits) {
  size_t number = 0;
  for (Layout layout : {Layout{.pipeline = 2}, Layout{.pipeline = 4},
                        Layout{.data = 2, .pipeline = 2}, Layout{.pipeline = 2, .tensor = 2}}) {
    if (!IsTurnOf(GetParam(), number++)) continue;
    SCOPED_TRACE(Describe(layout));
    const auto digest = [&](job::v1::PipelineSchedule schedule) {
      layout.schedule = schedule;
      return RunJob(RunOptions(JobOf(GetParam(), layout, job::v1::PRECISION_FP32, 5))).digest;
    };
    const std::string expected = digest(k1F1B);
    EXPECT_EQ(digest(kGPipe), expected);
    EXPECT_EQ(digest(kZeroBubble), expected);
  }
}

// There is one reduction of one micro-batch, so the order of additions is the same.
TEST_P(ParityTest, ZeroStagesOfOneMicrobatchHaveTheSameBits) {
  for (Layout layout : {Layout{.data = 4, .micro_batch_size = 4},
                        Layout{.data = 2, .pipeline = 4, .micro_batch_size = 8}}) {
    SCOPED_TRACE(Describe(layout));
    const auto digest = [&](int zero_stage) {
      layout.zero_stage = zero_stage;
      return RunJob(RunOptions(JobOf(GetParam(), layout, job::v1::PRECISION_BF16, 3))).digest;
    };
    EXPECT_EQ(digest(2), digest(1));
  }
}

// An element is reduced by the same additions in any shard. The norm's rounding depends on the
// shards, but no gradient is clipped here.
TEST_P(ParityTest, BucketsHaveTheSameBits) {
  size_t number = 0;
  for (Layout layout : {Layout{.data = 2}, Layout{.data = 4, .zero_stage = 2},
                        Layout{.data = 2, .pipeline = 2, .schedule = kZeroBubble},
                        Layout{.data = 2, .pipeline = 2, .schedule = kZeroBubble, .zero_stage = 2},
                        Layout{.data = 2, .pipeline = 2, .schedule = kGPipe, .zero_stage = 2},
                        Layout{.data = 2, .pipeline = 2, .tensor = 2, .zero_stage = 2},
                        Layout{.data = 2,
                        .pipeline = 2,
                        .virtual_stages = 2,
                        .schedule = kInterleaved,
                        .tensor = 2}}) {
    if (!IsTurnOf(GetParam(), number++)) continue;
    SCOPED_TRACE(Describe(layout));
    const auto run = [&](int64_t bucket_size) {
      layout.bucket_size = bucket_size;
      JobSpec spec = JobOf(GetParam(), layout, job::v1::PRECISION_FP32, 5);
      spec.mutable_optimizer()->set_clip_grad(0);
      return RunJob(RunOptions(spec));
    };
    const RunResult expected = run(0);
    const std::vector<double> norms = GradientNorms(expected);
    for (const int64_t bucket_size : {1, 5000}) {
      const RunResult result = run(bucket_size);
      EXPECT_EQ(result.digest, expected.digest) << bucket_size;
      EXPECT_EQ(Losses(result), Losses(expected)) << bucket_size;
      for (size_t i = 0; i < norms.size(); ++i) {
        EXPECT_NEAR(GradientNorms(result)[i], norms[i], 1e-12 * norms[i]) << i;
      }
    }
  }
}

// The output matrix is the embedding matrix: both ends of the model add to its gradient.
TEST(LayoutTest, SchedulesOfOneStageHaveTheSameBitsWithTiedEmbeddings) {
  const auto digest = [&](job::v1::PipelineSchedule schedule) {
    JobSpec spec = JobOf(kModels[0], {.schedule = schedule}, job::v1::PRECISION_FP32, 3);
    spec.mutable_model()->set_tie_word_embeddings(true);
    return RunJob(RunOptions(spec)).digest;
  };
  const std::string expected = digest(k1F1B);
  EXPECT_EQ(digest(kGPipe), expected);
  EXPECT_EQ(digest(kZeroBubble), expected);
}

// Its gradient is complete only with the last bucket, although the head makes the first part of it.
TEST(LayoutTest, BucketsHaveTheSameBitsWithTiedEmbeddings) {
  for (const int zero_stage : {1, 2}) {
    const auto digest = [&](int64_t bucket_size) {
      const Layout layout = {.data = 2, .zero_stage = zero_stage, .bucket_size = bucket_size};
      JobSpec spec = JobOf(kModels[0], layout, job::v1::PRECISION_FP32, 3);
      spec.mutable_model()->set_tie_word_embeddings(true);
      spec.mutable_optimizer()->set_clip_grad(0);
      return RunJob(RunOptions(spec)).digest;
    };
    EXPECT_EQ(digest(1), digest(0)) << "ZeRO stage " << zero_stage;
  }
}

TEST_P(ParityTest, RecomputationHasTheSameBits) {
  Layout layout = {.pipeline = 2, .virtual_stages = 2, .schedule = kInterleaved};
  for (const int tensor : {1, 2}) {
    SCOPED_TRACE(tensor);
    layout.tensor = tensor;
    const auto digest = [&](job::v1::RecomputeGranularity recompute) {
      JobSpec spec = JobOf(GetParam(), layout, job::v1::PRECISION_BF16, 3);
      spec.mutable_train()->set_recompute_granularity(recompute);
      return RunJob(RunOptions(spec)).digest;
    };
    const std::string expected = digest(job::v1::RECOMPUTE_GRANULARITY_NONE);
    EXPECT_EQ(digest(job::v1::RECOMPUTE_GRANULARITY_SELECTIVE), expected);
    EXPECT_EQ(digest(job::v1::RECOMPUTE_GRANULARITY_FULL), expected);
  }
}

// A layout loads another layout's checkpoint and goes on with the next samples.
TEST_P(ParityTest, ACheckpointOfOneLayoutGoesOnUnderAnother) {
  const auto spec = [&](const Layout& layout) {
    return JobOf(GetParam(), layout, job::v1::PRECISION_FP64, 5);
  };
  const std::vector<double> reference = Losses(RunJob(RunOptions(spec({}))));
  const Layout layouts[] = {
      {},
      {.data = 4},
      {.data = 2, .pipeline = 3},
      {.data = 2, .pipeline = 2, .virtual_stages = 3, .schedule = kInterleaved},
      {.tensor = 2},
      {.tensor = 4},
      {.data = 2, .pipeline = 3, .tensor = 2},
      {.data = 4, .bucket_size = 1},
      {.data = 2,
       .pipeline = 2,
       .virtual_stages = 3,
       .schedule = kInterleaved,
       .zero_stage = 2,
       .bucket_size = 1}};
  for (size_t from = 0; from < std::size(layouts); ++from) {
    if (!IsTurnOf(GetParam(), from)) continue;
    const RunResult saved = RunJob(RunOptions(spec(layouts[from])).StopAfter(3));
    for (const Layout& to : layouts) {
      SCOPED_TRACE(absl::StrCat(Describe(layouts[from]), " to ", Describe(to)));
      RunOptions resumed(spec(to));
      resumed.attempt = 2;
      resumed.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
      resumed.restore.set_step(3);
      resumed.restore.set_directory(saved.checkpoint);
      const std::vector<double> losses = Losses(RunJob(resumed));
      ASSERT_EQ(losses.size(), 2u);
      for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(losses[i], reference[3 + i], 1e-10) << i;
    }
  }
}

}  // namespace
}  // namespace megascale::engine
