#include "runtime/checkpoint/reader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/testing/test_checkpoint.h"

namespace megascale::checkpoint {
namespace {

constexpr ShardMoment kMoment = {2, 100, 3200};

std::string Read(const std::string& path) { return base::ReadFile(path, 1 << 20).value(); }

void Overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <typename Number>
void ExpectEverySliceOf(CheckpointReader& reader, const TestTensor& tensor) {
  for (int64_t begin = 0; begin <= tensor.size(); ++begin) {
    for (int64_t count = 0; begin + count <= tensor.size(); ++count) {
      std::vector<Number> values(static_cast<size_t>(count), Number{-1});
      const absl::Status status = reader.ReadSlice(tensor.name, begin, absl::MakeSpan(values));
      ASSERT_TRUE(status.ok()) << status;
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<Number>(tensor.Value(begin + i)))
            << tensor.name << " element " << begin + i;
      }
    }
  }
}

void ExpectModel(CheckpointReader& reader) {
  for (const TestTensor& tensor : TestModel()) {
    ExpectEverySliceOf<float>(reader, tensor);
    ExpectEverySliceOf<double>(reader, tensor);
  }
}

absl::Status OpenStatus(const std::string& directory) {
  return CheckpointReader::Open(directory).status();
}

TEST(ReaderTest, EverySliceIsReadHoweverTheShardsWereCut) {
  for (const int world_size : {1, 2, 3, 5}) {
    const std::string root = TestDirectory();
    auto reader = CheckpointReader::Open(WriteTestCheckpoint(root, kMoment, world_size)).value();
    EXPECT_EQ(reader->manifest().step(), 100);
    ASSERT_EQ(reader->tensors().size(), TestModel().size());
    EXPECT_EQ(reader->tensors()[0].name, "model.embed.weight");
    EXPECT_EQ(reader->tensors()[0].shape, (std::vector<int64_t>{7, 5}));
    ExpectModel(*reader);
  }
}

TEST(ReaderTest, TheDigestDoesNotDependOnShardsOrAttempt) {
  const std::string root = TestDirectory();
  const auto digest = [&root](const ShardMoment& moment, int world_size) {
    return CheckpointReader::Open(WriteTestCheckpoint(root, moment, world_size))
        .value()
        ->Digest()
        .value();
  };
  const std::string one = digest({1, 100, 3200}, 1);
  EXPECT_EQ(one.size(), 64u);
  EXPECT_EQ(digest({2, 100, 3200}, 2), one);
  EXPECT_EQ(digest({3, 100, 3200}, 3), one);
  EXPECT_NE(digest({1, 101, 3200}, 1), one);
  EXPECT_NE(digest({4, 100, 3201}, 1), one);
}

TEST(ReaderTest, ASnapshotIsReadLikeTheFileItBecomes) {
  const auto layout = ShardLayout::Create(0, TestSlices(0, 1)).value();
  const std::string payload = TestPayload(layout, kMoment);
  auto reader = CheckpointReader::OpenSnapshot(payload).value();
  EXPECT_EQ(reader->manifest().step(), 100);
  EXPECT_EQ(reader->manifest().next_sample(), 3200);
  ExpectModel(*reader);
  const auto on_storage =
      CheckpointReader::Open(WriteTestCheckpoint(TestDirectory(), kMoment, 2)).value();
  EXPECT_EQ(reader->Digest().value(), on_storage->Digest().value());
}

TEST(ReaderTest, APartialSnapshotSaysWhatItDoesNotHold) {
  const auto layout = ShardLayout::Create(1, TestSlices(1, 2)).value();
  const std::string payload = TestPayload(layout, kMoment);
  auto reader = CheckpointReader::OpenSnapshot(payload).value();
  std::vector<float> values(6);
  EXPECT_TRUE(reader->ReadSlice("model.norm.bias", 5, absl::MakeSpan(values)).ok());
  EXPECT_EQ(values[0], -3 + 5 / 8.0);
  EXPECT_EQ(reader->ReadSlice("model.norm.bias", 4, absl::MakeSpan(values)).code(),
            absl::StatusCode::kNotFound);
}

TEST(ReaderTest, UnknownTensorsAndRangesAreRefused) {
  auto reader = CheckpointReader::Open(WriteTestCheckpoint(TestDirectory(), kMoment, 2)).value();
  std::vector<float> values(12);
  const auto status = [&](absl::string_view name, int64_t begin) {
    return reader->ReadSlice(name, begin, absl::MakeSpan(values)).code();
  };
  EXPECT_EQ(status("model.none", 0), absl::StatusCode::kNotFound);
  EXPECT_EQ(status("model.norm.bias", 0), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status("model.embed.weight", 24), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status("model.embed.weight", -1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status("model.embed.weight", 23), absl::StatusCode::kOk);
}

TEST(ReaderTest, WhatIsNoCompleteCheckpointIsRefusedWithItsReason) {
  const std::string root = TestDirectory();
  EXPECT_EQ(OpenStatus(root).code(), absl::StatusCode::kNotFound);
  const std::string directory = WriteTestCheckpoint(root, kMoment, 2);
  const std::string manifest_path = directory + "/manifest.json";
  const std::string manifest = Read(manifest_path);

  for (const size_t size : {size_t{0}, size_t{1}, manifest.size() / 2, manifest.size() - 2}) {
    Overwrite(manifest_path, manifest.substr(0, size));
    EXPECT_EQ(OpenStatus(directory).code(), absl::StatusCode::kDataLoss) << size;
  }
  Overwrite(manifest_path, absl::StrReplaceAll(manifest, {{"\"format_version\": 1",
                                                           "\"format_version\": 2, \"new\": 3"}}));
  const absl::Status newer = OpenStatus(directory);
  EXPECT_EQ(newer.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(newer.message(), "format version 2")) << newer;
  Overwrite(manifest_path, absl::StrReplaceAll(manifest, {{"rank-00001.safe", "../secret.safe"}}));
  EXPECT_EQ(OpenStatus(directory).code(), absl::StatusCode::kDataLoss);
  Overwrite(manifest_path, manifest);
  EXPECT_TRUE(OpenStatus(directory).ok());

  const std::string shard = directory + "/rank-00001.safetensors";
  const std::string bytes = Read(shard);
  Overwrite(shard, bytes + "x");
  const absl::Status longer = OpenStatus(directory);
  EXPECT_EQ(longer.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(longer.message(), shard)) << longer;
  std::filesystem::remove(shard);
  EXPECT_EQ(OpenStatus(directory).code(), absl::StatusCode::kNotFound);
}

// Every byte of a shard, changed: no read of its data succeeds, whatever the byte was for.
TEST(ReaderTest, NoChangedByteOfAShardIsEverReadAsData) {
  const std::string directory = WriteTestCheckpoint(TestDirectory(), kMoment, 2);
  const std::string shard = directory + "/rank-00001.safetensors";
  const std::string bytes = Read(shard);
  std::vector<float> values(1);
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] ^= 0x40;
    Overwrite(shard, changed);
    auto reader = CheckpointReader::Open(directory).value();
    const absl::Status status = reader->ReadSlice("model.norm.bias", 10, absl::MakeSpan(values));
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    ASSERT_TRUE(absl::StrContains(status.message(), shard)) << status;
    ASSERT_EQ(reader->Verify().code(), absl::StatusCode::kDataLoss);
    ASSERT_EQ(reader->Digest().status().code(), absl::StatusCode::kDataLoss);
    ASSERT_TRUE(reader->ReadSlice("model.norm.bias", 0, absl::MakeSpan(values)).ok());
  }
}

TEST(ReaderTest, AShardOfAnotherCheckpointWithATrueChecksumIsRefused) {
  const std::string root = TestDirectory();
  const std::string directory = WriteTestCheckpoint(root, kMoment, 2);
  const std::string other = WriteTestCheckpoint(root, {2, 200, 6400}, 2);
  for (const char* name : {"/rank-00001.safetensors", "/rank-00001.json"}) {
    Overwrite(directory + name, Read(other + name));
  }
  ASSERT_TRUE(WriteManifest(directory, TestManifest(kMoment, 2)).ok());
  EXPECT_EQ(CheckpointReader::Open(directory).value()->Verify().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace megascale::checkpoint
