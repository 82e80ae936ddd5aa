// Checkpoints whose slices are flat ranges of boxes, as tensor-parallel ranks write them, read
// under another cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/testing/test_checkpoint.h"

namespace megascale::checkpoint {
namespace {

constexpr ShardMoment kMoment = {2, 100, 3200};

using RankSlices = std::vector<std::vector<v1::TensorSlice>>;

// Compares elements [begin, begin + count) of a box of the tensor.
template <typename Number>
void ExpectRead(CheckpointReader& reader, const TestTensor& tensor, const Box& box, int64_t begin,
                int64_t count) {
  std::vector<Number> values(static_cast<size_t>(count), Number{-1});
  const absl::Status status = reader.ReadBox(tensor.name, box, begin, absl::MakeSpan(values));
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<int64_t> elements = ElementsOf(box, tensor.shape);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t element = elements[static_cast<size_t>(begin + i)];
    ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<Number>(tensor.Value(element)))
        << tensor.name << " element " << element;
  }
}

void ExpectSlices(CheckpointReader& reader, const std::vector<TestTensor>& tensors,
                  const std::vector<v1::TensorSlice>& slices) {
  for (const v1::TensorSlice& slice : slices) {
    const auto tensor = std::find_if(tensors.begin(), tensors.end(),
                                     [&slice](const auto& t) { return t.name == slice.name(); });
    ExpectRead<float>(reader, *tensor, BoxOf(slice), slice.flat_begin(), slice.flat_count());
    ExpectRead<double>(reader, *tensor, BoxOf(slice), slice.flat_begin(), slice.flat_count());
  }
}

// Every tensor cut into random boxes, each of these into random flat ranges; of some parts there
// are copies. Dealt out to the ranks at random.
RankSlices RandomSlices(Random& random, const std::vector<TestTensor>& tensors) {
  RankSlices slices(static_cast<size_t>(1 + random.Below(4)));
  const auto deal = [&](const TestTensor& tensor, const Box& box, int replica) {
    const int64_t elements = CountOf(box.shape);
    for (int64_t begin = 0; begin < elements;) {
      const int64_t count = 1 + random.Below(elements - begin);
      auto& of_rank =
          slices[static_cast<size_t>(random.Below(static_cast<int64_t>(slices.size())))];
      of_rank.push_back(BoxSlice(tensor, box, begin, count));
      of_rank.back().clear_key();
      of_rank.back().set_replica(replica);
      begin += count;
    }
  };
  for (const TestTensor& tensor : tensors) {
    const Box whole = WholeBox(tensor.shape);
    for (const Box& box : random.Pieces(whole, static_cast<int>(random.Below(6)))) {
      deal(tensor, box, 0);
    }
    if (random.Below(2) == 0) deal(tensor, random.Part(whole), 1);
  }
  return slices;
}

TEST(ReaderBoxesTest, AnyPartIsReadHoweverTheTensorsWereCut) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<TestTensor> tensors = {{"wide", "F64", random.Shape(), 0.5},
                                             {"a", "F32", random.Shape(), 100},
                                             {"b", "F32", random.Shape(), -300}};
    const std::string root = TestDirectory();
    auto reader = CheckpointReader::Open(
                      WriteTestCheckpoint(root, kMoment, RandomSlices(random, tensors), tensors))
                      .value();
    for (const TestTensor& tensor : tensors) {
      ExpectRead<float>(*reader, tensor, WholeBox(tensor.shape), 0, tensor.size());
      for (int trial = 0; trial < 50; ++trial) {
        const Box box = random.Part(WholeBox(tensor.shape));
        const int64_t begin = random.Below(CountOf(box.shape) + 1);
        const int64_t count = random.Below(CountOf(box.shape) - begin + 1);
        ExpectRead<float>(*reader, tensor, box, begin, count);
        ExpectRead<double>(*reader, tensor, box, begin, count);
      }
    }
  }
}

// --- As a transformer is cut -------------------------------------------------------------------

constexpr int64_t kHeads = 12, kKvHeads = 6, kHeadSize = 2, kHidden = 7, kIntermediate = 18;

std::vector<TestTensor> Transformer() {
  return {{"embed", "F32", {13, kHidden}, 1},
          {"qkv", "F32", {(kHeads + 2 * kKvHeads) * kHeadSize, kHidden}, 500},
          {"norm", "F32", {kHidden}, -40},
          {"out", "F32", {kHidden, kHeads * kHeadSize}, 700},
          {"up", "F32", {2 * kIntermediate, kHidden}, 900},
          {"down", "F32", {kHidden, kIntermediate}, -800},
          {"scale", "F32", {}, 9}};
}

// Returns the part of a tensor that tensor-parallel rank `index` of `size` has: its share of the
// rows of each of `groups` (heads of q, of k and of v; gate and up), its share of the columns, or
// all.
std::vector<Box> LocalBoxes(const TestTensor& tensor, int64_t size, int64_t index) {
  const auto rows = [&](const std::vector<int64_t>& groups) {
    std::vector<Box> boxes;
    int64_t first = 0;
    for (const int64_t num_rows : groups) {
      const int64_t begin = num_rows * index / size, end = num_rows * (index + 1) / size;
      boxes.push_back({{first + begin, 0}, {end - begin, kHidden}});
      first += num_rows;
    }
    return boxes;
  };
  if (tensor.name == "embed") return rows({13});
  if (tensor.name == "qkv") {
    return rows({kHeads * kHeadSize, kKvHeads * kHeadSize, kKvHeads * kHeadSize});
  }
  if (tensor.name == "up") return rows({kIntermediate, kIntermediate});
  if (tensor.name == "out" || tensor.name == "down") {
    const int64_t columns = tensor.shape[1] / size;
    return {{{0, columns * index}, {kHidden, columns}}};
  }
  return {WholeBox(tensor.shape)};
}

struct Layout {
  int64_t tensor_size;
  int64_t data_size;
};

// Returns each rank's slices: its data-parallel share of its tensor-parallel rank's part, with the
// boxes one after the other.
RankSlices SlicesOf(const Layout& layout) {
  RankSlices all;
  for (int64_t data = 0; data < layout.data_size; ++data) {
    for (int64_t index = 0; index < layout.tensor_size; ++index) {
      std::vector<std::pair<TestTensor, Box>> local;
      int64_t elements = 0;
      for (const TestTensor& tensor : Transformer()) {
        for (const Box& box : LocalBoxes(tensor, layout.tensor_size, index)) {
          local.emplace_back(tensor, box);
          elements += CountOf(box.shape);
        }
      }
      const int64_t first = elements * data / layout.data_size;
      const int64_t last = elements * (data + 1) / layout.data_size;
      int64_t at = 0;
      all.emplace_back();
      for (const auto& [tensor, box] : local) {
        const int64_t begin = std::max(at, first);
        const int64_t end = std::min(at + CountOf(box.shape), last);
        if (begin < end) {
          all.back().push_back(BoxSlice(tensor, box, begin - at, end - begin));
          all.back().back().clear_key();
          const bool is_copy = index > 0 && box == WholeBox(tensor.shape);
          all.back().back().set_replica(is_copy ? static_cast<int>(index) : 0);
        }
        at += CountOf(box.shape);
      }
    }
  }
  return all;
}

constexpr Layout kLayouts[] = {{1, 1}, {2, 2}, {1, 3}, {6, 1}, {3, 2}};

TEST(ReaderBoxesTest, ACheckpointOfAnyLayoutIsReadUnderAnyOther) {
  std::string digest;
  for (const Layout& from : kLayouts) {
    auto reader = CheckpointReader::Open(
                      WriteTestCheckpoint(TestDirectory(), kMoment, SlicesOf(from), Transformer()))
                      .value();
    for (const Layout& to : kLayouts) {
      SCOPED_TRACE(absl::StrCat(from.tensor_size, "x", from.data_size, " as ", to.tensor_size, "x",
                                to.data_size));
      for (const auto& slices : SlicesOf(to)) ExpectSlices(*reader, Transformer(), slices);
    }
    const std::string found = reader->Digest().value();
    EXPECT_EQ(found, digest.empty() ? found : digest);
    digest = found;
  }
}

TEST(ReaderBoxesTest, EachRankReadsWhatItHasFromItsOwnSnapshot) {
  for (const Layout& layout : kLayouts) {
    const RankSlices slices = SlicesOf(layout);
    for (size_t rank = 0; rank < slices.size(); ++rank) {
      const auto shard = ShardLayout::Create(static_cast<int>(rank), slices[rank]).value();
      const std::string payload = TestPayload(shard, kMoment, Transformer());
      auto reader = CheckpointReader::OpenSnapshot(payload).value();
      ExpectSlices(*reader, Transformer(), slices[rank]);
    }
  }
}

TEST(ReaderBoxesTest, APartialSnapshotNamesTheFirstElementThatItLacks) {
  const TestTensor tensor = {"w", "F32", {6, 5}};
  const auto layout = ShardLayout::Create(0, {BoxSlice(tensor, {{2, 1}, {3, 3}}, 2, 5)}).value();
  const std::string payload = TestPayload(layout, kMoment, {tensor});
  auto reader = CheckpointReader::OpenSnapshot(payload).value();
  ExpectRead<float>(*reader, tensor, {{3, 1}, {1, 3}}, 0, 3);
  std::vector<float> values(3);
  const absl::Status status = reader->ReadBox("w", {{3, 2}, {3, 2}}, 1, absl::MakeSpan(values));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(status.message(), "does not hold element 22 of tensor w"))
      << status;
}

TEST(ReaderBoxesTest, BoxesThatTheTensorHasNotAreRefused) {
  const TestTensor tensor = {"w", "F32", {6, 5}};
  auto reader = CheckpointReader::Open(WriteTestCheckpoint(TestDirectory(), kMoment,
                                                           {{FlatSlice(tensor, 0, 30)}}, {tensor}))
                    .value();
  std::vector<float> values(4);
  const auto code_of = [&](const Box& box, int64_t begin) {
    return reader->ReadBox("w", box, begin, absl::MakeSpan(values)).code();
  };
  EXPECT_EQ(code_of({{4, 3}, {2, 2}}, 0), absl::StatusCode::kOk);
  EXPECT_EQ(code_of({{4, 3}, {2, 2}}, 1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code_of({{4, 3}, {2, 2}}, -1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code_of({{4, 4}, {2, 2}}, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of({{4}, {2}}, 0), absl::StatusCode::kInvalidArgument);
}

// --- Copies ------------------------------------------------------------------------------------

// The copy in rank 1's shard has other values, so that reading it would show.
TEST(ReaderBoxesTest, ACopyIsReadOnlyWhereNoLowerOneIsThere) {
  const TestTensor tensor = {"norm", "F32", {10}, 1}, other = {"norm", "F32", {10}, 50};
  v1::TensorSlice copy = FlatSlice(tensor, 0, 10);
  copy.set_replica(1);
  const auto copied = ShardLayout::Create(1, {copy}).value();
  const std::string root = TestDirectory();
  const std::string directory =
      WriteTestCheckpoint(root, kMoment, {{FlatSlice(tensor, 0, 10)}, {copy}}, {tensor});
  ASSERT_TRUE(PersistTestShard(root, copied, 1, kMoment, {other}).ok());
  ASSERT_TRUE(WriteManifest(directory, TestManifest(kMoment, 2)).ok());
  auto reader = CheckpointReader::Open(directory).value();
  ExpectRead<float>(*reader, tensor, WholeBox({10}), 0, 10);

  const std::string payload = TestPayload(copied, kMoment, {other});
  auto snapshot = CheckpointReader::OpenSnapshot(payload).value();
  ExpectRead<float>(*snapshot, other, WholeBox({10}), 2, 7);

  // Replica 2 fills what replica 1 lacks; where both have an element, replica 1 has it.
  v1::TensorSlice part = copy;
  part.set_flat_begin(3);
  part.set_flat_count(4);
  v1::TensorSlice second = FlatSlice(tensor, 0, 10);
  second.set_replica(2);
  second.set_key("second");
  const auto both = ShardLayout::Create(1, {second, part}).value();
  std::string mixed = TestPayload(both, kMoment, {tensor});
  const std::string others = TestPayload(both, kMoment, {other});
  const auto at = static_cast<size_t>(both.data_offset(1));
  mixed.replace(at, std::string::npos, others, at, std::string::npos);
  snapshot = CheckpointReader::OpenSnapshot(mixed).value();
  ExpectRead<float>(*snapshot, tensor, WholeBox({10}), 0, 3);
  ExpectRead<float>(*snapshot, other, WholeBox({10}), 3, 4);
  ExpectRead<float>(*snapshot, tensor, WholeBox({10}), 7, 3);
}

TEST(ReaderBoxesTest, AShardWithNothingButCopiesMayBeDamagedUntilItIsVerified) {
  const TestTensor tensor = {"norm", "F32", {10}, 1};
  v1::TensorSlice copy = FlatSlice(tensor, 0, 10);
  copy.set_replica(1);
  const std::string directory =
      WriteTestCheckpoint(TestDirectory(), kMoment, {{FlatSlice(tensor, 0, 10)}, {copy}}, {tensor});
  const std::string path = directory + "/rank-00001.safetensors";
  std::string bytes = base::ReadFile(path, 1 << 20).value();
  bytes.back() ^= 1;
  std::ofstream(path, std::ios::binary) << bytes;
  auto reader = CheckpointReader::Open(directory).value();
  ExpectRead<float>(*reader, tensor, WholeBox({10}), 0, 10);
  EXPECT_EQ(reader->Verify().code(), absl::StatusCode::kDataLoss);
}

// --- Descriptions that are wrong ---------------------------------------------------------------

// The message with which a manifest over these slices is refused.
std::string RefusalOf(const TestTensor& tensor, const RankSlices& slices) {
  const std::string root = TestDirectory();
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    const auto layout = ShardLayout::Create(static_cast<int>(rank), slices[rank]).value();
    EXPECT_TRUE(PersistTestShard(root, layout, static_cast<int>(rank), kMoment, {tensor}).ok());
  }
  const absl::Status status = WriteManifest(StepDirectory(root, kMoment),
                                            TestManifest(kMoment, static_cast<int>(slices.size())));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(ReaderBoxesTest, BoxesWithAGapOrAnOverlapAreRefusedWithTheElement) {
  const TestTensor tensor = {"w", "F32", {4, 6}};
  const auto columns = [&tensor](int64_t begin, int64_t end) {
    return BoxSlice(tensor, {{0, begin}, {4, end - begin}}, 0, 4 * (end - begin));
  };
  EXPECT_TRUE(absl::StrContains(RefusalOf(tensor, {{columns(0, 2)}, {columns(3, 6)}}),
                                "tensor w: element 2 of 24 is in no shard"));
  EXPECT_TRUE(absl::StrContains(RefusalOf(tensor, {{columns(0, 4)}, {columns(3, 6)}}),
                                "tensor w: element 3 is in 2 slices"));
  v1::TensorSlice short_of_one = columns(2, 6);
  short_of_one.set_flat_count(15);
  EXPECT_TRUE(absl::StrContains(RefusalOf(tensor, {{columns(0, 2)}, {short_of_one}}),
                                "tensor w: element 23 of 24 is in no shard"));
  v1::TensorSlice copy = columns(2, 6);
  copy.set_replica(1);
  EXPECT_TRUE(absl::StrContains(RefusalOf(tensor, {{columns(0, 2)}, {copy}}),
                                "tensor w: element 2 of 24 is in no shard"));
  EXPECT_TRUE(
      absl::StrContains(RefusalOf(tensor, {{FlatSlice(tensor, 0, 24)}, {FlatSlice(tensor, 0, 24)}}),
                        "tensor w: element 0 is in 2 slices"));
}

// A complete cover that differs from the file: transposed boxes would be read as garbage.
TEST(ReaderBoxesTest, AManifestThatCutsOtherwiseThanItsShardsIsRefused) {
  const TestTensor tensor = {"w", "F32", {4, 4}};
  const std::string directory = WriteTestCheckpoint(
      TestDirectory(), kMoment,
      {{BoxSlice(tensor, {{0, 0}, {4, 2}}, 0, 8)}, {BoxSlice(tensor, {{0, 2}, {4, 2}}, 0, 8)}},
      {tensor});
  v1::Manifest manifest = ReadManifest(directory).value();
  for (v1::ShardFile& shard : *manifest.mutable_shards()) {
    v1::TensorSlice& slice = *shard.mutable_slices(0);
    std::swap(*slice.mutable_box_shape()->Mutable(0), *slice.mutable_box_shape()->Mutable(1));
    std::swap(*slice.mutable_box_offset()->Mutable(0), *slice.mutable_box_offset()->Mutable(1));
  }
  std::ofstream(directory + "/manifest.json") << ToJson(manifest, JsonStyle::kPretty);
  const absl::Status status = CheckpointReader::Open(directory).value()->Verify();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(status.message(), "something else than the manifest says"))
      << status;
}

}  // namespace
}  // namespace megascale::checkpoint
