// Random small models of each family: this program computes the logits that `transformers`
// computes, or it refuses the model; there is no third outcome. make_random.py made them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/format/box.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/format/stored_numbers.h"
#include "runtime/hugging_face/testing/test_folder.h"
#include "runtime/hugging_face/weights.h"
#include "runtime/model/config.h"
#include "runtime/model/testing/test_pipeline.h"

namespace megascale::hugging_face {
namespace {

using Json = nlohmann::json;

constexpr double kTolerance = 2e-5;  // of the largest logit; theirs are in float32

// As `numbers` of make_random.py: multiples of 1/256 in [-1/4, 1/4).
std::vector<float> NumbersOf(uint32_t seed, int64_t count) {
  std::vector<float> numbers;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t x = seed + static_cast<uint32_t>(i) * 2654435761U;
    x = (x ^ (x >> 16)) * 0x45D9F3B;
    x = (x ^ (x >> 16)) * 0x45D9F3B;
    x ^= x >> 16;
    numbers.push_back(static_cast<float>(x % 128) / 256 - 0.25F);
  }
  return numbers;
}

void WriteModel(const Json& model, const TestFolder& folder) {
  checkpoint::SafetensorsHeader header;
  std::string data;
  for (const auto& [name, tensor] : model["tensors"].items()) {
    const auto dtype = tensor[0].get<std::string>();
    const auto shape = tensor[1].get<std::vector<int64_t>>();
    std::vector<float> numbers =
        NumbersOf(tensor[2].get<uint32_t>(), checkpoint::NumElements(shape).value());
    if (shape.size() == 1 && absl::EndsWith(name, "weight")) {
      for (float& number : numbers) number += 1;
    }
    const auto begin = static_cast<int64_t>(data.size());
    data.resize(data.size() +
                numbers.size() * static_cast<size_t>(checkpoint::DtypeBytes(dtype).value()));
    const auto size_bytes = static_cast<int64_t>(data.size()) - begin;
    ASSERT_TRUE(checkpoint::FromNumbers(dtype, numbers,
                                        absl::MakeSpan(data).subspan(static_cast<size_t>(begin)))
                    .ok());
    header.entries.push_back({name, dtype, shape, begin, size_bytes});
  }
  folder.Write("config.json", model["config"].dump());
  folder.Write("model.safetensors", checkpoint::SerializeSafetensorsHeader(header) + data);
}

// Returns the logits of the last positions, as many as `model` has.
std::vector<double> LogitsOf(const Weights& weights, const Json& model) {
  const auto tokens = model["tokens"].get<std::vector<int32_t>>();
  const model::ModelConfig config = model::MakeModelConfig(weights.config().model).value();
  const auto ops = ops::MakeReferenceOps();
  model::TestPipeline pipeline(
      {.config = config, .micro_batch = 1, .seq = static_cast<int64_t>(tokens.size())}, ops.get());
  for (const TensorMap& tensor : weights.tensors()) {
    std::vector<double> values(static_cast<size_t>(checkpoint::NumElements(tensor.shape).value()));
    const checkpoint::Box whole = checkpoint::WholeBox(tensor.shape);
    EXPECT_TRUE(weights.Read(tensor.name, whole, 0, absl::MakeSpan(values)).ok());
    pipeline.SetWeights(tensor.name, values);
  }
  std::vector<double> logits;
  const size_t positions = model["logits"].size() / static_cast<size_t>(config.vocab_size);
  for (size_t t = tokens.size() - positions; t < tokens.size(); ++t) {
    const std::vector<double> row = pipeline.Logits({tokens.begin(), tokens.begin() + t + 1});
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

void ExpectSameLogits(const std::vector<double>& ours, const std::vector<double>& theirs) {
  ASSERT_EQ(ours.size(), theirs.size());
  double largest = 0, distance = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, std::abs(theirs[i]));
    distance = std::max(distance, std::abs(ours[i] - theirs[i]));
  }
  EXPECT_LE(distance, kTolerance * largest);
}

TEST(RandomModels, WhatIsAcceptedIsComputedAsInTransformers) {
  const Json models =
      Json::parse(base::ReadFile("tests/golden/random_models.json", 8 << 20).value());
  std::map<std::string, int> num_same;
  for (size_t i = 0; i < models.size(); ++i) {
    const Json& model = models[i];
    SCOPED_TRACE(absl::StrCat("model ", i, ": ", model["config"].dump()));
    if (model.contains("error")) continue;  // nothing to compare with
    const TestFolder folder;
    WriteModel(model, folder);
    const auto weights = Weights::Open(folder.path());
    if (!weights.ok()) {
      EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument) << weights.status();
      continue;
    }
    ExpectSameLogits(LogitsOf(**weights, model), model["logits"]);
    ++num_same[model["config"]["model_type"]];
  }
  EXPECT_EQ(num_same.size(), 7u);
  for (const auto& [family, count] : num_same) EXPECT_GE(count, 6) << family;
}

}  // namespace
}  // namespace megascale::hugging_face
