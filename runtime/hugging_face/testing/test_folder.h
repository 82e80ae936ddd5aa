// A Hugging Face folder for tests, in a scratch directory: a tiny Llama whose files a test may
// damage.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/checkpoint/format/box.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/checkpoint/format/stored_numbers.h"

namespace megascale::hugging_face {

inline constexpr char kLlamaConfig[] = R"({
  "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2
})";

class TestFolder {
 public:
  TestFolder() : path_(absl::StrCat(::getenv("TEST_TMPDIR"), "/folder-XXXXXX")) {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
    Write("config.json", kLlamaConfig);
    const std::string layer = "model.layers.0.";
    shapes_ = {{"model.embed_tokens.weight", {10, 8}},
               {"model.norm.weight", {8}},
               {"lm_head.weight", {10, 8}},
               {layer + "input_layernorm.weight", {8}},
               {layer + "post_attention_layernorm.weight", {8}},
               {layer + "mlp.gate_proj.weight", {12, 8}},
               {layer + "mlp.up_proj.weight", {12, 8}},
               {layer + "mlp.down_proj.weight", {8, 12}}};
    for (const char* module : {"q", "k", "v", "o"}) {
      shapes_[absl::StrCat(layer, "self_attn.", module, "_proj.weight")] = {8, 8};
    }
    WriteWeights("model.safetensors", shapes_);
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }

  using Shapes = std::map<std::string, std::vector<int64_t>>;

  const std::string& path() const { return path_; }
  Shapes& shapes() { return shapes_; }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(absl::StrCat(path_, "/", name), std::ios::binary) << text;
  }
  void Remove(const std::string& name) const { std::filesystem::remove(path_ + "/" + name); }

  // Writes a file of tensors, all zero; the zeros take no space on the disk.
  void WriteWeights(const std::string& name, const Shapes& shapes,
                    const std::string& dtype = "F32") const {
    checkpoint::SafetensorsHeader header;
    int64_t begin = 0;
    for (const auto& [key, shape] : shapes) {
      int64_t size = checkpoint::DtypeBytes(dtype).value();
      for (const int64_t dim : shape) size *= dim;
      header.entries.push_back({key, dtype, shape, begin, size});
      begin += size;
    }
    const std::string text = checkpoint::SerializeSafetensorsHeader(header);
    Write(name, text);
    std::filesystem::resize_file(absl::StrCat(path_, "/", name),
                                 text.size() + static_cast<size_t>(begin));
  }

  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<float> numbers = {};  // the first ones; the others are zero
  };
  using Tensors = std::map<std::string, Tensor>;

  // Returns shapes() as tensors of zeros.
  Tensors Zeros(const std::string& dtype = "F32") const {
    Tensors tensors;
    for (const auto& [name, shape] : shapes_) tensors[name] = {dtype, shape, {}};
    return tensors;
  }
  // Writes model.safetensors. Numbers of other types than F64, F32, BF16 and F16 are zero.
  void WriteTensors(const Tensors& tensors) const {
    checkpoint::SafetensorsHeader header;
    std::string data;
    for (const auto& [key, tensor] : tensors) {
      const int64_t elements = checkpoint::NumElements(tensor.shape).value();
      const auto bytes =
          static_cast<size_t>(elements * checkpoint::DtypeBytes(tensor.dtype).value());
      std::string stored(bytes, '\0');
      if (!tensor.numbers.empty()) {
        std::vector<float> numbers = tensor.numbers;
        numbers.resize(static_cast<size_t>(elements));
        EXPECT_TRUE(checkpoint::FromNumbers(tensor.dtype, numbers, absl::MakeSpan(stored)).ok());
      }
      header.entries.push_back({key, tensor.dtype, tensor.shape, static_cast<int64_t>(data.size()),
                                static_cast<int64_t>(bytes)});
      data += stored;
    }
    Write("model.safetensors", checkpoint::SerializeSafetensorsHeader(header) + data);
  }

 private:
  std::string path_;
  Shapes shapes_;
};

}  // namespace megascale::hugging_face
