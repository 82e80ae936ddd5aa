#include "cli/command_line/command_line.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace megascale::cli {
namespace {

// A program with two visible commands and a hidden one.
class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() : line_("megascale", "test") {
    Command* submit = line_.Add("submit", "submits");
    submit->Positional("FILE", &file_, "file");
    submit->Flag("--follow", &follow_, "follows");
    submit->Repeated("--set", &sets_, "sets");
    submit->Words("--data", &data_, "data");
    submit->Integer("--slots", &slots_, "slots");
    submit->Duration("--grace", &grace_, "grace");
    submit->Examples("megascale submit job.yaml");
    submit->Runs([this] { return ++runs_, 7; });
    Command* checkpoint = line_.Add("checkpoint", "checkpoints");
    checkpoint->Add("list", "lists")->Runs([] { return 8; });
    line_.Add("worker", "hidden")->Hide();
  }

  int Run(std::vector<std::string> words) {
    words.insert(words.begin(), "megascale");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = line_.Run(static_cast<int>(argv.size()), argv.data());
    out_ = ::testing::internal::GetCapturedStdout();
    error_ = ::testing::internal::GetCapturedStderr();
    return code;
  }

  CommandLine line_;
  std::string file_;
  std::vector<std::string> sets_, data_;
  bool follow_ = false;
  int64_t slots_ = 1;
  absl::Duration grace_ = absl::Seconds(30);
  int runs_ = 0;
  std::string out_, error_;
};

TEST_F(CommandLineTest, RunsTheChosenCommand) {
  EXPECT_EQ(Run({"submit", "--set", "a=1", "job.yaml", "--set", "b=2", "--follow", "--slots", "3",
                 "--grace", "1m30s", "--data", "x", "y"}),
            7);
  EXPECT_EQ(runs_, 1);
  EXPECT_EQ(file_, "job.yaml");
  EXPECT_EQ(sets_, (std::vector<std::string>{"a=1", "b=2"}));
  EXPECT_EQ(data_, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(follow_);
  EXPECT_EQ(slots_, 3);
  EXPECT_EQ(grace_, absl::Seconds(90));
  EXPECT_EQ(error_, "");
}

TEST_F(CommandLineTest, RunsNestedCommands) { EXPECT_EQ(Run({"checkpoint", "list"}), 8); }

TEST_F(CommandLineTest, NamesTheNearestCommand) {
  EXPECT_EQ(Run({"sumbit", "job.yaml"}), kExitUsage);
  EXPECT_EQ(
      error_,
      "megascale: unknown command 'sumbit'; did you mean 'submit'?\n  see: megascale --help\n");
  EXPECT_EQ(Run({"checkpoint", "lst"}), kExitUsage);
  EXPECT_EQ(error_,
            "megascale: unknown command 'lst'; did you mean 'list'?\n  see: megascale checkpoint "
            "--help\n");
}

TEST_F(CommandLineTest, NamesTheNearestOption) {
  EXPECT_EQ(Run({"submit", "--folow", "job.yaml"}), kExitUsage);
  EXPECT_EQ(
      error_,
      "megascale: unknown option '--folow'; did you mean '--follow'?\n  see: megascale submit "
      "--help\n");
  EXPECT_EQ(Run({"submit", "job.yaml", "--slotz=3"}), kExitUsage);
  EXPECT_EQ(error_,
            "megascale: unknown option '--slotz'; did you mean '--slots'?\n  see: megascale submit "
            "--help\n");
  EXPECT_EQ(Run({"submit", "--folow"}), kExitUsage);
  EXPECT_EQ(runs_, 0);
}

TEST_F(CommandLineTest, SaysWhatIsMissingOrTooMuch) {
  EXPECT_EQ(Run({"submit"}), kExitUsage);
  EXPECT_EQ(error_, "megascale: FILE is required\n  see: megascale submit --help\n");
  EXPECT_EQ(Run({"submit", "a", "b"}), kExitUsage);
  EXPECT_EQ(error_, "megascale: unexpected argument 'b'\n  see: megascale submit --help\n");
  EXPECT_EQ(Run({"submit", "a", "--slots", "many"}), kExitUsage);
  EXPECT_EQ(error_,
            "megascale: --slots: expected a whole number, found 'many'\n  see: megascale submit "
            "--help\n");
  EXPECT_EQ(Run({"submit", "a", "--slots"}), kExitUsage);
  EXPECT_EQ(error_,
            "megascale: --slots: has no value; expected --slots VALUE\n  see: megascale submit "
            "--help\n");
  EXPECT_EQ(Run({"submit", "a", "--slots", "1", "--slots", "2"}), kExitUsage);
  EXPECT_EQ(error_, "megascale: --slots: expected once\n  see: megascale submit --help\n");
  for (const std::string list : {"--data=[x,y]", "[x, y]"}) {
    EXPECT_EQ(Run({"submit", "a", "--data", list}), kExitUsage);
    EXPECT_NE(error_.find(
                  "megascale: --data: expected values with spaces between them, found the list '["),
              std::string::npos)
        << error_;
    EXPECT_NE(error_.find("; write --data x y\n  see: megascale submit --help\n"),
              std::string::npos)
        << error_;
  }
  EXPECT_EQ(Run({"submit", "a", "--grace", "5"}), kExitUsage);
  EXPECT_EQ(
      error_,
      "megascale: --grace: expected a duration such as 30s, found '5'\n  see: megascale submit "
      "--help\n");
  EXPECT_EQ(Run({}), kExitUsage);
  EXPECT_EQ(error_,
            "megascale: expected a command: one of submit, checkpoint\n  see: megascale --help\n");
  EXPECT_EQ(Run({"checkpoint"}), kExitUsage);
  EXPECT_EQ(out_, "");
}

TEST_F(CommandLineTest, AnArgumentMayBeCalledAsACommandIs) {
  Command* show = line_.Add("show", "shows");
  show->OptionalPositional("JOB", &file_, "job");
  show->Runs([] { return 9; });
  EXPECT_EQ(Run({"show", "submit"}), 9);
  EXPECT_EQ(file_, "submit");
  EXPECT_EQ(Run({"submit", "show", "--data", "checkpoint", "worker"}), 7);
  EXPECT_EQ(file_, "show");
  EXPECT_EQ(data_, (std::vector<std::string>{"checkpoint", "worker"}));
}

TEST_F(CommandLineTest, HelpIsACommandToo) {
  line_.AddHelp();
  ASSERT_EQ(Run({"--help"}), kExitGood);
  const std::string program = out_;
  ASSERT_EQ(Run({"submit", "--help"}), kExitGood);
  const std::string submit = out_;
  for (const auto& [words, page] : {std::pair(std::vector<std::string>{"-h"}, program),
                                    {{"help"}, program},
                                    {{"submit", "-h"}, submit},
                                    {{"help", "submit"}, submit}}) {
    EXPECT_EQ(Run(words), kExitGood);
    EXPECT_EQ(out_, page);
  }
  EXPECT_EQ(Run({"help", "checkpoint", "list"}), kExitGood);
  EXPECT_EQ(out_.find("NAME\n    megascale checkpoint list - lists\n"), 0u) << out_;
  EXPECT_EQ(Run({"help", "checkpoint", "lst"}), kExitUsage);
  EXPECT_EQ(error_,
            "megascale: unknown command 'lst'; did you mean 'list'?\n  see: megascale checkpoint "
            "--help\n");
  EXPECT_EQ(Run({"help", "submit", "x"}), kExitUsage);
  EXPECT_EQ(error_, "megascale: unexpected argument 'x'\n  see: megascale submit --help\n");
}

TEST_F(CommandLineTest, CommandsStandInTheirGroups) {
  line_.Group("Others:");
  line_.Add("one", "does one thing")->Add("inner", "is of the same group");
  line_.Add(
      "another",
      "does another, and says so in so many words that the page of the program needs a second "
      "line for the end of it");
  EXPECT_EQ(Run({"--help"}), kExitGood);
  EXPECT_NE(out_.find("COMMANDS\n    submit      submits\n    checkpoint  checkpoints\n\n"
                      "  Others:\n    one         does one thing\n    another     does another, "),
            std::string::npos)
      << out_;
  EXPECT_NE(out_.find("\n                second line for the end of it\n"), std::string::npos)
      << out_;
  EXPECT_EQ(Run({"one", "--help"}), kExitGood);
  EXPECT_NE(out_.find("COMMANDS\n    inner  is of the same group\n"), std::string::npos) << out_;
}

TEST_F(CommandLineTest, HelpGoesToStandardOutput) {
  EXPECT_EQ(Run({"--help"}), kExitGood);
  EXPECT_NE(out_.find("submit"), std::string::npos);
  EXPECT_EQ(out_.find("worker"), std::string::npos);
  EXPECT_EQ(Run({"submit", "--help"}), kExitGood);
  EXPECT_NE(out_.find("EXAMPLES\n    megascale submit job.yaml"), std::string::npos) << out_;
  EXPECT_NE(out_.find("--grace"), std::string::npos);
  EXPECT_EQ(error_, "");
}

}  // namespace
}  // namespace megascale::cli
