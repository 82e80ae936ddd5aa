// The manual page of every subcommand is complete, plain when it is not on a terminal, and has
// examples that parse.
#include "cli/command_line/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/command_line/command_line.h"
#include "cli/commands/commands.h"

namespace megascale::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Splits a command into words as a shell does: quotes group, "#" begins a comment.
std::vector<std::string> WordsOf(absl::string_view command) {
  std::vector<std::string> words;
  std::string word;
  bool quoted = false;
  for (const char c : absl::StrCat(command, " ")) {
    if (c == '#' && word.empty() && !quoted) break;
    if (c == '\'') {
      quoted = !quoted;
    } else if (c == ' ' && !quoted) {
      if (!word.empty()) words.push_back(word);
      word.clear();
    } else {
      word += c;
    }
  }
  return words;
}

// Returns each "megascale …" of a command's examples, without the program's name.
std::vector<std::vector<std::string>> ExamplesOf(const Command& command) {
  std::vector<std::vector<std::string>> examples;
  const std::string joined = absl::StrReplaceAll(command.examples(), {{"\\\n", " "}});
  for (const absl::string_view line : absl::StrSplit(joined, '\n')) {
    for (const absl::string_view part : absl::StrSplit(line, "&&")) {
      std::vector<std::string> words = WordsOf(part);
      if (words.empty() || words.front() != "megascale") continue;
      examples.emplace_back(words.begin() + 1, words.end());
    }
  }
  return examples;
}

class HelpTest : public ::testing::Test {
 protected:
  HelpTest() : line_("megascale", "test") { AddCommands(&line_, nullptr, nullptr, nullptr); }

  // Returns the commands that are not hidden.
  std::vector<const Command*> Shown() const {
    std::vector<const Command*> shown;
    for (const Command* command : line_.All()) {
      if (!command->is_hidden()) shown.push_back(command);
    }
    return shown;
  }

  CommandLine line_;
};

TEST_F(HelpTest, EveryCommandHasAnExampleOfItselfThatParses) {
  int num_checked = 0;
  for (const Command* command : Shown()) {
    if (command->has_commands()) continue;
    const auto examples = ExamplesOf(*command);
    ASSERT_FALSE(examples.empty()) << command->name();
    EXPECT_THAT(absl::StrCat("megascale ", absl::StrJoin(examples.front(), " ")),
                StartsWith(command->name()));
    for (const std::vector<std::string>& words : examples) {
      EXPECT_EQ(line_.Parse(words), absl::OkStatus())
          << command->name() << ": " << absl::StrJoin(words, " ");
      ++num_checked;
    }
  }
  EXPECT_GT(num_checked, 30);
}

TEST_F(HelpTest, AnExampleThatDoesNotParseIsFound) {
  EXPECT_EQ(std::string(line_.Parse({"cancel", "x", "--grase", "5s"}).message()),
            "unknown option '--grase'; did you mean '--grace'?");
}

TEST_F(HelpTest, EveryPageHasItsSectionsInOrder) {
  for (const Command* command : Shown()) {
    const std::string page = command->Help(Terminal());
    size_t from = 0;
    for (const char* section : {"NAME\n", "\nSYNOPSIS\n", "\nOPTIONS\n",
                                "\nEXIT STATUS\n    0  good\n", "\nENVIRONMENT\n"}) {
      const size_t at = page.find(section, from);
      ASSERT_NE(at, std::string::npos) << command->name() << ": no " << section << page;
      from = at;
    }
    EXPECT_THAT(page, StartsWith(absl::StrCat("NAME\n    ", command->name(), " - ")));
    EXPECT_THAT(page, HasSubstr(command->has_commands() ? "\nCOMMANDS\n" : "\nEXAMPLES\n"));
  }
}

TEST_F(HelpTest, LinesFitTheTerminal) {
  Terminal narrow;
  narrow.width = 60;
  for (const Command* command : Shown()) {
    const std::string page = command->Help(narrow);
    // Examples and the sections after them are not wrapped.
    const std::string body =
        page.substr(0, std::min(page.find("\nEXAMPLES\n"), page.find("\nEXIT")));
    for (const absl::string_view line : absl::StrSplit(body, '\n')) {
      EXPECT_LE(DisplayWidth(line), 60) << command->name() << ": " << line;
    }
  }
}

TEST_F(HelpTest, NoLineIsWiderThanAHundredColumns) {
  Terminal wide;
  wide.width = 500;
  for (const Command* command : Shown()) {
    for (const Terminal& terminal : {Terminal(), wide}) {
      for (const absl::string_view line : absl::StrSplit(command->Help(terminal), '\n')) {
        EXPECT_LE(DisplayWidth(line), 100) << command->name() << ": " << line;
      }
    }
  }
}

TEST_F(HelpTest, HeadingsAreBoldWhereThereIsColourAndPlainElsewhere) {
  Terminal colored;
  colored.color = true;
  for (const Command* command : Shown()) {
    EXPECT_THAT(command->Help(Terminal()), Not(HasSubstr("\033"))) << command->name();
    EXPECT_THAT(command->Help(colored), StartsWith("\033[1mNAME\033[0m\n"));
  }
}

TEST_F(HelpTest, DefaultsAndUnitsStandWithTheirOptions) {
  for (const Command* command : Shown()) {
    if (command->name() != "megascale cancel") continue;
    EXPECT_THAT(command->Help(Terminal()),
                HasSubstr("    --grace TIME\n        time to finish the current step before it is "
                          "killed (default: 30s)\n"));
    EXPECT_THAT(command->Help(Terminal()),
                HasSubstr("\nSYNOPSIS\n    megascale cancel [OPTION]… JOB\n"));
  }
}

}  // namespace
}  // namespace megascale::cli
