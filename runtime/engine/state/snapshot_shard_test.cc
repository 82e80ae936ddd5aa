// Optimizer states saved under one layout of tensor and data ranks and restored under another.
#include "runtime/engine/state/snapshot_shard.h"
#include "runtime/layout/snapshot_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/job.pb.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/device/testing/test_window.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/hugging_face/testing/test_folder.h"
#include "runtime/optim/testing/test_shard_memory.h"
#include "runtime/tensor/arena.h"

namespace megascale::engine {
namespace {

using agent::v1::RestorePoint;
using optim::StateSlice;

constexpr checkpoint::ShardMoment kMoment = {1, 40, 640};
constexpr uint64_t kSeed = 7;

struct Layout {
  int tensor_size;
  int data_size;
  int64_t bucket_size = 0;
  int world_size() const { return tensor_size * data_size; }
};
constexpr Layout kLayouts[] = {{1, 1}, {2, 2}, {1, 3}, {4, 1}, {2, 3}, {1, 3, 1}, {2, 2, 1}};

// SwiGLU, fewer key/value heads than heads and than the most tensor ranks, and biases: every way of
// cutting a parameter.
model::ModelConfig SmallModel() {
  model::ModelConfig config;
  config.vocab_size = 13;  // the last tensor rank has rows of padding
  config.hidden_size = 8;
  config.num_layers = 2;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 2;
  config.intermediate_size = 20;
  config.max_positions = 5;
  config.activation = ops::ActivationKind::kSwiGlu;
  return config;
}

job::v1::OptimizerSpec AdamW() {
  job::v1::OptimizerSpec spec;
  spec.set_type(job::v1::OPTIMIZER_TYPE_ADAMW);
  spec.set_beta1(0.9);
  spec.set_beta2(0.95);
  spec.set_eps(1e-8);
  return spec;
}

double At(const tensor::Vector& vector, int64_t index) {
  if (vector.dtype == tensor::DType::kF64) return vector.as<double>()[index];
  return vector.as<float>()[index];
}

void Set(const tensor::Vector& vector, int64_t index, double value) {
  if (vector.dtype == tensor::DType::kF64) {
    vector.as<double>()[index] = value;
  } else {
    vector.as<float>()[index] = static_cast<float>(value);
  }
}

// Element `index` of the slice, row-major in the whole tensor.
int64_t TensorElement(const StateSlice& slice, int64_t index) {
  int64_t rest = slice.begin + index, element = 0, stride = 1;
  for (size_t dim = slice.shape.size(); dim-- > 0;) {
    element += (slice.box_offset[dim] + rest % slice.box_shape[dim]) * stride;
    rest /= slice.box_shape[dim];
    stride *= slice.shape[dim];
  }
  return element;
}

// Returns the value that tests give to an element of a moment. Exact in fp32.
double Moment(const StateSlice& slice, int64_t index) {
  const auto base = static_cast<double>(std::hash<std::string>()(slice.name) % 4096);
  return base + static_cast<double>(TensorElement(slice, index)) / 8;
}

bool IsMoment(const StateSlice& slice) { return absl::StartsWith(slice.name, "optimizer."); }

// Writes a shard into `payload`, in pieces that are smaller than most slices.
absl::Status CopyOut(device::Device* device, stream::Stream* stream,
                     const checkpoint::ShardLayout& layout, const std::vector<StateSlice>& state,
                     absl::Span<std::byte> payload) {
  const auto copy =
      device::StagedCopy::Create(device, stream, state.front().data, /*piece_bytes=*/256).value();
  absl::Status status;
  stream->RunAndWait([&] { status = CopyStateOut(layout, state, kMoment, copy.get(), payload); });
  const absl::Status ended = stream->Synchronize();
  return status.ok() ? ended : status;
}

// The optimizers of all ranks of a layout: of the whole model, with one stage.
class Ranks {
 public:
  Ranks(const Layout& layout, ops::Ops* ops) : layout_(layout) {
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      const optim::OptimizerShard shard = {
          .config = SmallModel(),
          .range = model::MakeChunkRange(SmallModel(), 1, 0).value(),
          .num_shards = layout.data_size,
          .shard_index = rank / layout.tensor_size,
          .tensor = {layout.tensor_size, rank % layout.tensor_size},
          .bucket_size = layout.bucket_size};
      weights_.emplace_back(shard.ranges(), ops->compute());
      optimizers_.push_back(
          optim::ShardedOptimizer::Create(AdamW(), shard, weights_.back().parts, ops).value());
    }
  }

  int world_size() const { return layout_.world_size(); }
  device::HostWindow* window() { return &cpu_.window; }
  std::vector<StateSlice> StateOf(int rank) const {
    return optimizers_[static_cast<size_t>(rank)]->State();
  }
  checkpoint::ShardLayout ShardLayoutOf(int rank) const {
    return layout::SnapshotLayoutOf(rank, StateOf(rank)).value();
  }

  std::vector<checkpoint::v1::TensorSlice> SlicesOf(int rank) const {
    return ShardLayoutOf(rank).slices();
  }

  // Sets initial weights, and moments whose values tell their position.
  void Fill() {
    for (int rank = 0; rank < world_size(); ++rank) {
      optim::Initialize(*optimizers_[static_cast<size_t>(rank)], {.seed = kSeed});
      for (const StateSlice& slice : StateOf(rank)) {
        if (!IsMoment(slice)) continue;
        for (int64_t i = 0; i < slice.data.size; ++i) Set(slice.data, i, Moment(slice, i));
      }
    }
  }

  // Seals every rank's snapshot, and makes a checkpoint of them in `root`; returns its directory.
  std::string Save(const std::string& root) {
    for (int rank = 0; rank < world_size(); ++rank) {
      const checkpoint::ShardLayout layout = ShardLayoutOf(rank);
      regions_.push_back(
          base::SharedMemory::Create("test", checkpoint::SnapshotBytes(layout.size_bytes()))
              .value());
      base::SharedMemory& region = *regions_.back();
      checkpoint::FormatSnapshots(region, rank);
      auto writer = checkpoint::SnapshotWriter::Open(&region, kMoment.attempt, 0).value();
      const auto buffer = writer.Acquire(absl::ZeroDuration()).value();
      const absl::Status copied =
          CopyOut(cpu_.device.get(), cpu_.stream.get(), layout, StateOf(rank),
                  buffer.subspan(0, static_cast<size_t>(layout.size_bytes())));
      EXPECT_TRUE(copied.ok()) << copied;
      EXPECT_TRUE(writer.Seal(kMoment.step, layout.size_bytes()).ok());
      const absl::Status persisted =
          checkpoint::PersistShard(checkpoint::SnapshotReader::Open(&region).value(),
                                   checkpoint::ListSealed(region).front(), root);
      EXPECT_TRUE(persisted.ok()) << persisted;
    }
    checkpoint::v1::Manifest manifest;
    manifest.set_step(kMoment.step);
    manifest.set_next_sample(kMoment.next_sample);
    auto* parallel = manifest.mutable_spec()->mutable_parallel();
    parallel->set_data_parallel_size(layout_.data_size);
    parallel->set_tensor_model_parallel_size(layout_.tensor_size);
    const std::string directory =
        absl::StrCat(root, "/", checkpoint::StepDirectoryName(kMoment.step, kMoment.attempt));
    const absl::Status written = checkpoint::WriteManifest(directory, manifest);
    EXPECT_TRUE(written.ok()) << written;
    return directory;
  }

  const base::SharedMemory* SnapshotsOf(int rank) const {
    return regions_[static_cast<size_t>(rank)].get();
  }

 private:
  device::TestWindow cpu_;
  Layout layout_;
  std::vector<optim::ShardMemory> weights_;
  std::vector<std::unique_ptr<optim::ShardedOptimizer>> optimizers_;
  std::vector<std::unique_ptr<base::SharedMemory>> regions_;
};

void ExpectEqual(const Ranks& ranks, const Ranks& expected) {
  for (int rank = 0; rank < ranks.world_size(); ++rank) {
    const std::vector<StateSlice> state = ranks.StateOf(rank), wanted = expected.StateOf(rank);
    ASSERT_EQ(state.size(), wanted.size());
    for (size_t i = 0; i < state.size(); ++i) {
      for (int64_t k = 0; k < state[i].data.size; ++k) {
        ASSERT_EQ(At(state[i].data, k), At(wanted[i].data, k))
            << "rank " << rank << ", " << state[i].name << " element "
            << TensorElement(state[i], k);
      }
    }
  }
}

std::string TestDirectory() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = absl::StrCat(::testing::TempDir(), "/", info->name());
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

void ExpectRestoredUnderEveryLayout(ops::Ops* ops) {
  std::string digest;
  for (const Layout& from : kLayouts) {
    Ranks saved(from, ops);
    saved.Fill();
    RestorePoint restore;
    restore.set_source(RestorePoint::SOURCE_STORAGE);
    restore.set_step(kMoment.step);
    restore.set_directory(saved.Save(TestDirectory()));
    for (const Layout& to : kLayouts) {
      SCOPED_TRACE(absl::StrCat("tensor ", from.tensor_size, " x data ", from.data_size,
                                ", buckets of ", from.bucket_size, " as tensor ", to.tensor_size,
                                " x data ", to.data_size, ", buckets of ", to.bucket_size));
      Ranks restored(to, ops), expected(to, ops);
      expected.Fill();
      for (int rank = 0; rank < restored.world_size(); ++rank) {
        const absl::Status status =
            RestoreState(restore, nullptr, restored.StateOf(rank), restored.window());
        ASSERT_TRUE(status.ok()) << status;
      }
      ExpectEqual(restored, expected);
    }
    const std::string found =
        checkpoint::CheckpointReader::Open(restore.directory()).value()->Digest().value();
    EXPECT_EQ(found, digest.empty() ? found : digest);
    digest = found;
  }
}

TEST(SnapshotShardTest, AStateSavedUnderAnyLayoutIsRestoredUnderAnyOther) {
  ExpectRestoredUnderEveryLayout(ops::MakeReferenceOps().get());
}

TEST(SnapshotShardTest, SoIsAStateInSinglePrecision) {
  ExpectRestoredUnderEveryLayout(ops::MakeCpuOps(tensor::DType::kF32, 1).get());
}

TEST(SnapshotShardTest, EachRankRestoresItselfFromItsOwnSnapshotInMemory) {
  const auto ops = ops::MakeReferenceOps();
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(absl::StrCat("tensor ", layout.tensor_size, " x data ", layout.data_size,
                              ", buckets of ", layout.bucket_size));
    Ranks saved(layout, ops.get()), restored(layout, ops.get());
    saved.Fill();
    saved.Save(TestDirectory());
    RestorePoint restore;
    restore.set_source(RestorePoint::SOURCE_MEMORY);
    restore.set_step(kMoment.step);
    for (int rank = 0; rank < restored.world_size(); ++rank) {
      const absl::Status status =
          RestoreState(restore, saved.SnapshotsOf(rank), restored.StateOf(rank), restored.window());
      ASSERT_TRUE(status.ok()) << status;
    }
    ExpectEqual(restored, saved);
  }
}

// A rank's state in device memory: a slice of each type, the second larger than a window's buffer.
struct DeviceState {
  explicit DeviceState(device::Device* device)
      : stream(device->MakeStream("test").value()), window(device, stream.get()) {
    constexpr int64_t kSizes[] = {3, static_cast<int64_t>(device::HostWindow::kPieceBytes) / 4 + 5};
    for (const int64_t size : kSizes) {
      StateSlice& slice = slices.emplace_back();
      slice.name = absl::StrCat("weight", slices.size());
      slice.shape = slice.box_shape = {size};
      slice.box_offset = {0};
      const auto dtype = slices.size() == 1 ? tensor::DType::kF64 : tensor::DType::kF32;
      memory.push_back(
          device->Allocate("state", static_cast<size_t>(size) * tensor::SizeOf(dtype)).value());
      slice.data = {memory.back()->data(), dtype, size};
    }
  }

  void Fill() {
    for (const StateSlice& slice : slices) {
      const absl::Status written =
          window.Write(slice.data, [&](int64_t first, const tensor::HostVector& piece) {
            const tensor::Vector here = {piece.data(), piece.dtype(), piece.size()};
            for (int64_t i = 0; i < piece.size(); ++i) Set(here, i, Moment(slice, first + i));
            return absl::OkStatus();
          });
      ASSERT_TRUE(written.ok()) << written;
    }
  }

  void ExpectFilled() {
    for (const StateSlice& slice : slices) {
      const absl::Status read =
          window.Read(slice.data, [&](int64_t first, const tensor::HostVector& piece) {
            const tensor::Vector here = {piece.data(), piece.dtype(), piece.size()};
            for (int64_t i = 0; i < piece.size(); ++i) {
              EXPECT_EQ(At(here, i), Moment(slice, first + i)) << slice.name << " " << first + i;
            }
            return absl::OkStatus();
          });
      ASSERT_TRUE(read.ok()) << read;
    }
  }

  std::vector<std::unique_ptr<device::Memory>> memory;
  std::vector<StateSlice> slices;
  std::unique_ptr<stream::Stream> stream;
  device::HostWindow window;
};

TEST(SnapshotShardTest, MemoryThatTheHostCannotTouchIsCopiedOutAndRestored) {
  const auto device = device::StrictDevice::Create();
  DeviceState saved(device.get()), restored(device.get());
  saved.Fill();
  const auto layout = layout::SnapshotLayoutOf(0, saved.slices).value();
  const auto region =
      base::SharedMemory::Create("test", checkpoint::SnapshotBytes(layout.size_bytes())).value();
  checkpoint::FormatSnapshots(*region, 0);
  auto writer = checkpoint::SnapshotWriter::Open(region.get(), kMoment.attempt, 0).value();
  const auto buffer = writer.Acquire(absl::ZeroDuration()).value();
  const absl::Status copied = CopyOut(device.get(), saved.stream.get(), layout, saved.slices,
                                      buffer.subspan(0, static_cast<size_t>(layout.size_bytes())));
  ASSERT_TRUE(copied.ok()) << copied;
  ASSERT_TRUE(writer.Seal(kMoment.step, layout.size_bytes()).ok());
  RestorePoint restore;
  restore.set_source(RestorePoint::SOURCE_MEMORY);
  restore.set_step(kMoment.step);
  const absl::Status status =
      RestoreState(restore, region.get(), restored.slices, &restored.window);
  ASSERT_TRUE(status.ok()) << status;
  restored.ExpectFilled();
}

TEST(SnapshotShardTest, ASnapshotOfAnotherTensorRankLacksWhatThisOneHas) {
  const auto ops = ops::MakeReferenceOps();
  Ranks saved({2, 1}, ops.get());
  saved.Fill();
  saved.Save(TestDirectory());
  RestorePoint restore;
  restore.set_source(RestorePoint::SOURCE_MEMORY);
  restore.set_step(kMoment.step);
  const absl::Status status =
      RestoreState(restore, saved.SnapshotsOf(0), saved.StateOf(1), saved.window());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "does not hold element 56 of tensor "
                                "model.embed_tokens.weight"))
      << status;
}

TEST(SnapshotShardTest, WithoutTensorRanksAPartIsARangeOfItsTensorUnderItsName) {
  const auto ops = ops::MakeReferenceOps();
  const Ranks ranks({1, 3}, ops.get());
  for (int rank = 0; rank < 3; ++rank) {
    for (const auto& slice : ranks.SlicesOf(rank)) {
      EXPECT_EQ(slice.key(), slice.name());
      EXPECT_EQ(slice.box_offset_size() + slice.box_shape_size(), 0) << slice.DebugString();
      EXPECT_EQ(slice.replica(), 0);
    }
  }
}

TEST(SnapshotShardTest, QueriesKeysAndValuesOfATensorRankAreBoxesUnderKeysOfTheirOwn) {
  const auto ops = ops::MakeReferenceOps();
  const Ranks ranks({2, 1}, ops.get());
  const std::string name = "model.layers.1.attn.qkv.weight";
  std::map<std::string, std::vector<int64_t>> row_of_key;
  for (const auto& slice : ranks.SlicesOf(1)) {
    if (slice.name() == name) {
      row_of_key[slice.key()] = {slice.box_offset(0), slice.box_shape(0)};
    }
  }
  EXPECT_EQ(row_of_key, (std::map<std::string, std::vector<int64_t>>{
                            {name, {8, 8}}, {name + "#1", {18, 2}}, {name + "#2", {22, 2}}}));
}

// Two ranks have a copy of a key/value head.
TEST(SnapshotShardTest, EveryTensorRankHasACopyOfWhatIsNotCut) {
  const auto ops = ops::MakeReferenceOps();
  const int64_t num_queries = SmallModel().num_heads * SmallModel().head_dim;
  const Ranks ranks({4, 1}, ops.get());
  for (int rank = 0; rank < 4; ++rank) {
    for (const auto& slice : ranks.SlicesOf(rank)) {
      const bool is_whole = slice.box_shape_size() == 0;
      const bool is_shared = !is_whole && absl::StrContains(slice.name(), "attn.qkv") &&
                             slice.box_offset(0) >= num_queries;
      EXPECT_EQ(slice.replica(), is_whole ? rank : is_shared ? rank % 2 : 0) << slice.DebugString();
      EXPECT_EQ(is_whole, absl::StrContains(slice.name(), "norm") ||
                              absl::StrContains(slice.name(), "embed_positions") ||
                              absl::EndsWith(slice.name(), "out.bias") ||
                              absl::EndsWith(slice.name(), "down.bias"))
          << slice.name();
    }
  }
}

TEST(LoadInitialWeightsTest, ALargeTensorIsReadInBlocksEachOfWhichIsProgress) {
  constexpr int64_t kVocabulary = 300'000;
  hugging_face::TestFolder folder;
  folder.Write("config.json", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 300000,
      "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
      "num_attention_heads": 2})");
  folder.shapes()["model.embed_tokens.weight"] = {kVocabulary, 8};
  folder.shapes()["lm_head.weight"] = {kVocabulary, 8};
  folder.WriteWeights("model.safetensors", folder.shapes());
  const auto source = hugging_face::FindSource(folder.path());
  ASSERT_TRUE(source.ok()) << source.status();
  job::v1::ModelSpec model = source->model;
  model.set_from(folder.path());
  constexpr int64_t kElements = kVocabulary * 8 - 8;  // 2.3 times 2^20
  tensor::Arena arena =
      *tensor::Arena::Create(tensor::Arena::BytesFor(tensor::DType::kF32, kElements));
  const StateSlice slice = {.name = "model.embed_tokens.weight",
                            .shape = {kVocabulary, 8},
                            .box_offset = {0, 0},
                            .box_shape = {kVocabulary, 8},
                            .begin = 8,
                            .data = arena.Allocate(tensor::DType::kF32, kElements)};
  for (int64_t i = 0; i < kElements; ++i) Set(slice.data, i, 1);
  device::TestWindow cpu;
  std::vector<int64_t> blocks;
  const absl::Status loaded = LoadInitialWeights(
      model, {slice}, &cpu.window, [&blocks](int64_t count) { blocks.push_back(count); });
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_THAT(blocks, ::testing::ElementsAre(1 << 20, 1 << 20, kElements - (2 << 20)));
  EXPECT_EQ(NumInitialWeights({slice}), kElements);
  for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(At(slice.data, i), 0) << i;
}

}  // namespace
}  // namespace megascale::engine
