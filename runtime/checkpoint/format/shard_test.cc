#include "runtime/checkpoint/format/shard.h"

#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/match.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/testing/test_checkpoint.h"

namespace megascale::checkpoint {
namespace {

constexpr ShardMoment kMoment = {2, 100, 3200};

absl::StatusOr<Shard> Parse(const std::string& payload) {
  return ParseShard(payload, static_cast<int64_t>(payload.size()), "shard");
}

// A box of two rows and three columns.
v1::TensorSlice SomeSlice() { return BoxSlice({"w", "F32", {5, 6}}, {{2, 1}, {2, 3}}, 0, 6); }

TEST(ShardTest, APayloadDescribesItself) {
  const auto layout = ShardLayout::Create(1, TestSlices(1, 2)).value();
  const auto shard = Parse(TestPayload(layout, kMoment));
  ASSERT_TRUE(shard.ok()) << shard.status();
  EXPECT_EQ(shard->rank, 1);
  EXPECT_EQ(shard->moment, kMoment);
  ASSERT_EQ(shard->slices.size(), layout.slices().size());
  for (size_t i = 0; i < shard->slices.size(); ++i) {
    EXPECT_EQ(shard->slices[i].DebugString(), layout.slices()[i].DebugString());
    EXPECT_EQ(shard->data_offsets[i], layout.data_offset(i));
  }
}

TEST(ShardTest, TheLayoutIsTheSameAtEveryMoment) {
  const auto layout = ShardLayout::Create(0, TestSlices(0, 1)).value();
  EXPECT_EQ(layout.data_offset(0) % 64, 0);
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  for (const ShardMoment& moment : {ShardMoment{}, ShardMoment{kLargest, kLargest, kLargest}}) {
    const auto shard = Parse(TestPayload(layout, moment));
    ASSERT_TRUE(shard.ok()) << shard.status();
    EXPECT_EQ(shard->moment, moment);
    EXPECT_EQ(shard->data_offsets[0], layout.data_offset(0));
  }
}

TEST(ShardTest, ARankWithoutTensorsHasAShardAllTheSame) {
  const auto layout = ShardLayout::Create(3, {}).value();
  EXPECT_EQ(Parse(TestPayload(layout, kMoment)).value().rank, 3);
}

TEST(ShardTest, SlicesThatMakeNoSenseAreRefusedWithTheirTensor) {
  const v1::TensorSlice good = SomeSlice();
  ASSERT_TRUE(ShardLayout::Create(0, {good}).ok());
  const auto expect_refused = [&good](absl::string_view why, auto&& change) {
    v1::TensorSlice slice = good;
    change(slice);
    const absl::Status status = ShardLayout::Create(0, {slice}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), why)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "of tensor \"w\"")) << status;
  };
  expect_refused("unknown type F31", [](auto& slice) { slice.set_dtype("F31"); });
  expect_refused("elements 1 + 6 leave its box of 6", [](auto& slice) { slice.set_flat_begin(1); });
  expect_refused("elements 0 + -1 leave", [](auto& slice) { slice.set_flat_count(-1); });
  expect_refused("4 + 3 of dimension 1, which has 6",
                 [](auto& slice) { slice.set_box_offset(1, 4); });
  expect_refused("of dimension 0, which has 5",
                 [](auto& slice) { slice.set_box_offset(0, std::numeric_limits<int64_t>::max()); });
  expect_refused("has 0 offsets and 2 sizes", [](auto& slice) { slice.clear_box_offset(); });
  expect_refused("has 3 offsets and 3 sizes", [](auto& slice) {
    slice.add_box_offset(0);
    slice.add_box_shape(1);
  });
  expect_refused("absurd shape [-5, 6]", [](auto& slice) { slice.set_global_shape(0, -5); });
  expect_refused("9 dimensions, at most 8", [](auto& slice) {
    for (int dim = 0; dim < 7; ++dim) slice.add_global_shape(1);
  });
  expect_refused("is replica -1", [](auto& slice) { slice.set_replica(-1); });
}

TEST(ShardTest, SlicesWithoutNameOrThatCannotLieInOneFileAreRefused) {
  const v1::TensorSlice good = SomeSlice();
  v1::TensorSlice nameless = good;
  nameless.clear_name();
  for (const auto& slices :
       {std::vector<v1::TensorSlice>{nameless}, std::vector<v1::TensorSlice>{good, good}}) {
    EXPECT_EQ(ShardLayout::Create(0, slices).status().code(), absl::StatusCode::kInvalidArgument);
  }
  const v1::TensorSlice wide = FlatSlice({"v", "F64", {1}}, 0, 1);
  const v1::TensorSlice odd = FlatSlice({"u", "BF16", {1}}, 0, 1);
  EXPECT_TRUE(absl::StrContains(ShardLayout::Create(0, {odd, wide}).status().message(),
                                "wider types out first"));
}

TEST(ShardTest, SeveralBoxesOfATensorGetKeysOfTheirOwn) {
  const TestTensor qkv = {"model.qkv", "F32", {12, 3}};
  std::vector<v1::TensorSlice> slices;
  for (const int64_t row : {1, 5, 9}) {
    slices.push_back(BoxSlice(qkv, {{row, 0}, {2, 3}}, 0, 6));
    slices.back().clear_key();
  }
  slices.insert(slices.begin(), FlatSlice({"model.qkv#1", "F32", {}}, 0, 1));
  const auto layout = ShardLayout::Create(0, slices).value();
  const auto shard = Parse(TestPayload(layout, kMoment, {qkv})).value();
  ASSERT_EQ(shard.slices.size(), 4u);
  const char* const keys[] = {"model.qkv#1", "model.qkv", "model.qkv#2", "model.qkv#3"};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(shard.slices[i].key(), keys[i]);
}

TEST(ShardTest, WhatIsStoredWholeHasItsShape) {
  const TestTensor tensor = {"w", "F32", {5, 6}};
  std::vector<v1::TensorSlice> slices = {FlatSlice(tensor, 0, 30),
                                         BoxSlice(tensor, {{2, 1}, {2, 3}}, 0, 6),
                                         BoxSlice(tensor, {{2, 1}, {2, 3}}, 1, 5)};
  for (v1::TensorSlice& slice : slices) slice.clear_key();
  const std::string payload =
      TestPayload(ShardLayout::Create(0, slices).value(), kMoment, {tensor});
  const auto header =
      ParseSafetensorsHeader(payload, static_cast<int64_t>(payload.size()), "shard").value();
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.entries[0].shape, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(header.entries[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.entries[2].shape, (std::vector<int64_t>{5}));
}

// Every bit of the header flipped, one after the other: a flip is refused, or only names change;
// never a crash.
TEST(ShardTest, NoFlippedBitOfAHeaderCrashesOrMovesData) {
  const auto layout = ShardLayout::Create(0, TestSlices(0, 1)).value();
  const std::string payload = TestPayload(layout, kMoment);
  for (int64_t at = 0; at < layout.data_offset(0); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = payload;
      changed[static_cast<size_t>(at)] ^= static_cast<char>(1 << bit);
      const auto shard = Parse(changed);
      if (!shard.ok()) {
        ASSERT_EQ(shard.status().code(), absl::StatusCode::kDataLoss) << shard.status();
        continue;
      }
      ASSERT_EQ(shard->slices.size(), layout.slices().size());
      for (size_t i = 0; i < shard->slices.size(); ++i) {
        ASSERT_TRUE(CheckSlice(shard->slices[i]).ok());
        ASSERT_LE(shard->data_offsets[i], static_cast<int64_t>(payload.size()));
      }
    }
  }
}

}  // namespace
}  // namespace megascale::checkpoint
