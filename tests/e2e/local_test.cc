// `megascale local`: one command with real processes that leaves nothing behind, however it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Returns the names of the descendants of `pid`, as ps and ss show them.
std::set<std::string> NamesBelow(pid_t pid) {
  std::set<std::string> names;
  for (const pid_t process : DescendantsOf(pid, "")) {
    std::string name =
        base::ReadFile(absl::StrCat("/proc/", process, "/comm"), 64).value_or("gone\n");
    name.pop_back();
    names.insert(std::move(name));
  }
  return names;
}

class LocalTest : public ::testing::Test {
 protected:
  LocalTest() {
    char directory[] = "/tmp/ms-local-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    job_ = WriteJobFile(directory_);
  }
  ~LocalTest() override {
    std::error_code ignored;
    if (!HasFailure()) std::filesystem::remove_all(directory_, ignored);
  }

  std::vector<std::string> Command(const std::vector<std::string>& more) const {
    std::vector<std::string> command = {Program(),  "local",       job_,
                                        "--agents", "2",           "--slots",
                                        "2",        "--state-dir", directory_ + "/state"};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }
  // Starts a run that will not end by itself, and waits until all its workers are there.
  pid_t StartLong() {
    // Its run directory is inside the test's folder, so that the test can see what is left.
    ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
    const pid_t pid = Spawn(Command({"--set", "train.steps=1000000"}), directory_ + "/local.log");
    EXPECT_TRUE(WaitUntil([&] { return DescendantsOf(pid, "worker --link-fd").size() == 4; }, 60));
    processes_ = DescendantsOf(pid, "");
    return pid;
  }
  void ExpectNothingLeft() {
    for (const pid_t pid : processes_) {
      EXPECT_TRUE(WaitUntil([pid] { return !IsAlive(pid); }, 20)) << "process " << pid;
    }
    EXPECT_TRUE(WaitUntil([this] { return Sockets().empty(); }, 20))
        << "socket " << Sockets().front();
  }
  std::vector<std::string> Sockets() const {
    std::vector<std::string> sockets;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_, ignored)) {
      if (entry.is_socket(ignored)) sockets.push_back(entry.path().string());
    }
    return sockets;
  }

  // Returns the digest of the newest checkpoint of the only job below `state`.
  static std::string Digest(const std::string& state) {
    for (const auto& entry : std::filesystem::directory_iterator(state + "/jobs")) {
      const CommandResult result =
          e2e::Run({Program(), "checkpoint", "digest", entry.path().string() + "/checkpoints"});
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return result.out;
    }
    ADD_FAILURE() << "no job below " << state;
    return "";
  }

  std::string directory_;
  std::string job_;
  std::vector<pid_t> processes_;
};

// Returns the number after "KEY": in a line of JSON.
double NumberOf(const std::string& json, const std::string& key) {
  const size_t at = json.find(absl::StrCat("\"", key, "\":"));
  EXPECT_NE(at, std::string::npos) << json;
  return at == std::string::npos ? 0 : std::stod(json.substr(at + key.size() + 3));
}

// `evaluate` of the checkpoint that is kept for the lowest loss on held-out text finds that loss.
void ExpectBestCheckpointHasItsLoss(const std::string& job) {
  int64_t best = 0;
  double lowest = 0;
  int num_evaluations = 0;
  const std::string log = base::ReadFile(job + "/metrics.jsonl", 1 << 20).value();
  for (const absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
    if (line.find("held_out_loss") == absl::string_view::npos) continue;
    const double loss = NumberOf(std::string(line), "held_out_loss");
    if (num_evaluations++ > 0 && loss >= lowest) continue;
    lowest = loss;
    best = static_cast<int64_t>(NumberOf(std::string(line), "step"));
  }
  EXPECT_EQ(num_evaluations, 10);
  const std::string checkpoint = absl::StrFormat("%s/checkpoints/step-%08d-attempt-1", job, best);
  // By default an evaluation of a short job has 64 windows.
  const CommandResult evaluated = e2e::Run(
      {Program(), "evaluate", "--checkpoint", checkpoint, "--windows", "64", "-o", "json"});
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_NEAR(NumberOf(evaluated.out, "loss"), lowest, 1e-4);
}

TEST_F(LocalTest, TrainsAndTellsWhatItMade) {
  const std::map<std::string, std::string> environment = {
      {"NO_COLOR", "1"},
      {"XDG_STATE_HOME", directory_},
      {"PATH", absl::StrCat(std::filesystem::path(Program()).parent_path().string(), ":",
                            ::getenv("PATH"))}};
  const auto run_here = [&](const std::string& line) {
    return e2e::Run({"/bin/sh", "-c", absl::StrCat("cd ", directory_, " && ", line)}, environment);
  };
  const CommandResult result = run_here(
      "megascale local job.yaml --agents 2 --state-dir state --job-id j --set train.steps=30 "
      "--set train.eval_interval=3 --set checkpoint.keep_best=true --set checkpoint.interval=3 "
      "--held-out-windows 3");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("on 2 agents with 2 slots each"));
  EXPECT_THAT(result.out, HasSubstr("\nmeasuring the model on held-out text\n3 of "));
  EXPECT_THAT(result.out, HasSubstr("bits per byte"));
  EXPECT_THAT(result.out, HasSubstr("loss on held-out text, nats per byte, by step"));
  EXPECT_THAT(result.out, HasSubstr("than on training text"));
  EXPECT_THAT(result.out, HasSubstr("step-00000030-attempt-1"));
  ExpectBestCheckpointHasItsLoss(directory_ + "/state/jobs/j");
  const std::vector<std::string> parts = absl::StrSplit(result.out, "\nnext:\n");
  ASSERT_EQ(parts.size(), 2u) << result.out;
  const std::vector<std::string> next = absl::StrSplit(parts[1], '\n', absl::SkipEmpty());
  EXPECT_EQ(next.size(), 3u) << parts[1];
  for (const std::string& line : next) {
    EXPECT_THAT(line, Not(HasSubstr(" /"))) << "an absolute path";
    const CommandResult typed = run_here(line);
    EXPECT_EQ(typed.exit_code, 0) << line << ": " << typed.err;
  }
}

TEST_F(LocalTest, WhileItMeasuresHeldOutTextATerminalShowsHowMuchIsLeft) {
  const std::string text = directory_ + "/long.txt";
  std::ofstream(text) << [] {
    std::string words;
    while (words.size() < (size_t{8} << 20)) words += "the quick brown fox jumps over the dog. ";
    return words;
  }();
  const std::string line =
      absl::StrCat(Program(), " local ", job_, " --state-dir ", directory_,
                   "/state --set train.steps=5 ", "--held-out-windows all --data ", text);
  const CommandResult result =
      e2e::Run({"/usr/bin/script", "-qec", line, "/dev/null"}, {{"TERM", "xterm"}});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  const size_t measuring = result.out.find("measuring the model on held-out text");
  ASSERT_NE(measuring, std::string::npos) << result.out;
  EXPECT_THAT(result.out.substr(measuring),
              testing::ContainsRegex("held-out text: [0-9,]+ of [0-9,]+ windows, [0-9a-z.]+ left"));
}

TEST_F(LocalTest, LearnsATokenizerAndKeepsItWithEveryCheckpoint) {
  const std::string cache = "data.token_cache=" + directory_ + "/tokens";
  const CommandResult result =
      e2e::Run(Command({"--set", "train.steps=20", "--set", "data.tokenizer_vocab_size=320",
                        "--set", cache, "--job-id", "bpe", "--set", "model.norm=rmsnorm", "--set",
                        "model.hidden_act=swiglu", "--set", "model.position_embedding=rotary"}),
               {{"NO_COLOR", "1"}});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find("nats per token"), std::string::npos) << result.out;
  const std::string checkpoint = directory_ + "/state/jobs/bpe/checkpoints/step-00000020-attempt-1";
  EXPECT_TRUE(std::filesystem::exists(checkpoint + "/tokenizer.json"));
  const std::string out = directory_ + "/exported";
  const CommandResult exported =
      e2e::Run({Program(), "checkpoint", "export", checkpoint, "--out", out});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_TRUE(std::filesystem::exists(out + "/tokenizer.json"));
  EXPECT_TRUE(std::filesystem::exists(out + "/tokenizer_config.json"));
  const std::string book = directory_ + "/lines.jsonl";
  std::string lines = "{\"body\": 1}\n";
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&lines, "{\"text\": \"the ", i, "th of 7 lines, and more of them\"}\n");
  }
  ASSERT_TRUE(base::WriteFileDurably(book, lines).ok());
  std::vector<std::string> command = {Program(), "evaluate",     "--checkpoint", checkpoint,
                                      "--data",  book,           "--whole",      "-o",
                                      "json",    "--json-field", "text"};
  const std::map<std::string, std::string> state = {{"XDG_STATE_HOME", directory_}};
  const CommandResult refused = e2e::Run(command, state);
  EXPECT_NE(refused.err.find(book + ":1: has no field 'text'"), std::string::npos) << refused.err;
  command.push_back("--skip-bad");
  const CommandResult evaluated = e2e::Run(command, state);
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_NE(evaluated.err.find("skipped 1 bad lines"), std::string::npos) << evaluated.err;
  const double tokens = NumberOf(evaluated.out, "num_tokens");
  const double bytes = NumberOf(evaluated.out, "num_bytes");
  EXPECT_GT(bytes, tokens);
  EXPECT_NEAR(NumberOf(evaluated.out, "bits_per_byte"),
              NumberOf(evaluated.out, "loss") * tokens / bytes / std::log(2.0), 1e-3);
  const double loss = NumberOf(evaluated.out, "loss");
  const double perplexity = NumberOf(evaluated.out, "perplexity");
  EXPECT_NEAR(perplexity, std::exp(loss), 1e-4 * perplexity);
  command.erase(std::find(command.begin(), command.end(), "-o"));
  command.erase(std::find(command.begin(), command.end(), "json"));
  const CommandResult shown = e2e::Run(command, state);
  const std::string line =
      absl::StrFormat("\nloss %.4f nats per token, perplexity %.2f\n", loss, perplexity);
  EXPECT_NE(shown.out.find(line), std::string::npos) << line << shown.out;
}

// The first stage keeps the weights of both ends; what reads a checkpoint must not miss them.
TEST_F(LocalTest, ACheckpointOfTiedStagesIsThatOfOneRank) {
  const std::map<std::string, std::string> state = {{"XDG_STATE_HOME", directory_}};
  std::vector<double> bits;
  std::vector<std::string> texts;
  for (const std::vector<std::string>& layout :
       {std::vector<std::string>{"parallel.pipeline_model_parallel_size=4",
                                 "parallel.data_parallel_size=1"},
        {"parallel.pipeline_model_parallel_size=1", "parallel.data_parallel_size=1"}}) {
    const std::string job_id = absl::StrCat("tied-", texts.size());
    std::vector<std::string> command = Command(
        {"--set", "train.steps=30", "--job-id", job_id, "--set", "model.tie_word_embeddings=true"});
    for (const std::string& field : layout) command.insert(command.end(), {"--set", field});
    const CommandResult trained = e2e::Run(command, {{"NO_COLOR", "1"}});
    ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
    const std::string checkpoint =
        absl::StrCat(directory_, "/state/jobs/", job_id, "/checkpoints");  // the newest one
    const CommandResult evaluated =
        e2e::Run({Program(), "evaluate", "--checkpoint", checkpoint, "--data", directory_ + "/text",
                  "--whole", "-o", "json"},
                 state);
    ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
    bits.push_back(NumberOf(evaluated.out, "bits_per_byte"));
    const CommandResult generated =
        e2e::Run({Program(), "generate", "--checkpoint", checkpoint, "--prompt", "the ", "--tokens",
                  "24", "--temperature", "0"},
                 state);
    ASSERT_EQ(generated.exit_code, 0) << generated.err;
    texts.push_back(generated.out);
  }
  EXPECT_LT(bits[0], 7) << "it has learnt something";
  EXPECT_NEAR(bits[0], bits[1], 1e-4);
  EXPECT_EQ(texts[0], texts[1]);
}

TEST_F(LocalTest, HeldOutTextShorterThanAWindowIsAWarningAndTheJobDoesNotRunAgain) {
  const CommandResult result = e2e::Run(Command(
      {"--job-id", "short", "--set", "train.steps=5", "--set", "data.held_out_fraction=0.0005"}));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.err.find("warning: held-out text was not measured: the text has "),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.out.find("step-00000005-attempt-1"), std::string::npos) << result.out;

  // What it reported must not be shown again as if it had run now.
  const CommandResult again = e2e::Run(Command(
      {"--job-id", "short", "--set", "train.steps=5", "--set", "data.held_out_fraction=0.0005"}));
  EXPECT_EQ(again.exit_code, 2) << again.out << again.err;
  EXPECT_NE(again.err.find("megascale: job short: exists already, SUCCEEDED since "),
            std::string::npos)
      << again.err;
  EXPECT_NE(again.err.find("nothing ran; "), std::string::npos) << again.err;
  EXPECT_EQ(again.out.find("measuring"), std::string::npos) << again.out;
}

TEST_F(LocalTest, KilledItLeavesNoProcessAndNoSocket) {
  const pid_t pid = StartLong();
  const std::set<std::string> names = {"megascale-keep", "megascale-drv", "megascale-agent",
                                       "megascale-host", "megascale-w0",  "megascale-w1",
                                       "megascale-w2",   "megascale-w3"};
  EXPECT_TRUE(WaitUntil([&] { return NamesBelow(pid) == names; }, 20))
      << ::testing::PrintToString(NamesBelow(pid));
  EXPECT_EQ(DescendantsOf(pid, "/attempt-1/rank-3").size(), 1u);
  processes_ = DescendantsOf(pid, "");
  KillAndReap(pid);
  ExpectNothingLeft();
}

TEST_F(LocalTest, CtrlCAndSigtermCancelTheJobAndLeaveNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t pid = StartLong();
    ::kill(pid, signal);
    const int status = WaitForExit(pid, 60);
    ASSERT_NE(status, -1);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 1);
    ExpectNothingLeft();
    const std::string log = directory_ + "/local.log";
    EXPECT_NE(base::ReadFile(log, 1 << 20).value_or("").find("CANCELLED"), std::string::npos);
    std::filesystem::remove(log);
  }
}

TEST_F(LocalTest, ASignalBeforeItsFirstStatusLineCancelsTheJobToo) {
  ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  const pid_t pid = Spawn(Command({"--set", "train.steps=1000000"}), directory_ + "/local.log");
  ASSERT_TRUE(WaitUntil([&] { return DescendantsOf(pid, "megascale driver").size() == 1; }, 60));
  processes_ = DescendantsOf(pid, "");
  ::kill(pid, SIGTERM);
  const int status = WaitForExit(pid, 60);
  ASSERT_NE(status, -1);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  ExpectNothingLeft();
  const std::string log = base::ReadFile(directory_ + "/local.log", 1 << 20).value_or("");
  EXPECT_THAT(log, HasSubstr("\ncancelling "));
  EXPECT_THAT(log, HasSubstr("CANCELLED"));
}

TEST_F(LocalTest, TheNextRunInItsFolderDoesNotWaitForTheAgentsOfTheOneBefore) {
  for (const char* job_id : {"first", "second"}) {
    const CommandResult run = e2e::Run(
        Command({"--set", "train.steps=5", "--held-out-windows", "1", "--job-id", job_id}));
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    EXPECT_THAT(run.out, HasSubstr(absl::StrCat(job_id, "  SUCCEEDED")));
    EXPECT_THAT(run.out, Not(HasSubstr("NodeLost")));
  }
  for (const char* agent : {"n0", "n1"}) {
    const std::string log =
        base::ReadFile(absl::StrCat(directory_, "/state/logs/agent-", agent, ".log"), 1 << 20)
            .value();
    EXPECT_THAT(log, Not(HasSubstr("refuses this agent")));
  }
}

TEST_F(LocalTest, AnAgentThatCannotStartEndsItWithTheAgentsOwnWords) {
  ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  const std::string line =
      absl::StrCat("ulimit -n 64; exec ", absl::StrJoin(Command({"--job-id", "j"}), " "));
  const CommandResult result = e2e::Run({"/bin/sh", "-c", line});
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  const std::string why = "--slots 2: needs 136 open descriptors, and the limit is 64; raise it";
  EXPECT_THAT(result.err, HasSubstr("megascale: agent n"));
  const std::vector<std::string> parts = absl::StrSplit(result.out + result.err, why);
  EXPECT_EQ(parts.size(), 2u) << "once: " << result.out << result.err;
  EXPECT_THAT(Sockets(), testing::IsEmpty());
  // The job does not wait for the next run in this folder.
  const CommandResult next =
      e2e::Run(Command({"--set", "train.steps=5", "--held-out-windows", "1", "--job-id", "next"}));
  EXPECT_EQ(next.exit_code, 0) << next.out << next.err;
  const CommandResult again = e2e::Run(Command({"--job-id", "j"}));
  EXPECT_THAT(again.err, HasSubstr("j: exists already, CANCELLED")) << again.err;
}

TEST_F(LocalTest, WhenTheReaderOfItsOutputLeavesTheJobIsCancelledAndItSaysSo) {
  ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  const std::string line =
      absl::StrCat(absl::StrJoin(Command({"--set", "train.steps=1000000"}), " "), " 2>", directory_,
                   "/errors | head -n 1");
  const CommandResult read = e2e::Run({"/bin/sh", "-c", line});
  EXPECT_EQ(read.out.find("job "), 0u) << read.out;
  const auto errors = [this] {
    return base::ReadFile(directory_ + "/errors", 1 << 20).value_or("");
  };
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(errors(), "CANCELLED"); }, 60)) << errors();
  EXPECT_NE(errors().find("megascale: standard output is closed\ncancelling "), std::string::npos)
      << errors();
  ExpectNothingLeft();
}

// The text: many short documents, each of which attention keeps to itself.
TEST_F(LocalTest, AKilledDriverAndAKilledAgentAreStartedAgainAndTheBitsAreTheSame) {
  ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  const std::string documents = directory_ + "/documents.jsonl";
  std::string lines;
  for (int i = 0; i < 2000; ++i) {
    absl::StrAppend(&lines, "{\"text\": \"document ", i, " of ", i * i, " words\"}\n");
  }
  ASSERT_TRUE(base::WriteFileDurably(documents, lines).ok());
  const std::vector<std::string> command =
      Command({"--set", "train.steps=300", "--data", documents, "--set", "data.json_field=text",
               "--set", "data.tokenizer_vocab_size=320", "--set", "data.attention=within_documents",
               "--set", "data.token_cache=" + directory_ + "/tokens"});
  const pid_t pid = Spawn(command, directory_ + "/local.log");
  ASSERT_TRUE(WaitUntil([&] { return DescendantsOf(pid, "worker --link-fd").size() == 4; }, 60));
  ::kill(DescendantsOf(pid, "megascale driver").at(0), SIGKILL);
  ASSERT_TRUE(WaitUntil([&] { return DescendantsOf(pid, "megascale driver").size() == 1; }, 30));
  ::kill(DescendantsOf(pid, "--node-id n1").at(0), SIGKILL);
  processes_ = DescendantsOf(pid, "");
  const int status = WaitForExit(pid, 180);
  ASSERT_NE(status, -1);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ExpectNothingLeft();
  const std::string state = directory_ + "/state";
  const std::string disturbed = directory_ + "/disturbed";
  std::filesystem::rename(state, disturbed);
  EXPECT_EQ(e2e::Run(command).exit_code, 0);
  EXPECT_EQ(Digest(disturbed), Digest(state));
}

}  // namespace
}  // namespace megascale::e2e
