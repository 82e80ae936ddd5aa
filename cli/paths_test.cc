// Paths that the program cannot use, from the outside: each is refused where it is read.
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/testing/test_program.h"

namespace {

using megascale::cli::Outcome;
using megascale::cli::ProgramTest;

class PathsTest : public ProgramTest {};

TEST_F(PathsTest, AnEmptyPathIsAMistake) {
  for (const auto& [what, words] : {std::pair("a path", "plan examples/bytes.yaml --svg"),
                                    {"a path", "plan examples/bytes.yaml --trace"},
                                    {"a path", "trace j --output"},
                                    {"a path", "submit examples/tiny.yaml --dry-run --from"},
                                    {"a path", "submit examples/tiny.yaml --dry-run --data"},
                                    {"a path", "list --tls-ca"},
                                    {"a path", "local examples/tiny.yaml --state-dir"},
                                    {"a path", "generate --checkpoint"},
                                    {"a path", "driver --state-dir"},
                                    {"a path", "agent --run-dir"},
                                    {"a path", "agent --store-ca"},
                                    {"a path", "checkpoint verify"},
                                    {"an address", "list --address"},
                                    {"an address", "driver --listen"},
                                    {"an address", "agent --driver"}}) {
    const Outcome refused = Run(absl::StrCat(words, " ''"));
    EXPECT_EQ(refused.code, 2) << words << refused.error;
    EXPECT_TRUE(absl::StrContains(refused.error, absl::StrCat(": expected ", what, ", found ''\n")))
        << words << refused.error;
    EXPECT_EQ(refused.out, "") << words;
  }
  EXPECT_EQ(Run("status ''").error,
            "megascale: JOB: expected a value, found ''\n  see: megascale status --help\n");
}

// It would be taken for a folder "s3:" of the current directory.
TEST_F(PathsTest, APlaceThatIsInNoFileSystemIsRefusedWithItsOption) {
  for (const auto& [option, words] :
       {std::pair("--from", "submit examples/tiny.yaml --from s3://b/x"),
        {"--data", "submit examples/tiny.yaml --data /a s3://b/x"},
        {"--tokenizer: data.tokenizer", "submit examples/tiny.yaml --tokenizer s3://b/x"},
        {"FILE", "submit s3://b/x"},
        {"FILE", "plan s3://b/x"},
        {"--svg", "plan examples/tiny.yaml --svg s3://b/x"},
        {"--trace", "plan examples/tiny.yaml --trace s3://b/x"},
        {"--state-dir", "local examples/tiny.yaml --state-dir s3://b/x"},
        {"--data", "local examples/tiny.yaml --data s3://b/x"},
        {"--output", "trace j --output s3://b/x"},
        {"--table", "trace j --table s3://b/x"},
        {"--trace", "diagnose --trace s3://b/x"},
        {"--saved", "diagnose --saved s3://b/x"},
        {"--save", "diagnose j --save s3://b/x"},
        {"--svg", "diagnose j --svg s3://b/x"},
        {"--series", "minder check --series s3://b/x"},
        {"--models", "minder check j --models s3://b/x"},
        {"--out", "minder record j --out s3://b/x"},
        {"--out", "minder train a --out s3://b/x"},
        {"FILE", "minder train s3://b/x --out a"},
        {"--checkpoint", "generate --checkpoint s3://b/x"},
        {"--prompts", "generate --checkpoint a --prompts s3://b/x"},
        {"--tokenizer", "generate --checkpoint a --tokenizer s3://b/x"},
        {"--checkpoint", "evaluate --checkpoint s3://b/x"},
        {"--data", "evaluate --checkpoint a --data s3://b/x"},
        {"--tokenizer", "evaluate --checkpoint a --tokenizer s3://b/x"},
        {"DIR", "checkpoint list s3://b/x"},
        {"DIR", "checkpoint inspect s3://b/x"},
        {"DIR", "checkpoint digest s3://b/x"},
        {"DIR", "checkpoint verify s3://b/x"},
        {"FOLDER", "checkpoint import s3://b/x --out a"},
        {"--out", "checkpoint import a --out s3://b/x"},
        {"DIR", "checkpoint export s3://b/x --out a"},
        {"--out", "checkpoint export a --out s3://b/x"},
        {"FILE", "tokenizer train --vocab-size 300 s3://b/x --out a"},
        {"--out", "tokenizer train --vocab-size 300 a --out s3://b/x"},
        {"FILE", "tokenizer encode --tokenizer a s3://b/x"},
        {"--tokenizer", "tokenizer encode --tokenizer s3://b/x a"},
        {"--out", "tokenizer encode --tokenizer a b --out s3://b/x"},
        {"--tokenizer", "tokenizer decode --tokenizer s3://b/x a"},
        {"TOKENIZER", "tokenizer inspect s3://b/x"},
        {"DIR", "certs init s3://b/x"},
        {"DIR", "certs issue s3://b/x user me"},
        {"FILE", "certs show s3://b/x"},
        {"--state-dir", "driver --state-dir s3://b/x"},
        {"--tls-key", "driver --tls-key s3://b/x"},
        {"DIR", "driver backup s3://b/x"},
        {"--state-dir", "driver restore a --state-dir s3://b/x"},
        {"--run-dir", "agent --run-dir s3://b/x"},
        {"--state-dir", "agent --state-dir s3://b/x"},
        {"--log-dir", "agent --log-dir s3://b/x"},
        {"--store-ca", "agent --store-ca s3://b/x"},
        {"--tls-ca", "list --tls-ca s3://b/x"}}) {
    const Outcome refused = Run(words);
    EXPECT_EQ(refused.code, 2) << words << refused.error;
    const std::string why =
        absl::StrCat(option,
                     ": 's3://b/x' begins with s3://, which is not supported; expected a path in a "
                     "mounted file system\n");
    EXPECT_TRUE(absl::StrContains(refused.error, why)) << words << "\n" << refused.error;
    EXPECT_EQ(refused.out, "") << words;
    EXPECT_FALSE(std::filesystem::exists("s3:")) << words;
  }
  const Outcome variable = Shell("MEGASCALE_STORE_CA=gs://x timeout 60 cli/megascale agent");
  EXPECT_EQ(variable.code, 2) << variable.error;
  EXPECT_TRUE(absl::StartsWith(variable.error, "megascale: MEGASCALE_STORE_CA: 'gs://x' begins "))
      << variable.error;
}

TEST_F(PathsTest, APlaceThatIsInNoFileSystemIsRefusedWithItsFieldOfTheJobFile) {
  for (const auto& [field, value] : {std::pair("checkpoint.directory", "hdfs://n:9000/x"),
                                     {"data.files", "[hdfs://n:9000/x]"},
                                     {"data.tokenizer", "hdfs://n:9000/x"},
                                     {"data.token_cache", "hdfs://n:9000/x"},
                                     {"model.from", "hdfs://n:9000/x"}}) {
    for (const char* command : {"submit", "plan", "local"}) {
      const std::string set = absl::StrCat("--set ", field, "=", value);
      const Outcome refused = Run(absl::StrCat(command, " examples/tiny.yaml ", set));
      EXPECT_EQ(refused.code, 2) << refused.error;
      EXPECT_EQ(refused.error,
                absl::StrCat("megascale: ", set, ": ", field,
                             ": 'hdfs://n:9000/x' begins with hdfs://, which is not supported; "
                             "expected a path in a mounted file system\n"));
    }
  }
}

}  // namespace
