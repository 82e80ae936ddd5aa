// Jobs that begin with the weights of a Hugging Face folder, or of a checkpoint: under any layout
// with the same weights, and with the loss with which the job that made them went on.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/engine/testing/shown_while_loading.h"
#include "runtime/engine/testing/test_job.h"
#include "runtime/hugging_face/import.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/job/job_spec.h"

namespace megascale::engine {
namespace {

using job::v1::JobSpec;

struct Layout {
  int data, pipeline, tensor;
  int virtual_stages = 1;
  int zero = 1;
};

// Resolves a job under a layout. No layout divides its vocabulary.
JobSpec UnderLayout(JobSpec spec, const Layout& layout) {
  spec.mutable_model()->set_vocab_size(259);
  spec.mutable_model()->set_num_attention_heads(4);
  spec.mutable_train()->set_steps(1);
  spec.mutable_parallel()->set_tensor_model_parallel_size(layout.tensor);
  spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(layout.virtual_stages);
  spec.mutable_parallel()->set_zero_stage(layout.zero);
  if (layout.virtual_stages > 1) {
    spec.mutable_parallel()->set_pipeline_schedule(job::v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B);
  }
  return job::ResolveJobSpec(spec).value();
}

// Qwen3 with two key/value heads, which four tensor ranks share.
JobSpec QwenJob(const Layout& layout) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  job::v1::ModelSpec& model = *spec.mutable_model();
  model.set_num_key_value_heads(2);
  model.set_head_dim(6);
  MakeLikeLlama(&model);
  model.set_qk_norm(true);
  return UnderLayout(spec, layout);
}

// GPT-2, whose folder has the matrices transposed.
JobSpec Gpt2Job(const Layout& layout) {
  JobSpec spec = ToyJob(WriteTestText("text"), layout.data, layout.pipeline);
  spec.mutable_model()->set_num_key_value_heads(4);
  spec.mutable_model()->set_head_dim(4);
  return UnderLayout(spec, layout);
}

// NeoX, whose folder has queries, keys and values head by head.
JobSpec NeoXJob(const Layout& layout) {
  JobSpec spec = Gpt2Job(layout);
  spec.mutable_model()->set_position_embedding(job::v1::POSITION_EMBEDDING_ROTARY);
  spec.mutable_model()->set_parallel_block(true);
  spec.mutable_model()->set_num_ln_in_parallel_attn(2);
  return job::ResolveJobSpec(spec).value();
}

// A learning rate that is 0 in single precision leaves every weight as it is, a weight of 0 too.
JobSpec WithoutLearning(JobSpec spec) {
  spec.mutable_optimizer()->set_lr(1e-50);
  spec.mutable_optimizer()->set_min_lr(1e-50);
  return spec;
}

Tensors WeightsOf(const RunResult& result) {
  Tensors weights = ReadTensors(result);
  for (auto it = weights.begin(); it != weights.end();) {
    it = absl::StartsWith(it->first, "optimizer.") ? weights.erase(it) : std::next(it);
  }
  return weights;
}

class InitialWeightsTest : public ::testing::Test {
 protected:
  InitialWeightsTest() : path_(absl::StrCat(::getenv("TEST_TMPDIR"), "/weights-XXXXXX")) {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~InitialWeightsTest() override { std::filesystem::remove_all(path_); }

  std::string folder() const { return path_ + "/folder"; }
  std::string imported() const { return path_ + "/imported"; }

  // Trains a step under some layout, and writes the weights as a folder and as an import of it.
  Tensors TrainAndExport(JobSpec (*job)(const Layout&) = QwenJob) {
    const RunResult trained = RunJob(RunOptions(job({2, 2, 1})));
    EXPECT_EQ(hugging_face::Export({.checkpoint = trained.checkpoint, .folder = folder()}).status(),
              absl::OkStatus());
    EXPECT_EQ(hugging_face::Import(folder(), imported()).status(), absl::OkStatus());
    checkpoint_ = trained.checkpoint;
    return WeightsOf(trained);
  }

  std::string path_;
  std::string checkpoint_;
};

TEST_F(InitialWeightsTest, EveryLayoutBeginsWithTheSameWeightsWhereverTheyCameFrom) {
  const Tensors expected = TrainAndExport();
  for (const Layout& layout :
       {Layout{1, 1, 1}, Layout{2, 1, 1}, Layout{1, 4, 1}, Layout{1, 1, 2}, Layout{2, 2, 2},
        Layout{1, 1, 4}, Layout{2, 1, 4}, Layout{2, 2, 1, /*virtual_stages=*/2, /*zero=*/2}}) {
    for (const std::string& from : {folder(), imported(), checkpoint_}) {
      SCOPED_TRACE(absl::StrCat("data ", layout.data, ", pipeline ", layout.pipeline, ", tensor ",
                                layout.tensor, ", virtual stages ", layout.virtual_stages,
                                ", from ", from));
      JobSpec spec = WithoutLearning(QwenJob(layout));
      spec.mutable_model()->set_from(from);
      EXPECT_EQ(WeightsOf(RunJob(RunOptions(spec))), expected);
    }
  }
}

// Every tensor-parallel rank reads a part of each tensor, every shard of the optimizer a range that
// begins within a row: parts of what the folder has transposed, or head by head.
TEST_F(InitialWeightsTest, FoldersThatArrangeTheirTensorsInAnotherWayAreTheSameUnderEveryLayout) {
  const struct {
    JobSpec (*job)(const Layout&);
    const char* architecture;
  } families[] = {{Gpt2Job, "GPT2LMHeadModel"}, {NeoXJob, "GPTNeoXForCausalLM"}};
  for (const auto& family : families) {
    std::filesystem::remove_all(folder());
    std::filesystem::remove_all(imported());
    const Tensors expected = TrainAndExport(family.job);
    const std::string config = base::ReadFile(folder() + "/config.json", 1 << 20).value();
    ASSERT_TRUE(absl::StrContains(config, family.architecture)) << config;
    for (const Layout& layout :
         {Layout{1, 1, 2}, Layout{1, 1, 4}, Layout{2, 2, 1}, Layout{2, 1, 2}}) {
      SCOPED_TRACE(absl::StrCat(family.architecture, ", data ", layout.data, ", pipeline ",
                                layout.pipeline, ", tensor ", layout.tensor));
      JobSpec spec = WithoutLearning(family.job(layout));
      spec.mutable_model()->set_from(folder());
      EXPECT_EQ(WeightsOf(RunJob(RunOptions(spec))), expected);
    }
  }
}

// Trained for a step on two stages, exported, and begun again on any number of them.
TEST_F(InitialWeightsTest, ATiedModelIsTheSameUnderEveryLayoutToo) {
  const auto tied = [](JobSpec spec) {
    spec.mutable_model()->set_tie_word_embeddings(true);
    return spec;
  };
  const RunResult trained = RunJob(RunOptions(tied(QwenJob({2, 2, 1}))));
  ASSERT_EQ(hugging_face::Export({.checkpoint = trained.checkpoint, .folder = folder()}).status(),
            absl::OkStatus());
  ASSERT_EQ(hugging_face::Import(folder(), imported()).status(), absl::OkStatus());
  const Tensors expected = WeightsOf(trained);
  EXPECT_EQ(expected.count("lm_head.weight"), 0u);
  for (const Layout& layout :
       {Layout{1, 1, 1}, Layout{1, 2, 1}, Layout{1, 4, 1}, Layout{2, 2, 2}}) {
    SCOPED_TRACE(absl::StrCat("data ", layout.data, ", pipeline ", layout.pipeline));
    for (const std::string& from : {folder(), imported(), trained.checkpoint}) {
      JobSpec spec = WithoutLearning(tied(QwenJob(layout)));
      spec.mutable_model()->set_from(from);
      EXPECT_EQ(WeightsOf(RunJob(RunOptions(spec))), expected) << from;
    }
  }
}

TEST_F(InitialWeightsTest, RanksThatShareAHeadExportTheFolderThatTheyBeganWith) {
  TrainAndExport();
  JobSpec spec = WithoutLearning(QwenJob({2, 1, 4}));
  spec.mutable_model()->set_from(folder());
  const std::string out = path_ + "/out";
  const std::string checkpoint = RunJob(RunOptions(spec)).checkpoint;
  ASSERT_EQ(hugging_face::Export({.checkpoint = checkpoint, .folder = out}).status(),
            absl::OkStatus());
  EXPECT_EQ(base::ReadFile(out + "/model.safetensors", 1 << 24).value(),
            base::ReadFile(folder() + "/model.safetensors", 1 << 24).value());
}

TEST_F(InitialWeightsTest, TiedWeightsMayBeUntied) {
  JobSpec tied = QwenJob({1, 1, 1});
  tied.mutable_model()->set_tie_word_embeddings(true);
  const RunResult trained = RunJob(RunOptions(tied));
  const Tensors expected = WeightsOf(trained);
  JobSpec untied = WithoutLearning(QwenJob({1, 2, 1}));
  untied.mutable_model()->set_from(trained.checkpoint);
  const Tensors weights = WeightsOf(RunJob(RunOptions(untied)));
  EXPECT_EQ(weights.at("lm_head.weight"), expected.at("model.embed_tokens.weight"));
  EXPECT_EQ(weights.at("model.embed_tokens.weight"), expected.at("model.embed_tokens.weight"));
}

TEST_F(InitialWeightsTest, AnExportKeepsTheFoldersConfigurationAndTokenizer) {
  TrainAndExport();
  std::ofstream(folder() + "/tokenizer.json") << "{}";
  JobSpec spec = QwenJob({2, 1, 1});
  for (const std::string& from : {folder(), std::string()}) {  // then from that job's checkpoint
    spec.mutable_model()->set_from(from.empty() ? checkpoint_ : from);
    checkpoint_ = RunJob(RunOptions(spec)).checkpoint;
    std::ofstream(checkpoint_ + "/tokenizer.json") << "{}";  // as a host process keeps it
  }
  const std::string out = path_ + "/out";
  ASSERT_EQ(hugging_face::Export({.checkpoint = checkpoint_, .folder = out}).status(),
            absl::OkStatus());
  EXPECT_TRUE(std::filesystem::exists(out + "/tokenizer.json"));
  EXPECT_EQ(base::ReadFile(out + "/config.json", 1 << 20).value(),
            base::ReadFile(folder() + "/config.json", 1 << 20).value());
}

TEST_F(InitialWeightsTest, ReadingThemShowsItsProgressWhileItLasts) {
  TrainAndExport();
  JobSpec spec = QwenJob({2, 1, 1});
  for (const std::string& from : {folder(), checkpoint_}) {
    spec.mutable_model()->set_from(from);
    for (const ShownByRank& rank : ShownWhileLoading(RunOptions(spec))) {
      std::set<int> shares;
      for (const telemetry::v1::RankStatus& shown : rank.meanwhile) {
        if (shown.activity() != telemetry::v1::ACTIVITY_READ_CHECKPOINT) continue;
        EXPECT_EQ(shown.total(), 100);
        EXPECT_GE(shown.progress_age_seconds(), 0);
        EXPECT_TRUE(shares.empty() || shown.done() >= *shares.rbegin()) << "it only grows";
        shares.insert(shown.done());
      }
      EXPECT_EQ(shares.count(0), 1u) << from;
      EXPECT_GT(shares.size(), 2u) << from << ": tensors were read between the looks";
      EXPECT_EQ(rank.at_end.activity(), telemetry::v1::ACTIVITY_UNSPECIFIED);
    }
  }
}

TEST_F(InitialWeightsTest, WeightsOfAnotherModelAreRefusedOnEveryRank) {
  TrainAndExport();
  JobSpec spec = QwenJob({1, 1, 1});
  spec.mutable_model()->set_from(folder());
  spec.mutable_model()->set_intermediate_size(48);
  RunOptions options(spec);
  options.on_load = [&](int, const absl::StatusOr<std::string>& loaded) {
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(
        loaded.status().message(),
        "model.layers.0.mlp.up.weight has the shape [128, 16], the job's model wants [96, 16]"))
        << loaded.status();
  };
  RunJob(options);
}

}  // namespace
}  // namespace megascale::engine
