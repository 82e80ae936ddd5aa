// The commands of docs/hugging-face.md, in its order, with real processes: a model goes out as a
// Hugging Face folder, a job trains on from it in another layout while a worker is killed, and the
// result comes back.
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int64_t kFirstCheckpoint = 20;
constexpr int64_t kSteps = 150;

std::string ReadOrEmpty(const std::string& path) {
  return base::ReadFile(path, size_t{64} << 20).value_or("");
}

class HuggingFaceTest : public ::testing::Test {
 protected:
  HuggingFaceTest() {
    cluster_.StartDriver();
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
  }
  std::string Path(const std::string& name) const {
    return absl::StrCat(cluster_.directory(), "/", name);
  }
  void ExpectGood(const std::vector<std::string>& arguments) const {
    const CommandResult result = cluster_.Megascale(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments[0] << " " << arguments[1] << ": " << result.err;
  }
  // Trains a small Llama-shaped model with a tokenizer of its own, and exports it to `folder`.
  void TrainAndExport(const std::string& folder) const {
    cluster_.Submit(
        "base", {"model.norm=rmsnorm", "model.hidden_act=swiglu", "model.position_embedding=rotary",
                 "model.num_key_value_heads=2", "data.tokenizer_vocab_size=320", "train.steps=20",
                 absl::StrCat("data.token_cache=", Path("tokens"))});
    ASSERT_EQ(cluster_.WaitForEnd("base"), control::v1::JOB_STATE_SUCCEEDED);
    ExpectGood(
        {"checkpoint", "export", cluster_.checkpoints("base"), "--format", "hf", "--out", folder});
  }
  // Writes a job that trains on from `folder`, on a text that the folder's tokenizer never saw.
  std::string WriteSecondJob(const std::string& folder) const {
    std::string text;
    for (int i = 0; i < 1500; ++i)
      absl::StrAppend(&text, "Über ", i * 7919 % 1009, " words, no lines\n");
    EXPECT_TRUE(base::WriteFileDurably(Path("other"), text).ok());
    const std::string job = absl::StrReplaceAll(
        R"(name: more-llama
model:
  from: FOLDER
data:
  files: [OTHER]
  token_cache: TOKENS
train:
  steps: 150
  seq_length: 32
  global_batch_size: 16
  micro_batch_size: 4
parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
checkpoint:
  interval: 20
)",
        {{"FOLDER", folder}, {"OTHER", Path("other")}, {"TOKENS", Path("tokens")}});
    EXPECT_TRUE(base::WriteFileDurably(Path("more.yaml"), job).ok());
    return Path("more.yaml");
  }
  std::string Continuation(const std::string& path) const {
    return cluster_
        .Megascale({"generate", "--checkpoint", path, "--prompt", "the 9th of", "--temperature",
                    "0", "--tokens", "12", "--precision", "fp32"})
        .out;
  }

  Cluster cluster_;
};

TEST_F(HuggingFaceTest, AFolderIsTrainedOnInAnotherLayoutThroughAKillAndComesBack) {
  WriteJobFile(cluster_.directory());
  const std::string folder = Path("my-llama");
  TrainAndExport(folder);
  EXPECT_FALSE(Continuation(folder).empty());
  EXPECT_EQ(Continuation(folder), Continuation(cluster_.checkpoints("base")));

  const std::string job = WriteSecondJob(folder);
  ExpectGood({"submit", job, "--job-id", "calm"});
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  ExpectGood({"submit", job, "--job-id", "killed"});
  ASSERT_TRUE(cluster_.WaitForStep("killed", kFirstCheckpoint + 1));
  const Job before = cluster_.Status("killed");
  ASSERT_LT(before.last_step(), kSteps) << "the job ended before it could be disturbed";
  ASSERT_EQ(before.ranks_size(), 4);
  ::kill(before.ranks(1).status().pid(), SIGKILL);
  ASSERT_EQ(cluster_.WaitForEnd("killed"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Status("killed").attempt(), before.attempt() + 1);
  EXPECT_EQ(cluster_.LossLog("killed"), cluster_.LossLog("calm"));
  EXPECT_EQ(cluster_.LossLog("killed").size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(cluster_.Digest("killed"), cluster_.Digest("calm"));

  // An export of an import is the folder itself, byte for byte.
  ExpectGood({"checkpoint", "import", folder, "--out", Path("weights")});
  ExpectGood({"checkpoint", "verify", Path("weights")});
  ExpectGood({"checkpoint", "export", Path("weights"), "--out", Path("again")});
  int num_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string name = file.path().filename().string();
    EXPECT_EQ(ReadOrEmpty(absl::StrCat(Path("again"), "/", name)), ReadOrEmpty(file.path()))
        << name;
    ++num_files;
  }
  EXPECT_EQ(num_files, 4) << "weights, config.json, tokenizer.json, tokenizer_config.json";

  // What was trained on goes out with the files of the folder that it came from.
  ExpectGood({"checkpoint", "export", cluster_.checkpoints("killed"), "--out", Path("more")});
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(ReadOrEmpty(absl::StrCat(Path("more"), "/", name)),
              ReadOrEmpty(absl::StrCat(folder, "/", name)))
        << name;
  }
  EXPECT_NE(ReadOrEmpty(Path("more/model.safetensors")),
            ReadOrEmpty(absl::StrCat(folder, "/model.safetensors")));
}

}  // namespace
}  // namespace megascale::e2e
