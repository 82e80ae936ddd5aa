// Whole jobs whose ranks share one GPU: their losses beside the CPU's, and their bits each time. On
// the emulator work, blocks and threads run in another order each time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device/testing/test_devices.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/layout/cuda_memory.h"
#include "runtime/layout/rank_memory.h"
#include "tests/gpu/gpu_under_test.h"

namespace megascale::engine {
namespace {

using job::v1::JobSpec;
using ::testing::HasSubstr;

struct Layout {
  std::string name = "";
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
  job::v1::Precision precision = job::v1::PRECISION_FP32;
  job::v1::OptimizerType optimizer = job::v1::OPTIMIZER_TYPE_ADAMW;
  bool llama = false;  // RMSNorm, rotary positions, SwiGLU, grouped queries
  bool tied = false;
  bool within_documents = false;
};

JobSpec Toy(const Layout& layout, int steps) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_tie_word_embeddings(layout.tied);
  spec.mutable_train()->set_global_batch_size(4);
  spec.mutable_train()->set_steps(steps);
  spec.mutable_train()->set_precision(layout.precision);
  spec.mutable_optimizer()->set_type(layout.optimizer);
  spec.mutable_parallel()->set_tensor_model_parallel_size(layout.tensor);
  if (layout.within_documents) {
    spec.mutable_data()->set_attention(job::v1::ATTENTION_WITHIN_DOCUMENTS);
  }
  if (layout.llama) {
    MakeLikeLlama(spec.mutable_model());
    spec.mutable_model()->set_num_key_value_heads(1);
  }
  return spec;
}

RunOptions OnGpu(const JobSpec& spec) {
  RunOptions options(spec);
  options.make_device = [](int rank) {
    return device::AllDevices().front().make(/*seed=*/static_cast<uint64_t>(rank));
  };
  return options;
}

class GpuJobsTest : public ::testing::TestWithParam<Layout> {};

// In fp32 both round each sum to 24 bits, in different orders. In bf16 both round activations to 8
// bits: where the sums differ in the last bit of fp32, some activations round the other way, each
// by 2^-8 of itself; the loss is a mean over many of them.
TEST_P(GpuJobsTest, LossesAreTheCpus) {
  const bool is_fp32 = GetParam().precision == job::v1::PRECISION_FP32;
  const JobSpec spec = Toy(GetParam(), /*steps=*/20);
  const RunResult cpu = RunJob(RunOptions(spec));
  const RunResult gpu = RunJob(OnGpu(spec));
  ASSERT_EQ(gpu.records[0].size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    const double wanted = cpu.records[0][i].loss(), found = gpu.records[0][i].loss();
    EXPECT_NEAR(found, wanted, (is_fp32 ? 1e-5 : 4e-3) * wanted) << "step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, GpuJobsTest,
    ::testing::Values(Layout{.name = "Alone"}, Layout{.name = "Llama", .llama = true},
                      Layout{
                          .name = "LlamaBF16", .precision = job::v1::PRECISION_BF16, .llama = true},
                      Layout{.name = "DataTensor", .data = 2, .tensor = 2},
                      Layout{.name = "WithinDocuments", .pipeline = 2, .within_documents = true},
                      Layout{.name = "PipelineLambTied",
                             .pipeline = 2,
                             .precision = job::v1::PRECISION_BF16,
                             .optimizer = job::v1::OPTIMIZER_TYPE_LAMB,
                             .tied = true}),
    [](const auto& info) { return info.param.name; });

TEST_P(GpuJobsTest, GraphsLeaveTheBits) {
  const auto digest_of = [spec = Toy(GetParam(), /*steps=*/4)](bool uses_graphs) {
    RunOptions options(spec);
    options.make_device = [uses_graphs](int rank) {
      return gpu::MakeGpuUnderTest(rank, uses_graphs).value();
    };
    return RunJob(options).digest;
  };
  const std::string expected = digest_of(/*uses_graphs=*/false);
  ASSERT_NE(expected, "");
  EXPECT_EQ(digest_of(/*uses_graphs=*/true), expected);
}

TEST(GpuJobTest, BitsAreTheSameEachTime) {
  const JobSpec spec = Toy({.pipeline = 2, .precision = job::v1::PRECISION_BF16}, /*steps=*/4);
  const std::string first = RunJob(OnGpu(spec)).digest;
  ASSERT_NE(first, "");
  // The emulator goes on with its draws, so all orders are others now.
  EXPECT_EQ(RunJob(OnGpu(spec)).digest, first);
}

TEST(GpuJobTest, ASnapshotBesideAStepIsThatOfTheStepBefore) {
  const JobSpec spec = Toy({.precision = job::v1::PRECISION_BF16}, /*steps=*/3);
  RunOptions calm = OnGpu(spec);
  calm.StopAfter(2);
  const std::string wanted = RunJob(calm).digest;
  ASSERT_NE(wanted, "");
  RunOptions beside = OnGpu(spec);
  beside.snapshot_beside_step_after = 2;
  EXPECT_EQ(RunJob(beside).digest, wanted);
}

// Tensors and workspaces: the context is there before.
TEST(GpuJobTest, AJobTakesNoMoreOfItsGpuThanIsComputed) {
  const auto gpu = gpu::OpenGpuUnderTest().value();
  const auto free_bytes = [&] {
    size_t free = 0, total = 0;
    EXPECT_EQ(gpu.cuda->cudaMemGetInfo(&free, &total), cudaSuccess);
    return static_cast<int64_t>(free);
  };
  JobSpec spec = Toy({.precision = job::v1::PRECISION_BF16}, /*steps=*/2);
  spec.set_device(job::v1::DEVICE_CUDA);
  spec.set_device_sharing(true);
  const layout::RankMemory computed = layout::MemoryOf(spec, 0).value();
  const int64_t before = free_bytes();
  int64_t used = 0;
  RunOptions options = OnGpu(spec);
  options.at_end = [&](RankEngine&) { used = before - free_bytes(); };
  RunJob(options);
  EXPECT_LE(used, computed.on_device() - computed.context);
  // The stream that reduces may never need its workspace. A block has whole pages.
  constexpr int64_t kRounding = 1 << 20;
  EXPECT_GE(used + kRounding,
            computed.on_device() - computed.context - computed.graphs - layout::kCudaKernelBytes);
}

TEST(GpuJobTest, GoesOnFromItsCheckpointToTheBitsOfACalmRun) {
  const JobSpec spec = Toy({.data = 2}, /*steps=*/5);
  const std::string calm = RunJob(OnGpu(spec)).digest;
  RunOptions first = OnGpu(spec);
  first.StopAfter(3);
  const RunResult stopped = RunJob(first);
  RunOptions second = OnGpu(spec);
  second.attempt = 2;
  second.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
  second.restore.set_step(3);
  second.restore.set_directory(stopped.checkpoint);
  EXPECT_EQ(RunJob(second).digest, calm);
}

TEST(GpuJobTest, ADivergenceIsExplainedByTheOperatorThatBeganIt) {
  JobSpec spec = Toy({}, /*steps=*/3);
  spec.mutable_optimizer()->set_lr(1e30);
  spec.mutable_optimizer()->set_clip_grad(0);
  RunOptions options = OnGpu(spec);
  std::mutex mutex;
  std::vector<absl::Status> failures;
  options.on_failure = [&](int /*rank*/, const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex);
    failures.push_back(status);
  };
  RunJob(options);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(failures[0].message()), HasSubstr("it began in"));
}

}  // namespace
}  // namespace megascale::engine
