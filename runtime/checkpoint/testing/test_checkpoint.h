// The state of a small model for tests, cut over any number of ranks, and written through real
// snapshot memory to real files.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/checkpoint/testing/test_random_boxes.h"
#include "runtime/checkpoint/writer.h"

namespace megascale::checkpoint {

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  double first = 0;  // element i is first + i / 8, exact in all types used

  int64_t size() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  double Value(int64_t index) const { return first + static_cast<double>(index) / 8; }
};

inline std::vector<TestTensor> TestModel() {
  return {{"optimizer.step_scale", "F64", {3}, 0.5},
          {"model.embed.weight", "F32", {7, 5}, 100},
          {"model.norm.bias", "F32", {11}, -3},
          {"model.scale", "F32", {}, 9},
          {"model.half", "BF16", {4, 2}, 1}};
}

inline v1::TensorSlice FlatSlice(const TestTensor& tensor, int64_t begin, int64_t count) {
  v1::TensorSlice slice;
  slice.set_name(tensor.name);
  slice.set_key(tensor.name);
  slice.set_dtype(tensor.dtype);
  for (const int64_t dim : tensor.shape) slice.add_global_shape(dim);
  slice.set_flat_begin(begin);
  slice.set_flat_count(count);
  return slice;
}

// Elements [begin, begin + count) of a box of the tensor.
inline v1::TensorSlice BoxSlice(const TestTensor& tensor, const Box& box, int64_t begin,
                                int64_t count) {
  v1::TensorSlice slice = FlatSlice(tensor, begin, count);
  slice.mutable_box_offset()->Add(box.offset.begin(), box.offset.end());
  slice.mutable_box_shape()->Add(box.shape.begin(), box.shape.end());
  return slice;
}

// Returns rank `rank`'s even share of every tensor.
inline std::vector<v1::TensorSlice> TestSlices(int rank, int world_size) {
  std::vector<v1::TensorSlice> slices;
  for (const TestTensor& tensor : TestModel()) {
    const int64_t begin = tensor.size() * rank / world_size;
    const int64_t end = tensor.size() * (rank + 1) / world_size;
    if (end > begin) slices.push_back(FlatSlice(tensor, begin, end - begin));
  }
  return slices;
}

inline void StoreValue(const std::string& dtype, double value, std::byte* to) {
  if (dtype == "F64") {
    std::memcpy(to, &value, 8);
    return;
  }
  const auto narrow = static_cast<float>(value);
  std::memcpy(to, reinterpret_cast<const char*>(&narrow) + (dtype == "BF16" ? 2 : 0),
              dtype == "BF16" ? 2 : 4);
}

// Returns the tensor's row-major elements that a slice has, in the slice's order.
inline std::vector<int64_t> TensorElements(const v1::TensorSlice& slice) {
  const std::vector<int64_t> elements =
      ElementsOf(BoxOf(slice), {slice.global_shape().begin(), slice.global_shape().end()});
  const auto begin = elements.begin() + slice.flat_begin();
  return {begin, begin + slice.flat_count()};
}

// Returns the complete file of one rank.
inline std::string TestPayload(const ShardLayout& layout, const ShardMoment& moment,
                               const std::vector<TestTensor>& tensors = TestModel()) {
  std::string payload(static_cast<size_t>(layout.size_bytes()), '\0');
  auto* bytes = reinterpret_cast<std::byte*>(payload.data());
  layout.WriteHeader(moment, absl::MakeSpan(bytes, payload.size()));
  for (size_t i = 0; i < layout.slices().size(); ++i) {
    const v1::TensorSlice& slice = layout.slices()[i];
    TestTensor tensor;
    for (const TestTensor& candidate : tensors) {
      if (candidate.name == slice.name()) tensor = candidate;
    }
    const int64_t element_bytes = slice.dtype() == "F64" ? 8 : slice.dtype() == "F32" ? 4 : 2;
    std::byte* to = bytes + layout.data_offset(i);
    for (const int64_t element : TensorElements(slice)) {
      StoreValue(tensor.dtype, tensor.Value(element), to);
      to += element_bytes;
    }
  }
  return payload;
}

inline std::unique_ptr<base::SharedMemory> MakeSnapshotRegion(int64_t payload_bytes, int rank) {
  auto region = base::SharedMemory::Create("snapshot_test", SnapshotBytes(payload_bytes)).value();
  FormatSnapshots(*region, rank);
  return region;
}

// Seals `payload` and returns it as the region lists it.
inline SealedSnapshot SealPayload(SnapshotWriter& writer, const base::SharedMemory& region,
                                  const std::string& payload, int64_t step) {
  const auto buffer = writer.Acquire(absl::ZeroDuration());
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  std::memcpy(buffer->data(), payload.data(), payload.size());
  EXPECT_TRUE(writer.Seal(step, static_cast<int64_t>(payload.size())).ok());
  return ListSealed(region).front();
}

// Persists one rank's shard.
inline absl::Status PersistTestShard(const std::string& root, const ShardLayout& layout, int rank,
                                     const ShardMoment& moment,
                                     const std::vector<TestTensor>& tensors = TestModel()) {
  auto region = MakeSnapshotRegion(layout.size_bytes(), rank);
  auto writer = SnapshotWriter::Open(region.get(), moment.attempt, 0).value();
  const SealedSnapshot sealed =
      SealPayload(writer, *region, TestPayload(layout, moment, tensors), moment.step);
  return PersistShard(SnapshotReader::Open(region.get()).value(), sealed, root);
}

inline v1::Manifest TestManifest(const ShardMoment& moment, int world_size) {
  v1::Manifest manifest;
  manifest.set_megascale_version("test");
  manifest.set_job_id("job-1");
  manifest.set_attempt(moment.attempt);
  manifest.set_step(moment.step);
  manifest.set_next_sample(moment.next_sample);
  manifest.mutable_spec()->mutable_parallel()->set_data_parallel_size(world_size);
  return manifest;
}

inline std::string StepDirectory(const std::string& root, const ShardMoment& moment) {
  return absl::StrCat(root, "/", StepDirectoryName(moment.step, moment.attempt));
}

// Writes a checkpoint in which rank r has slices[r] of the tensors; returns its directory.
inline std::string WriteTestCheckpoint(const std::string& root, const ShardMoment& moment,
                                       const std::vector<std::vector<v1::TensorSlice>>& slices,
                                       const std::vector<TestTensor>& tensors) {
  const auto world_size = static_cast<int>(slices.size());
  for (int rank = 0; rank < world_size; ++rank) {
    const auto layout = ShardLayout::Create(rank, slices[static_cast<size_t>(rank)]).value();
    const absl::Status persisted = PersistTestShard(root, layout, rank, moment, tensors);
    EXPECT_TRUE(persisted.ok()) << persisted;
  }
  const std::string directory = StepDirectory(root, moment);
  const absl::Status written = WriteManifest(directory, TestManifest(moment, world_size));
  EXPECT_TRUE(written.ok()) << written;
  return directory;
}

// Writes a complete checkpoint of the test model over `world_size` ranks; returns its directory.
inline std::string WriteTestCheckpoint(const std::string& root, const ShardMoment& moment,
                                       int world_size) {
  std::vector<std::vector<v1::TensorSlice>> slices;
  for (int rank = 0; rank < world_size; ++rank) slices.push_back(TestSlices(rank, world_size));
  return WriteTestCheckpoint(root, moment, slices, TestModel());
}

// Returns an empty directory for the running test.
inline std::string TestDirectory() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = absl::StrCat(::testing::TempDir(), "/", info->name());
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

}  // namespace megascale::checkpoint
