#include "runtime/engine/rank_engine.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
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

using Gradients = std::map<std::string, std::vector<double>>;

std::string Describe(const Layout& layout) {
  return absl::StrCat("data ", layout.data, " pipeline ", layout.pipeline);
}

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

TEST(RankEngineTest, AnAbortEndsTheWaitForASnapshotBuffer) {
  RunOptions options(Toy({1, 1}, job::v1::PRECISION_FP32));
  absl::Status status;
  options.at_end = [&](RankEngine& engine) {
    // Nothing is stored, and there are two buffers: this one takes the second.
    ASSERT_TRUE(engine.TakeSnapshot(6).ok());
    std::thread other([&] { engine.Abort(absl::UnavailableError("rank 3 is gone")); });
    status = engine.TakeSnapshot(7).status();
    other.join();
  };
  RunJob(options);
  EXPECT_EQ(status, absl::AbortedError("rank 3 is gone"));
}

TEST(RankEngineTest, FirstLossIsNearThatOfAGuessAndTrainingLowersIt) {
  const std::vector<double> losses =
      Losses(RunJob(RunOptions(Toy({1, 1}, job::v1::PRECISION_FP32))));
  EXPECT_NEAR(losses.front(), std::log(256.0), 0.3);
  EXPECT_LT(losses.back(), losses.front() - 0.3);
}

double Norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// Expects ‖Δg‖ <= tolerance * max(‖g‖, 1e-3 * ‖g of all tensors‖) of every tensor.
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

JobSpec Steps(JobSpec spec, int64_t steps) {
  spec.mutable_train()->set_steps(steps);
  return spec;
}

TEST(RankEngineTest, LayoutsAgreeInFloat64To1em10) {
  const JobSpec one_rank = Toy(kLayouts[0], job::v1::PRECISION_FP64);
  const std::vector<double> reference = Losses(RunJob(RunOptions(one_rank)));
  const Gradients gradients = FirstGradients(one_rank);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(Describe(layout));
    const JobSpec spec = Toy(layout, job::v1::PRECISION_FP64);
    const std::vector<double> losses = Losses(RunJob(RunOptions(spec)));
    ASSERT_EQ(losses.size(), reference.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], reference[i], 1e-10) << i;
    ExpectSameGradients(FirstGradients(spec), gradients, 1e-10);
  }
}

TEST(RankEngineTest, LayoutsAgreeInFloat32) {
  const JobSpec one_rank = Steps(Toy(kLayouts[0], job::v1::PRECISION_FP64), 20);
  const std::vector<double> reference = Losses(RunJob(RunOptions(one_rank)));
  const Gradients gradients = FirstGradients(one_rank);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(Describe(layout));
    const JobSpec spec = Steps(Toy(layout, job::v1::PRECISION_FP32), 20);
    const std::vector<double> losses = Losses(RunJob(RunOptions(spec)));
    ASSERT_EQ(losses.size(), 20u);
    // The first loss has only the forward's rounding; later ones the updates' as well.
    EXPECT_NEAR(losses[0], reference[0], 1e-5);
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], reference[i], 1e-4) << i;
    ExpectSameGradients(FirstGradients(spec), gradients, 1e-5);
  }
}

TEST(RankEngineTest, EveryLayoutRepeatsItselfToTheBit) {
  for (const auto precision : {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16}) {
    for (const Layout& layout : kLayouts) {
      SCOPED_TRACE(Describe(layout));
      const RunResult first = RunJob(RunOptions(Toy(layout, precision)));
      const RunResult second = RunJob(RunOptions(Toy(layout, precision)));
      EXPECT_EQ(first.digest, second.digest);
      EXPECT_EQ(Losses(first), Losses(second));
    }
  }
}

// Wide enough that both threads of a rank have work in every operator.
JobSpec TwoThreads(job::v1::Precision precision) {
  JobSpec spec = Steps(Toy({2, 1}, precision), 3);
  spec.mutable_model()->set_hidden_size(128);
  spec.mutable_model()->set_intermediate_size(512);
  spec.mutable_model()->set_head_dim(64);
  spec.mutable_model()->set_max_position_embeddings(64);
  spec.mutable_train()->set_seq_length(64);
  spec.mutable_parallel()->set_threads_per_rank(2);
  return spec;
}

// Keeps the machine busy: two threads that never rest, as many as its slowest test machine's cores.
class Load {
 public:
  Load() {
    for (std::thread& thread : threads_) {
      thread = std::thread([this] {
        while (!stop_.load(std::memory_order_relaxed)) {
        }
      });
    }
  }
  ~Load() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::array<std::thread, 2> threads_;
};

// Binds this thread, and those that it starts, to the first core that it may use.
class OneCore {
 public:
  OneCore() {
    EXPECT_EQ(::sched_getaffinity(0, sizeof(before_), &before_), 0);
    int core = 0;
    while (core < CPU_SETSIZE && !CPU_ISSET(core, &before_)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  }
  ~OneCore() { EXPECT_EQ(::sched_setaffinity(0, sizeof(before_), &before_), 0); }

 private:
  cpu_set_t before_;
};

TEST(RankEngineTest, TwoThreadsGiveTheSameBitsAgainUnderLoadAndOnOneCore) {
  for (const auto precision : {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16}) {
    const RunOptions options(TwoThreads(precision));
    const RunResult calm = RunJob(options);
    EXPECT_EQ(RunJob(options).digest, calm.digest);
    {
      const Load load;
      EXPECT_EQ(RunJob(options).digest, calm.digest);
    }
    const OneCore core;
    EXPECT_EQ(RunJob(options).digest, calm.digest);
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
