// Malicious and broken job files: alias bombs, deep nesting, bytes that are not text. Each gives
// error lines, or is read as it is, in memory and time bounded by its size.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/job_file/testing/test_job_text.h"
#include "gtest/gtest.h"
#include "tests/soak.h"

namespace megascale::cli {
namespace {

// Returns the first mistake.
std::string ErrorOf(const std::string& text) {
  const auto spec = ReadText(text);
  if (spec.ok()) return "no error";
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  const std::vector<std::string> lines = absl::StrSplit(spec.status().message(), '\n');
  EXPECT_LE(lines.size(), 21u) << spec.status();
  for (const std::string& line : lines) EXPECT_LE(line.size(), 500u) << line.substr(0, 500);
  return lines[0];
}

std::string Repeated(const std::string& text, int times) {
  std::string all;
  all.reserve(text.size() * static_cast<size_t>(times));
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(JobFileYamlTest, ABombOfAliasesIsRefusedAtItsFirstLine) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 30; ++i) {
    absl::StrAppend(&bomb, "a", i, ": &a", i, " [", Repeated(absl::StrCat("*a", i - 1, ", "), 9),
                    "*a", i - 1, "]\n");
  }
  EXPECT_TRUE(absl::StartsWith(ErrorOf(bomb), "job.yaml:1:1: `a0` is not a field; "));
  // A known field is refused at the first level that is not text.
  std::string inside = "name: &a0 x\n";
  std::string files = "data:\n  files: [[[*a0, *a0], [*a0]], *a0]\n";
  EXPECT_EQ(ErrorOf(inside + files),
            "job.yaml:3:11: `data.files` expects a list of texts, found a list");
}

TEST(JobFileYamlTest, AnAliasOfItselfIsRefused) {
  EXPECT_EQ(ErrorOf("data: &d\n  files: *d\n"),
            "job.yaml:1:7: `data.files` expects a list of texts, found a section of fields");
  EXPECT_EQ(ErrorOf("model: &m {norm: *m}\n").substr(0, 12), "job.yaml:1:8");
}

TEST(JobFileYamlTest, AnchorsThatKnownFieldsShareAreRead) {
  const auto spec = ReadText("name: &n small\ncheckpoint: {directory: *n}\n");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->checkpoint().directory(), "small");
}

TEST(JobFileYamlTest, MergeKeysAreRefusedWithWhatToDo) {
  EXPECT_EQ(
      ErrorOf("model: &m {hidden_size: 1}\ntrain:\n  <<: *m\n"),
      "job.yaml:3:3: `train.<<` is a merge key, which job files do not have; write the fields "
      "out");
}

TEST(JobFileYamlTest, NestingIsBounded) {
  for (const char* open : {"[", "{", "{a: ", "[{a: ", "- ", "? ", "!!x [", "&a ["}) {
    for (const char* begin : {"", "name: ", "data:\n  files: "}) {
      EXPECT_NE(ErrorOf(begin + Repeated(open, 100'000)), "no error") << begin << open;
    }
  }
  std::string steps;
  for (int depth = 0; depth < 1'000; ++depth) steps += std::string(depth, ' ') + "a:\n";
  EXPECT_NE(ErrorOf(steps), "no error");
}

TEST(JobFileYamlTest, LargeFilesAreRefusedUnread) {
  EXPECT_EQ(ErrorOf(std::string(10 << 20, 'x')),
            "job.yaml: has 10485760 bytes; a job file has at most 1048576");
}

// `./dev soak` reads files of the largest size; others of a quarter.
TEST(JobFileYamlTest, TheLargestFilesAreReadInTheirOwnTime) {
  const int kBytes = IsSoak() ? 1 << 20 : 1 << 18;
  for (const char* piece :
       {"#\n", "\n",  "a", "a ",  "- a\n",     "a: b\n", "'",  "\"", "\\",    "&a ",
        "*a ", "!a ", "%", "|\n", "name: x\n", ", ",     ": ", "? ", "---\n", "...\n"}) {
    const int times = kBytes / static_cast<int>(std::string(piece).size());
    ErrorOf(Repeated(piece, times));
    ErrorOf("name: " + Repeated(piece, times - 10));
    ErrorOf("name: [" + Repeated(piece, times - 10));
  }
}

TEST(JobFileYamlTest, BytesThatAreNoTextAreRefused) {
  constexpr char kExpected[] = "job.yaml: is not text; expected YAML in UTF-8, without zero bytes";
  EXPECT_EQ(ErrorOf(std::string("\x7f"
                                "ELF\x02\x01\x01\0\0",
                                9)),
            kExpected);
  EXPECT_EQ(ErrorOf(std::string("name: a\0b\n", 10)), kExpected);
  EXPECT_EQ(ErrorOf("name: \xff\n"), kExpected);
  EXPECT_EQ(ErrorOf("\xff\xfe" + std::string("n\0a\0", 4)), kExpected);  // UTF-16
  EXPECT_EQ(ErrorOf("\x1f\x8b\x08"), kExpected);                         // gzip
}

TEST(JobFileYamlTest, ByteOrderMarksAndLinesOfOtherSystemsAreRead) {
  for (const char* text : {"\xef\xbb\xbfname: small\n", "name: small\r\n",
                           "name: small\r\nmodel:\r\n  "
                           "hidden_size: 64\r\n"}) {
    const auto spec = ReadText(text);
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->name(), "small");
  }
}

// The YAML library makes endless documents from a stray comma.
TEST(JobFileYamlTest, AStrayCommaEnds) {
  EXPECT_EQ(ErrorOf(","), "job.yaml:1:1: a second YAML document begins; expected one job a file");
  EXPECT_EQ(ErrorOf("name: a\n, b\n").substr(0, 9), "job.yaml:");
}

TEST(JobFileYamlTest, TabsAsIndentationAreRefused) {
  EXPECT_TRUE(absl::StartsWith(ErrorOf("model:\n\thidden_size: 64\n"), "job.yaml:2:"))
      << ErrorOf("model:\n\thidden_size: 64\n");
}

TEST(JobFileYamlTest, SeveralDocumentsAreRefusedWhereTheSecondBegins) {
  EXPECT_EQ(ErrorOf("name: a\n---\nname: b\n"),
            "job.yaml:2:1: a second YAML document begins; expected one job a file");
  EXPECT_NE(ErrorOf(Repeated("---\n", 1000)), "no error");
  EXPECT_EQ(ErrorOf("---\nname: a\n...\n"), "no error");
}

TEST(JobFileYamlTest, TextOfTheFileReachesNoTerminalRaw) {
  EXPECT_EQ(ErrorOf("model:\n  norm: \"a\\e[2J\\u202eb\"\n"),
            "job.yaml:2:9: `model.norm` expects layernorm or rmsnorm, found `a\\x1b[2J\\u202eb`");
  EXPECT_EQ(ErrorOf("\"na\\nme\": 1\n"),
            "job.yaml:1:1: `na\\nme` is not a field; did you mean `name`?");
  const std::string line = ErrorOf("\"" + std::string(1000, 'z') + "\": 1\n");
  EXPECT_TRUE(
      absl::StartsWith(line, "job.yaml:1:1: `" + std::string(60, 'z') + "…` is not a field"))
      << line;
}

TEST(JobFileYamlTest, KeysThatAreNoWordsAreRefused) {
  EXPECT_EQ(ErrorOf("[a, b]: 1\n"), "job.yaml:1:1: a field's name expects one word, found a list");
  EXPECT_EQ(ErrorOf("{a: b}: 1\n"),
            "job.yaml:1:1: a field's name expects one word, found a section of fields");
  EXPECT_NE(ErrorOf("~: 1\n"), "no error");
  EXPECT_NE(ErrorOf("\"\": 1\n"), "no error");
}

TEST(JobFileYamlTest, OptionsAreNoBetterPlaceForAllThat) {
  const std::vector<std::string> options = {"",
                                            "=",
                                            "=1",
                                            ".",
                                            ".=1",
                                            "model.=1",
                                            "model..hidden_size=1",
                                            "model.hidden_size",
                                            "model.hidden_size=",
                                            "model.hidden_size=[",
                                            "model.hidden_size=&a *a",
                                            "train.steps=1\n2",
                                            "name=" + Repeated("[", 100'000),
                                            Repeated("a.", 100'000) + "=1",
                                            "name=\xff",
                                            "name=" + std::string("a\0b", 3),
                                            "train.steps=\x1b[2J",
                                            "model.hidden_size=1: 2: 3",
                                            "train.steps=--- 1\n--- 2"};
  for (const std::string& option : options) {
    job::v1::JobSpec spec;
    const absl::Status status = Apply(option, &spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << option.substr(0, 50);
    const std::string line(status.message());
    EXPECT_TRUE(absl::StartsWith(line, "--set ")) << line;
    EXPECT_LE(line.size(), 500u) << line.substr(0, 500);
    for (const char c : line) EXPECT_FALSE(c >= 0 && c < ' ') << line;
  }
}

}  // namespace
}  // namespace megascale::cli
