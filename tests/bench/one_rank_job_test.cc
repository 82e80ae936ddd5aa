#include "tests/bench/one_rank_job.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/bench/measured_ops.h"

namespace megascale::bench {
namespace {

constexpr int kSteps = 4;

job::v1::JobSpec Toy() {
  job::v1::JobSpec spec;
  spec.set_name("toy");
  spec.mutable_model()->set_hidden_size(128);  // its optimizer has work for two threads
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_train()->set_steps(1000);
  spec.mutable_train()->set_seq_length(32);
  spec.mutable_train()->set_global_batch_size(2);
  spec.mutable_train()->set_micro_batch_size(2);
  spec.mutable_train()->set_seed(7);
  spec.mutable_optimizer()->set_lr(1e-3);
  spec.mutable_optimizer()->set_clip_grad(1.0);
  spec.mutable_parallel()->set_threads_per_rank(2);
  return spec;
}

// The operators that an engine made, and for how many threads.
struct Made {
  int num_threads;
  MeasuredOps* ops;
};

struct Run {
  std::unique_ptr<OneRankJob> job;
  std::vector<Made> made;
  std::vector<double> losses;
};

// `optimizer_threads`: see MeasuredOps.
std::unique_ptr<Run> RunToy(int optimizer_threads) {
  auto run = std::make_unique<Run>();
  run->job = OneRankJob::Create(Toy(), [&](ops::DType dtype, int num_threads) {
               auto made = std::make_unique<MeasuredOps>(ops::MakeCpuOps(dtype, num_threads),
                                                         ops::MakeCpuOps(dtype, optimizer_threads));
               run->made.push_back({num_threads, made.get()});
               return made;
             }).value();
  for (int step = 1; step <= kSteps; ++step) {
    const OneRankJob::Step taken = run->job->TakeStep().value();
    EXPECT_EQ(taken.record.step(), step);
    EXPECT_GT(taken.seconds, 0);
    run->losses.push_back(taken.record.loss());
  }
  return run;
}

int64_t CallsOf(const MeasuredOps& ops, const std::string& name) {
  const auto found = ops.others().find(name);
  return found == ops.others().end() ? 0 : found->second.num_calls;
}

TEST(OneRankJobTest, TheEngineStepsTheOptimizerOnAllThreadsOfTheRank) {
  const auto run = RunToy(2);
  ASSERT_EQ(run->made.size(), 2u);
  for (const Made& made : run->made) {
    const bool all = made.num_threads == 2;
    // One call for all tensors of the rank's one chunk.
    EXPECT_EQ(CallsOf(*made.ops, "adamw"), all ? kSteps : 0) << made.num_threads;
    EXPECT_EQ(CallsOf(*made.ops, "sum of squares") > 0, all) << made.num_threads;
    EXPECT_EQ(made.ops->products().empty(), !all) << made.num_threads;
  }
}

TEST(OneRankJobTest, TheOptimizersThreadsLeaveTheLosses) {
  const auto one = RunToy(1);
  const auto two = RunToy(2);
  EXPECT_EQ(one->losses, two->losses);
  EXPECT_NE(two->losses.back(), two->losses.front());
}

TEST(OneRankJobTest, AJobOfTwoRanksIsRefused) {
  job::v1::JobSpec spec = Toy();
  spec.mutable_parallel()->set_data_parallel_size(2);
  EXPECT_EQ(OneRankJob::Create(spec, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace megascale::bench
