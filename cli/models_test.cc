// The commands that read and write models and tokenizers, from the outside; none needs a driver.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/testing/test_program.h"
#include "runtime/base/fd.h"
#include "runtime/data/tokenizer/testing/letters_tokenizer.h"
#include "runtime/hugging_face/testing/test_folder.h"

namespace megascale::cli {
namespace {

using hugging_face::TestFolder;
using tokenizer::kLettersEnd;
using tokenizer::NineLetters;

class ModelsTest : public ProgramTest {
 protected:
  // As Run, with a folder for tokens of its own.
  Outcome RunWithState(const std::string& words) {
    return Shell(absl::StrCat("XDG_STATE_HOME=", directory_, " timeout 60 cli/megascale ", words));
  }
};

TEST_F(ModelsTest, AHuggingFaceFolderComesBackFromACheckpoint) {
  const TestFolder folder;
  const std::string weights = directory_ + "/weights", out = directory_ + "/out-folder";
  const Outcome imported =
      Run(absl::StrCat("checkpoint import ", folder.path(), " --out ", weights));
  EXPECT_EQ(imported.code, 0) << imported.error;
  EXPECT_TRUE(absl::StrContains(imported.out, "/weights: 9 tensors in 1 file, "));
  const Outcome seen = Run(absl::StrCat("checkpoint inspect -o json ", weights));
  EXPECT_TRUE(absl::StrContains(seen.out, "CHECKPOINT_KIND_WEIGHTS")) << seen.out;
  EXPECT_EQ(Run(absl::StrCat("checkpoint verify ", weights)).code, 0);
  const std::string exporting = absl::StrCat("checkpoint export ", weights, " --out ", out);
  EXPECT_EQ(Run(exporting + " --format hf --dtype bf16").code, 0);
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors"));
  EXPECT_TRUE(absl::StrContains(Run(exporting).error, "is not empty: expected a new folder"));
  EXPECT_EQ(Run(absl::StrCat("checkpoint export ", weights)).code, 2);
  EXPECT_EQ(Run(absl::StrCat(exporting, " --dtype fp8")).error,
            "megascale: --dtype fp8: expected fp32, bf16 or fp16\n");
  folder.Remove("model.safetensors");
  const Outcome refused =
      Run(absl::StrCat("checkpoint import ", folder.path(), " --out ", directory_, "/other"));
  EXPECT_EQ(refused.code, 4);
  EXPECT_TRUE(absl::StrContains(refused.error, ": has no weights: expected model.safetensors"));
}

TEST_F(ModelsTest, GenerateChecksItsOptionsFirst) {
  for (const char* option :
       {"--tokens -1", "--temperature -1", "--top-k -1", "--top-p 0", "--batch 0",
        "--precision int8", "--threads -1", "--prompt a --prompts -"}) {
    const Outcome refused = Run(absl::StrCat("generate --checkpoint /nonexistent ", option));
    EXPECT_EQ(refused.code, 2) << refused.error;
    EXPECT_EQ(refused.out, "") << "the prompt";
    EXPECT_TRUE(absl::StartsWith(refused.error, "megascale: --")) << refused.error;
  }
}

// The weights are zero, so that the most likely token is always 0: in this tokenizer a byte.
TEST_F(ModelsTest, GenerateContinuesPromptsOfAHuggingFaceFolder) {
  const TestFolder folder;
  folder.Write("tokenizer.json", NineLetters());
  const std::string generate =
      absl::StrCat("generate --checkpoint ", folder.path(), " --temperature 0 --tokens 3 ");
  const Outcome two = Run(generate + "--prompt bad --prompt i");
  EXPECT_EQ(two.code, 0) << two.error;
  EXPECT_EQ(two.out, "badaaa\n\niaaa\n");
  std::ofstream(directory_ + "/prompts") << "bad\ni\n";
  EXPECT_EQ(Run(absl::StrCat(generate, "--batch 1 --prompts ", directory_, "/prompts")).out,
            two.out);
  const Outcome json =
      Run(absl::StrCat(generate, "-o json --prompts - < ", directory_, "/prompts"));
  EXPECT_EQ(json.out,
            "{\"prompt\": \"bad\", \"text\": \"aaa\", \"prompt_tokens\": 3, \"tokens\": 3, "
            "\"end\": \"tokens\"}\n"
            "{\"prompt\": \"i\", \"text\": \"aaa\", \"prompt_tokens\": 1, \"tokens\": 3, "
            "\"end\": \"tokens\"}\n");
  const Outcome ended = Run(generate + "-o json --prompt bad --stop-token a");
  EXPECT_TRUE(absl::StrContains(ended.out, "\"tokens\": 0, \"end\": \"end token\"")) << ended.out;
  // As Notepad saves them.
  std::ofstream(directory_ + "/prompts") << "\xEF\xBB\xBF"
                                         << "bad\r\ni\r\n";
  for (const char* from : {"-o json --prompts ", "-o json --prompts - < "}) {
    EXPECT_EQ(Run(absl::StrCat(generate, from, directory_, "/prompts")).out, json.out);
  }
  std::ofstream(directory_ + "/prompts") << "bad\n\ni\n";
  EXPECT_EQ(Run(absl::StrCat(generate, "--prompts ", directory_, "/prompts")).error,
            absl::StrCat("megascale: ", directory_, "/prompts:2: is empty; expected a prompt\n"));
  std::ofstream(directory_ + "/prompts") << "bad\n\xFF\n";
  EXPECT_EQ(Run(absl::StrCat(generate, "--prompts ", directory_, "/prompts")).error,
            absl::StrCat("megascale: ", directory_,
                         "/prompts:2: is not UTF-8; expected text in UTF-8\n"));
}

// A process whose standard output is read here.
class Piped {
 public:
  explicit Piped(std::vector<std::string> command) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      std::vector<char*> arguments;
      for (std::string& word : command) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    out_ = base::UniqueFd(ends[0]);
  }
  ~Piped() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // Returns what comes next; empty: nothing came within a minute, or the process has ended.
  std::string ReadSome() const {
    pollfd readable = {.fd = out_.get(), .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, 60'000) != 1) return "";
    char buffer[4096];
    const ssize_t count = ::read(out_.get(), buffer, sizeof(buffer));
    return count > 0 ? std::string(buffer, static_cast<size_t>(count)) : "";
  }
  bool IsRunning() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }

 private:
  pid_t pid_ = -1;
  base::UniqueFd out_;
};

TEST_F(ModelsTest, TextIsSeenWhileItIsGenerated) {
  const TestFolder folder;
  folder.Write("tokenizer.json", NineLetters());
  const Piped generate({"cli/megascale", "generate", "--checkpoint", folder.path(), "--temperature",
                        "0", "--tokens", "1000000", "--prompt", "bad"});
  const std::string prompt = "bad";
  std::string seen = generate.ReadSome();
  while (!seen.empty() && seen.size() <= prompt.size()) {
    const std::string more = generate.ReadSome();
    if (more.empty()) break;
    seen += more;
  }
  EXPECT_TRUE(absl::StartsWith(seen, "bada")) << seen;
  EXPECT_LT(seen.size(), 100'000u) << "a million tokens are to come";
  EXPECT_TRUE(generate.IsRunning());
}

// All weights are zero: each of the ten tokens has the same probability.
TEST_F(ModelsTest, EvaluateMeasuresWeightsThatNoJobHasTrained) {
  const TestFolder folder;
  folder.Write("tokenizer.json", NineLetters());
  const std::string imported = directory_ + "/weights";
  ASSERT_EQ(Run(absl::StrCat("checkpoint import ", folder.path(), " --out ", imported)).code, 0);
  const std::string options = absl::StrCat(" --data ", text_, " --whole --seq-length ");
  for (const std::string& model : {folder.path(), imported}) {
    const std::string evaluate = absl::StrCat("evaluate --checkpoint ", model, options);
    const Outcome json = RunWithState(evaluate + "64 -o json");
    EXPECT_EQ(json.code, 0) << json.error;
    EXPECT_TRUE(absl::StrContains(json.out, "\"loss\": 2.30258")) << json.out;
    EXPECT_TRUE(absl::StrContains(json.out, "\"num_tokens\": 4992")) << json.out;
    EXPECT_FALSE(absl::StrContains(json.out, "step")) << json.out;
    EXPECT_EQ(RunWithState(evaluate + "64").out,
              "3.3219 bits per byte over 4,992 bytes, 4,992 of 5,001 tokens\n"
              "loss 2.3026 nats per token, perplexity 10.00\n");
    const Outcome long_windows = RunWithState(evaluate + "2049");
    EXPECT_EQ(long_windows.code, 2);
    EXPECT_EQ(long_windows.error,
              "megascale: --seq-length: 2049 is out of range; expected 1 to 2048, the model's "
              "longest sequence\n");
    std::ofstream(directory_ + "/short") << "ab";
    const Outcome few = RunWithState(absl::StrCat("evaluate --checkpoint ", model, " --data ",
                                                  directory_, "/short --seq-length 64"));
    EXPECT_EQ(few.code, 2);
    EXPECT_TRUE(absl::StartsWith(few.error, absl::StrCat("megascale: the held-out part of ",
                                                         directory_, "/short (--whole ")))
        << few.error;
    const Outcome no_text = RunWithState(absl::StrCat("evaluate --checkpoint ", model));
    EXPECT_EQ(no_text.code, 2);
    EXPECT_TRUE(absl::StartsWith(no_text.error, "megascale: --data: is missing; these weights"))
        << no_text.error;
  }
}

TEST_F(ModelsTest, EvaluateIsToldWhatEndsADocument) {
  const TestFolder folder;
  const std::string evaluate =
      absl::StrCat("evaluate --seq-length 64 --checkpoint ", folder.path());
  EXPECT_TRUE(absl::StartsWith(RunWithState(evaluate).error, "megascale: --data: is missing; "))
      << "before the tokenizer and the weights are read";
  folder.Write("tokenizer.json", absl::StrReplaceAll(NineLetters(), {{kLettersEnd, "<|stop|>"}}));
  const std::string measure = absl::StrCat(evaluate, " --data ", text_);
  const Outcome refused = RunWithState(measure);
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(absl::StartsWith(refused.error, "megascale: --end-token: is missing; "))
      << refused.error;
  const Outcome measured = RunWithState(measure + " --end-token '<|stop|>'");
  EXPECT_EQ(measured.code, 0) << measured.error;
}

TEST_F(ModelsTest, WeightsThatReadBytesNeedNoTokenizer) {
  TestFolder folder;
  folder.Write("config.json", absl::StrReplaceAll(hugging_face::kLlamaConfig,
                                                  {{"\"vocab_size\": 10", "\"vocab_size\": 256"}}));
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    folder.shapes()[name] = {256, 8};
  }
  folder.WriteWeights("model.safetensors", folder.shapes());
  const std::string imported = directory_ + "/weights";
  ASSERT_EQ(Run(absl::StrCat("checkpoint import ", folder.path(), " --out ", imported)).code, 0);
  const std::string generate = absl::StrCat("generate --checkpoint ", imported, " --tokens 3");
  EXPECT_TRUE(absl::StrContains(Run(generate).error, "say --tokenizer bytes if every byte is a"));
  const Outcome generated = Run(generate + " --temperature 0 --prompt ab --tokenizer bytes");
  EXPECT_EQ(generated.code, 0) << generated.error;
  EXPECT_EQ(generated.out, std::string("ab\0\0\0\n", 6));
  const Outcome measured = RunWithState(absl::StrCat(
      "evaluate --tokenizer bytes --checkpoint ", imported, " --data ", text_, " --seq-length 64"));
  EXPECT_EQ(measured.code, 0) << measured.error;
  EXPECT_TRUE(absl::StrContains(measured.out, "8.0000 bits per byte over ")) << measured.out;
}

constexpr char kTrainText[] = "tests/golden/tokenizer/train.txt";

std::string OneLine(const std::string& text) { return std::string(absl::StripSuffix(text, "\n")); }

TEST_F(ModelsTest, TokenizersAreTrainedAndGiveTheTextBackUnderEverySplit) {
  std::ofstream numbers(text_);
  for (int i = 0; i < 50; ++i) numbers << "12345 12345\n";
  numbers.close();
  std::vector<std::string> ids;
  for (const std::string split : {"gpt2", "llama3", "qwen2"}) {
    const std::string file = absl::StrCat(directory_, "/", split, ".json");
    const Outcome trained = Run(absl::StrCat("tokenizer train --vocab-size 500 --split ", split,
                                             " ", kTrainText, " ", text_, " --out ", file));
    EXPECT_EQ(trained.code, 0) << trained.error;
    EXPECT_TRUE(absl::StartsWith(trained.out, file + ": 500 tokens from ")) << trained.out;
    const Outcome shown = Run("tokenizer inspect " + file);
    EXPECT_TRUE(absl::StrContains(shown.out, "byte-level BPE, split as " + split)) << shown.out;
    EXPECT_TRUE(absl::StrContains(shown.out, "vocabulary of 500 tokens, 1 of them added"));
    const std::string with = absl::StrCat(" --tokenizer ", file, " ");
    const Outcome encoded = Run(absl::StrCat("tokenizer encode", with, kTrainText));
    EXPECT_EQ(encoded.code, 0) << encoded.error;
    std::ofstream(directory_ + "/ids") << encoded.out;
    const Outcome decoded = Run(absl::StrCat("tokenizer decode", with, directory_, "/ids"));
    EXPECT_EQ(OneLine(decoded.out), ReadAll(kTrainText)) << split;
    const Outcome one = Run(absl::StrCat("tokenizer encode", with, "--text \"They'LL pay 12345\""));
    ids.push_back(one.out);
    EXPECT_EQ(Run(absl::StrCat("tokenizer decode", with, "--ids '", OneLine(one.out), "'")).out,
              "They'LL pay 12345\n");
  }
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_NE(ids[1], ids[2]) << "Qwen takes every digit alone";
  const std::string with = absl::StrCat(" --tokenizer ", directory_, "/gpt2.json ");
  std::ofstream(directory_ + "/two") << ids[0] << "\n" << ids[0];
  EXPECT_EQ(Run(absl::StrCat("tokenizer decode", with, directory_, "/two")).out,
            "They'LL pay 12345\nThey'LL pay 12345\n");
  const Outcome empty = Run(absl::StrCat("tokenizer encode", with, "--text ''"));
  EXPECT_EQ(empty.code, 0) << empty.error;
  EXPECT_EQ(empty.out, "\n") << "no tokens stand around a text here";
  const Outcome unknown =
      Run(absl::StrCat("tokenizer train --vocab-size 500 --split words ", text_, " --out x"));
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.error, "megascale: --split: expected gpt2, llama3 or qwen2, found 'words'\n");
}

TEST_F(ModelsTest, AFolderOfTextIsTheSameForEveryCommandThatReadsIt) {
  const std::string folder = directory_ + "/texts";
  std::filesystem::create_directories(folder + "/sub");
  std::ofstream(folder + "/.part.crc") << std::string(100, '\0');
  std::ofstream(folder + "/_SUCCESS").close();
  std::ofstream(folder + "/top.jsonl") << "{\"text\": \"one two one two\"}\n";
  std::ofstream(folder + "/sub/more.jsonl") << "{\"text\": \"three three three\"}\n";
  std::filesystem::create_symlink("../top.jsonl", folder + "/sub/link.jsonl");
  const std::string file = directory_ + "/folder.json";
  const std::string line = absl::StrCat(
      folder, ": 2 files, 58 bytes; left out: 1 hidden, 1 empty, 1 further name of the same\n");
  const Outcome trained = Run(
      absl::StrCat("tokenizer train --vocab-size 300 --json-field text ", folder, " --out ", file));
  EXPECT_EQ(trained.code, 0) << trained.error;
  EXPECT_TRUE(absl::StartsWith(trained.error, line)) << trained.error;
  const Outcome encoded =
      Run(absl::StrCat("tokenizer encode --tokenizer ", file, " --json-field text ", folder,
                       " --out ", directory_, "/f"));
  EXPECT_TRUE(absl::StrContains(encoded.out, " tokens in 2 documents\n")) << encoded.out;
  EXPECT_TRUE(absl::StartsWith(encoded.error, line)) << encoded.error;
  const TestFolder model;
  model.Write("tokenizer.json", NineLetters());
  std::ofstream(folder + "/top.jsonl") << "{\"text\": \"" << std::string(100, 'a') << "\"}\n";
  const Outcome measured =
      RunWithState(absl::StrCat("evaluate --whole --seq-length 8 --json-field text --checkpoint ",
                                model.path(), " --data ", folder));
  EXPECT_EQ(measured.code, 0) << measured.error;
  EXPECT_TRUE(absl::StrContains(
      measured.error,
      absl::StrCat(
          "warning: data.files: ", std::filesystem::canonical(folder).string(),
          ": 2 files, 143 bytes; left out: 1 hidden, 1 empty, 1 further name of the same\n")))
      << measured.error;
}

TEST_F(ModelsTest, TokenFilesAreCountedAndBadLinesNamedOrSkipped) {
  const std::string file = directory_ + "/tokenizer.json", lines = directory_ + "/lines.jsonl";
  ASSERT_EQ(
      Run(absl::StrCat("tokenizer train --vocab-size 300 ", kTrainText, " --out ", file)).code, 0);
  std::ofstream(lines) << "{\"text\": \"one two\"}\n{\"body\": 1}\n{\"text\": \"three\"}\n";
  const std::string encode =
      absl::StrCat("tokenizer encode --tokenizer ", file, " --json-field text ", lines);
  const Outcome refused = Run(absl::StrCat(encode, " --out ", directory_, "/t"));
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.error, absl::StrCat("megascale: ", lines,
                                        ":2: has no field 'text'; expected one with the text\n"));
  const Outcome printed = Run(encode + " --skip-bad");
  const std::vector<std::string> words =
      absl::StrSplit(printed.out, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  const Outcome written = Run(absl::StrCat(encode, " --skip-bad --out ", directory_, "/t"));
  EXPECT_EQ(written.code, 0) << written.error;
  // Each document gets an end token.
  EXPECT_EQ(written.out,
            absl::StrCat(directory_, "/t: ", words.size() + 2, " tokens in 2 documents\n"));
  EXPECT_TRUE(absl::StrContains(written.error, lines + ": skipped 1 bad document\n"));

  std::ofstream(text_) << "good\nb\xFF"
                       << "d\n";
  const std::string train = absl::StrCat("tokenizer train --vocab-size 300 ", text_, " --out ",
                                         directory_, "/other.json");
  EXPECT_EQ(Run(train).error, absl::StrCat("megascale: ", text_,
                                           ":2: is not UTF-8 at byte 6 of the file; convert "
                                           "it, or leave such bytes out with --skip-bad\n"));
  const Outcome skipped = Run(train + " --skip-bad");
  EXPECT_EQ(skipped.code, 0);
  EXPECT_TRUE(absl::StrContains(skipped.error, ": skipped 1 bytes that are not UTF-8"));
}

TEST_F(ModelsTest, AJobGoesOnOnlyFromACheckpointWithOptimizerState) {
  const TestFolder folder;
  const std::string weights = directory_ + "/weights";
  ASSERT_EQ(Run(absl::StrCat("checkpoint import ", folder.path(), " --out ", weights)).code, 0);
  for (const char* name : {"/empty", "/damaged", "/newer"}) {
    std::filesystem::create_directories(directory_ + name);
  }
  std::ofstream(directory_ + "/damaged/manifest.json") << "{\"step\": ";
  std::ofstream(directory_ + "/newer/manifest.json") << "{\"format_version\": 99}";
  for (const char* command : {"submit examples/tiny.yaml --dry-run --from ",
                              "local examples/tiny.yaml --state-dir STATE --from "}) {
    const std::string from = absl::StrReplaceAll(command, {{"STATE", directory_ + "/state"}});
    const Outcome refused = Run(from + weights);
    EXPECT_EQ(refused.code, 2) << refused.error;
    EXPECT_TRUE(absl::EndsWith(refused.error,
                               "/weights: holds weights alone, no optimizer state to go on from; "
                               "begin with them by model.from\n"))
        << refused.error;
    const Outcome damaged = Run(absl::StrCat(from, directory_, "/damaged"));
    EXPECT_EQ(damaged.code, 1) << damaged.error;
    EXPECT_TRUE(absl::StrContains(damaged.error, "it was damaged or half-written"));
  }
  // The machines that train may see a checkpoint there, or read a newer one.
  for (const std::string& path :
       {std::string("/nowhere"), directory_ + "/empty", directory_ + "/newer"}) {
    const Outcome local = Run(absl::StrCat("local examples/tiny.yaml --from ", path,
                                           " --state-dir ", directory_, "/state"));
    EXPECT_NE(local.code, 0) << path;
    const bool is_newer = absl::StrContains(path, "newer");
    const char* const why = is_newer ? "has format version 99" : ": has no manifest.json";
    EXPECT_TRUE(absl::StrContains(local.error, why)) << local.error;
    EXPECT_EQ(Run("submit examples/tiny.yaml --dry-run --from " + path).code, 0) << path;
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/state"));
}

TEST_F(ModelsTest, WhatMayDifferFromACheckpointIsChecked) {
  const std::string submit = "submit examples/tiny.yaml --dry-run --from /nowhere --allow-changed ";
  EXPECT_EQ(Run(submit + "data,layout --allow-changed all").code, 0);
  const Outcome unknown = Run(submit + "data,nonsense");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(absl::StrContains(unknown.error,
                                "--allow-changed: unknown area 'nonsense'; expected one of all, "))
      << unknown.error;
  const Outcome alone = Run("submit examples/tiny.yaml --dry-run --allow-changed data");
  EXPECT_EQ(alone.code, 2);
  EXPECT_EQ(alone.error,
            "megascale: --allow-changed: says what may differ from a checkpoint; give that "
            "checkpoint by --from\n");
}

TEST_F(ModelsTest, SpecialTokensThatCannotBeReadAgainAreRefused) {
  for (const auto& [tokens, why] :
       {std::pair("--special-token a", "'a' stands for a byte"),
        std::pair("--special-token '<s>' --special-token '<s>'", "'<s>' is given twice"),
        std::pair("--special-token $'<\xff>'", "is not UTF-8")}) {
    const std::string out = directory_ + "/special.json";
    const Outcome refused = Shell(
        absl::StrCat("exec bash -c \"timeout 60 cli/megascale tokenizer train --vocab-size 300 ",
                     tokens, " ", text_, " --out ", out, "\""));
    EXPECT_EQ(refused.code, 2) << refused.error;
    EXPECT_TRUE(absl::StartsWith(refused.error, "megascale: --special-token: ")) << refused.error;
    EXPECT_TRUE(absl::StrContains(refused.error, why)) << refused.error;
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

}  // namespace
}  // namespace megascale::cli
