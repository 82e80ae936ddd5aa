#include "runtime/checkpoint/writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/testing/test_checkpoint.h"

namespace megascale::checkpoint {
namespace {

constexpr ShardMoment kMoment = {2, 100, 3200};

std::set<std::string> Names(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

void WriteText(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

std::vector<agent::v1::CheckpointId> Ids(
    const std::vector<std::pair<int64_t, int64_t>>& steps_and_attempts) {
  std::vector<agent::v1::CheckpointId> ids;
  for (const auto& [step, attempt] : steps_and_attempts) {
    ids.emplace_back();
    ids.back().set_step(step);
    ids.back().set_attempt(attempt);
  }
  return ids;
}

// One rank's region with one sealed snapshot.
struct Sealed {
  ShardLayout layout = ShardLayout::Create(0, TestSlices(0, 1)).value();
  std::unique_ptr<base::SharedMemory> region = MakeSnapshotRegion(layout.size_bytes(), 0);
  SnapshotWriter writer = SnapshotWriter::Open(region.get(), kMoment.attempt, 0).value();
  std::string payload = TestPayload(layout, kMoment);
  SealedSnapshot snapshot = SealPayload(writer, *region, payload, kMoment.step);
  SnapshotReader reader = SnapshotReader::Open(region.get()).value();
};

TEST(WriterTest, NamesOfStepDirectoriesAreReadBack) {
  EXPECT_EQ(StepDirectoryName(100, 2), "step-00000100-attempt-2");
  EXPECT_EQ(ParseStepDirectoryName("step-00000100-attempt-2")->step(), 100);
  EXPECT_EQ(ParseStepDirectoryName("step-1234567890-attempt-11")->attempt(), 11);
  for (const char* name :
       {"step-100-attempt-2", "step-00000100-attempt-", "step-00000100", "step-0000010x-attempt-2",
        "step-00000100-attempt-2.tmp", "", "-", "---", ".deleted-step-00000100-attempt-2"}) {
    EXPECT_FALSE(ParseStepDirectoryName(name).has_value()) << name;
  }
}

TEST(WriterTest, AShardIsTheSnapshotByteForByteBesideItsRecord) {
  const std::string root = TestDirectory() + "/made/on/the/way";
  Sealed sealed;
  ASSERT_TRUE(PersistShard(sealed.reader, sealed.snapshot, root).ok());
  const std::string directory = StepDirectory(root, kMoment);
  EXPECT_EQ(Names(directory), (std::set<std::string>{"rank-00000.json", "rank-00000.safetensors"}));
  EXPECT_EQ(base::ReadFile(directory + "/rank-00000.safetensors", 1 << 20).value(), sealed.payload);
  v1::ShardFile record;
  ASSERT_TRUE(
      FromJson(base::ReadFile(directory + "/rank-00000.json", 1 << 20).value(), "record", &record)
          .ok());
  EXPECT_EQ(record.sha256(), base::Sha256Hex(sealed.payload));
  EXPECT_EQ(record.size_bytes(), static_cast<int64_t>(sealed.payload.size()));
  EXPECT_EQ(record.slices_size(), 5);
}

TEST(WriterTest, PersistingTwiceIsOnce) {
  const std::string root = TestDirectory();
  Sealed sealed;
  ASSERT_TRUE(PersistShard(sealed.reader, sealed.snapshot, root).ok());
  ASSERT_TRUE(PersistShard(sealed.reader, sealed.snapshot, root).ok());
  EXPECT_EQ(Names(StepDirectory(root, kMoment)).size(), 2u);
}

TEST(WriterTest, ADamagedSnapshotIsNotPersisted) {
  const std::string root = TestDirectory();
  Sealed sealed;
  const_cast<char*>(sealed.reader.Read(kMoment.step).value().data())[500] ^= 1;
  EXPECT_EQ(PersistShard(sealed.reader, sealed.snapshot, root).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(Names(root).empty());
}

TEST(WriterTest, ASnapshotThatANewerAttemptTookIsNotPersisted) {
  const std::string root = TestDirectory();
  Sealed sealed;
  ASSERT_TRUE(SnapshotWriter::Open(sealed.region.get(), 3, 0).ok());
  EXPECT_EQ(PersistShard(sealed.reader, sealed.snapshot, root).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Names(root).empty());
}

TEST(WriterTest, AHeaderOfAnotherMomentIsNotPersisted) {
  const std::string root = TestDirectory();
  Sealed sealed;
  const SealedSnapshot other = SealPayload(sealed.writer, *sealed.region, sealed.payload, 200);
  EXPECT_EQ(PersistShard(sealed.reader, other, root).code(), absl::StatusCode::kDataLoss);
}

TEST(WriterTest, AnUnwritableDirectoryIsAnErrorThatNamesIt) {
  const std::string root = TestDirectory();
  WriteText(root + "/file", "no directory");
  Sealed sealed;
  const absl::Status status = PersistShard(sealed.reader, sealed.snapshot, root + "/file");
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), "/file")) << status;
}

TEST(WriterTest, AManifestNeedsEveryRanksWholeShard) {
  const std::string root = TestDirectory();
  const std::string directory = WriteTestCheckpoint(root, kMoment, 3);
  const v1::Manifest base = TestManifest(kMoment, 3);
  EXPECT_TRUE(WriteManifest(directory, base).ok());

  const std::string shard = directory + "/rank-00001.safetensors";
  const std::string bytes = base::ReadFile(shard, 1 << 20).value();
  std::filesystem::resize_file(shard, bytes.size() - 1);
  EXPECT_EQ(WriteManifest(directory, base).code(), absl::StatusCode::kFailedPrecondition);
  WriteText(shard, bytes);
  EXPECT_TRUE(WriteManifest(directory, base).ok());

  std::filesystem::copy_file(directory + "/rank-00000.json", directory + "/rank-00003.json");
  EXPECT_EQ(WriteManifest(directory, TestManifest(kMoment, 4)).code(),
            absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(directory + "/rank-00001.json");
  const absl::Status missing = WriteManifest(directory, base);
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(missing.message(), "rank 1 is missing")) << missing;
}

TEST(WriterTest, AManifestWithAGapOrAnOverlapIsRefused) {
  const std::string root = TestDirectory();
  const TestTensor tensor = {"w", "F32", {10}};
  const auto status_of = [&](int64_t begin, int64_t count) {
    const std::vector<v1::TensorSlice> slices[] = {{FlatSlice(tensor, 0, 5)},
                                                   {FlatSlice(tensor, begin, count)}};
    for (int rank = 0; rank < 2; ++rank) {
      const auto layout = ShardLayout::Create(rank, slices[rank]).value();
      EXPECT_TRUE(PersistTestShard(root, layout, rank, kMoment).ok());
    }
    return WriteManifest(StepDirectory(root, kMoment), TestManifest(kMoment, 2));
  };
  EXPECT_TRUE(status_of(5, 5).ok());
  EXPECT_TRUE(absl::StrContains(status_of(6, 4).message(), "element 5 of 10 is in no shard"));
  EXPECT_TRUE(absl::StrContains(status_of(5, 4).message(), "element 9 of 10 is in no shard"));
  EXPECT_TRUE(absl::StrContains(status_of(4, 6).message(), "element 4 is in 2 slices"));
}

TEST(WriterTest, OnlyCompleteReadableCheckpointsAreListedNewestFirst) {
  const std::string root = TestDirectory();
  WriteTestCheckpoint(root, {1, 100, 0}, 1);
  WriteTestCheckpoint(root, {1, 200, 0}, 2);
  WriteTestCheckpoint(root, {3, 200, 0}, 1);
  const std::string torn = WriteTestCheckpoint(root, {3, 300, 0}, 1);
  std::filesystem::resize_file(torn + "/manifest.json", 100);
  const std::string partial = WriteTestCheckpoint(root, {3, 400, 0}, 1);
  std::filesystem::remove(partial + "/manifest.json");
  WriteText(root + "/step-notes.txt", "not ours");
  const auto listed = ListCheckpoints(root).value();
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_EQ(listed[0].directory(), root + "/step-00000200-attempt-3");
  EXPECT_EQ(listed[1].directory(), root + "/step-00000200-attempt-1");
  EXPECT_EQ(listed[2].step(), 100);
  EXPECT_EQ(listed[2].job_id(), "job-1");
  EXPECT_GT(listed[2].size_bytes(), 0);
  EXPECT_EQ(ListCheckpoints(root + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST(WriterTest, GivesUpWhatIsIncompleteAndEarlierThanTheNewest) {
  const std::string root = TestDirectory();
  const std::vector<ShardMoment> incomplete = {{2, 150, 0}, {2, 250, 0}, {1, 400, 0},
                                               {2, 300, 0}, {2, 350, 0}, {3, 200, 0}};
  for (const ShardMoment& moment : incomplete) {
    std::filesystem::remove(WriteTestCheckpoint(root, moment, 1) + "/manifest.json");
  }
  WriteTestCheckpoint(root, {1, 100, 0}, 1);
  WriteTestCheckpoint(root, {2, 200, 0}, 1);
  EXPECT_EQ(GiveUpIncomplete(root, Ids({{300, 2}}).front()).value(), 3);
  EXPECT_EQ(Names(root),
            (std::set<std::string>{"step-00000100-attempt-1", "step-00000200-attempt-2",
                                   "step-00000200-attempt-3", "step-00000300-attempt-2",
                                   "step-00000350-attempt-2"}));
  EXPECT_EQ(GiveUpIncomplete(root, Ids({{300, 2}}).front()).value(), 0);

  const absl::Status late =
      WriteManifest(StepDirectory(root, {2, 250, 0}), TestManifest({2, 250, 0}, 1));
  EXPECT_EQ(late.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(late.message(), "was given up")) << late;
}

// Makes the state that a crash between the two renames of GiveUpIncomplete leaves.
TEST(WriterTest, RetentionPutsBackACommittedCheckpointThatWasAboutToBeGivenUp) {
  const std::string root = TestDirectory();
  for (const int64_t step : {100, 200}) {
    const std::string directory = WriteTestCheckpoint(root, {1, step, 0}, 1);
    std::filesystem::rename(directory,
                            absl::StrCat(root, "/.deleted-", StepDirectoryName(step, 1)));
  }
  ASSERT_TRUE(ApplyRetention(root, {Ids({{100, 1}}), 9}).ok());
  EXPECT_EQ(Names(root), (std::set<std::string>{"step-00000100-attempt-1"}));
  EXPECT_TRUE(ReadManifest(root + "/step-00000100-attempt-1").ok());
}

TEST(WriterTest, RetentionDeletesOnlyWhatIsOlderThanTheNewestCommitted) {
  const std::string root = TestDirectory();
  for (const ShardMoment& moment : std::vector<ShardMoment>{{1, 100, 0},
                                                            {1, 200, 0},
                                                            {2, 200, 0},
                                                            {1, 300, 0},
                                                            {2, 300, 0},
                                                            {3, 300, 0},
                                                            {1, 400, 0}}) {
    WriteTestCheckpoint(root, moment, 1);
  }
  const std::string partial = root + "/step-00000150-attempt-1";
  std::filesystem::create_directory(partial);
  WriteText(partial + "/rank-00000.safetensors.tmp", "half");
  WriteText(root + "/notes.txt", "the user's own");

  ASSERT_TRUE(ApplyRetention(root, {{}, 9}).ok());
  EXPECT_EQ(Names(root).size(), 9u);

  ASSERT_TRUE(ApplyRetention(root, {Ids({{300, 2}, {200, 1}}), 9}).ok());
  EXPECT_EQ(Names(root), (std::set<std::string>{
                             "notes.txt", "step-00000200-attempt-1", "step-00000300-attempt-2",
                             "step-00000300-attempt-3", "step-00000400-attempt-1"}));
}

TEST(WriterTest, RetentionKeepsTheCheckpointOfAnotherJobFromWhichTheJobStarted) {
  const std::string root = TestDirectory();
  WriteTestCheckpoint(root, {1, 100, 0}, 1);
  v1::Owner owner;
  owner.set_job_id("another");
  owner.set_log_id("0af3");
  WriteText(root + "/.owner.json", R"({"job_id": "another", "log_id": "0af3"})");
  Retention retention;
  retention.committed = Ids({{200, 1}});
  retention.attempt = 1;
  retention.owner = owner;
  ASSERT_TRUE(ApplyRetention(root, retention).ok());
  EXPECT_EQ(Names(root).count("step-00000100-attempt-1"), 1u);
  retention.owner.Clear();
  ASSERT_TRUE(ApplyRetention(root, retention).ok());
  EXPECT_EQ(Names(root).count("step-00000100-attempt-1"), 0u);
}

TEST(WriterTest, ALateRetentionOfAnEarlierAttemptKeepsWhatLaterOnesCommitted) {
  const std::string root = TestDirectory();
  // Attempt 1 committed step 300, which could not be read. Attempt 2 went on from step 100 and
  // committed step 200. Then the host of attempt 1 carries out its newest order.
  for (const ShardMoment& moment :
       std::vector<ShardMoment>{{1, 50, 0}, {1, 100, 0}, {1, 300, 0}, {2, 200, 0}}) {
    WriteTestCheckpoint(root, moment, 1);
  }
  ASSERT_TRUE(ApplyRetention(root, {Ids({{100, 1}, {300, 1}}), 1}).ok());
  EXPECT_EQ(Names(root),
            (std::set<std::string>{"step-00000100-attempt-1", "step-00000200-attempt-2",
                                   "step-00000300-attempt-1"}));
}

TEST(WriterTest, RetentionFinishesWhatACrashInterrupted) {
  const std::string root = TestDirectory();
  WriteTestCheckpoint(root, {1, 200, 0}, 1);
  std::filesystem::create_directory(root + "/.deleted-step-00000100-attempt-1");
  WriteText(root + "/.deleted-step-00000100-attempt-1/rank-00000.json", "left");
  ASSERT_TRUE(ApplyRetention(root, {Ids({{200, 1}}), 9}).ok());
  EXPECT_EQ(Names(root), (std::set<std::string>{"step-00000200-attempt-1"}));
  EXPECT_EQ(ApplyRetention(root + "/none", {Ids({{200, 1}}), 9}).code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace megascale::checkpoint
