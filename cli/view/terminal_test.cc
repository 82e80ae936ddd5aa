// The detection of terminals: with a pseudo-terminal, a pipe and different environments.
#include "cli/view/terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "runtime/base/fd.h"

namespace megascale::cli {
namespace {

// A terminal of 132 columns, in an environment that has only TERM.
class TerminalTest : public ::testing::Test {
 protected:
  TerminalTest() {
    for (const char* name : {"NO_COLOR", "LC_ALL", "LC_CTYPE", "LANG"}) ::unsetenv(name);
    ::setenv("TERM", "xterm", 1);
    winsize size = {};
    size.ws_col = 132;
    int ends[2] = {-1, -1};
    EXPECT_EQ(::openpty(&ends[0], &ends[1], nullptr, nullptr, &size), 0);
    master_ = base::UniqueFd(ends[0]);
    terminal_ = base::UniqueFd(ends[1]);
  }

  base::UniqueFd master_;
  base::UniqueFd terminal_;
};

TEST_F(TerminalTest, ATerminalHasColorItsWidthAndUtf8) {
  const Terminal terminal = DetectTerminal(terminal_.get());
  EXPECT_TRUE(terminal.interactive);
  EXPECT_TRUE(terminal.color);
  EXPECT_TRUE(terminal.unicode);
  EXPECT_EQ(terminal.width, 132);
  EXPECT_EQ(Colored(terminal, "31", "FAILED"), "\033[31mFAILED\033[0m");
}

TEST_F(TerminalTest, ATerminalThatIsResizedHasItsNewSizeAtTheNextLook) {
  winsize size = {};
  size.ws_col = 90;
  size.ws_row = 12;
  ASSERT_EQ(::ioctl(master_.get(), TIOCSWINSZ, &size), 0);
  EXPECT_EQ(DetectTerminal(terminal_.get()).width, 90);
  EXPECT_EQ(DetectTerminal(terminal_.get()).height, 12);
}

TEST_F(TerminalTest, ATerminalThatDoesNotTellItsSizeIsTakenForASmallOne) {
  const winsize unknown = {};
  ASSERT_EQ(::ioctl(terminal_.get(), TIOCSWINSZ, &unknown), 0);
  EXPECT_EQ(DetectTerminal(terminal_.get()).width, 80);
  EXPECT_EQ(DetectTerminal(terminal_.get()).height, 24);
}

TEST_F(TerminalTest, NoColorTakesTheColorsAndNothingElse) {
  ::setenv("NO_COLOR", "1", 1);
  const Terminal terminal = DetectTerminal(terminal_.get());
  EXPECT_TRUE(terminal.interactive);
  EXPECT_FALSE(terminal.color);
  EXPECT_EQ(terminal.width, 132);
  EXPECT_EQ(Colored(terminal, "31", "FAILED"), "FAILED");
  ::setenv("NO_COLOR", "", 1);  // as if it were not set: no-color.org
  EXPECT_TRUE(DetectTerminal(terminal_.get()).color);
}

TEST_F(TerminalTest, ADumbTerminalAndAPipeAreNotWrittenToAsAPersonsIs) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe(ends), 0);
  const base::UniqueFd read_end(ends[0]);
  const base::UniqueFd write_end(ends[1]);
  EXPECT_FALSE(DetectTerminal(write_end.get()).interactive);
  EXPECT_FALSE(DetectTerminal(write_end.get()).color);
  ::setenv("TERM", "dumb", 1);
  EXPECT_FALSE(DetectTerminal(terminal_.get()).interactive);
  EXPECT_FALSE(DetectTerminal(terminal_.get()).color);
}

TEST_F(TerminalTest, TheLocaleSaysWhetherUtf8IsShown) {
  ::setenv("LANG", "C", 1);
  EXPECT_FALSE(DetectTerminal(terminal_.get()).unicode);
  ::setenv("LC_ALL", "de_DE.UTF-8", 1);
  EXPECT_TRUE(DetectTerminal(terminal_.get()).unicode);
}

// Returns the output of a WorkProgress over 30 s, with one of 60 units done each second.
std::string ProgressOfHalfAMinute(bool interactive) {
  std::FILE* const file = std::tmpfile();
  {
    Terminal terminal;
    terminal.interactive = interactive;
    const absl::Duration start = absl::Hours(1);
    WorkProgress line({"text", "windows"}, terminal, file, start);
    for (int i = 1; i <= 30; ++i) line.Show(i, 60, start + absl::Seconds(i));
  }
  std::string written(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(written.data(), 1, written.size(), file), written.size());
  std::fclose(file);
  return written;
}

TEST(WorkProgressTest, OffATerminalALineEveryTenSeconds) {
  EXPECT_EQ(ProgressOfHalfAMinute(false),
            "text: 10 of 60 windows, 50s left\n"
            "text: 20 of 60 windows, 40s left\n"
            "text: 30 of 60 windows, 30s left\n");
}

TEST(WorkProgressTest, OnATerminalOneLineIsRedrawnAndErased) {
  const std::string written = ProgressOfHalfAMinute(true);
  EXPECT_EQ(written.find("\r\033[Ktext: 1 of 60 windows, 59s left\r\033[K"), 0u) << written;
  EXPECT_EQ(written.find('\n'), std::string::npos);
  const std::string end = "30s left\r\033[K";
  EXPECT_EQ(written.substr(written.size() - end.size()), end);
}

}  // namespace
}  // namespace megascale::cli
