#include "runtime/inference/inference.h"

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/initialize.h"

namespace megascale::cli {
namespace {

job::v1::JobSpec SmallSpec() {
  job::v1::JobSpec spec;
  spec.set_name("small");
  spec.mutable_model()->set_hidden_size(32);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_data()->add_files("/unused");
  spec.mutable_train()->set_steps(1);
  spec.mutable_train()->set_seq_length(16);
  spec.mutable_train()->set_global_batch_size(1);
  spec.mutable_train()->set_micro_batch_size(1);
  return *job::ResolveJobSpec(spec);
}

constexpr checkpoint::ShardMoment kMoment = {.attempt = 1, .step = 5, .next_sample = 5};

// Persists a tensor rank's part of the initial weights, through the real writer.
void PersistInitialWeights(const std::string& root, const job::v1::JobSpec& spec,
                           model::TensorPlace place) {
  const model::ModelConfig config = *model::MakeModelConfig(spec.model());
  const model::ChunkLayout layout(config, *model::MakeChunkRange(config, 1, 0), place);
  std::vector<float> weights(layout.num_elements());
  model::InitializeParameters(config, layout, {.seed = spec.train().seed()}, 0,
                              {weights.data(), tensor::DType::kF32, layout.num_elements()});
  std::vector<checkpoint::v1::TensorSlice> slices;
  std::vector<const float*> data;
  for (const model::Parameter& parameter : layout.parameters()) {
    for (const model::ParameterBox& box : parameter.boxes) {
      checkpoint::v1::TensorSlice& slice = slices.emplace_back();
      slice.set_name(parameter.name);
      slice.set_dtype("F32");
      for (const int64_t size : parameter.global_shape) slice.add_global_shape(size);
      for (const int64_t offset : box.offset) slice.add_box_offset(offset);
      for (const int64_t size : box.shape) slice.add_box_shape(size);
      slice.set_flat_count(box.count);
      slice.set_replica(parameter.replicated ? place.index : 0);
      data.push_back(weights.data() + parameter.offset + box.begin);
    }
  }
  const auto shard = checkpoint::ShardLayout::Create(place.index, slices).value();
  auto region =
      base::SharedMemory::Create("inference_test", checkpoint::SnapshotBytes(shard.size_bytes()))
          .value();
  checkpoint::FormatSnapshots(*region, place.index);
  auto writer = checkpoint::SnapshotWriter::Open(region.get(), kMoment.attempt, 0).value();
  const auto buffer = writer.Acquire(absl::ZeroDuration()).value();
  shard.WriteHeader(kMoment, buffer.subspan(0, shard.size_bytes()));
  for (size_t i = 0; i < slices.size(); ++i) {
    std::memcpy(buffer.data() + shard.data_offset(i), data[i],
                slices[i].flat_count() * sizeof(float));
  }
  EXPECT_TRUE(writer.Seal(kMoment.step, shard.size_bytes()).ok());
  EXPECT_TRUE(checkpoint::PersistShard(checkpoint::SnapshotReader::Open(region.get()).value(),
                                       checkpoint::ListSealed(*region).front(), root)
                  .ok());
}

// Writes a checkpoint of the initial weights and returns its folder.
std::string WriteInitialCheckpoint(const std::string& root, const job::v1::JobSpec& spec) {
  const int tensor_size = spec.parallel().tensor_model_parallel_size();
  for (int index = 0; index < tensor_size; ++index) {
    PersistInitialWeights(root, spec, {tensor_size, index});
  }
  checkpoint::v1::Manifest manifest;
  manifest.set_job_id("small");
  manifest.set_attempt(kMoment.attempt);
  manifest.set_step(kMoment.step);
  manifest.set_next_sample(kMoment.next_sample);
  *manifest.mutable_spec() = spec;
  std::string directory =
      absl::StrCat(root, "/", checkpoint::StepDirectoryName(kMoment.step, kMoment.attempt));
  const absl::Status written = checkpoint::WriteManifest(directory, manifest);
  EXPECT_TRUE(written.ok()) << written;
  return directory;
}

class InferenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = absl::StrCat(::testing::TempDir(), "/",
                         ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }

  std::unique_ptr<Inference> Load(job::v1::Precision precision, int tensor_size = 1) {
    job::v1::JobSpec spec = SmallSpec();
    spec.mutable_parallel()->set_tensor_model_parallel_size(tensor_size);
    spec.mutable_train()->set_precision(precision);
    auto inference = Inference::Load(WriteInitialCheckpoint(root_, spec), 2);
    EXPECT_TRUE(inference.ok()) << inference.status();
    return std::move(inference).value();
  }

  static std::string Sample(Inference* inference, const SampleOptions& options) {
    std::string text;
    const absl::Status status = inference->Sample(
        options, [&](absl::string_view piece) { text.append(piece.data(), piece.size()); });
    EXPECT_TRUE(status.ok()) << status;
    return text;
  }

  std::string root_;
};

std::string SomeText(size_t size) {
  std::string text;
  for (size_t i = 0; text.size() < size; ++i) absl::StrAppend(&text, "line ", i * i, "\n");
  return text.substr(0, size);
}

// Every byte of a text is a token.
class Bytes : public data::TokenText {
 public:
  explicit Bytes(absl::string_view text) : text_(text) {}
  int64_t num_tokens() const override { return static_cast<int64_t>(text_.size()); }
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const override {
    for (int32_t& id : out) id = static_cast<unsigned char>(text_[begin++]);
    return absl::OkStatus();
  }

 private:
  const std::string text_;
};

TEST_F(InferenceTest, InitialWeightsNeedAboutEightBitsPerByte) {
  for (const auto precision :
       {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16, job::v1::PRECISION_FP64}) {
    const auto inference = Load(precision);
    const auto loss = inference->Evaluate(Bytes(SomeText(1000)));
    ASSERT_TRUE(loss.ok()) << loss.status();
    EXPECT_EQ(loss->num_bytes, 999 / 16 * 16);
    EXPECT_NEAR(loss->bits_per_byte, 8, 0.1);
    EXPECT_EQ(inference->Evaluate(Bytes(SomeText(1000)))->bits_per_byte, loss->bits_per_byte);
  }
}

TEST_F(InferenceTest, WhatTensorRanksSavedIsTheSameModel) {
  const auto whole = Load(job::v1::PRECISION_FP32)->Evaluate(Bytes(SomeText(1000)));
  const auto cut = Load(job::v1::PRECISION_FP32, 2)->Evaluate(Bytes(SomeText(1000)));
  ASSERT_TRUE(whole.ok() && cut.ok()) << whole.status() << cut.status();
  EXPECT_EQ(cut->bits_per_byte, whole->bits_per_byte);
}

TEST_F(InferenceTest, TextShorterThanAWindowIsRefused) {
  const auto inference = Load(job::v1::PRECISION_FP32);
  EXPECT_EQ(inference->Evaluate(Bytes(SomeText(16))).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(inference->Evaluate(Bytes("")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(inference->Evaluate(Bytes(SomeText(17)))->num_bytes, 16);
}

TEST_F(InferenceTest, ALimitMeasuresTheBeginningAndSaysOfHowMuch) {
  const auto inference = Load(job::v1::PRECISION_FP32);
  const std::string text = SomeText(1000);
  EvaluateOptions options;
  options.limit.num_windows = 20;
  std::vector<std::pair<int64_t, int64_t>> seen;
  options.on_progress = [&](int64_t done, int64_t all) { seen.push_back({done, all}); };
  const HeldOutLoss loss = inference->Evaluate(Bytes(text), options).value();
  EXPECT_EQ(loss.num_bytes, 20 * 16);
  EXPECT_EQ(loss.text_tokens, 1000);
  EXPECT_EQ(
      loss.bits_per_byte,
      inference->Evaluate(Bytes(absl::string_view(text).substr(0, 20 * 16 + 1)))->bits_per_byte);
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{8, 20}, {16, 20}, {20, 20}}));
  options.limit = {.flops = 1};
  EXPECT_EQ(inference->Evaluate(Bytes(text), options)->num_bytes, 16) << "at least one window";
  options.limit = ParseWindowLimit("--w", "auto").value();
  EXPECT_EQ(inference->Evaluate(Bytes(text), options)->num_bytes, 992) << "a small model: all";
}

TEST(WindowLimitTest, IsANumberAWordOrRefused) {
  EXPECT_EQ(ParseWindowLimit("--w", "7")->num_windows, 7);
  EXPECT_EQ(ParseWindowLimit("--w", "all")->num_windows, 0);
  EXPECT_EQ(ParseWindowLimit("--w", "all")->flops, 0);
  EXPECT_GT(ParseWindowLimit("--w", "auto")->flops, 0);
  for (const char* bad : {"", "0", "-1", "some", "7.5"}) {
    EXPECT_EQ(
        ParseWindowLimit("--w", bad).status().message(),
        absl::StrCat("--w: expected all, auto or a number of 1 to 1000000000, found '", bad, "'"));
  }
}

TEST_F(InferenceTest, TheSameSeedGivesTheSameText) {
  const auto inference = Load(job::v1::PRECISION_FP32);
  SampleOptions options;
  options.prompt = "ab";
  options.num_tokens = 40;  // beyond the context of 16
  const std::string text = Sample(inference.get(), options);
  EXPECT_EQ(text.size(), 40u);
  EXPECT_EQ(Sample(inference.get(), options), text);
  options.seed = 2;
  EXPECT_NE(Sample(inference.get(), options), text);
}

TEST_F(InferenceTest, MemoryThatTheHostCannotTouchGivesTheSameTextAndLoss) {
  for (const auto precision :
       {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16, job::v1::PRECISION_FP64}) {
    const auto cpu = Load(precision);
    const auto strict =
        Inference::Load(FindCheckpoint(root_).value(), 2, device::StrictDevice::Create());
    ASSERT_TRUE(strict.ok()) << strict.status();
    SampleOptions options;
    options.num_tokens = 20;
    EXPECT_EQ(Sample(strict->get(), options), Sample(cpu.get(), options));
    EXPECT_EQ(strict.value()->Evaluate(Bytes(SomeText(500)))->bits_per_byte,
              cpu->Evaluate(Bytes(SomeText(500)))->bits_per_byte);
  }
}

TEST_F(InferenceTest, BadSampleOptionsAreNamed) {
  const auto inference = Load(job::v1::PRECISION_FP32);
  const auto error_of = [&](const SampleOptions& options) {
    return std::string(inference->Sample(options, [](absl::string_view) {}).message());
  };
  SampleOptions options;
  options.prompt = "";
  EXPECT_EQ(error_of(options), "--prompt: is empty; expected at least one character");
  options = {};
  options.temperature = -1;
  EXPECT_EQ(error_of(options), "--temperature: -1 is out of range; expected 0 or more");
  options = {};
  options.top_k = -1;
  EXPECT_EQ(error_of(options), "--top-k: -1 is out of range; expected 0 (all) or more");
  options = {};
  options.num_tokens = -1;
  EXPECT_EQ(error_of(options), "--tokens: -1 is out of range; expected 0 to 1000000");
}

TEST_F(InferenceTest, FindsTheNewestCheckpointInAFolder) {
  const std::string directory = WriteInitialCheckpoint(root_, SmallSpec());
  EXPECT_EQ(*FindCheckpoint(root_), directory);
  EXPECT_EQ(*FindCheckpoint(directory), directory);
  EXPECT_EQ(FindCheckpoint(root_ + "/none").status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directories(root_ + "/empty");
  EXPECT_EQ(FindCheckpoint(root_ + "/empty").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(InferenceTest, ACorruptShardIsDataLoss) {
  const std::string directory = WriteInitialCheckpoint(root_, SmallSpec());
  const std::string shard = absl::StrCat(directory, "/", checkpoint::ShardFileName(0));
  std::FILE* file = std::fopen(shard.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  std::fseek(file, -1, SEEK_END);
  std::fputc(0x55, file);
  std::fclose(file);
  EXPECT_EQ(Inference::Load(directory, 1).status().code(), absl::StatusCode::kDataLoss);
}

TEST(XzSizeTest, CompressesOrSaysThatThereIsNoXz) {
  const auto size = XzSize(std::string(100'000, 'x'));
  if (absl::IsNotFound(size.status())) GTEST_SKIP() << "no xz on this machine";
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_GT(*size, 0);
  EXPECT_LT(*size, 1000);
}

}  // namespace
}  // namespace megascale::cli
