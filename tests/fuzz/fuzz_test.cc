// Runs the corpus and a fixed number of mutations, for a few seconds; `./dev fuzz` runs each target
// for a minute.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/message_differencer.h"
#include "proto/checkpoint.pb.h"
#include "tests/fuzz/engine.h"

namespace megascale::fuzz {
namespace {

constexpr int64_t kExecutions = 4000;

std::string CorpusOf(const Target& target) {
  return absl::StrCat(::getenv("TEST_SRCDIR"), "/megascale/tests/fuzz/corpus/", target.name);
}

class FuzzTest : public testing::TestWithParam<std::string> {};

TEST_P(FuzzTest, EveryInputIsAnswered) {
  const Target& target = *FindTarget(GetParam());
  const auto corpus = ReadCorpus(CorpusOf(target));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_GE(corpus->size(), 10u);
  FuzzOptions options;
  options.executions_max = kExecutions;
  options.crash_directory = testing::TempDir();
  const FuzzStatistics statistics = Fuzz(target, *corpus, options);
  EXPECT_EQ(statistics.num_executions, kExecutions);
}

TEST_P(FuzzTest, TheSameSeedMakesTheSameInputs) {
  Target counted = *FindTarget(GetParam());
  counted.run = [](absl::string_view) {};
  const auto corpus = ReadCorpus(CorpusOf(counted));
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  FuzzOptions options;
  options.executions_max = 500;
  const uint64_t digest = Fuzz(counted, *corpus, options).digest;
  EXPECT_EQ(Fuzz(counted, *corpus, options).digest, digest);
  options.seed = 2;
  EXPECT_NE(Fuzz(counted, *corpus, options).digest, digest);
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzTest, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const Target& target : Targets()) names.push_back(target.name);
                           return names;
                         }()),
                         [](const auto& info) { return info.param; });

TEST(EngineDeathTest, AnInputThatCrashesIsWrittenDownWithTheCommandToRepeatIt) {
  Target target;
  target.name = "bad";
  target.run = [](absl::string_view input) {
    if (input == "boom") ::abort();
  };
  FuzzOptions options;
  options.crash_directory = absl::StrCat(testing::TempDir(), "/crashes");
  std::filesystem::create_directories(options.crash_directory);
  EXPECT_DEATH(Fuzz(target, {"a", "boom"}, options),
               "fuzz: an input crashes\n.*the input is in .*/crash-bad-.*\n.*run it again: ./dev "
               "fuzz bad ");
  int num_written = 0;
  for (const auto& entry : std::filesystem::directory_iterator(options.crash_directory)) {
    const auto inputs = ReadCorpus(entry.path().parent_path());
    ASSERT_TRUE(inputs.ok());
    EXPECT_EQ(inputs->front(), "boom");
    ++num_written;
  }
  EXPECT_EQ(num_written, 1);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they add to it
TEST(EngineDeathTest, AnInputThatTakesMoreMemoryThanItsTargetMayIsWrittenDown) {
  static std::vector<std::string> kept;
  Target target;
  target.name = "greedy";
  target.run = [](absl::string_view input) { kept.emplace_back(input.size() << 20, 'x'); };
  FuzzOptions options;
  options.crash_directory = testing::TempDir();
  const std::string small(200, 'a'), large(300, 'b');
  RunOne(target, small, options);
  const auto says = [](int mebibytes) {
    return absl::StrCat("takes more than ", mebibytes, " MiB of memory\n.*crash-greedy-");
  };
  // What was taken before the run does not count, and what each input adds to it does.
  EXPECT_EXIT(RunOne(target, large, options), testing::ExitedWithCode(1), says(256));
  EXPECT_EXIT(Fuzz(target, {"", small, small}, options), testing::ExitedWithCode(1), says(256));
  target.memory_bytes_max = int64_t{100} << 20;
  EXPECT_EXIT(RunOne(target, small, options), testing::ExitedWithCode(1), says(100));
  kept.clear();
}
#endif

TEST(MutatorTest, AMessageDiffersAfterAFewMistakes) {
  Random random(1);
  checkpoint::v1::Manifest manifest;
  manifest.set_job_id("j");
  manifest.add_shards()->add_slices()->add_global_shape(4);
  int num_different = 0;
  for (int i = 0; i < 100; ++i) {
    checkpoint::v1::Manifest mutated = manifest;
    MutateMessage(&mutated, &random);
    num_different += google::protobuf::util::MessageDifferencer::Equals(manifest, mutated) ? 0 : 1;
  }
  EXPECT_GT(num_different, 50);
}

TEST(FramesTest, SplitIsTheInverseOfJoinAndLeavesOutWhatIsCut) {
  const std::vector<std::string> frames = {"", "a", std::string(1000, 'b')};
  const std::string joined = JoinFrames(frames);
  EXPECT_EQ(SplitFrames(joined), frames);
  EXPECT_EQ(SplitFrames(joined.substr(0, joined.size() - 1)).size(), 2u);
  EXPECT_TRUE(SplitFrames("\xff\xff\xff\xff").empty());
}

}  // namespace
}  // namespace megascale::fuzz
