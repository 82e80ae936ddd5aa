#include "runtime/engine/rank_engine.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/job.pb.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/testing/test_forge.h"
#include "runtime/engine/testing/shown_while_loading.h"
#include "runtime/engine/testing/test_job.h"

namespace megascale::engine {
namespace {

using job::v1::JobSpec;

constexpr auto kInterleaved = job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B;

struct Layout {
  int data;
  int pipeline;
  int virtual_stages = 1;
  job::v1::PipelineSchedule schedule = job::v1::PIPELINE_SCHEDULE_1F1B;
  int tensor = 1;
  int zero_stage = 1;
  int64_t bucket_size = 0;
};

JobSpec Toy(const Layout& layout, job::v1::Precision precision) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  spec.mutable_train()->set_precision(precision);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(layout.virtual_stages);
  spec.mutable_parallel()->set_pipeline_schedule(layout.schedule);
  spec.mutable_parallel()->set_tensor_model_parallel_size(layout.tensor);
  spec.mutable_parallel()->set_zero_stage(layout.zero_stage);
  spec.mutable_parallel()->set_ddp_bucket_size(layout.bucket_size);
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

std::vector<double> HeldOutLosses(const RunResult& result) {
  std::vector<double> losses;
  for (const auto& record : result.records[0]) {
    if (record.has_held_out_loss()) losses.push_back(record.held_out_loss());
  }
  return losses;
}

// The text has 800 held-out bytes: 66 windows of 12, which are 8 batches of 8 and 2 windows more.
TEST(RankEngineTest, EvaluationsLeaveTheBitsOfTheTrainingAndAreEqualOnEveryRank) {
  for (const Layout& layout :
       {Layout{1, 1}, Layout{.data = 2, .pipeline = 2, .zero_stage = 2, .bucket_size = 1},
        Layout{.data = 1, .pipeline = 2, .virtual_stages = 2, .schedule = kInterleaved},
        Layout{.data = 2, .pipeline = 2, .tensor = 2}}) {
    JobSpec spec = Toy(layout, job::v1::PRECISION_BF16);
    spec.mutable_train()->clear_eval_interval();
    const RunResult without = RunJob(RunOptions(spec));
    EXPECT_TRUE(HeldOutLosses(without).empty());
    spec.mutable_train()->set_eval_interval(2);
    spec.mutable_train()->set_eval_batches(20);
    const RunResult with = RunJob(RunOptions(spec));
    EXPECT_EQ(with.digest, without.digest);
    EXPECT_EQ(Losses(with), Losses(without));
    ASSERT_EQ(HeldOutLosses(with).size(), 3u);  // after steps 2, 4 and 5
    EXPECT_LT(HeldOutLosses(with).back(), HeldOutLosses(with).front());
    for (const auto& records : with.records) {
      for (size_t i = 0; i < records.size(); ++i) {
        EXPECT_EQ(records[i].SerializeAsString(), with.records[0][i].SerializeAsString());
      }
    }
  }
}

TEST(RankEngineTest, ARestoredRunFindsTheLossesOnHeldOutTextOfAnUndisturbedOne) {
  JobSpec spec = Toy({.data = 2, .pipeline = 2}, job::v1::PRECISION_FP32);
  spec.mutable_train()->set_eval_interval(1);
  spec.mutable_train()->set_eval_batches(3);
  const RunResult calm = RunJob(RunOptions(spec));
  const RunResult first = RunJob(RunOptions(spec).StopAfter(2));
  RunOptions again(spec);
  again.attempt = 2;
  again.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
  again.restore.set_directory(first.checkpoint);
  again.restore.set_step(2);
  const RunResult rest = RunJob(again);
  std::vector<double> losses = HeldOutLosses(first);
  for (const double loss : HeldOutLosses(rest)) losses.push_back(loss);
  EXPECT_EQ(losses, HeldOutLosses(calm));
  EXPECT_EQ(rest.digest, calm.digest);
}

// Only the first of two windows is there: the whole micro-batch is computed, but one window counts.
TEST(RankEngineTest, AHeldOutTextOfOneWindowOrNoneIsMeasuredAsFarAsItGoes) {
  for (const bool has_window : {true, false}) {
    JobSpec spec = Toy({.data = 2, .pipeline = 2, .tensor = 2}, job::v1::PRECISION_FP64);
    spec.mutable_data()->set_held_out_fraction(has_window ? 0.002 : 0.001);
    spec.mutable_train()->set_eval_interval(5);
    const RunResult result = RunJob(RunOptions(spec));
    ASSERT_EQ(HeldOutLosses(result).size(), has_window ? 1u : 0u);
    if (!has_window) continue;
    EXPECT_GT(HeldOutLosses(result)[0], 1);
    EXPECT_LT(HeldOutLosses(result)[0], 7);
    spec = Toy({1, 1}, job::v1::PRECISION_FP64);
    spec.mutable_data()->set_held_out_fraction(0.002);
    spec.mutable_train()->set_eval_interval(5);
    EXPECT_NEAR(HeldOutLosses(RunJob(RunOptions(spec)))[0], HeldOutLosses(result)[0], 1e-9);
  }
}

// The share is that of the rank's own weights. What comes after Load is not the making of weights.
TEST(RankEngineTest, MakingInitialWeightsShowsItsProgressWhileItLasts) {
  const std::vector<ShownByRank> ranks = ShownWhileLoading(
      RunOptions(Toy({.data = 2, .pipeline = 2, .bucket_size = 1}, job::v1::PRECISION_BF16)));
  ASSERT_EQ(ranks.size(), 4u);
  for (const ShownByRank& rank : ranks) {
    std::set<int> shares;
    for (const telemetry::v1::RankStatus& shown : rank.meanwhile) {
      if (shown.activity() != telemetry::v1::ACTIVITY_MAKE_WEIGHTS) continue;
      EXPECT_EQ(shown.total(), 100);
      EXPECT_GE(shown.progress_age_seconds(), 0);
      EXPECT_TRUE(shares.empty() || shown.done() >= *shares.rbegin()) << "it only grows";
      shares.insert(shown.done());
    }
    EXPECT_EQ(shares.count(0), 1u);
    EXPECT_GT(shares.size(), 1u) << "a bucket was made between the looks";
    EXPECT_EQ(rank.at_end.activity(), telemetry::v1::ACTIVITY_UNSPECIFIED);
  }
}

TEST(RankEngineTest, AnAbortEndsTheWaitForASnapshotBuffer) {
  RunOptions options(Toy({1, 1}, job::v1::PRECISION_FP32));
  absl::Status status;
  options.at_end = [&](RankEngine& engine) {
    // No snapshot is persisted and there are two buffers: this one takes the second.
    ASSERT_EQ(engine.BeginSnapshot(6), absl::OkStatus());
    ASSERT_EQ(engine.FinishSnapshot().status(), absl::OkStatus());
    std::thread other([&] { engine.Abort(absl::UnavailableError("rank 3 is gone")); });
    status = engine.BeginSnapshot(7);
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

JobSpec Steps(JobSpec spec, int64_t steps) {
  spec.mutable_train()->set_steps(steps);
  return spec;
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

// Keeps the machine busy with two threads that never rest, as many as the slowest test machine has
// cores.
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

void ExpectRestoredRunHasTheBits(const JobSpec& whole) {
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

TEST(RankEngineTest, ARestoredRunEndsWithTheBitsOfAnUndisturbedOne) {
  ExpectRestoredRunHasTheBits(Toy({2, 2, 2, kInterleaved}, job::v1::PRECISION_FP32));
}

TEST(RankEngineTest, SoDoesOneWhoseTensorRanksShareAKeyValueHead) {
  JobSpec whole = Toy({.data = 2, .pipeline = 1, .tensor = 2}, job::v1::PRECISION_BF16);
  whole.mutable_model()->set_num_key_value_heads(1);
  ExpectRestoredRunHasTheBits(whole);
}

JobSpec Tied(JobSpec spec) {
  spec.mutable_model()->set_tie_word_embeddings(true);
  return spec;
}

// The copy of the matrix on the last stage is in no checkpoint: it is sent again.
TEST(RankEngineTest, SoDoesOneWithATiedEmbeddingOnSeveralStages) {
  ExpectRestoredRunHasTheBits(Tied(Toy(
      {.data = 2, .pipeline = 2, .virtual_stages = 2, .schedule = kInterleaved, .zero_stage = 2},
      job::v1::PRECISION_BF16)));
  ExpectRestoredRunHasTheBits(Tied(Toy({.data = 1, .pipeline = 4}, job::v1::PRECISION_FP32)));
}

// Machines exchange it over sockets, and the checkpoint has it once, as on one stage.
TEST(RankEngineTest, ATiedEmbeddingIsStoredOnceAndHasTheSameBitsOnTwoMachines) {
  const JobSpec spec = Tied(Toy({2, 2}, job::v1::PRECISION_FP32));
  const RunResult one = RunJob(RunOptions(spec));
  const RunResult two = RunJob(RunOptions(spec).On({"n0", "n0", "n1", "n1"}));
  EXPECT_EQ(one.digest, two.digest);
  const Tensors stored = ReadTensors(one);
  const Tensors whole = ReadTensors(RunJob(RunOptions(Tied(Toy({1, 1}, job::v1::PRECISION_FP32)))));
  ASSERT_EQ(stored.size(), whole.size());
  for (const auto& [name, values] : whole) EXPECT_EQ(stored.at(name).size(), values.size()) << name;
}

// Two sources by weight, in tokens: every attempt prepares its data anew.
TEST(RankEngineTest, AMixtureOfTokensEndsWithTheSameBitsAfterARestore) {
  JobSpec spec = Toy({2, 2}, job::v1::PRECISION_FP32);
  spec.mutable_model()->set_vocab_size(300);
  job::v1::DataSpec& data = *spec.mutable_data();
  data.add_files(WriteTestText("other text"));
  for (const char* weight : {"3", "1"}) data.add_weights(weight);
  data.set_tokenizer_vocab_size(300);
  data.set_token_cache(::testing::TempDir() + "/tokens");
  const RunResult calm = RunJob(RunOptions(spec));
  const RunResult first = RunJob(RunOptions(spec).StopAfter(3));
  data.set_token_cache(::testing::TempDir() + "/other tokens");
  RunOptions resumed(spec);
  resumed.attempt = 2;
  resumed.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
  resumed.restore.set_step(3);
  resumed.restore.set_directory(first.checkpoint);
  EXPECT_EQ(RunJob(resumed).digest, calm.digest);
  JobSpec whole = spec;
  whole.mutable_parallel()->set_data_parallel_size(1);
  whole.mutable_parallel()->set_pipeline_model_parallel_size(1);
  EXPECT_NEAR(Losses(RunJob(RunOptions(whole)))[0], Losses(calm)[0], 1e-4);
}

// Without clipping, whose norm other buckets round differently.
// Every document is a line. On three stages, so that the middle one has neither tokens nor targets.
TEST(RankEngineTest, AttentionWithinDocumentsIsTheSameOnAnyStagesAndAfterARestore) {
  std::string lines;
  for (int i = 0; i < 400; ++i) {
    absl::StrAppend(&lines, R"({"text": "line )", i * i % 97, R"("})", "\n");
  }
  const std::string path = ::testing::TempDir() + "/lines.jsonl";
  ASSERT_TRUE(base::WriteFileDurably(path, lines).ok());
  JobSpec spec = Toy({2, 3}, job::v1::PRECISION_FP32);
  spec.mutable_model()->set_vocab_size(300);
  job::v1::DataSpec& data = *spec.mutable_data();
  data.clear_files();
  data.add_files(path);
  data.set_json_field("text");
  data.set_tokenizer_vocab_size(300);
  data.set_token_cache(::testing::TempDir() + "/tokens of lines");
  data.set_attention(job::v1::ATTENTION_WITHIN_DOCUMENTS);
  ExpectRestoredRunHasTheBits(spec);
  const double loss = Losses(RunJob(RunOptions(spec)))[0];
  JobSpec whole = spec;
  whole.mutable_parallel()->set_data_parallel_size(1);
  whole.mutable_parallel()->set_pipeline_model_parallel_size(1);
  EXPECT_NEAR(Losses(RunJob(RunOptions(whole)))[0], loss, 1e-5);
  whole.mutable_data()->set_attention(job::v1::ATTENTION_ACROSS_DOCUMENTS);
  EXPECT_GT(std::abs(Losses(RunJob(RunOptions(whole)))[0] - loss), 1e-4);
}

TEST(RankEngineTest, ARunRestoredUnderOtherBucketsEndsWithTheSameBits) {
  const auto job = [](int64_t bucket_size) {
    JobSpec spec = Toy({.data = 2, .pipeline = 2, .tensor = 2, .bucket_size = bucket_size},
                       job::v1::PRECISION_FP32);
    spec.mutable_optimizer()->set_clip_grad(0);
    return spec;
  };
  const RunResult calm = RunJob(RunOptions(job(1)));
  for (const auto& [before, after] : {std::pair(0, 1), std::pair(1, 0), std::pair(1, 1)}) {
    const RunResult first = RunJob(RunOptions(job(before)).StopAfter(3));
    RunOptions resumed(job(after));
    resumed.attempt = 2;
    resumed.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
    resumed.restore.set_step(3);
    resumed.restore.set_directory(first.checkpoint);
    EXPECT_EQ(RunJob(resumed).digest, calm.digest) << before << " to " << after;
  }
}

// Returns the ranks' messages when a checkpoint of step 2 has a weight that is not a number.
std::vector<std::string> MessagesAfterForging(const JobSpec& spec,
                                              const checkpoint::ForgedElement& element) {
  const RunResult healthy = RunJob(RunOptions(spec).StopAfter(2));
  EXPECT_EQ(checkpoint::ForgeElement(healthy.checkpoint, element), absl::OkStatus());
  std::vector<std::string> messages(healthy.records.size());
  RunOptions resumed(spec);
  resumed.attempt = 2;
  resumed.restore.set_source(agent::v1::RestorePoint::SOURCE_STORAGE);
  resumed.restore.set_step(2);
  resumed.restore.set_directory(healthy.checkpoint);
  resumed.on_failure = [&](int rank, const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    messages[static_cast<size_t>(rank)] = std::string(status.message());
  };
  RunJob(resumed);
  return messages;
}
std::vector<std::string> MessagesAfterForging(const Layout& layout, job::v1::Precision precision,
                                              const checkpoint::ForgedElement& element) {
  return MessagesAfterForging(Toy(layout, precision), element);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(RankEngineTest, DivergenceNamesTheFirstLayerAndOperatorOnEveryRank) {
  for (const auto precision : {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16}) {
    const std::vector<std::string> messages = MessagesAfterForging(
        {2, 2}, precision, {.tensor = "model.layers.2.mlp.up.weight", .index = 5, .value = kNan});
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      EXPECT_EQ(messages[rank],
                absl::StrCat("rank ", rank,
                             ": step 3: N: training diverged at step 3: loss nan, gradient norm "
                             "nan; lower optimizer.lr, or look at the data; it began in layer 2: "
                             "matrix product with mlp.up.weight gave nan (micro-batch 0 of rank "
                             "2)"));
    }
  }
}

// Checks messages about a NaN that was forged into mlp.up.weight of layer 2.
void ExpectBeganInLayer2(const std::vector<std::string>& messages, int rank) {
  for (const std::string& message : messages) {
    EXPECT_TRUE(absl::EndsWith(
        message, absl::StrCat("it began in layer 2: matrix product with mlp.up.weight gave nan "
                              "(micro-batch 0 of rank ",
                              rank, ")")))
        << message;
  }
}

// With the interleaved schedule, layer 2 is in the second chunk of rank 0.
TEST(RankEngineTest, DivergenceNamesTheFirstLayerUnderEverySchedule) {
  for (const auto& [layout, rank] :
       {std::pair(Layout{1, 2, 2, kInterleaved}, 0),
        std::pair(Layout{1, 2, 1, job::v1::PIPELINE_SCHEDULE_GPIPE}, 1),
        std::pair(Layout{1, 2, 1, job::v1::PIPELINE_SCHEDULE_ZB_H1}, 1),
        std::pair(Layout{2, 2, 2, kInterleaved, 1, 2}, 0),
        std::pair(Layout{.data = 2, .pipeline = 2, .bucket_size = 1}, 2),
        std::pair(Layout{2, 2, 1, job::v1::PIPELINE_SCHEDULE_ZB_H1, 1, 2, 1}, 2)}) {
    const std::vector<std::string> messages =
        MessagesAfterForging(layout, job::v1::PRECISION_FP32,
                             {.tensor = "model.layers.2.mlp.up.weight", .index = 5, .value = kNan});
    ExpectBeganInLayer2(messages, rank);
  }
}

// A value that one rank computes reaches the other one exchange later.
TEST(RankEngineTest, DivergenceNamesTheTensorRankThatItBeganAt) {
  // [64, 16]: each rank has 32 rows.
  for (const auto& [row, rank] : {std::pair(3, 0), std::pair(40, 1)}) {
    const std::vector<std::string> messages = MessagesAfterForging(
        {.data = 1, .pipeline = 1, .tensor = 2}, job::v1::PRECISION_FP32,
        {.tensor = "model.layers.2.mlp.up.weight", .index = row * 16 + 5, .value = kNan});
    ASSERT_EQ(messages.size(), 2u);
    ExpectBeganInLayer2(messages, rank);
  }
}

TEST(RankEngineTest, DivergenceNamesWhatIsNoLayerToo) {
  const std::string begin = "it began in ";
  const auto began = [&](const std::string& tensor) {
    const std::string message =
        MessagesAfterForging({1, 2}, job::v1::PRECISION_FP32, {tensor, 0, kNan})[0];
    const size_t at = message.find(begin);
    return at == std::string::npos ? message : message.substr(at + begin.size());
  };
  EXPECT_EQ(began("model.embed_positions.weight"),
            "embedding with model.embed_tokens.weight gave nan (micro-batch 0 of rank 0)");
  EXPECT_EQ(began("model.norm.weight"),
            "norm with model.norm.weight gave nan (micro-batch 0 of rank 1)");
  EXPECT_EQ(began("lm_head.weight"),
            "matrix product with lm_head.weight gave nan (micro-batch 0 of rank 1)");
}

// Token 255 is in no text, so the matrix is bad only as the head's, on the last stage.
TEST(RankEngineTest, DivergenceNamesATiedHead) {
  const JobSpec spec = Tied(Toy({1, 2}, job::v1::PRECISION_FP32));
  for (const std::string& message : MessagesAfterForging(
           spec, {.tensor = "model.embed_tokens.weight", .index = 255 * 16, .value = kNan})) {
    EXPECT_TRUE(absl::EndsWith(message,
                               "matrix product with model.embed_tokens.weight gave nan "
                               "(micro-batch 0 of rank 1)"))
        << message;
  }
}

TEST(RankEngineTest, AStopFlagOfOneRankStopsAllAtTheSameStep) {
  const RunResult result = RunJob(RunOptions(Toy({2, 2}, job::v1::PRECISION_FP32)).StopAfter(2));
  for (const auto& records : result.records) EXPECT_EQ(records.size(), 2u);
}

}  // namespace
}  // namespace megascale::engine
