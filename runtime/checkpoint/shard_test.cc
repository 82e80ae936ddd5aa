#include "runtime/checkpoint/shard.h"

#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/match.h"
#include "runtime/checkpoint/test_checkpoint.h"

namespace megascale::checkpoint {
namespace {

constexpr ShardMoment kMoment = {2, 100, 3200};

absl::StatusOr<Shard> Parse(const std::string& payload) {
  return ParseShard(payload, static_cast<int64_t>(payload.size()), "shard");
}

// A box [2..4) x [1..4) of a [5, 6] tensor.
v1::TensorSlice BoxSlice() {
  v1::TensorSlice slice = FlatSlice({"w", "F32", {5, 6}}, 0, 6);
  for (const int64_t value : {2, 1}) slice.add_box_offset(value);
  for (const int64_t value : {2, 3}) slice.add_box_shape(value);
  return slice;
}

std::vector<int64_t> TensorElements(const v1::TensorSlice& slice) {
  std::vector<int64_t> elements;
  EXPECT_TRUE(ForEachRun(slice, [&elements](const SliceRun& run) {
                EXPECT_EQ(run.slice_begin, static_cast<int64_t>(elements.size()));
                for (int64_t k = 0; k < run.count; ++k) elements.push_back(run.tensor_begin + k);
                return absl::OkStatus();
              }).ok());
  return elements;
}

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

TEST(ShardTest, SlicesThatMakeNoSenseAreRefused) {
  const auto refused = [](const v1::TensorSlice& slice) {
    return ShardLayout::Create(0, {slice}).status().code() == absl::StatusCode::kInvalidArgument;
  };
  const v1::TensorSlice good = BoxSlice();
  ASSERT_FALSE(refused(good));
  v1::TensorSlice slice = good;
  slice.set_dtype("F31");
  EXPECT_TRUE(refused(slice));
  slice = good;
  slice.set_flat_begin(1);
  EXPECT_TRUE(refused(slice));
  slice = good;
  slice.set_flat_count(-1);
  EXPECT_TRUE(refused(slice));
  slice = good;
  slice.set_box_offset(1, 4);
  EXPECT_TRUE(refused(slice));
  slice = good;
  slice.set_box_offset(0, std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(refused(slice));
  slice = good;
  slice.clear_box_offset();
  EXPECT_TRUE(refused(slice));
  slice = good;
  slice.set_global_shape(0, -5);
  EXPECT_TRUE(refused(slice));
  slice = good;
  slice.clear_key();
  EXPECT_TRUE(refused(slice));
  EXPECT_EQ(ShardLayout::Create(0, {good, good}).status().code(),
            absl::StatusCode::kInvalidArgument);
  v1::TensorSlice wide = FlatSlice({"v", "F64", {1}}, 0, 1);
  v1::TensorSlice odd = FlatSlice({"u", "BF16", {1}}, 0, 1);
  EXPECT_TRUE(absl::StrContains(ShardLayout::Create(0, {odd, wide}).status().message(),
                                "wider types out first"));
}

TEST(ShardTest, ABoxIsItsRows) {
  EXPECT_EQ(TensorElements(BoxSlice()), (std::vector<int64_t>{13, 14, 15, 19, 20, 21}));
  v1::TensorSlice part = BoxSlice();
  part.set_flat_begin(2);
  part.set_flat_count(3);
  EXPECT_EQ(TensorElements(part), (std::vector<int64_t>{15, 19, 20}));
}

TEST(ShardTest, ABoxOfWholeRowsIsOneRun) {
  v1::TensorSlice slice = FlatSlice({"w", "F32", {4, 2, 3}}, 1, 10);
  for (const int64_t value : {1, 0, 0}) slice.add_box_offset(value);
  for (const int64_t value : {2, 2, 3}) slice.add_box_shape(value);
  int num_runs = 0;
  ASSERT_TRUE(ForEachRun(slice, [&num_runs](const SliceRun& run) {
                ++num_runs;
                EXPECT_EQ(run.tensor_begin, 7);
                EXPECT_EQ(run.count, 10);
                return absl::OkStatus();
              }).ok());
  EXPECT_EQ(num_runs, 1);
}

// All boxes of a small tensor against counting by hand.
TEST(ShardTest, EveryBoxVisitsExactlyItsElements) {
  const int64_t shape[3] = {3, 2, 4};
  for (int code = 0; code < 6 * 3 * 10; ++code) {
    int64_t offset[3];
    int64_t size[3];
    int rest = code;
    for (int dim = 0; dim < 3; ++dim) {  // the rest-th pair offset < end
      const auto pairs = static_cast<int>(shape[dim] * (shape[dim] + 1) / 2);
      int pair = rest % pairs;
      rest /= pairs;
      for (offset[dim] = 0; pair >= shape[dim] - offset[dim]; ++offset[dim]) {
        pair -= static_cast<int>(shape[dim] - offset[dim]);
      }
      size[dim] = pair + 1;
    }
    v1::TensorSlice slice = FlatSlice({"w", "F32", {3, 2, 4}}, 0, size[0] * size[1] * size[2]);
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t place[3] = {i / 8, i / 4 % 2, i % 4};
      bool is_inside = true;
      for (int dim = 0; dim < 3; ++dim) {
        is_inside &= place[dim] >= offset[dim] && place[dim] < offset[dim] + size[dim];
      }
      if (is_inside) expected.push_back(i);
    }
    for (int dim = 0; dim < 3; ++dim) {
      slice.add_box_offset(offset[dim]);
      slice.add_box_shape(size[dim]);
    }
    ASSERT_EQ(TensorElements(slice), expected);
  }
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
