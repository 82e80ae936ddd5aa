// What docs/hugging-face.md promises, with real processes: a model goes out as a Hugging Face
// folder, a job trains on from it in another layout while a worker is killed, and the result comes
// back. The page's own commands are run as well.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
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
    cluster_.Submit("base", {"model.norm=rmsnorm", "model.hidden_act=swiglu",
                             "model.position_embedding=rotary", "model.num_key_value_heads=2",
                             "model.max_position_embeddings=512", "data.tokenizer_vocab_size=320",
                             "train.steps=20", absl::StrCat("data.token_cache=", Path("tokens"))});
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

// What a page has a reader type, and what it shows.
struct Page {
  std::string job;                    // the block of YAML
  std::vector<std::string> commands;  // in their order, with one of `a|b|c` in each
  std::string refusal;                // the block that shows an error
};

// Appends a command, or one for each of the words of `checkpoint inspect|verify weights`.
void AddCommands(const std::string& text, std::vector<std::string>* commands) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  const auto choice = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return absl::StrContains(word, '|');
  });
  if (choice == words.end()) {
    commands->push_back(text);
    return;
  }
  for (const absl::string_view word : absl::StrSplit(*choice, '|')) {
    commands->push_back(absl::StrReplaceAll(text, {{*choice, word}}));
  }
}

// Blocks without a language are commands or a message; in the text, commands with arguments are in
// quotes.
Page ReadPage(const std::string& text) {
  Page page;
  std::string fence;  // of the block that the line is in
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    if (absl::StartsWith(line, "```")) {
      fence = fence.empty() ? line : "";
    } else if (fence == "```yaml") {
      absl::StrAppend(&page.job, line, "\n");
    } else if (fence == "```" && absl::StartsWith(line, "megascale ")) {
      AddCommands(line, &page.commands);
    } else if (fence == "```") {
      absl::StrAppend(&page.refusal, line, "\n");
    } else {
      const std::vector<std::string> parts = absl::StrSplit(line, '`');
      for (size_t i = 1; i < parts.size(); i += 2) {
        if (std::count(parts[i].begin(), parts[i].end(), ' ') < 2) continue;
        if (absl::StartsWith(parts[i], "megascale ")) AddCommands(parts[i], &page.commands);
      }
    }
  }
  return page;
}

TEST_F(HuggingFaceTest, ThePagesOwnCommandsWork) {
  WriteJobFile(cluster_.directory());
  TrainAndExport(Path("llama"));
  std::string text = ReadOrEmpty(Runfile("docs/hugging-face.md"));
  // A reader has other paths, and a test has no time for a thousand steps.
  ASSERT_TRUE(absl::StrContains(text, "\n  steps: 1000\n"));
  text = absl::StrReplaceAll(text, {{"/models/llama", Path("llama")},
                                    {"/data/text", Path("text")},
                                    {"\n  steps: 1000\n", "\n  steps: 2\n"}});
  const Page page = ReadPage(text);
  const std::string here = Path("reader");
  ASSERT_TRUE(std::filesystem::create_directories(here));
  ASSERT_TRUE(base::WriteFileDurably(here + "/job.yaml", page.job).ok());
  const auto type = [&](const std::string& command) {
    const std::string search = std::filesystem::path(Program()).parent_path().string();
    return e2e::Run({"/bin/sh", "-c", absl::StrCat("cd ", here, " && ", command)},
                    {{"PATH", absl::StrCat(search, ":", ::getenv("PATH"))},
                     {"XDG_RUNTIME_DIR", here},
                     {"XDG_STATE_HOME", here},
                     {"NO_COLOR", "1"}});
  };
  for (const std::string& command : page.commands) {
    const CommandResult result = type(command);
    EXPECT_EQ(result.exit_code, 0) << command << ": " << result.out << result.err;
  }
  EXPECT_EQ(page.commands.size(), 8u) << "submit, local, import, three that read, export, evaluate";
  EXPECT_TRUE(std::filesystem::exists(here + "/my-llama/config.json"));
  EXPECT_NE(ReadOrEmpty(here + "/my-llama/model.safetensors"),
            ReadOrEmpty(Path("llama/model.safetensors")));

  const std::string from = absl::StrCat("  from: ", Path("llama"));
  const size_t end_of_line = page.job.find('\n', page.job.find(from));
  std::string contradicts = page.job;
  contradicts.insert(end_of_line, "\n  hidden_size: 4096");
  ASSERT_TRUE(base::WriteFileDurably(here + "/job.yaml", contradicts).ok());
  const CommandResult refused = type("megascale submit job.yaml");
  EXPECT_EQ(refused.exit_code, 2);
  const std::string expected = absl::StrReplaceAll(page.refusal, {{"has 2048", "has 64"}});
  EXPECT_TRUE(absl::StrContains(refused.err, expected)) << refused.err << "expected " << expected;
}

}  // namespace
}  // namespace megascale::e2e
