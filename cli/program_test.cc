// The program from the outside: exit codes and output of commands that need no driver.
#include <pty.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/testing/test_program.h"
#include "gtest/gtest.h"
#include "runtime/base/fd.h"

namespace {

using megascale::cli::Outcome;
using megascale::cli::ProgramTest;
using megascale::cli::ReadAll;

// An example for planning: it needs thousands of machines.
constexpr char kForPlanning[] = "megascale-175b-12288";

// Returns the number after "name": in one line of JSON. Fails the test and returns -1 if it is
// missing.
double NumberIn(const std::string& json, const std::string& name) {
  const std::string key = absl::StrCat("\"", name, "\":");
  const size_t at = json.find(key);
  EXPECT_NE(at, std::string::npos) << name << " is not in " << json;
  return at == std::string::npos ? -1 : std::stod(json.substr(at + key.size()));
}

// On a busy machine a thread that spins while it waits takes the core from the thread that it waits
// for.
TEST_F(ProgramTest, ThreadsOfCommandsThatComputeSleepWhereTheyWait) {
  ASSERT_EQ(::setenv("OMP_DISPLAY_ENV", "verbose", 1), 0);
  for (const char* command : {"local --help", "evaluate --help", "generate --help"}) {
    EXPECT_TRUE(absl::StrContains(Run(command).error, "GOMP_SPINCOUNT = '0'"));
    ASSERT_EQ(::setenv("GOMP_SPINCOUNT", "7", 1), 0);
    EXPECT_TRUE(absl::StrContains(Run(command).error, "GOMP_SPINCOUNT = '7'"));
    ASSERT_EQ(::unsetenv("GOMP_SPINCOUNT"), 0);
  }
  ASSERT_EQ(::unsetenv("OMP_DISPLAY_ENV"), 0);
}

TEST_F(ProgramTest, MisspeltWordsAreAnsweredWithTheNearest) {
  const Outcome command = Run("sumbit");
  EXPECT_EQ(command.code, 2);
  EXPECT_EQ(
      command.error,
      "megascale: unknown command 'sumbit'; did you mean 'submit'?\n  see: megascale --help\n");
  const Outcome option = Run("status --adress x");
  EXPECT_EQ(option.code, 2);
  EXPECT_EQ(option.error,
            "megascale: unknown option '--adress'; did you mean '--address'?\n  see: megascale "
            "status --help\n");
  EXPECT_EQ(Run("list -o xml").error, "megascale: --output: expected text or json, found 'xml'\n");
  EXPECT_EQ(Run("").code, 2);
}

TEST_F(ProgramTest, EveryCommandHasHelpWithExamples) {
  for (const char* command : {"driver",
                              "agent",
                              "submit",
                              "status",
                              "wait",
                              "list",
                              "logs",
                              "watch",
                              "cancel",
                              "local",
                              "generate",
                              "evaluate",
                              "checkpoint list",
                              "checkpoint inspect",
                              "checkpoint digest",
                              "checkpoint verify",
                              "checkpoint import",
                              "checkpoint export",
                              "certs init",
                              "certs issue",
                              "certs show",
                              "completion",
                              "version"}) {
    const Outcome help = Run(absl::StrCat(command, " --help"));
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_TRUE(absl::StrContains(help.out, "\nEXAMPLES\n    megascale ")) << command << help.out;
    EXPECT_EQ(help.error, "") << command;
  }
  const Outcome help = Run("--help");
  EXPECT_EQ(help.code, 0);
  EXPECT_FALSE(absl::StrContains(help.out, "\n    worker"));
  for (const char* words : {"-h", "help"}) EXPECT_EQ(Run(words).out, help.out) << words;
  for (const char* words : {"certs init -h", "help certs init"}) {
    EXPECT_EQ(Run(words).out, Run("certs init --help").out) << words;
  }
}

// Every command that calls the driver has these options.
TEST_F(ProgramTest, TheOptionsThatNameTheDriverAreExplainedOnce) {
  constexpr char kExplained[] = "PEM file of the certificate of this client";
  const std::string program = Run("--help").out;
  const size_t at = program.find("\nCONNECTION\n    --address ADDRESS\n");
  ASSERT_NE(at, std::string::npos) << program;
  EXPECT_GT(program.find(kExplained), at);
  for (const char* command : {"submit", "status", "list", "cancel", "minder watch"}) {
    const std::string page = Run(absl::StrCat(command, " --help")).out;
    EXPECT_TRUE(absl::StrContains(page, "\nCONNECTION\n    which driver, ")) << page;
    EXPECT_TRUE(absl::StrContains(page, "see `megascale --help`: --address, ")) << page;
    EXPECT_FALSE(absl::StrContains(page, kExplained)) << page;
  }
  const std::string page = Run("completion man").out;
  EXPECT_EQ(page.find(kExplained), page.rfind(kExplained));
}

TEST_F(ProgramTest, BashCompletesCommandsOptionsAndFiles) {
  ASSERT_EQ(Run(absl::StrCat("completion bash >", directory_, "/completion; true")).code, 0);
  // Returns the completions that a real bash offers for the last of these words.
  const auto offered = [&](const std::string& words) {
    const std::string script = absl::StrCat(
        "source ", directory_, "/completion; COMP_WORDS=(", words,
        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _megascale; echo \"${COMPREPLY[*]}\"");
    const std::string command =
        absl::StrCat("bash --norc -c '", script, "' >", directory_, "/offered 2>&1");
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return ReadAll(directory_ + "/offered");
  };
  EXPECT_EQ(offered("megascale sub"), "submit\n");
  EXPECT_EQ(offered("megascale submit --dry"), "--dry-run\n");
  EXPECT_EQ(offered("megascale submit job.yaml --fol"), "--follow\n");
  EXPECT_EQ(offered("megascale certs i"), "init issue\n");
  EXPECT_EQ(offered("megascale help subm"), "submit\n");
  EXPECT_EQ(offered("megascale status -o js"), "json\n");
  EXPECT_EQ(offered("megascale local exam"), "\n") << "left to names of files";
  EXPECT_EQ(offered("megascale wor"), "\n") << "is hidden";
}

// A real zsh, whose functions that talk to its line editor are replaced.
TEST_F(ProgramTest, ZshCompletesCommandsOptionsAndFiles) {
  ASSERT_EQ(Run(absl::StrCat("completion zsh >", directory_, "/completion; true")).code, 0);
  const auto offered = [&](const std::string& words) {
    const std::string script = absl::StrCat(
        "compdef() { :; }; _files() { print files; }; compadd() { print -- \"$@\"; }; "
        "_describe() { [[ $1 == -o ]] && shift; print -l -- ${(P)2}; }; source ",
        directory_, "/completion; words=(", words, "); CURRENT=$#words; _megascale");
    const std::string command =
        absl::StrCat("zsh -f -c '", script, "' >", directory_, "/offered 2>&1");
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return ReadAll(directory_ + "/offered");
  };
  EXPECT_TRUE(absl::StrContains(offered("megascale \"\""), "\ncancel:stops a job"))
      << offered("megascale \"\"");
  EXPECT_TRUE(absl::StrContains(offered("megascale submit --"), "\n--dry-run:check the file"));
  EXPECT_TRUE(absl::StartsWith(offered("megascale certs i"), "init:"));
  EXPECT_EQ(offered("megascale status -o js"), "text json\n");
  EXPECT_EQ(offered("megascale local exam"), "files\n");
}

TEST_F(ProgramTest, TheManualPageHasEveryCommandAndNoMistakesOfRoff) {
  ASSERT_EQ(Run(absl::StrCat("completion man >", directory_, "/megascale.1; true")).code, 0);
  const std::string render =
      absl::StrCat("groff -man -Tutf8 -ww -P-c -P-b -P-u -P-o ", directory_, "/megascale.1 >",
                   directory_, "/page 2>", directory_, "/warnings");
  ASSERT_EQ(std::system(render.c_str()), 0);
  EXPECT_EQ(ReadAll(directory_ + "/warnings"), "");
  const std::string page = ReadAll(directory_ + "/page");
  for (const char* part : {"MEGASCALE(1)", "megascale submit [OPTION]… FILE", "--dry-run",
                           "megascale certs init", "EXIT STATUS", "MEGASCALE_ADDRESS"}) {
    EXPECT_TRUE(absl::StrContains(page, part)) << part << " is not in " << page;
  }
  EXPECT_EQ(Run("completion fish").error,
            "megascale: SHELL: expected bash, zsh or man, found 'fish'\n");
}

// Returns the output of `megascale status --help` on a terminal.
std::string HelpOnTerminal(const char* no_color) {
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (pid == 0) {
    ::alarm(60);
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", no_color, 1);
    ::execl("cli/megascale", "megascale", "status", "--help", nullptr);
    ::_exit(127);
  }
  std::string text;
  char buffer[4096];
  // A read fails once the terminal's last process has ended.
  for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  ::close(terminal);
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  return text;
}

TEST_F(ProgramTest, ColorIsForTerminalsAndNeverWithNoColor) {
  EXPECT_TRUE(absl::StrContains(HelpOnTerminal(""), "\033[1mEXAMPLES\033[0m"));
  const std::string plain = HelpOnTerminal("1");
  EXPECT_TRUE(absl::StrContains(plain, "EXAMPLES\r\n"));
  EXPECT_FALSE(absl::StrContains(plain, "\033"));
  EXPECT_FALSE(absl::StrContains(Run("status --help").out, "\033"));
}

TEST_F(ProgramTest, BadJobFilesAreUsageErrors) {
  const std::string file = directory_ + "/job.yaml";
  std::ofstream(file) << "name: x\nmodel:\n  hiden_size: 3\n";
  const Outcome unknown = Run("submit " + file);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(unknown.error,
            absl::StrCat("megascale: ", file,
                         ":3:3: `model.hiden_size` is not a field; did you mean `hidden_size`?\n"));
  std::ofstream(file) << "name: x\nmodle:\n  hidden_size: 3\ntrain:\n  steps: many\n";
  const Outcome both = Run("plan " + file);
  EXPECT_EQ(both.code, 2);
  EXPECT_EQ(
      both.error,
      absl::StrCat("megascale: ", file, ":2:1: `modle` is not a field; did you mean `model`?\n",
                   "megascale: ", file, ":5:10: `train.steps` expects a whole number such ",
                   "as 40, found `many`\n"));
  const Outcome sum = Run("submit examples/tiny.yaml --set train.global_batch_size=9");
  EXPECT_EQ(sum.code, 2);
  EXPECT_EQ(
      sum.error,
      "megascale: --set train.global_batch_size=9: train.global_batch_size: 9 is not a multiple of "
      "data_parallel_size × micro_batch_size = 2 × 2 = 4\n");
  EXPECT_EQ(Run("submit nowhere.yaml").code, 2);
}

TEST_F(ProgramTest, DryRunShowsTheResolvedJob) {
  int examples = 0;
  for (const auto& file : std::filesystem::directory_iterator("examples")) {
    if (file.path().extension() != ".yaml") continue;
    const std::string name = file.path().stem().string();
    if (name == kForPlanning) continue;
    ++examples;
    const Outcome dry = Run("submit --dry-run " + file.path().string());
    EXPECT_EQ(dry.code, 0) << dry.error;
    EXPECT_TRUE(absl::StrContains(dry.out, absl::StrCat("name: ", name, "\n"))) << dry.out;
    EXPECT_TRUE(absl::StrContains(dry.out, "heartbeat_timeout: 5s\n"));
  }
  EXPECT_GE(examples, 7);
  EXPECT_TRUE(absl::StrContains(Run("submit --dry-run examples/tiny.yaml").out,
                                "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots; "));
  const Outcome memory = Run("submit --dry-run --slots 2 examples/tiny.yaml");
  for (const char* part :
       {"\n# RANK ", " WEIGHTS ", " ACTIVATIONS ", " COMMUNICATORS ", " CONNECTIONS  DESCRIPTORS\n",
        "\n# 0-1 ", "\n# 2-3 ", "\n# MACHINE ", " SNAPSHOTS ", ": the whole job fits\n"}) {
    EXPECT_TRUE(absl::StrContains(memory.out, part)) << part << " is not in " << memory.out;
  }
  const Outcome together = Run("submit --dry-run examples/tiny.yaml");
  EXPECT_FALSE(absl::StrContains(together.out, " COMMUNICATORS ")) << together.out;
  EXPECT_FALSE(absl::StrContains(memory.out, " PINNED ")) << memory.out;
  const Outcome json = Run("submit --dry-run -o json --job-id j examples/tiny.yaml");
  EXPECT_EQ(json.code, 0);
  EXPECT_TRUE(absl::StrContains(json.out, "\"job_id\": \"j\"")) << json.out;
}

TEST_F(ProgramTest, PlanShowsDrawsAndPricesAStep) {
  const std::string job = "plan examples/bytes.yaml --set train.global_batch_size=32 ";
  const Outcome text = Run(job + "--instructions");
  EXPECT_EQ(text.code, 0) << text.error;
  for (const char* part :
       {"bytes: data 2 x pipeline 2 x tensor 1 = 4 ranks, 4 micro-batches, 1f1b\n",
        "\nRANK  DATA  PIPELINE  TENSOR  DATA GROUP  PIPELINE GROUP\n",
        "\n3     1     1         0       2, 3        1, 3\n",
        "\nvalid for all 4 ranks: no deadlock",
        "\nbackward  1      mlp.down weights               2.68e+08 FLOP\n",
        "F.c1.m0 B.c1.m0 F.c1.m1"}) {
    EXPECT_TRUE(absl::StrContains(text.out, part)) << part << " is not in " << text.out;
  }
  EXPECT_TRUE(absl::StrContains(text.out, "  GRADIENTS  ")) << text.out;
  const auto gradient_bytes = [&](const std::string& more) {
    const Outcome json = Run(job +
                             "-o json --set parallel.data_parallel_size=4 "
                             "--set parallel.ddp_bucket_size=1 " +
                             more);
    EXPECT_EQ(json.code, 0) << json.error;
    return NumberIn(json.out, "gradient_bytes");
  };
  EXPECT_LT(gradient_bytes("--set parallel.zero_stage=2"), gradient_bytes(""));
  // Four equal stages and links that take no time: each schedule has its well-known bubble.
  const std::string deep =
      "plan examples/bytes.yaml -o json --bytes-per-second 1e30 --memory-bytes-per-second 1e30 "
      "--set "
      "train.global_batch_size=64 "
      "--set model.hidden_size=4096 --set parallel.pipeline_model_parallel_size=";
  const auto bubble = [&](const std::string& more) {
    const Outcome json = Run(deep + more);
    EXPECT_EQ(json.code, 0) << json.error;
    return NumberIn(json.out, "bubble_percent");
  };
  EXPECT_NEAR(bubble("4"), 100 * 3.0 / 8, 0.5);  // (p - 1) / m
  EXPECT_NEAR(bubble("4 --set parallel.pipeline_schedule=gpipe"), 100 * 3.0 / 8, 0.5);
  EXPECT_NEAR(bubble("2 --set parallel.virtual_pipeline_model_parallel_size=2"), 100 * 1.0 / 16,
              0.5);
  EXPECT_LT(bubble("4 --set parallel.pipeline_schedule=zb_h1"), 100 * 2.0 / 8);
  const std::string svg = directory_ + "/step.svg";
  const std::string trace = directory_ + "/step.json";
  EXPECT_EQ(Run(job + "--svg " + svg + " --trace " + trace).code, 0);
  EXPECT_EQ(megascale::base::ReadFile(svg, 1 << 20).value().substr(0, 4), "<svg");
  EXPECT_EQ(megascale::base::ReadFile(trace, 1 << 20).value().substr(0, 1), "{");
  for (const auto& [flags, mistake] :
       {std::pair("--set parallel.pipeline_schedule=1f2b", "1f2b"),
        std::pair("--set parallel.virtual_pipeline_model_parallel_size=3", "every chunk needs"),
        std::pair("--flops-per-second 0", "expected more than 0"),
        std::pair("--flops-per-second 312", "expected at least 10000 a second")}) {
    const Outcome refused = Run(job + flags);
    EXPECT_EQ(refused.code, 2);
    EXPECT_TRUE(absl::StrContains(refused.error, mistake)) << refused.error;
  }
}

TEST_F(ProgramTest, PlanPricesExchangesByTheLinkOnWhichTheyRun) {
  // Tensor and data ranks share a machine of four, the two stages do not.
  const std::string job =
      "plan examples/bytes.yaml --set parallel.tensor_model_parallel_size=2 "
      "--set train.global_batch_size=32 --bytes-per-second 1e9 ";
  const Outcome text = Run(job + "--slots 5");
  EXPECT_EQ(text.code, 0) << text.error;
  for (const char* part :
       {"\n\nGROUP     EXCHANGES\n", "\ndata      inside a machine\n",
        "\npipeline  between machines\n", "\ntensor    inside a machine\n",
        "1e+09 bytes/s a link inside a machine of 4 ranks, 1e+08 bytes/s between machines, a step "
        "takes "}) {
    EXPECT_TRUE(absl::StrContains(text.out, part)) << part << " is not in " << text.out;
  }
  const auto json = [&](const std::string& more) {
    const Outcome outcome = Run(job + "-o json " + more);
    EXPECT_EQ(outcome.code, 0) << outcome.error;
    return outcome.out;
  };
  const auto seconds = [&](const std::string& more) {
    return NumberIn(json(more), "step_seconds");
  };
  const double alone = seconds("");
  EXPECT_EQ(seconds("--slots 8"), alone) << "all eight ranks are on one machine";
  EXPECT_EQ(seconds("--slots 4 --network-bytes-per-second 1e9"), alone);
  const double two = seconds("--slots 4 --network-bytes-per-second 1e8");
  EXPECT_LT(alone, two);
  EXPECT_EQ(seconds("--slots 4"), two) << "the default";
  EXPECT_LT(two, seconds("--slots 2")) << "replicas reduce gradients between machines, too";
  EXPECT_EQ(NumberIn(json("--slots 5"), "ranks_per_machine"), 4);
  EXPECT_TRUE(absl::StrContains(json("--slots 4"), "\"pipeline_link\": \"network\""));
  EXPECT_FALSE(absl::StrContains(json(""), "network")) << "only where it was asked for";
  for (const auto& [flags, mistake] :
       {std::pair("--slots -1", "--slots: -1 is out of range; expected 0 or more"),
        std::pair("--slots 1",
                  "--slots: 1 is less than parallel.tensor_model_parallel_size = 2, whose ranks "
                  "share a machine"),
        std::pair("--slots 2 --network-bytes-per-second -5",
                  "--network-bytes-per-second: -5 is out of range; expected more than 0"),
        std::pair("--network-bytes-per-second 1e9",
                  "--network-bytes-per-second: without --slots one machine runs all ranks and no "
                  "network is used; add --slots N, the ranks on each machine")}) {
    const Outcome refused = Run(job + flags);
    EXPECT_EQ(refused.code, 2);
    EXPECT_EQ(refused.error, absl::StrCat("megascale: ", mistake, "\n"));
  }
}

TEST_F(ProgramTest, APlansFileOnStandardOutputIsAloneThere) {
  for (const char* path : {"-", "/dev/stdout"}) {
    const Outcome svg = Run(absl::StrCat("plan examples/bytes.yaml --svg ", path));
    EXPECT_EQ(svg.code, 0) << svg.error;
    EXPECT_TRUE(absl::StartsWith(svg.out, "<svg")) << svg.out;
    EXPECT_TRUE(absl::EndsWith(svg.out, "</svg>\n")) << svg.out;
  }
  EXPECT_EQ(Run("plan examples/bytes.yaml --svg - --trace -").error,
            "megascale: --svg and --trace: both are standard output; give one of them a file\n");
}

TEST_F(ProgramTest, PlanPricesWhatTensorRanksExchangeBesideProducts) {
  const std::string job =
      "plan examples/bytes.yaml --set parallel.tensor_model_parallel_size=2 "
      "--set parallel.data_parallel_size=1 ";
  const Outcome text = Run(job + "--instructions");
  EXPECT_EQ(text.code, 0) << text.error;
  for (const char* part : {"\nforward   2      gather: input_norm ", "\nforward   2      attn.qkv ",
                           "\nforward   2      mlp.down ", "\nforward   2      sum: mlp.down "}) {
    EXPECT_TRUE(absl::StrContains(text.out, part)) << part << " is not in " << text.out;
  }
  const auto seconds = [&](const std::string& more) {
    const Outcome json = Run(job + "-o json " + more);
    EXPECT_EQ(json.code, 0) << json.error;
    return NumberIn(json.out, "step_seconds");
  };
  const std::string overlap = "--set parallel.tp_comm_overlap=true ";
  const double free = seconds(overlap + "--bytes-per-second 1e30");
  const double overlapped = seconds(overlap);
  EXPECT_LT(free, overlapped);
  EXPECT_LT(overlapped, seconds("--set parallel.tp_comm_overlap=false"));
  EXPECT_LT(overlapped, seconds("")) << "the default is off";
}

TEST_F(ProgramTest, PlanProvesAllRanksOfTheLargestJobThatMegaScaleReports) {
  const std::string job = absl::StrCat("plan examples/", kForPlanning, ".yaml ");
  const Outcome text = Run(job);
  EXPECT_EQ(text.code, 0) << text.error;
  for (const char* part :
       {"data 192 x pipeline 8 x tensor 8 = 12288 ranks, 32 micro-batches, interleaved_1f1b with 6 "
        "virtual stages\n",
        "\n63    7     0         7       7, 15, 23, 31, 39, 47, 55, 63 and 184 more  63, 1599, ",
        "\nand 12224 more ranks\n", "\n7      14-15, 30-31, 46-47, 62-63, 78-79, 94-95 ",
        "  56, 57, 58, 59, 60, 61, 62, 63\n", "\nvalid for all 12288 ranks: "}) {
    EXPECT_TRUE(absl::StrContains(text.out, part)) << part << " is not in " << text.out;
  }
  EXPECT_LT(text.out.size(), 12000u) << "one screen or two";
  EXPECT_FALSE(absl::StrContains(text.out, "built in")) << "only where it was asked for";
  // Equal chunks except for the output matrix, and links that take no time: (p - 1) / (v m).
  const Outcome json =
      Run(job +
          "-o json --measure --bytes-per-second 1e30 --memory-bytes-per-second 1e30 "
          "--set model.vocab_size=256");
  EXPECT_EQ(json.code, 0) << json.error;
  EXPECT_EQ(NumberIn(json.out, "ranks"), 12288);
  EXPECT_EQ(NumberIn(json.out, "num_microbatches"), 32);
  EXPECT_NEAR(NumberIn(json.out, "bubble_percent"), 100 * 7.0 / (6 * 32), 0.01);
  EXPECT_LT(NumberIn(json.out, "peak_memory_bytes"), 1 << 30);
  const std::string svg = directory_ + "/step.svg";
  const std::string trace = directory_ + "/step.json";
  EXPECT_EQ(Run(job + "--svg " + svg + " --trace " + trace).error, "") << "nothing is left out";
  EXPECT_LT(std::filesystem::file_size(svg), 8u << 20);
  EXPECT_LT(std::filesystem::file_size(trace), 16u << 20);
  const Outcome longer =
      Run(absl::StrCat(job, "--set train.global_batch_size=49152 --svg ", svg, " --trace ", trace));
  EXPECT_EQ(longer.code, 0);
  EXPECT_TRUE(absl::StrContains(longer.error, "--svg: the first ")) << longer.error;
  EXPECT_TRUE(absl::StrContains(longer.error, "--trace: the first ")) << longer.error;
  EXPECT_LT(std::filesystem::file_size(svg), 8u << 20);
  EXPECT_LT(std::filesystem::file_size(trace), 64u << 20);
}

TEST_F(ProgramTest, WhatTensorRanksCannotShareEvenlyIsRefusedWithItsSum) {
  const std::string file = absl::StrCat("examples/", kForPlanning, ".yaml");
  const Outcome sum = Run("plan " + file + " --set parallel.data_parallel_size=2048");
  EXPECT_EQ(sum.code, 2);
  EXPECT_TRUE(absl::StrContains(sum.error,
                                "data_parallel_size × tensor_model_parallel_size × "
                                "pipeline_model_parallel_size = 2048 × 8 × 8 = 131072 ranks"))
      << sum.error;
  const Outcome heads = Run("plan " + file + " --set parallel.tensor_model_parallel_size=3");
  EXPECT_EQ(heads.code, 2);
  EXPECT_TRUE(absl::StrContains(heads.error,
                                "model.num_attention_heads: 128 is not a multiple of "
                                "parallel.tensor_model_parallel_size = 3"))
      << heads.error;
  const Outcome sequence =
      Run("submit --dry-run examples/tiny.yaml --set parallel.tensor_model_parallel_size=2 "
          "--set train.seq_length=31");
  EXPECT_EQ(sequence.code, 2);
  EXPECT_TRUE(absl::StrContains(sequence.error,
                                "train.seq_length: 31 is not a multiple of "
                                "parallel.tensor_model_parallel_size = 2 (31 = 15 × 2 + 1)"))
      << sequence.error;
  EXPECT_TRUE(absl::StrContains(
      Run("submit --dry-run examples/tiny.yaml --set parallel.tensor_model_parallel_size=2").out,
      "needs data × tensor × pipeline = 2 × 2 × 2 = 8 slots; "));
}

TEST_F(ProgramTest, LocalSaysWhyItsDriverDoesNotStart) {
  const std::string state = directory_ + "/state";
  std::filesystem::create_directories(state);
  std::ofstream(state + "/log") << "a file where the log should be";
  const Outcome refused = Run("local examples/tiny.yaml --job-id a --state-dir " + state);
  EXPECT_EQ(refused.code, 1) << refused.error;
  EXPECT_TRUE(absl::StartsWith(refused.error, "megascale: ")) << refused.error;
  EXPECT_TRUE(absl::StrContains(refused.error, "/state/log: exists and is not a directory"))
      << refused.error;
  EXPECT_FALSE(absl::StrContains(refused.error, "started again")) << refused.error;
  EXPECT_FALSE(absl::StrContains(refused.error, "can be reached")) << refused.error;
}

TEST_F(ProgramTest, AJobThatDoesNotFitThisMachineIsRefusedWithItsSum) {
  const Outcome refused =
      Run(absl::StrCat("local --agents 2 --slots 2 examples/tiny.yaml --state-dir ", directory_,
                       "/state --set model.hidden_size=65536"));
  EXPECT_EQ(refused.code, 1);
  EXPECT_TRUE(absl::StrContains(refused.error, "(weights) + ")) << refused.error;
  EXPECT_TRUE(absl::StrContains(refused.error, " TiB; ")) << "the sum" << refused.error;
  EXPECT_TRUE(absl::StrContains(refused.error, " are left by ")) << refused.error;
}

TEST_F(ProgramTest, AnAbsentDriverIsThree) {
  const std::string address =
      absl::StrCat("--address unix:/tmp/megascale-absent-", getpid(), "/driver.sock");
  for (const char* command :
       {"status j --retry-for 0s", "status --retry-for 0s", "list --retry-for 0s",
        "watch j --retry-for 0s", "wait j --retry-for 0s", "cancel j", "logs j --retry-for 0s",
        "trace j --retry-for 0s", "submit --retry-for 0s examples/tiny.yaml"}) {
    const Outcome outcome = Run(absl::StrCat(command, " ", address));
    EXPECT_EQ(outcome.code, 3) << command << outcome.error;
    EXPECT_TRUE(absl::StartsWith(outcome.error, "megascale: no driver can be reached at unix:"))
        << outcome.error;
    EXPECT_EQ(outcome.out, "");
  }
  // Commands that read wait as `submit` does, and say so once.
  for (const char* command : {"list", "wait j --timeout 1s", "submit examples/tiny.yaml"}) {
    const Outcome waited = Run(absl::StrCat(command, " --retry-for 300ms ", address));
    EXPECT_EQ(waited.code, 3) << command << waited.error;
    EXPECT_TRUE(absl::StartsWith(waited.error, "no driver answers at unix:")) << waited.error;
    EXPECT_TRUE(absl::StrContains(waited.error, "; trying for 300ms\nmegascale: no driver can be "))
        << command << waited.error;
  }
  EXPECT_EQ(Run("list --address nonsense").code, 2);
  EXPECT_EQ(Run("logs j --rank x").error,
            "megascale: --rank: expected a whole number, found 'x'\n"
            "  see: megascale logs --help\n");
  EXPECT_EQ(Run("list --address node:1").code, 2);
}

TEST_F(ProgramTest, WaitingForADriverThatIsSilentEndsAtTheTimeout) {
  char folder[] = "/tmp/ms-XXXXXX";  // short: a socket is made in it
  ASSERT_NE(::mkdtemp(folder), nullptr);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof(address.sun_path), "%s/d.sock", folder);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  const Outcome waited =
      Run(absl::StrCat("wait j --timeout 500ms --address unix:", address.sun_path));
  EXPECT_EQ(waited.code, 3) << "nothing is known about the job";
  EXPECT_TRUE(absl::StrContains(waited.error, "the driver has not answered within 500ms"))
      << waited.error;
  ::close(listener);
  std::filesystem::remove_all(folder);
}

TEST_F(ProgramTest, AnAttemptIsCountedFromOne) {
  for (const char* attempt : {"-1", "0"}) {
    const Outcome refused = Run(absl::StrCat("logs j --attempt ", attempt));
    EXPECT_EQ(refused.code, 2);
    EXPECT_EQ(
        refused.error,
        absl::StrCat("megascale: --attempt ", attempt,
                     ": expected an attempt from 1; without --attempt the newest is shown\n"));
  }
  EXPECT_EQ(Run("logs j --attempt x").error,
            "megascale: --attempt: expected a whole number, found 'x'\n"
            "  see: megascale logs --help\n");
}

TEST_F(ProgramTest, DriverAndAgentMakeNothingBeforeTheyRefuseTheirOptions) {
  char folder[] = "/tmp/ms-XXXXXX";  // short: sockets are made in it
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string made = absl::StrCat(folder, "/made");
  for (const char* words :
       {"driver --listen 0.0.0.0", "driver --listen 0.0.0.0:7077", "driver --keep-jobs -1",
        "driver --listen 127.0.0.1:0 --tls-ca /nowhere/ca.pem",
        "driver --listen 127.0.0.1:0 --insecure --tls-ca ca --tls-cert cert --tls-key key",
        "agent --driver node", "agent --driver node:7077", "agent --slots 0",
        "agent --driver 127.0.0.1:1 --tls-ca /n/ca --tls-cert /n/cert --tls-key /n/key"}) {
    const bool driver = absl::StartsWith(words, "driver");
    const Outcome refused =
        Run(absl::StrCat(words, driver ? " --state-dir " : " --run-dir ", made));
    EXPECT_EQ(refused.code, 2) << words << refused.error;
    EXPECT_FALSE(std::filesystem::exists(made)) << words << refused.error;
  }
  std::filesystem::remove_all(folder);
}

// A job that fills the machine would fail later, and say less.
TEST_F(ProgramTest, AnAgentSaysAtItsStartHowManyRanksItCannotServe) {
  char folder[] = "/tmp/ms-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string agent = absl::StrCat("agent --driver unix:", folder, "/none.sock --run-dir ",
                                         folder, "/run --slots ");
  const Outcome most = Run(agent + "1017");
  EXPECT_EQ(most.code, 2);
  EXPECT_EQ(most.error, "megascale: --slots: 1017 is out of range; expected 1 to 992\n");
  EXPECT_EQ(Run("local examples/tiny.yaml --slots 1017").code, 2);
  const Outcome few = Shell(absl::StrCat("ulimit -n 400; timeout 60 cli/megascale ", agent, "100"));
  EXPECT_EQ(few.error,
            "megascale: --slots 100: needs 528 open descriptors, and the limit is 400; raise it "
            "(ulimit -Hn, or LimitNOFILE of the unit), or give fewer slots\n");
  EXPECT_NE(few.code, 0);
  std::filesystem::remove_all(folder);
}

TEST_F(ProgramTest, OutputThatCannotBeWrittenIsAFailure) {
  for (const char* words :
       {"version", "version -o json", "--version", "--help", "submit --dry-run examples/tiny.yaml",
        "submit --dry-run examples/tiny.yaml -o json", "plan examples/bytes.yaml"}) {
    const Outcome full = Run(absl::StrCat(words, " >/dev/full"));
    EXPECT_EQ(full.code, 1) << words;
    EXPECT_TRUE(absl::StartsWith(full.error, "megascale: cannot write to standard output"))
        << words << full.error;
    EXPECT_EQ(std::count(full.error.begin(), full.error.end(), '\n'), 1) << full.error;
  }
  // The reader closes the pipe early, and the parent ignores SIGPIPE.
  const Outcome closed = Shell(
      "bash -c 'trap \"\" PIPE; exec 3> >(:); wait $!; timeout 60 cli/megascale version >&3; "
      "echo $? >&2'");
  EXPECT_EQ(closed.error, "1\n") << "without a word";
}

TEST_F(ProgramTest, LocalRefusesWhatDoesNotFitBeforeAnythingStarts) {
  const std::string state = directory_ + "/state";
  const Outcome slots = Run(absl::StrCat(
      "local examples/tiny.yaml --agents 2 --slots 1 --state-dir ", state, " --data ", text_));
  EXPECT_EQ(slots.code, 2);
  EXPECT_EQ(slots.error,
            "megascale: examples/tiny.yaml: needs data × tensor × pipeline = 2 × 1 × 2 = 4 "
            "slots; 2 agents × 1 slot = 2\n");
  const Outcome groups = Run(absl::StrCat(
      "local examples/tiny.yaml --agents 2 --slots 3 --set parallel.tensor_model_parallel_size=2 "
      "--set parallel.pipeline_model_parallel_size=1 --set parallel.data_parallel_size=3 "
      "--set train.global_batch_size=24 --state-dir ",
      state, " --data ", text_));
  EXPECT_EQ(groups.code, 2);
  EXPECT_EQ(groups.error,
            "megascale: examples/tiny.yaml: needs data × tensor × pipeline = 3 × 2 × 1 = 6 slots; "
            "2 agents × 3 slots = 6; the 2 ranks of a tensor group share an agent\n");
  const Outcome data = Run(absl::StrCat(
      "local examples/tiny.yaml --agents 2 --slots 2 --state-dir ", state, " --data /nonexistent"));
  EXPECT_EQ(data.code, 2);
  EXPECT_TRUE(absl::StartsWith(
      data.error, "megascale: examples/tiny.yaml: data.files: data file /nonexistent: "))
      << data.error;
  std::ofstream(directory_ + "/short") << "to be";
  const Outcome little =
      Run(absl::StrCat("local examples/tiny.yaml --agents 2 --slots 2 --state-dir ", state,
                       " --data ", directory_, "/short"));
  EXPECT_TRUE(absl::StartsWith(
      little.error, absl::StrCat("megascale: examples/tiny.yaml: data.files: ", directory_,
                                 "/short has 5 bytes for training ")))
      << little.error;
  EXPECT_EQ(Run("local examples/tiny.yaml --agents 0").code, 2);
  EXPECT_FALSE(std::filesystem::exists(state));
}

TEST_F(ProgramTest, CheckpointsThatAreNotThereAreFour) {
  for (const char* command :
       {"checkpoint list", "checkpoint inspect", "checkpoint digest", "checkpoint verify",
        "generate --checkpoint", "evaluate --checkpoint"}) {
    EXPECT_EQ(Run(absl::StrCat(command, " /nonexistent")).code, 4) << command;
  }
  EXPECT_EQ(Run("generate").code, 2);
}

TEST_F(ProgramTest, AFolderThatIsNotOneOfCheckpointsIsNamed) {
  const auto list = [&](const std::string& folder) {
    return Run(absl::StrCat("checkpoint list ", directory_, "/", folder));
  };
  const std::string job = directory_ + "/job";
  const std::string step = job + "/checkpoints/step-00000100-attempt-1";
  std::filesystem::create_directories(step);
  std::ofstream(step + "/manifest.json") << "{}";
  for (const auto& [folder, found] :
       {std::pair("", ": has no checkpoints, but other files; expected a job's folder of "),
        std::pair("job", ": is a job's folder, its checkpoints are in checkpoints/; expected "),
        std::pair("job/checkpoints/step-00000100-attempt-1", ": is one checkpoint, ")}) {
    const Outcome refused = list(folder);
    EXPECT_EQ(refused.code, 4) << refused.error;
    EXPECT_EQ(refused.out, "") << "a heading without lines";
    EXPECT_TRUE(absl::StrContains(refused.error, found)) << refused.error;
    EXPECT_TRUE(absl::EndsWith(refused.error, " such as step-00000100-attempt-1\n"));
  }
  std::filesystem::remove(step + "/manifest.json");
  std::ofstream(job + "/checkpoints/.nonce") << "x";
  const Outcome none = list("job/checkpoints");
  EXPECT_EQ(none.code, 0) << none.error;
  EXPECT_EQ(none.out, "");
  EXPECT_EQ(none.error, job + "/checkpoints: has no complete checkpoint yet\n");
}

TEST_F(ProgramTest, WhatAScriptWritesForAnEmptyVariableIsAMistake) {
  const Outcome from = Run("submit examples/tiny.yaml --from= --dry-run");
  EXPECT_EQ(from.code, 2);
  EXPECT_TRUE(absl::StrContains(from.error, "--from=: has no value")) << from.error;
  EXPECT_EQ(Run("submit examples/tiny.yaml --dry-run --job-id ''").code, 2);
  EXPECT_EQ(Run("submit examples/tiny.yaml --dry-run --set data.held_out_fraction=").code, 2);
}

TEST_F(ProgramTest, AnAddressForThePageThatIsNoneIsRefusedBeforeAnythingStarts) {
  for (const char* address : {"foo", "0.0.0.0:0", "unix:/tmp/page", "127.0.0.1"}) {
    const Outcome local = Run(absl::StrCat("local examples/tiny.yaml --http ", address));
    EXPECT_EQ(local.code, 2) << address;
    EXPECT_TRUE(absl::StrContains(local.error, "--http: expected HOST:PORT")) << local.error;
  }
}

TEST_F(ProgramTest, TokensReplaceNothingButAFile) {
  ASSERT_EQ(Shell(absl::StrCat("mkfifo ", directory_, "/pipe")).code, 0);
  const std::string json = directory_ + "/t.json";
  ASSERT_EQ(Run(absl::StrCat("tokenizer train --vocab-size 257 --out ", json, " ", text_)).code, 0);
  const Outcome pipe = Run(absl::StrCat("tokenizer encode --tokenizer ", json, " ", text_,
                                        " --out ", directory_, "/pipe"));
  EXPECT_EQ(pipe.code, 2) << pipe.error;
  EXPECT_TRUE(std::filesystem::is_fifo(directory_ + "/pipe"));
}

TEST_F(ProgramTest, NoOutputReplacesAnInput) {
  const std::string json = directory_ + "/tokenizer.json";
  ASSERT_EQ(Run(absl::StrCat("tokenizer train --vocab-size 257 --out ", json, " ", text_)).code, 0);
  const std::string tokenizer = ReadAll(json);
  for (const char* words :
       {"tokenizer train FILE --vocab-size 257 --out FILE", "minder train FILE --out FILE",
        "diagnose --saved FILE --svg FILE", "diagnose --trace FILE --svg FILE",
        "plan FILE --svg FILE", "plan FILE --trace FILE",
        "tokenizer encode --tokenizer JSON FILE --out FILE",
        "tokenizer encode --tokenizer JSON FILE --out JSON",
        "tokenizer encode --tokenizer FOLDER FILE --out JSON"}) {
    const Outcome refused =
        Run(absl::StrReplaceAll(words, {{"FILE", text_}, {"JSON", json}, {"FOLDER", directory_}}));
    EXPECT_EQ(refused.code, 2) << words << refused.error;
    EXPECT_TRUE(absl::StrContains(refused.error, " is an input, which would be overwritten; "))
        << words << refused.error;
    EXPECT_EQ(ReadAll(text_), std::string(5000, 'a')) << words;
    EXPECT_EQ(ReadAll(json), tokenizer) << words;
  }
}

TEST_F(ProgramTest, OutputsReplaceOnlyFilesOfTheirKindUnlessForced) {
  const std::string other = directory_ + "/manifest.json";
  const auto words = [&](std::string text, const std::string& file) {
    return absl::StrReplaceAll(text, {{"FILE", file}, {"TEXT", text_}});
  };
  for (const char* command :
       {"plan examples/bytes.yaml --svg FILE", "plan examples/bytes.yaml --trace FILE",
        "diagnose --trace tests/golden/straggler/timeline-ST.json.gz --svg FILE",
        "diagnose job --save FILE", "trace job -o FILE", "trace job --table FILE",
        "minder record job --out FILE", "minder train TEXT --out FILE",
        "tokenizer train TEXT --vocab-size 257 --out FILE"}) {
    std::ofstream(other) << "{\"step\": 40}";
    const Outcome refused = Run(words(command, other));
    EXPECT_EQ(refused.code, 2) << command << refused.error;
    EXPECT_TRUE(absl::StrContains(refused.error, other + " exists")) << refused.error;
    EXPECT_TRUE(absl::StrContains(refused.error, "give --force to replace it")) << refused.error;
    EXPECT_EQ(ReadAll(other), "{\"step\": 40}") << command;
  }
  for (const char* command :
       {"plan examples/bytes.yaml --svg FILE", "plan examples/bytes.yaml --trace FILE",
        "diagnose --trace tests/golden/straggler/timeline-ST.json.gz --svg FILE"}) {
    std::ofstream(other) << "{\"step\": 40}";
    EXPECT_EQ(Run(words(command, other) + " --force").code, 0) << command;
    EXPECT_EQ(Run(words(command, other)).code, 0) << "the same again: " << command;
  }
}

// Another vocabulary under the same name would make jobs be refused that were trained with it.
TEST_F(ProgramTest, NoTokenizerAndNoTokensAreReplacedUnlessForced) {
  const std::string json = directory_ + "/t.json";
  const std::string train = absl::StrCat("tokenizer train ", text_, " --out ", json);
  ASSERT_EQ(Run(train + " --vocab-size 257").code, 0);
  const std::string first = ReadAll(json);
  const Outcome refused = Run(train + " --vocab-size 258");
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.error, absl::StrCat("megascale: --out: ", json,
                                        " exists; choose another file, or give --force to replace "
                                        "it\n"));
  EXPECT_EQ(ReadAll(json), first);
  EXPECT_EQ(Run(train + " --vocab-size 258 --force").code, 0);
  EXPECT_NE(ReadAll(json), first);
  const std::string encode = absl::StrCat("tokenizer encode --tokenizer ", json, " ", text_,
                                          " --out ", directory_, "/tokens");
  EXPECT_EQ(Run(encode).code, 0);
  EXPECT_EQ(Run(encode).code, 2);
  EXPECT_EQ(Run(encode + " --force").code, 0);
}

// A published trace: plain or gzip, for people and for programs.
TEST_F(ProgramTest, DiagnoseReadsAPublicTrace) {
  const std::string packed = "tests/golden/straggler/timeline-ST.json.gz";
  const Outcome text = Run("diagnose --trace " + packed);
  EXPECT_EQ(text.code, 0) << text.error;
  EXPECT_TRUE(absl::StrContains(text.out, "what it would without stragglers (S)")) << text.out;
  EXPECT_TRUE(absl::StrContains(text.out, "\nexcluded  ")) << text.out;
  const std::string plain = directory_ + "/timeline.json";
  ASSERT_EQ(Shell(absl::StrCat("gzip -dc ", packed, " > ", plain)).code, 0);
  EXPECT_EQ(Run("diagnose --trace " + plain).out, text.out);
  const Outcome object = Run("diagnose -o json --trace " + packed);
  EXPECT_GT(NumberIn(object.out, "blocking_slowdown"), 1) << object.error;
  for (const char* name : {"M_W", "M_S"}) EXPECT_GE(NumberIn(object.out, name), 0);
  EXPECT_TRUE(absl::StrContains(object.out, "\"cause\": ")) << object.out;
  std::ofstream(plain) << "{\"traceEvents\": 3}";
  EXPECT_TRUE(absl::StrContains(Run("diagnose --trace " + plain).error, "timeline.json"));
}

TEST_F(ProgramTest, VersionIsShown) {
  EXPECT_TRUE(absl::StartsWith(Run("version").out, "megascale "));
  EXPECT_TRUE(absl::StartsWith(Run("version -o json").out, "{\"version\": \""));
  const Outcome flag = Run("--version");
  EXPECT_EQ(flag.code, 0);
  EXPECT_TRUE(absl::StartsWith(Run("version").out, flag.out.substr(0, flag.out.find('\n'))));
}

}  // namespace
