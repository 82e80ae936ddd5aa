#include "runtime/inference/inference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"
#include "runtime/data/tokenizer/testing/letters_tokenizer.h"
#include "runtime/data/tokenizer/text/utf8.h"
#include "runtime/device/testing/strict_device.h"
#include "runtime/hugging_face/import.h"
#include "runtime/hugging_face/testing/test_folder.h"
#include "runtime/inference/text_generator.h"
#include "runtime/inference/text_source.h"
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
                              tensor::HostVector::Of(absl::MakeSpan(weights)));
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
    auto inference =
        Inference::Load({.path = WriteInitialCheckpoint(root_, spec), .num_threads = 2});
    EXPECT_TRUE(inference.ok()) << inference.status();
    return std::move(inference).value();
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
  std::pair<int64_t, int64_t> start;
  options.on_start = [&](int64_t num_windows, int64_t whole_windows) {
    start = {num_windows, whole_windows};
  };
  const HeldOutLoss loss = inference->Evaluate(Bytes(text), options).value();
  EXPECT_EQ(loss.num_bytes, 20 * 16);
  EXPECT_EQ(loss.text_tokens, 1000);
  EXPECT_EQ(
      loss.bits_per_byte,
      inference->Evaluate(Bytes(absl::string_view(text).substr(0, 20 * 16 + 1)))->bits_per_byte);
  EXPECT_EQ(seen, (std::vector<std::pair<int64_t, int64_t>>{{8, 20}, {16, 20}, {20, 20}}));
  EXPECT_EQ(start, std::make_pair(int64_t{20}, int64_t{62}));
  // A forward pass is a third of a training step.
  const model::ModelConfig config = *model::MakeModelConfig(inference->manifest().spec().model());
  const double window_flops = model::TrainFlopsPerToken(config, 16) / 3 * 16;
  options.limit = {.flops = 3 * window_flops};
  EXPECT_EQ(inference->Evaluate(Bytes(text), options)->num_bytes, 3 * 16);
  options.limit = {.flops = 3.5 * window_flops};
  EXPECT_EQ(inference->Evaluate(Bytes(text), options)->num_bytes, 3 * 16);
  options.limit = {.flops = 1};
  EXPECT_EQ(inference->Evaluate(Bytes(text), options)->num_bytes, 16) << "at least one window";
  options.limit = ParseWindowLimit("--w", "auto").value();
  EXPECT_EQ(inference->Evaluate(Bytes(text), options)->num_bytes, 992) << "a small model: all";
}

TEST(WindowLimitTest, IsANumberAWordOrRefused) {
  EXPECT_EQ(ParseWindowLimit("--w", "7")->num_windows, 7);
  EXPECT_EQ(ParseWindowLimit("--w", "all")->num_windows, 0);
  EXPECT_EQ(ParseWindowLimit("--w", "all")->flops, 0);
  EXPECT_EQ(ParseWindowLimit("--w", "auto")->flops, 2e13) << "as the help of `local` says";
  for (const char* bad : {"", "0", "-1", "some", "7.5"}) {
    EXPECT_EQ(
        ParseWindowLimit("--w", bad).status().message(),
        absl::StrCat("--w: expected all, auto or a number of 1 to 1000000000, found '", bad, "'"));
  }
}

TEST_F(InferenceTest, MemoryThatTheHostCannotTouchGivesTheSameLoss) {
  for (const auto precision :
       {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16, job::v1::PRECISION_FP64}) {
    const auto cpu = Load(precision);
    const auto strict = Inference::Load(
        {.path = root_, .num_threads = 2, .device = device::StrictDevice::Create()});
    ASSERT_TRUE(strict.ok()) << strict.status();
    EXPECT_EQ(strict.value()->Evaluate(Bytes(SomeText(500)))->bits_per_byte,
              cpu->Evaluate(Bytes(SomeText(500)))->bits_per_byte);
  }
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
  EXPECT_EQ(Inference::Load({.path = directory, .num_threads = 1}).status().code(),
            absl::StatusCode::kDataLoss);
}

using inference::Continuation;
using inference::EndOf;
using inference::TextGenerator;
using inference::TextGeneratorOptions;
using inference::TextOptions;

struct Generated {
  std::vector<std::string> texts;
  std::vector<Continuation> ends;
};

// Every piece must be valid UTF-8 by itself.
absl::StatusOr<Generated> Generate(TextGeneratorOptions open,
                                   const std::vector<std::string>& prompts,
                                   const TextOptions& options) {
  Generated generated = {std::vector<std::string>(prompts.size()),
                         std::vector<Continuation>(prompts.size())};
  auto generator = TextGenerator::Open(std::move(open));
  if (!generator.ok()) return generator.status();
  inference::TextEvents events;
  events.on_text = [&](int64_t index, absl::string_view piece) {
    EXPECT_EQ(tokenizer::ValidPrefix(piece), piece.size());
    generated.texts[index].append(piece.data(), piece.size());
  };
  events.on_end = [&](int64_t index, const Continuation& end) { generated.ends[index] = end; };
  const absl::Status status = (*generator)->Generate(prompts, options, events);
  if (!status.ok()) return status;
  return generated;
}

// What a checkpoint of bytes continues.
class TextGeneratorTest : public InferenceTest {
 protected:
  std::string Write(job::v1::Precision precision) {
    job::v1::JobSpec spec = SmallSpec();
    spec.mutable_train()->set_precision(precision);
    return WriteInitialCheckpoint(root_, spec);
  }
  std::vector<std::string> Texts(const std::vector<std::string>& prompts,
                                 const TextOptions& options) {
    auto generated = Generate({.path = root_, .num_threads = 2}, prompts, options);
    EXPECT_TRUE(generated.ok()) << generated.status();
    return generated->texts;
  }
};

TEST_F(TextGeneratorTest, TheSameSeedGivesTheSameTextBeyondTheContext) {
  Write(job::v1::PRECISION_FP32);
  TextOptions options = {.num_tokens = 40};  // the context is 16
  const std::vector<std::string> texts = Texts({"ab"}, options);
  EXPECT_GE(texts[0].size(), 40u);
  EXPECT_EQ(Texts({"ab"}, options), texts);
  options.seed = 2;
  EXPECT_NE(Texts({"ab"}, options), texts);
}

TEST_F(TextGeneratorTest, APromptsTextDoesNotDependOnTheOthers) {
  for (const auto precision : {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16}) {
    Write(precision);
    const std::vector<std::string> prompts = {"a", "Love is", "0123456789abcdef", "\xC3\xA9"};
    const std::vector<std::string> alone = Texts(prompts, {.num_tokens = 25, .batch = 1});
    EXPECT_EQ(Texts(prompts, {.num_tokens = 25, .batch = 3}), alone);
    EXPECT_EQ(Texts(prompts, {.num_tokens = 25, .batch = 32}), alone);
    EXPECT_EQ(Texts({"a"}, {.num_tokens = 25})[0], alone[0]);
  }
}

TEST_F(TextGeneratorTest, MemoryThatTheHostCannotTouchGivesTheSameText) {
  for (const auto precision :
       {job::v1::PRECISION_FP32, job::v1::PRECISION_BF16, job::v1::PRECISION_FP64}) {
    Write(precision);
    TextGeneratorOptions strict = {.path = root_, .num_threads = 2};
    strict.device = device::StrictDevice::Create();
    const auto generated = Generate(std::move(strict), {"ab", "c"}, {.num_tokens = 20});
    ASSERT_TRUE(generated.ok()) << generated.status();
    EXPECT_EQ(generated->texts, Texts({"ab", "c"}, {.num_tokens = 20}));
  }
}

TEST_F(TextGeneratorTest, BadOptionsAndPromptsAreNamed) {
  Write(job::v1::PRECISION_FP32);
  const auto error_of = [&](const std::string& prompt, const TextOptions& options) {
    return std::string(Generate({.path = root_}, {"good", prompt}, options).status().message());
  };
  EXPECT_EQ(error_of("a", {.num_tokens = -1}),
            "--tokens: -1 is out of range; expected 0 to 1000000");
  EXPECT_EQ(error_of("a", {.rule = {.temperature = -1}}),
            "--temperature: -1 is out of range; expected 0 or more");
  EXPECT_EQ(error_of("a", {.rule = {.top_k = -1}}),
            "--top-k: -1 is out of range; expected 0 (all) or more");
  EXPECT_EQ(error_of("a", {.rule = {.top_p = 0}}),
            "--top-p: 0 is out of range; expected more than 0, at most 1 (all)");
  EXPECT_EQ(error_of("a", {.batch = 33}), "--batch: 33 is out of range; expected 1 to 32");
  EXPECT_EQ(error_of("", {}), "prompt 2: is empty; expected at least one character");
  EXPECT_EQ(error_of("a\xFF", {}), "prompt 2: is not UTF-8 at byte 2; expected text in UTF-8");
  EXPECT_EQ(error_of("0123456789abcdefg", {}),
            "prompt 2: has 17 tokens; expected at most 16, the model's longest sequence");
  EXPECT_EQ(error_of("0123456789abcdef", {.num_tokens = 2}), "");
}

// A Hugging Face folder whose weights are zero: all tokens have the same probability, and the most
// likely one is 0, which is <|endoftext|> in this tokenizer.
class FolderGenerationTest : public ::testing::Test {
 protected:
  static constexpr int64_t kVocabulary = 704;

  FolderGenerationTest() {
    SetVocabulary(kVocabulary);
    CopyTokenizer("gpt2");
  }
  void SetVocabulary(int64_t size) {
    std::string config = hugging_face::kLlamaConfig;
    folder_.Write("config.json",
                  absl::StrReplaceAll(
                      config, {{"\"vocab_size\": 10", absl::StrCat("\"vocab_size\": ", size)}}));
    folder_.shapes()["model.embed_tokens.weight"] = {size, 8};
    folder_.shapes()["lm_head.weight"] = {size, 8};
    folder_.WriteWeights("model.safetensors", folder_.shapes());
  }
  void CopyTokenizer(const std::string& name) {
    folder_.Write(
        "tokenizer.json",
        base::ReadFile(absl::StrCat("tests/golden/tokenizer/", name, ".json"), 1 << 20).value());
  }
  absl::StatusOr<Generated> Run(const TextOptions& options,
                                std::vector<std::string> stop_tokens = {}) {
    return Generate({.path = folder_.path(), .stop_tokens = std::move(stop_tokens)}, {"Love is"},
                    options);
  }
  std::string ErrorOf() { return std::string(Run({.num_tokens = 2}).status().message()); }

  hugging_face::TestFolder folder_;
};

constexpr TextOptions kGreedy = {.num_tokens = 5, .rule = {.temperature = 0}};

TEST_F(FolderGenerationTest, EndTokensComeFromTheFolderOrTheTokenizer) {
  const auto ended = Run(kGreedy);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_EQ(ended->ends[0].end, EndOf::kEndToken);
  EXPECT_EQ(ended->ends[0].num_tokens, 0);
  folder_.Write("generation_config.json", R"({"eos_token_id": 5})");
  const auto longer = Run(kGreedy);
  EXPECT_EQ(longer->ends[0].end, EndOf::kNumTokens);
  EXPECT_EQ(longer->ends[0].num_tokens, 5);
  EXPECT_EQ(longer->texts[0], "") << "special tokens are not shown";
  folder_.Write("generation_config.json", R"({"eos_token_id": [5, 0]})");
  EXPECT_EQ(Run(kGreedy)->ends[0].end, EndOf::kEndToken);
  folder_.Write("generation_config.json", R"({"eos_token_id": [5]})");
  EXPECT_EQ(Run(kGreedy, {"<|endoftext|>"})->ends[0].end, EndOf::kEndToken);
}

TEST_F(FolderGenerationTest, RandomTokensOfBytesBecomeWholeCharacters) {
  folder_.Write("generation_config.json", R"({"eos_token_id": 703})");
  const auto generated = Run({.num_tokens = 200, .rule = {.temperature = 1}});
  ASSERT_TRUE(generated.ok()) << generated.status();
  EXPECT_GT(generated->texts[0].size(), 200u);
}

TEST_F(FolderGenerationTest, ThePromptGetsTheTokensBeforeAText) {
  SetVocabulary(903);
  CopyTokenizer("llama2");
  const auto tokenizer = tokenizer::LoadTokenizer(folder_.path()).value();
  std::vector<int32_t> ids;
  tokenizer->Encode("Love is", {}, &ids);
  ASSERT_EQ(ids[0], 1) << "<s>";
  EXPECT_EQ(Run(kGreedy)->ends[0].num_prompt_tokens, static_cast<int64_t>(ids.size()));
}

TEST_F(FolderGenerationTest, APromptThatBeginsWithTheBeginTokenGetsNoSecondOne) {
  SetVocabulary(903);
  CopyTokenizer("llama2");
  const auto generator = TextGenerator::Open({.path = folder_.path()});
  ASSERT_TRUE(generator.ok()) << generator.status();
  std::vector<std::string> warnings;
  std::vector<int64_t> sizes(4);
  inference::TextEvents events;
  events.on_warning = [&](const std::string& warning) { warnings.push_back(warning); };
  events.on_text = [](int64_t, absl::string_view) {};
  events.on_end = [&](int64_t index, const Continuation& end) {
    sizes[index] = end.num_prompt_tokens;
  };
  const auto status =
      (*generator)->Generate({"Love is", "<s>Love is", "<s><s>", ""}, kGreedy, events);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(sizes[0], sizes[1]);
  EXPECT_EQ(sizes[2], 2) << "what stands in the text twice is kept";
  EXPECT_EQ(sizes[3], 1) << "an empty prompt continues from the begin token";
  EXPECT_EQ(warnings, std::vector<std::string>{
                          "2 prompts begin with '<s>' already, which is not put there again"});
}

TEST_F(FolderGenerationTest, AnAddedTokenThatTheModelLacksIsNoObstacleUntilItOccurs) {
  SetVocabulary(700);
  folder_.Write("tokenizer_config.json",
                R"({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})");
  EXPECT_TRUE(Run({.num_tokens = 200, .rule = {.temperature = 1}}).ok());
  EXPECT_EQ(
      Generate({.path = folder_.path()}, {"a", "b[PAD]"}, kGreedy).status().message(),
      "prompt 2: has the token '[PAD]' (id 700), which the model of 700 tokens does not have");
}

TEST_F(FolderGenerationTest, AnImportedFolderGeneratesTheSame) {
  const std::string imported = folder_.path() + "/imported";
  ASSERT_TRUE(hugging_face::Import(folder_.path(), imported).ok());
  const TextOptions options = {.num_tokens = 30, .rule = {.temperature = 1}};
  const auto from_import = Generate({.path = imported}, {"Love is"}, options);
  ASSERT_TRUE(from_import.ok()) << from_import.status();
  EXPECT_EQ(from_import->texts, Run(options)->texts);
}

TEST_F(FolderGenerationTest, AJobOnBytesReadsBytesWhateverItsWeightsHad) {
  job::v1::JobSpec spec = SmallSpec();
  spec.mutable_model()->set_from(folder_.path());
  spec.mutable_model()->set_vocab_size(kVocabulary);
  const std::string checkpoint = WriteInitialCheckpoint(folder_.path() + "/job", spec);
  const auto source = inference::FindTextSource(checkpoint, "");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->codec.tokenizer(), nullptr);
  EXPECT_TRUE(source->end_tokens.empty());
  const auto given = inference::FindTextSource(checkpoint, folder_.path());
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_NE(given->codec.tokenizer(), nullptr);
}

TEST_F(FolderGenerationTest, TheEndTokenOfAJobEndsItsTexts) {
  job::v1::JobSpec spec = SmallSpec();
  spec.mutable_model()->set_vocab_size(kVocabulary);
  spec.mutable_data()->set_tokenizer("/unused");
  spec.mutable_data()->set_end_token("!");
  const std::string checkpoint = WriteInitialCheckpoint(folder_.path() + "/job", spec);
  std::filesystem::copy_file(folder_.path() + "/tokenizer.json", checkpoint + "/tokenizer.json");
  const auto source = inference::FindTextSource(checkpoint, "");
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(source->codec.IdOf("!").has_value());
  EXPECT_EQ(source->end_tokens, std::vector<int32_t>{*source->codec.IdOf("!")});
  const auto end_token = inference::FindJobEndToken(checkpoint);
  ASSERT_TRUE(end_token.ok() && end_token->has_value()) << end_token.status();
  EXPECT_EQ((*end_token)->id, *source->codec.IdOf("!"));
  EXPECT_EQ((*end_token)->text, "") << "is not an added token";
}

TEST_F(FolderGenerationTest, EndTokensOfAnotherTokenizerDoNotCount) {
  folder_.Write("generation_config.json", R"({"eos_token_id": [5, 0]})");
  job::v1::JobSpec spec = SmallSpec();
  spec.mutable_model()->set_from(folder_.path());
  spec.mutable_model()->set_vocab_size(kVocabulary);
  spec.mutable_data()->set_tokenizer("/unused");
  const std::string checkpoint = WriteInitialCheckpoint(folder_.path() + "/job", spec);
  const auto end_tokens = [&](const std::string& tokenizer) {
    const auto source = inference::FindTextSource(checkpoint, tokenizer);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? source->end_tokens : std::vector<int32_t>();
  };
  std::filesystem::copy_file(folder_.path() + "/tokenizer.json", checkpoint + "/tokenizer.json");
  EXPECT_EQ(end_tokens(""), (std::vector<int32_t>{5, 0})) << "a copy of the folder's own";
  ASSERT_TRUE(
      base::WriteFileDurably(checkpoint + "/tokenizer.json", tokenizer::NineLetters()).ok());
  EXPECT_EQ(end_tokens(""), std::vector<int32_t>{9}) << "5 is the letter f, 0 is a";
  EXPECT_EQ(end_tokens(folder_.path()), (std::vector<int32_t>{5, 0}));
}

// All weights are zero, so that the most likely token is 0: "<unk>", which ends nothing by itself.
TEST_F(FolderGenerationTest, AnExportStopsAtTheEndTokenOfItsJob) {
  SetVocabulary(903);
  CopyTokenizer("llama2");
  EXPECT_EQ(Run(kGreedy)->ends[0].end, EndOf::kNumTokens);
  const std::string job = folder_.path() + "/job", out = folder_.path() + "/out";
  ASSERT_TRUE(hugging_face::Import(folder_.path(), job).ok());
  checkpoint::v1::Manifest manifest = *checkpoint::ReadManifest(job);
  manifest.set_kind(checkpoint::v1::CHECKPOINT_KIND_UNSPECIFIED);
  manifest.mutable_spec()->mutable_data()->set_tokenizer("/unused");
  manifest.mutable_spec()->mutable_data()->set_end_token("<unk>");
  ASSERT_TRUE(checkpoint::WriteManifest(job, manifest).ok());
  std::filesystem::copy_file(folder_.path() + "/tokenizer.json", job + "/tokenizer.json");
  const auto end_token = inference::FindJobEndToken(job);
  ASSERT_TRUE(end_token.ok()) << end_token.status();
  ASSERT_TRUE(end_token->has_value());
  EXPECT_EQ((*end_token)->text, "<unk>");
  const auto exported =
      hugging_face::Export({.checkpoint = job, .folder = out, .end_token = *end_token});
  ASSERT_TRUE(exported.ok()) << exported.status();
  const auto generated = Generate({.path = out}, {"Love is"}, kGreedy);
  ASSERT_TRUE(generated.ok()) << generated.status();
  EXPECT_EQ(generated->ends[0].end, EndOf::kEndToken);
  EXPECT_EQ(generated->ends[0].num_tokens, 0);
}

// Token ids, as they come.
class Ids : public data::TokenText {
 public:
  explicit Ids(std::vector<int32_t> ids) : ids_(std::move(ids)) {}
  int64_t num_tokens() const override { return static_cast<int64_t>(ids_.size()); }
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const override {
    std::copy_n(ids_.begin() + begin, out.size(), out.begin());
    return absl::OkStatus();
  }

 private:
  const std::vector<int32_t> ids_;
};

// Two documents in a window, which do not see each other, are two windows.
TEST_F(FolderGenerationTest, EvaluationKeepsAttentionWithinDocuments) {
  constexpr int32_t kEnd = 0;  // <|endoftext|>
  constexpr int64_t kDocument = 8;
  std::vector<int32_t> ids;
  for (int32_t i = 1; i <= 16 * kDocument; ++i) {
    ids.push_back(i % kDocument == 0 ? kEnd : 1 + i * i % 700);
  }
  ids.push_back(1);
  const auto nats = [&](job::v1::Attention attention, int64_t window) {
    job::v1::JobSpec spec = SmallSpec();
    spec.mutable_model()->set_vocab_size(kVocabulary);
    spec.mutable_data()->set_tokenizer("/unused");
    spec.mutable_data()->set_end_token("<|endoftext|>");
    spec.mutable_data()->set_attention(attention);
    spec.mutable_train()->set_seq_length(static_cast<int32_t>(window));
    const std::string root = absl::StrCat(folder_.path(), "/", window, "-", attention);
    std::filesystem::create_directories(root);
    const std::string checkpoint = WriteInitialCheckpoint(root, spec);
    std::filesystem::copy_file(folder_.path() + "/tokenizer.json", checkpoint + "/tokenizer.json");
    auto inference = Inference::Load({.path = checkpoint, .num_threads = 1});
    EXPECT_TRUE(inference.ok()) << inference.status();
    return (*inference)->Evaluate(Ids(ids))->nats_per_token;
  };
  const double alone = nats(job::v1::ATTENTION_ACROSS_DOCUMENTS, kDocument);
  EXPECT_NEAR(nats(job::v1::ATTENTION_WITHIN_DOCUMENTS, 2 * kDocument), alone, 1e-9 * alone);
  const double across = nats(job::v1::ATTENTION_ACROSS_DOCUMENTS, 2 * kDocument);
  EXPECT_GT(std::abs(across - alone), 1e-5 * alone);
}

TEST_F(FolderGenerationTest, WeightsAloneAreMeasuredInWindowsOfTheirOwnLength) {
  const std::string imported = folder_.path() + "/imported";
  ASSERT_TRUE(hugging_face::Import(folder_.path(), imported).ok());
  std::vector<int32_t> ids(3000, 5);
  for (const std::string& path : {folder_.path(), imported}) {
    auto inference = Inference::Load({.path = path, .num_threads = 1});
    ASSERT_TRUE(inference.ok()) << inference.status();
    EXPECT_EQ((*inference)->tokenizer()->vocabulary_size(), 700);
    const auto loss = (*inference)->Evaluate(Ids(ids));
    ASSERT_TRUE(loss.ok()) << loss.status();
    EXPECT_EQ(loss->num_tokens, 2 * kWindowOfWeights);
    // All weights are zero.
    EXPECT_NEAR(loss->nats_per_token, std::log(kVocabulary), 1e-5);
    auto shorter = Inference::Load({.path = path, .seq_length = 100, .num_threads = 1});
    ASSERT_TRUE(shorter.ok()) << shorter.status();
    EXPECT_EQ((*shorter)->Evaluate(Ids(ids))->num_tokens, 2900);
    EXPECT_EQ(Inference::Load({.path = path, .seq_length = 2049}).status(),
              absl::InvalidArgumentError("--seq-length: 2049 is out of range; expected 1 to 2048, "
                                         "the model's longest sequence"));
  }
  auto bytes = Inference::Load({.path = imported, .tokenizer = "bytes", .num_threads = 1});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ((*bytes)->tokenizer(), nullptr);
}

TEST_F(FolderGenerationTest, DocumentsOfWeightsAloneEndWithATokenOfTheirOwn) {
  const std::string file = folder_.path() + "/tokenizer.json";
  folder_.Write("tokenizer.json", absl::StrReplaceAll(base::ReadFile(file, 1 << 20).value(),
                                                      {{"<|endoftext|>", "<|stop|>"}}));
  // Returns the end token, or the error.
  const auto end_of = [&](const std::string& tokenizer, const std::string& token) {
    const auto loaded = Inference::Load(
        {.path = folder_.path(), .tokenizer = tokenizer, .end_token = token, .num_threads = 1});
    return loaded.ok() ? (*loaded)->manifest().spec().data().end_token()
                       : std::string(loaded.status().message());
  };
  const auto missing = [](const std::string& tokenizer) {
    return absl::StrCat("--end-token: is missing; ", tokenizer,
                        " has no <|endoftext|>, <|end_of_text|> or </s>: name the token that ends "
                        "a document");
  };
  folder_.Write("generation_config.json", R"({"eos_token_id": 0})");
  EXPECT_EQ(end_of("", ""), "<|stop|>");
  EXPECT_EQ(end_of("", "!"), "!");
  EXPECT_EQ(end_of(file, ""), missing(file)) << "0 may be anything in that tokenizer";
  EXPECT_EQ(end_of(file, "!"), "!");
  // The model has 704 tokens, the tokenizer 700.
  folder_.Write("generation_config.json", R"({"eos_token_id": 703})");
  EXPECT_EQ(end_of("", ""), missing(folder_.path()));
  folder_.Write("generation_config.json", R"({"eos_token_id": [703, 5]})");
  EXPECT_EQ(inference::FindTextSource(folder_.path(), "")->end_tokens, std::vector<int32_t>{5});
  EXPECT_EQ(end_of("", "nothing"),
            "--end-token: 'nothing' is not in the vocabulary; expected a token as the tokenizer "
            "writes it");
  EXPECT_EQ(end_of("bytes", "!"), "--end-token: the model reads bytes, without a tokenizer");
}

TEST_F(InferenceTest, AJobsCheckpointKeepsItsTokenizer) {
  const std::string directory = WriteInitialCheckpoint(root_, SmallSpec());
  EXPECT_EQ(Inference::Load({.path = root_, .tokenizer = "bytes"}).status(),
            absl::InvalidArgumentError(absl::StrCat(
                "--tokenizer: ", directory,
                " keeps the tokenizer of its job; the option is for weights that no job wrote")));
  EXPECT_EQ(Inference::Load({.path = root_, .end_token = "a"}).status(),
            absl::InvalidArgumentError(absl::StrCat(
                "--end-token: ", directory,
                " names the end token of its job; the option is for weights that no job wrote")));
}

TEST_F(InferenceTest, AJobThatBeganWithItsOwnCheckpointIsFound) {
  job::v1::JobSpec spec = SmallSpec();
  spec.mutable_model()->set_from(root_);
  WriteInitialCheckpoint(root_, spec);
  const auto source = inference::FindTextSource(root_, "");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->codec.tokenizer(), nullptr);
}

TEST_F(FolderGenerationTest, MistakesAreNamed) {
  folder_.Write("generation_config.json", R"({"eos_token_id": [704]})");
  EXPECT_EQ(ErrorOf(), folder_.path() +
                           ": eos_token_id is 704: expected a token below 704, the "
                           "model's vocabulary");
  for (const auto& [bad, shown] : {std::pair("\"x\"", "is \"x\""), std::pair("-1", "is -1"),
                                   std::pair("[1, null]", "has null"), std::pair("1.5", "is 1.5"),
                                   std::pair("4294967296", "is 4294967296")}) {
    folder_.Write("generation_config.json", absl::StrCat("{\"eos_token_id\": ", bad, "}"));
    EXPECT_EQ(ErrorOf(), absl::StrCat(folder_.path(), "/generation_config.json: eos_token_id ",
                                      shown, ": expected a token id, or a list of them"));
  }
  folder_.Write("generation_config.json", "[");
  EXPECT_EQ(ErrorOf(), folder_.path() + "/generation_config.json: is not a JSON object");
  folder_.Remove("generation_config.json");
  EXPECT_EQ(Run(kGreedy, {"nothing"}).status().message(),
            "--stop-token: 'nothing' is not in the vocabulary; expected a token as the tokenizer "
            "writes it");
  SetVocabulary(10);
  EXPECT_EQ(ErrorOf(), absl::StrCat("the tokenizer has 700 tokens, the model of ", folder_.path(),
                                    " has 10: expected no more; use the model's own"));
  folder_.Remove("tokenizer.json");
  EXPECT_EQ(ErrorOf(), folder_.path() +
                           ": has no tokenizer.json, tokenizer.model or vocab.json; name "
                           "one by --tokenizer, or say --tokenizer bytes if every byte is a "
                           "token");
}

TEST(XzSizeTest, CompressesOrSaysThatThereIsNoXz) {
  const auto size = XzSize(std::string(100'000, 'x'));
  if (absl::IsNotFound(size.status())) GTEST_SKIP() << "no xz on this machine";
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_GT(*size, 0);
  EXPECT_LT(*size, 1000);
}

TEST(XzSizeTest, AnXzThatCannotDoItIsAnErrorWithoutItsOwnWords) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "other-xz";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "xz") << "#!/bin/sh\necho \"xz: invalid option -- '9'\" >&2\nexit 1\n";
  std::filesystem::permissions(folder / "xz", std::filesystem::perms::owner_all);
  const char* const before = std::getenv("PATH");
  ASSERT_NE(before, nullptr);
  const std::string path = before;
  ::setenv("PATH", folder.c_str(), 1);
  testing::internal::CaptureStderr();
  const auto size = XzSize("text");
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(size.status().message(), "xz failed");
}

}  // namespace
}  // namespace megascale::cli
