// Compares Hugging Face folders of each architecture, read by runtime/hugging_face, with what
// `transformers` computes with them in float32: all logits, the loss, and the gradient of every
// parameter. make_folders.py made the folders. Every import also comes back bit for bit.
//
//   Ops         logits, of the greatest   loss, relative   gradient of each tensor   reason
//   float64     1e-5                      1e-6             1e-5          theirs are in float32
//   CPU, F32    1e-5                      1e-6             1e-5          24 bits, other orders
//   CPU, BF16   5e-2                      1e-2             1e-1          8 bits; weights rounded
//
// Processors that multiply bf16 themselves round elsewhere than those that do not: hence 5e-2.
//
// Gradients are measured by LargestTensorDistance.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/data/token_text.h"
#include "runtime/data/tokenizer/testing/letters_tokenizer.h"
#include "runtime/hugging_face/folder.h"
#include "runtime/hugging_face/import.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/hugging_face/weights.h"
#include "runtime/inference/generate.h"
#include "runtime/inference/inference.h"
#include "runtime/inference/language_model.h"
#include "runtime/model/config.h"
#include "runtime/model/testing/test_pipeline.h"

namespace megascale::hugging_face {
namespace {

using model::NamedValues;
using tensor::DType;

constexpr int64_t kBatch = 2;
constexpr int64_t kSeq = 17;
constexpr int64_t kTokens = kBatch * kSeq;

constexpr const char* kFolders[] = {"gpt2",         "pythia",       "neox-serial", "llama2",
                                    "llama3",       "llama-linear", "mistral",     "mistral-nemo",
                                    "qwen2",        "qwen2-window", "qwen3",       "ministral",
                                    "qwen2-layers", "qwen3-layers"};

std::string PathOf(const std::string& name) { return absl::StrCat("tests/golden/folders/", name); }

// Reads a file of tensors whose elements have four bytes.
template <typename Number>
std::vector<Number> ReadTensor(const std::string& path, const std::string& key) {
  const std::string file = base::ReadFile(path, 1 << 20).value();
  const auto header =
      checkpoint::ParseSafetensorsHeader(file, static_cast<int64_t>(file.size()), path).value();
  for (const checkpoint::SafetensorsEntry& entry : header.entries) {
    if (entry.key != key) continue;
    std::vector<Number> values(static_cast<size_t>(entry.size_bytes) / sizeof(Number));
    std::memcpy(values.data(), file.data() + header.data_begin + entry.begin, entry.size_bytes);
    return values;
  }
  ADD_FAILURE() << path << " has no " << key;
  return {};
}

std::vector<double> ReadAll(const Weights& weights, const TensorMap& tensor) {
  const checkpoint::Box whole = checkpoint::WholeBox(tensor.shape);
  std::vector<double> values(checkpoint::NumElements(tensor.shape).value());
  EXPECT_TRUE(weights.Read(tensor.name, whole, 0, absl::MakeSpan(values)).ok());
  return values;
}

struct Tolerances {
  double logits, loss, gradient;
};

void ExpectGolden(const std::string& name, ops::Ops* ops, Tolerances tolerances) {
  SCOPED_TRACE(name);
  const auto weights = Weights::Open(PathOf(name)).value();
  const auto gradients = Weights::Open(PathOf(name) + "/gradients").value();
  const std::string expected = PathOf(name) + "/expected.safetensors";
  const auto tokens = ReadTensor<int32_t>(expected, "tokens");
  const auto logits = ReadTensor<float>(expected, "logits");
  const double loss = ReadTensor<float>(expected, "loss").at(0);
  const model::ModelConfig config = model::MakeModelConfig(weights->config().model).value();
  model::TestPipeline pipeline({.config = config, .micro_batch = kBatch, .seq = kSeq}, ops);
  NamedValues expected_gradients;
  for (const TensorMap& tensor : weights->tensors()) {
    pipeline.SetWeights(tensor.name, ReadAll(*weights, tensor));
    expected_gradients[tensor.name] = ReadAll(*gradients, tensor);
  }
  double largest = 0, distance = 0;
  for (int64_t sample = 0; sample < kBatch; ++sample) {
    for (int64_t t = 0; t < kSeq; ++t) {
      const auto first = tokens.begin() + sample * (kSeq + 1);
      const std::vector<double> ours = pipeline.Logits({first, first + t + 1});
      for (size_t v = 0; v < ours.size(); ++v) {
        const double theirs = logits.at((sample * kSeq + t) * ours.size() + v);
        largest = std::max(largest, std::abs(theirs));
        distance = std::max(distance, std::abs(ours[v] - theirs));
      }
    }
  }
  EXPECT_LE(distance, tolerances.logits * largest);
  pipeline.Forward(0, tokens, 1.0 / kTokens);
  pipeline.Backward(0);
  EXPECT_NEAR(pipeline.loss() / kTokens, loss, tolerances.loss * loss);
  EXPECT_LE(model::LargestTensorDistance(pipeline.Gradients(), expected_gradients),
            tolerances.gradient);
}

TEST(GoldenFolders, Float64AgreesWithTransformers) {
  for (const char* name : kFolders) {
    ExpectGolden(name, ops::MakeReferenceOps().get(), {1e-5, 1e-6, 1e-5});
  }
}

TEST(GoldenFolders, TheCpuAgreesWithTransformersInFloat32) {
  for (const char* name : kFolders) {
    ExpectGolden(name, ops::MakeCpuOps(DType::kF32, 2).get(), {1e-5, 1e-6, 1e-5});
  }
}

TEST(GoldenFolders, TheCpuIsNearTransformersInBFloat16) {
  for (const char* name : kFolders) {
    ExpectGolden(name, ops::MakeCpuOps(DType::kBF16, 2).get(), {5e-2, 1e-2, 1e-1});
  }
}

// The tokens of one sample.
class Sample : public data::TokenText {
 public:
  Sample(const std::vector<int32_t>& tokens, int64_t index)
      : ids_(tokens.begin() + index * (kSeq + 1), tokens.begin() + (index + 1) * (kSeq + 1)) {}
  int64_t num_tokens() const override { return kSeq + 1; }
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const override {
    std::copy_n(ids_.begin() + begin, out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  const std::vector<int32_t> ids_;
};

// Returns the path of a tokenizer for these models: an end token and 49 letters.
std::string WriteTokenizer() {
  std::vector<std::string> tokens = {tokenizer::kLettersEnd};
  for (char letter = 'B'; tokens.size() < 50; ++letter) {
    tokens.push_back(letter == '\\' ? "!" : std::string(1, letter));
  }
  const std::string path = absl::StrCat(::getenv("TEST_TMPDIR"), "/tokenizer.json");
  EXPECT_TRUE(base::WriteFileDurably(path, tokenizer::LettersTokenizer(tokens)).ok());
  return path;
}

// As `megascale evaluate` does it, in the type in which the weights are stored.
TEST(GoldenFolders, EvaluationOfAFolderGivesTheLossOfTransformers) {
  const std::string tokenizer = WriteTokenizer();
  for (const std::string name : kFolders) {
    SCOPED_TRACE(name);
    const std::string expected = PathOf(name) + "/expected.safetensors";
    const auto tokens = ReadTensor<int32_t>(expected, "tokens");
    const double loss = ReadTensor<float>(expected, "loss").at(0);
    auto inference = cli::Inference::Load(
        {.path = PathOf(name), .tokenizer = tokenizer, .seq_length = kSeq, .num_threads = 2});
    ASSERT_TRUE(inference.ok()) << inference.status();
    double sum = 0;
    for (int64_t sample = 0; sample < kBatch; ++sample) {
      sum += (*inference)->Evaluate(Sample(tokens, sample))->nats_per_token;
    }
    const bool is_bf16 =
        (*inference)->manifest().spec().train().precision() == job::v1::PRECISION_BF16;
    EXPECT_NEAR(sum / kBatch, loss, (is_bf16 ? 1e-2 : 1e-6) * loss);
  }
}

std::unique_ptr<inference::LanguageModel> LoadCached(const std::string& name, DType compute,
                                                     int64_t num_sequences) {
  inference::LanguageModelOptions options = {.compute = compute, .num_threads = 2};
  options.model = FindSource(PathOf(name)).value().model;
  options.model.set_from(PathOf(name));
  options.num_sequences = num_sequences;
  options.capacity = 28;
  auto model = inference::LanguageModel::Load(std::move(options));
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// Reads the first tokens at once and the others one by one.
void ExpectGoldenCached(const std::string& name, DType compute, double tolerance) {
  SCOPED_TRACE(name);
  const std::string expected = PathOf(name) + "/expected.safetensors";
  const auto tokens = ReadTensor<int32_t>(expected, "tokens");
  const auto logits = ReadTensor<float>(expected, "logits");
  const auto model = LoadCached(name, compute, kBatch);
  double largest = 0, distance = 0;
  std::vector<double> ours;
  for (int64_t sample = 0; sample < kBatch; ++sample) {
    const int64_t num_read = sample == 0 ? 1 : 9;
    const auto first = tokens.begin() + sample * (kSeq + 1);
    for (int64_t t = num_read - 1; t < kSeq; ++t) {
      const std::vector<int32_t> prompt(first, first + num_read);
      const absl::Status run =
          t == num_read - 1
              ? model->Read(sample, prompt, &ours)
              : model->Step(std::vector<inference::NextToken>{{sample, *(first + t)}}, &ours);
      ASSERT_EQ(run, absl::OkStatus());
      for (size_t v = 0; v < ours.size(); ++v) {
        const double theirs = logits.at((sample * kSeq + t) * ours.size() + v);
        largest = std::max(largest, std::abs(theirs));
        distance = std::max(distance, std::abs(ours[v] - theirs));
      }
    }
  }
  EXPECT_LE(distance, tolerance * largest);
}

TEST(GoldenFolders, LogitsFromTheCacheAgreeWithTransformers) {
  for (const char* name : kFolders) {
    ExpectGoldenCached(name, DType::kF64, 1e-5);
    ExpectGoldenCached(name, DType::kF32, 1e-5);
    ExpectGoldenCached(name, DType::kBF16, 5e-2);
  }
}

using Ids = std::vector<std::vector<int32_t>>;

Ids Continue(inference::LanguageModel* model, const Ids& prompts,
             const std::vector<int32_t>& end_tokens) {
  Ids continuations(prompts.size());
  inference::GenerateOptions options = {.num_tokens = 16, .rule = {.temperature = 0}};
  options.end_tokens = end_tokens;
  inference::GenerateEvents events;
  events.on_token = [&](int64_t index, int32_t token) {
    continuations[index].push_back(token);
    return absl::OkStatus();
  };
  events.on_end = [&](int64_t, inference::EndOf) { return absl::OkStatus(); };
  EXPECT_EQ(inference::Generate(model, prompts, options, events), absl::OkStatus());
  return continuations;
}

// make_generation.py made the expected tokens, each prompt by itself. Here three prompts of
// different lengths share two sequences.
TEST(GoldenFolders, GreedyGenerationGivesTheTokensOfTransformers) {
  for (const char* name : kFolders) {
    SCOPED_TRACE(name);
    const auto expected =
        nlohmann::json::parse(base::ReadFile(PathOf(name) + "/generated.json", 1 << 20).value());
    const Ids prompts = expected["prompts"];
    for (const DType compute : {DType::kF64, DType::kF32}) {
      const auto model = LoadCached(name, compute, 2);
      EXPECT_EQ(Continue(model.get(), prompts, {}), expected["continuations"].get<Ids>());
      EXPECT_EQ(Continue(model.get(), prompts, expected["end_tokens"]),
                expected["ended"].get<Ids>());
    }
  }
}

// Here the capacity is 28. The newest token is one of the 14 that are read again.
TEST(GoldenFolders, ASequenceThatExceedsTheCapacityGoesOnFromItsNewestHalf) {
  constexpr int64_t kCapacity = 28;
  for (const char* name : {"gpt2", "qwen2-layers"}) {
    SCOPED_TRACE(name);
    const auto model = LoadCached(name, DType::kF64, 1);
    ASSERT_EQ(model->capacity(), kCapacity);
    const auto tokens = ReadTensor<int32_t>(PathOf(name) + "/expected.safetensors", "tokens");
    std::vector<int32_t> text(tokens.begin(), tokens.begin() + 20);
    const std::vector<int32_t> added = Continue(model.get(), {text}, {})[0];
    text.insert(text.end(), added.begin(), added.end());
    for (int64_t size = 20; size < 36; ++size) {
      const int64_t kept = size <= kCapacity ? size : size - kCapacity - 1 + kCapacity / 2;
      const std::vector<int32_t> seen(text.begin() + size - kept, text.begin() + size);
      EXPECT_EQ(Continue(model.get(), {seen}, {})[0][0], text[size]) << size;
    }
  }
}

// A folder that is deleted at the end.
class Scratch {
 public:
  Scratch() : path_(absl::StrCat(::getenv("TEST_TMPDIR"), "/folder-XXXXXX")) {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return absl::StrCat(path_, "/", name); }

 private:
  std::string path_;
};

std::string BytesOf(const Folder& folder, const StoredTensor& tensor) {
  int64_t size = checkpoint::DtypeBytes(tensor.dtype).value();
  for (const int64_t dim : tensor.shape) size *= dim;
  std::string bytes(static_cast<size_t>(size), '\0');
  EXPECT_TRUE(folder.Read(tensor, 0, absl::MakeSpan(bytes)).ok());
  return bytes;
}

void ExpectSameTensors(const std::string& a_path, const std::string& b_path) {
  const auto a = Folder::Open(a_path).value();
  const auto b = Folder::Open(b_path).value();
  ASSERT_EQ(a->tensors().size(), b->tensors().size());
  for (const auto& [name, tensor] : a->tensors()) {
    const StoredTensor* other = b->Find(name);
    ASSERT_NE(other, nullptr) << name;
    EXPECT_EQ(tensor.dtype, other->dtype) << name;
    EXPECT_EQ(tensor.shape, other->shape) << name;
    EXPECT_EQ(BytesOf(*a, tensor), BytesOf(*b, *other)) << name;
  }
}

TEST(GoldenFolders, AnExportOfAnImportHasTheSameBitsAndConfiguration) {
  for (const char* name : kFolders) {
    SCOPED_TRACE(name);
    const Scratch scratch;
    ASSERT_EQ(Import(PathOf(name), scratch / "weights").status(), absl::OkStatus());
    ASSERT_EQ(Export({.checkpoint = scratch / "weights", .folder = scratch / "out"}).status(),
              absl::OkStatus());
    ExpectSameTensors(PathOf(name), scratch / "out");
    EXPECT_EQ(base::ReadFile(scratch / "out/config.json", 1 << 20).value(),
              base::ReadFile(PathOf(name) + "/config.json", 1 << 20).value());
  }
}

// Boxes as ranks with tensor parallelism have them, and one that leaves out each edge.
std::vector<checkpoint::Box> PartsOf(const std::vector<int64_t>& shape) {
  using checkpoint::Box;
  const int64_t rows = shape[0], half = rows / 2;
  if (shape.size() == 1)
    return {Box{{0}, {half}}, Box{{half}, {rows - half}}, Box{{1}, {rows - 2}}};
  const int64_t cols = shape[1], left = cols / 2;
  return {Box{{half, 0}, {rows - half, cols}}, Box{{0, left}, {rows, cols - left}},
          Box{{0, 0}, {rows, left}}, Box{{rows / 4, left}, {half, 1}},
          Box{{1, 1}, {rows - 2, cols - 2}}};
}

// The whole tensors are compared with `transformers` above.
TEST(GoldenFolders, PartsOfTensorsAreThoseOfTheWhole) {
  for (const char* name : kFolders) {
    const auto weights = Weights::Open(PathOf(name)).value();
    for (const TensorMap& tensor : weights->tensors()) {
      const std::vector<double> whole = ReadAll(*weights, tensor);
      for (const checkpoint::Box& box : PartsOf(tensor.shape)) {
        const int64_t elements = checkpoint::NumElements(box.shape).value();
        const int64_t cols = tensor.shape.size() > 1 ? box.shape[1] : 1;
        const int64_t first_col = tensor.shape.size() > 1 ? box.offset[1] : 0;
        // The second range begins and ends within a row, as a shard of an optimizer does.
        for (const auto& [begin, count] :
             {std::pair(int64_t{0}, elements), std::pair(elements / 5, elements / 3)}) {
          std::vector<double> expected(static_cast<size_t>(count)), part = expected;
          for (int64_t i = 0; i < count; ++i) {
            const int64_t row = box.offset[0] + (begin + i) / cols;
            const int64_t col = first_col + (begin + i) % cols;
            expected[static_cast<size_t>(i)] =
                whole[static_cast<size_t>(row * tensor.cols() + col)];
          }
          ASSERT_EQ(weights->Read(tensor.name, box, begin, absl::MakeSpan(part)), absl::OkStatus());
          ASSERT_EQ(part, expected) << name << ", " << tensor.name;
        }
      }
    }
  }
}

// Without the copy of the original configuration the written one must say the same.
TEST(GoldenFolders, AWrittenConfigurationReadsBackAsTheModel) {
  for (const char* name : kFolders) {
    SCOPED_TRACE(name);
    const Config config = ReadConfig(PathOf(name)).value();
    const std::string written = WriteConfig(config.model, "float32").value();
    const Config again = ParseConfig(written, "written").value();
    EXPECT_EQ(again.model.DebugString(), config.model.DebugString());
  }
}

TEST(GoldenFolders, AnExportInSmallFilesHasTheSameTensors) {
  const Scratch scratch;
  ASSERT_TRUE(Import(PathOf("qwen3"), scratch / "weights").ok());
  const auto written = Export(
      {.checkpoint = scratch / "weights", .folder = scratch / "out", .file_bytes_max = 5000});
  ASSERT_EQ(written.status(), absl::OkStatus());
  EXPECT_GT(written->num_files, 2);
  ExpectSameTensors(PathOf("qwen3"), scratch / "out");
}

}  // namespace
}  // namespace megascale::hugging_face
