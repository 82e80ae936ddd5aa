// Runs the built program from the outside. Threads: one test at a time.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"

namespace megascale::cli {

struct Outcome {
  int code = -1;
  std::string out;  // standard output
  std::string error;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Each test has an empty folder.
class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/",
                              ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    text_ = directory_ + "/text.txt";
    std::ofstream(text_) << std::string(5000, 'a');
  }

  // Runs `megascale <words>`; `words` is for the shell.
  Outcome Run(const std::string& words) {
    return Shell(absl::StrCat("timeout 60 cli/megascale ", words));
  }

  Outcome Shell(const std::string& line) {
    const std::string command =
        absl::StrCat("(", line, ") >", directory_, "/out 2>", directory_, "/error");
    const int status = ::system(command.c_str());
    return {WEXITSTATUS(status), ReadAll(directory_ + "/out"), ReadAll(directory_ + "/error")};
  }

  std::string directory_;
  std::string text_;
};

}  // namespace megascale::cli
