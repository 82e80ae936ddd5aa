// A training step allocates no memory: everything is allocated before it, and the kernel library's
// own allocations are the same in every step. Counted in whole jobs of one and of four ranks.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/testing/test_heap.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/ops/ops.h"

namespace {

std::atomic<int64_t> num_executed{0};
std::atomic<int64_t> num_gemms{0};
std::atomic<int64_t> num_created{0};

// Returns the library's own function of this name.
template <typename Function>
Function* Next(Function* /*type*/, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// oneDNN's C interface, which its C++ interface calls; these functions forward to the library.
extern "C" {
int dnnl_primitive_execute(const void* primitive, void* stream, int num_arguments,
                           const void* arguments) {
  static const auto next = Next(&dnnl_primitive_execute, "dnnl_primitive_execute");
  ++num_executed;
  return next(primitive, stream, num_arguments, arguments);
}
int dnnl_sgemm(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
               const float* a, int64_t a_stride, const float* b, int64_t b_stride, float beta,
               float* c, int64_t c_stride) {
  static const auto next = Next(&dnnl_sgemm, "dnnl_sgemm");
  ++num_gemms;
  return next(transpose_a, transpose_b, m, n, k, alpha, a, a_stride, b, b_stride, beta, c,
              c_stride);
}
int dnnl_primitive_create(void** primitive, const void* description) {
  static const auto next = Next(&dnnl_primitive_create, "dnnl_primitive_create");
  ++num_created;
  return next(primitive, description);
}
int dnnl_memory_create(void** memory, const void* description, void* engine, void* handle) {
  static const auto next = Next(&dnnl_memory_create, "dnnl_memory_create");
  ++num_created;
  return next(memory, description, engine, handle);
}
}

namespace megascale::engine {
namespace {

constexpr int64_t kSteps = 8;
constexpr size_t kWarmUp = 3;

constexpr auto kInterleaved = job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B;
constexpr auto kZeroBubble = job::v1::PIPELINE_SCHEDULE_ZB_H1;

struct Case {
  int data;
  int pipeline;
  int threads;
  job::v1::Precision precision;
  int virtual_stages = 1;
  job::v1::PipelineSchedule schedule = job::v1::PIPELINE_SCHEDULE_1F1B;
  job::v1::OptimizerType optimizer = job::v1::OPTIMIZER_TYPE_ADAMW;
  int tensor = 1;
  int zero_stage = 1;
  int64_t bucket_size = 0;
  bool is_large = false;  // large enough for sgemm in fp32, and for packed products in bf16
};

// Counts after a step.
struct Counts {
  base::HeapCalls heap;
  int64_t executed = 0;
  int64_t gemms = 0;
  int64_t created = 0;

  Counts operator-(const Counts& before) const {
    return {.heap = heap - before.heap,
            .executed = executed - before.executed,
            .gemms = gemms - before.gemms,
            .created = created - before.created};
  }
};

std::vector<Counts> CountsOf(const Case& given) {
  auto spec = ToyJob(WriteTestText("text"), given.data, given.pipeline);
  if (given.is_large) {
    spec.mutable_model()->set_num_hidden_layers(2);
    spec.mutable_model()->set_hidden_size(320);
    spec.mutable_model()->set_head_dim(160);
    spec.mutable_model()->set_intermediate_size(1280);
    spec.mutable_model()->set_max_position_embeddings(160);
    spec.mutable_train()->set_seq_length(160);
    spec.mutable_train()->set_global_batch_size(4);
  }
  spec.mutable_train()->set_precision(given.precision);
  spec.mutable_train()->set_steps(kSteps);
  spec.mutable_parallel()->set_threads_per_rank(given.threads);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(given.virtual_stages);
  spec.mutable_parallel()->set_pipeline_schedule(given.schedule);
  spec.mutable_parallel()->set_tensor_model_parallel_size(given.tensor);
  spec.mutable_parallel()->set_zero_stage(given.zero_stage);
  spec.mutable_parallel()->set_ddp_bucket_size(given.bucket_size);
  spec.mutable_optimizer()->set_type(given.optimizer);
  std::vector<Counts> counts;
  counts.reserve(kSteps);
  RunOptions options(spec);
  options.on_loader_thread = &base::IgnoreHeapCallsOfThisThread;
  options.after_step = [&counts] {
    counts.push_back({.heap = base::CountHeapCalls(),
                      .executed = num_executed,
                      .gemms = num_gemms,
                      .created = num_created});
  };
  RunJob(options);
  return counts;
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  const Case& given = info.param;
  return absl::StrCat("Data", given.data, "Pipeline", given.pipeline, "Threads", given.threads,
                      job::v1::Precision_Name(given.precision).substr(10), "Virtual",
                      given.virtual_stages, given.schedule == kZeroBubble ? "ZeroBubble" : "",
                      given.optimizer == job::v1::OPTIMIZER_TYPE_LAMB ? "Lamb" : "",
                      given.tensor > 1 ? absl::StrCat("Tensor", given.tensor) : "",
                      given.zero_stage == 2 ? "Zero2" : "", given.bucket_size > 0 ? "Buckets" : "",
                      given.is_large ? "Large" : "");
}

class AllocationTest : public testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Layouts, AllocationTest,
    testing::Values(Case{1, 1, 1, job::v1::PRECISION_FP32}, Case{1, 1, 1, job::v1::PRECISION_BF16},
                    Case{1, 1, 2, job::v1::PRECISION_FP32}, Case{1, 1, 2, job::v1::PRECISION_BF16},
                    Case{2, 2, 1, job::v1::PRECISION_FP32}, Case{2, 2, 1, job::v1::PRECISION_BF16},
                    Case{1, 2, 1, job::v1::PRECISION_FP32, 2, kInterleaved},
                    Case{1, 2, 1, job::v1::PRECISION_FP32, 1, kZeroBubble},
                    Case{2, 1, 1, job::v1::PRECISION_FP32, 1, job::v1::PIPELINE_SCHEDULE_1F1B,
                         job::v1::OPTIMIZER_TYPE_LAMB},
                    Case{2, 1, 1, job::v1::PRECISION_BF16, 1, job::v1::PIPELINE_SCHEDULE_1F1B,
                         job::v1::OPTIMIZER_TYPE_LAMB, 2},
                    Case{2, 2, 1, job::v1::PRECISION_FP32, 2, kInterleaved,
                         job::v1::OPTIMIZER_TYPE_ADAMW, 1, 2},
                    Case{2, 1, 1, job::v1::PRECISION_BF16, 1, job::v1::PIPELINE_SCHEDULE_1F1B,
                         job::v1::OPTIMIZER_TYPE_LAMB, 2, 1, 1},
                    Case{2, 1, 1, job::v1::PRECISION_FP32, 1, kZeroBubble,
                         job::v1::OPTIMIZER_TYPE_ADAMW, 1, 2, 1},
                    Case{.data = 1,
                         .pipeline = 1,
                         .threads = 2,
                         .precision = job::v1::PRECISION_FP32,
                         .is_large = true},
                    Case{.data = 1,
                         .pipeline = 1,
                         .threads = 2,
                         .precision = job::v1::PRECISION_BF16,
                         .is_large = true}),
    NameOf);

TEST_P(AllocationTest, EveryStepAfterTheFirstTakesTheSameAndMakesNothing) {
  if (!base::kHeapIsCounted) GTEST_SKIP() << "a sanitizer has a heap of its own";
  const std::vector<Counts> after = CountsOf(GetParam());
  ASSERT_EQ(after.size(), static_cast<size_t>(kSteps));
  EXPECT_GT(after[kWarmUp - 1].created, 0);
  const auto in_step = [&](size_t i) { return after[i] - after[i - 1]; };
  const Counts first = in_step(kWarmUp);
  EXPECT_GT(first.executed, 0);
  // Processors that do not multiply bf16 multiply it in fp32.
  const bool is_in_float = GetParam().precision == job::v1::PRECISION_FP32 ||
                           !absl::StrContains(ops::InstructionSet(), "bf16");
  EXPECT_EQ(first.gemms > 0, GetParam().is_large && is_in_float);
  const bool is_alone = GetParam().data * GetParam().pipeline * GetParam().tensor == 1;
  for (size_t i = kWarmUp; i < after.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("step ", i + 1));
    const Counts counts = in_step(i);
    // Operators and engine allocate nothing; collectives of several ranks keep records of messages.
    EXPECT_EQ(counts.heap.ours, is_alone ? 0 : first.heap.ours);
    EXPECT_EQ(counts.heap.libraries, first.heap.libraries);
    EXPECT_EQ(counts.heap.bytes_of_libraries, first.heap.bytes_of_libraries);
    EXPECT_EQ(counts.heap.mappings, 0);
    EXPECT_EQ(counts.executed, first.executed);
    EXPECT_EQ(counts.gemms, first.gemms);
    EXPECT_EQ(counts.created, 0) << "a primitive or a tensor's memory";
  }
  RecordProperty("heap_calls", absl::StrCat(first.heap.ours, " + ", first.heap.libraries));
}

}  // namespace
}  // namespace megascale::engine
