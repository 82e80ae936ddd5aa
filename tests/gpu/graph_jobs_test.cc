// Whole jobs whose operators are launched as CUDA graphs: what the host still does in a step, and
// that errors keep their place. That the bits stay is in gpu_jobs_test and nccl_jobs_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu/assembly.h"
#include "gpu/emulator/emulated_cuda.h"
#include "gpu/emulator/emulated_gpu.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/layout/cuda_memory.h"
#include "runtime/layout/rank_memory.h"

namespace megascale::engine {
namespace {

using emulator::EmulatedCalls;
using emulator::EmulatedMachine;
using job::v1::JobSpec;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kSteps = 5;

RunOptions OnGpu(const JobSpec& spec, bool uses_graphs = true) {
  RunOptions options(spec);
  options.make_device = [uses_graphs](int rank) {
    return gpu::AssembleGpuDevice(
               emulator::EmulatedTables(),
               {.local_rank = rank, .may_share = true, .uses_graphs = uses_graphs})
        .value();
  };
  return options;
}

JobSpec Toy(int data = 1, int pipeline = 1, int tensor = 1) {
  JobSpec spec = ToyJob(WriteTestText("text"), data, pipeline);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_train()->set_global_batch_size(4);
  spec.mutable_train()->set_steps(kSteps);
  spec.mutable_train()->set_precision(job::v1::PRECISION_BF16);
  spec.mutable_parallel()->set_tensor_model_parallel_size(tensor);
  return spec;
}

// Returns the calls of each step.
std::vector<EmulatedCalls> CallsOfSteps(RunOptions options) {
  std::vector<EmulatedCalls> after;
  options.after_step = [&after] { after.push_back(emulator::CountEmulatedCalls()); };
  RunJob(options);
  std::vector<EmulatedCalls> of_steps;
  for (size_t i = 1; i < after.size(); ++i) {
    of_steps.push_back({.allocations = after[i].allocations - after[i - 1].allocations,
                        .launches = after[i].launches - after[i - 1].launches,
                        .instantiations = after[i].instantiations - after[i - 1].instantiations,
                        .graph_launches = after[i].graph_launches - after[i - 1].graph_launches});
  }
  return of_steps;  // from the second one on
}

struct Layout {
  std::string name = "";
  int data = 1;
  int pipeline = 1;
  int tensor = 1;
};
class GraphJobsTest : public ::testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, GraphJobsTest,
                         ::testing::Values(Layout{.name = "Alone"},
                                           Layout{.name = "DataPipeline", .data = 2, .pipeline = 2},
                                           Layout{.name = "Tensor", .tensor = 2}),
                         [](const auto& info) { return info.param.name; });

TEST_P(GraphJobsTest, StepsLaunchGraphsAndAllocateNothing) {
  const auto& [name, data, pipeline, tensor] = GetParam();
  const EmulatedMachine machine;
  const std::vector<EmulatedCalls> plain =
      CallsOfSteps(OnGpu(Toy(data, pipeline, tensor), /*uses_graphs=*/false));
  const std::vector<EmulatedCalls> graphs = CallsOfSteps(OnGpu(Toy(data, pipeline, tensor)));
  ASSERT_EQ(plain.size(), size_t{kSteps - 1});
  ASSERT_EQ(graphs.size(), size_t{kSteps - 1});
  EXPECT_GT(graphs[0].instantiations, 0);
  for (size_t i = 1; i < graphs.size(); ++i) {
    SCOPED_TRACE(i + 2);
    EXPECT_EQ(plain[i].graph_launches, 0);
    EXPECT_EQ(graphs[i].instantiations, 0);
    EXPECT_EQ(graphs[i].allocations, 0);
    EXPECT_GT(graphs[i].graph_launches, 0);
    // What is left are few kernels between two exchanges.
    EXPECT_LT(graphs[i].launches, plain[i].launches);
    EXPECT_EQ(graphs[i].launches, graphs.back().launches);
  }
  RecordProperty("launches", absl::StrCat(plain.back().launches, " as ", graphs.back().launches,
                                          " and ", graphs.back().graph_launches, " graphs"));
}

// The plan of memory counts the graphs of a rank: no fewer than there are, and not many more.
TEST_P(GraphJobsTest, GraphsHaveNoMoreLaunchesThanThePlanOfMemoryCounts) {
  const auto& [name, data, pipeline, tensor] = GetParam();
  const EmulatedMachine machine;
  JobSpec spec = Toy(data, pipeline, tensor);
  int64_t nodes = 0;
  RunOptions options = OnGpu(spec);
  options.after_step = [&] { nodes = emulator::CountEmulatedCalls().graph_nodes; };
  RunJob(options);
  spec.set_device(job::v1::DEVICE_CUDA);
  spec.set_device_sharing(true);
  int64_t counted = 0;
  for (int rank = 0; rank < data * pipeline * tensor; ++rank) {
    counted += layout::MemoryOf(spec, rank).value().graphs / layout::kCudaGraphLaunchBytes;
  }
  EXPECT_GT(nodes, 0);
  EXPECT_LE(nodes, counted);
  EXPECT_GE(4 * nodes, counted);
  RecordProperty("launches", absl::StrCat(nodes, " of ", counted));
  spec.set_enable_cuda_graph(false);
  EXPECT_EQ(layout::MemoryOf(spec, 0).value().graphs, 0);
}

// Returns the failure of a job whose device fails at the `work`-th kernel, copy or fill; 0: never.
// In `num_work`, if given, how many there are until step 3, and until step 4.
std::string FailureOf(int64_t work, std::vector<int64_t>* num_work = nullptr) {
  const EmulatedMachine machine({.fail_at_work = work});
  RunOptions options = OnGpu(Toy());
  std::string failure;
  options.on_failure = [&](int /*rank*/, const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    failure = std::string(status.message());
  };
  options.after_step = [&] {
    if (num_work != nullptr) num_work->push_back(machine.num_work());
  };
  RunJob(options);
  return failure;
}

TEST(GraphJobTest, AnErrorWithinAGraphNamesTheInstructionOfIt) {
  std::vector<int64_t> num_work;  // by the end of each step
  EXPECT_EQ(FailureOf(0, &num_work), "");
  ASSERT_EQ(num_work.size(), size_t{kSteps});
  // From the first pass of step 4 to the optimizer's step.
  const int64_t first = num_work[2] + 10, last = num_work[3] - 1;
  for (int64_t part = 0; part <= 4; ++part) {
    EXPECT_THAT(FailureOf(first + (last - first) * part / 4),
                ContainsRegex("rank 0: step 4: [A-Z]+[.:].*cudaErrorLaunchFailure"))
        << part;
  }
}

TEST(GraphJobTest, ADivergenceInARepeatedStepIsExplained) {
  const EmulatedMachine machine;
  JobSpec spec = Toy();
  spec.mutable_train()->set_precision(job::v1::PRECISION_FP32);
  spec.mutable_train()->set_steps(30);
  // Each step multiplies the weights by 1 - 1000 * 0.1: they overflow after the 19th at the latest.
  spec.mutable_optimizer()->set_lr(1000);
  spec.mutable_optimizer()->set_min_lr(1000);
  spec.mutable_optimizer()->set_weight_decay(0.1);
  spec.mutable_optimizer()->set_clip_grad(0);
  RunOptions options = OnGpu(spec);
  absl::Status failure;
  int num_steps = 0;
  options.on_failure = [&](int /*rank*/, const absl::Status& status) { failure = status; };
  options.after_step = [&] { ++num_steps; };
  RunJob(options);
  EXPECT_GE(num_steps, 3) << "graphs have been launched";
  EXPECT_GT(emulator::CountEmulatedCalls().graph_launches, 0);
  EXPECT_EQ(failure.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(failure.message()),
              AnyOf(HasSubstr("it began in"), HasSubstr("every operator gave finite values")));
}

}  // namespace
}  // namespace megascale::engine
