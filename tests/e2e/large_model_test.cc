// A model of a billion parameters goes in and out without its weights ever being in memory whole.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/hugging_face/testing/test_folder.h"
#include "runtime/hugging_face/weights.h"
#include "tests/e2e/cluster.h"
#include "tests/soak.h"

namespace megascale::e2e {
namespace {

struct LlamaShape {
  const char* name;
  int64_t hidden, intermediate, layers, heads, vocab;
};
constexpr LlamaShape kOneBillion = {"1B", 2048, 5632, 22, 32, 32000};
constexpr LlamaShape kSevenBillions = {"7B", 4096, 11008, 32, 32, 32000};

// Makes of `folder` a Llama whose weights, in bf16, are all zero and take no space on the disk.
void WriteLlama(const LlamaShape& shape, const hugging_face::TestFolder& folder) {
  folder.Write(
      "config.json",
      absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "vocab_size": )", shape.vocab,
                   R"(, "hidden_size": )", shape.hidden, R"(, "intermediate_size": )",
                   shape.intermediate, R"(, "num_hidden_layers": )", shape.layers,
                   R"(, "num_attention_heads": )", shape.heads, "}"));
  hugging_face::TestFolder::Shapes shapes = {
      {"model.embed_tokens.weight", {shape.vocab, shape.hidden}},
      {"model.norm.weight", {shape.hidden}},
      {"lm_head.weight", {shape.vocab, shape.hidden}}};
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    shapes[layer + "input_layernorm.weight"] = {shape.hidden};
    shapes[layer + "post_attention_layernorm.weight"] = {shape.hidden};
    shapes[layer + "mlp.gate_proj.weight"] = {shape.intermediate, shape.hidden};
    shapes[layer + "mlp.up_proj.weight"] = {shape.intermediate, shape.hidden};
    shapes[layer + "mlp.down_proj.weight"] = {shape.hidden, shape.intermediate};
    for (const char* module : {"q", "k", "v", "o"}) {
      shapes[absl::StrCat(layer, "self_attn.", module, "_proj.weight")] = {shape.hidden,
                                                                           shape.hidden};
    }
  }
  folder.WriteWeights("model.safetensors", shapes, "BF16");
}

// The most memory that a process had that has been started here.
int64_t PeakMebibytes() {
  rusage usage = {};
  EXPECT_EQ(::getrusage(RUSAGE_CHILDREN, &usage), 0);
  return usage.ru_maxrss / 1024;
}

CommandResult Checkpoint(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {Program(), "checkpoint"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  constexpr int kSoakSeconds = 1800;  // 7B: 27 GB are written and synced
  return IsSoak() ? e2e::Run(command, {}, kSoakSeconds) : e2e::Run(command);
}

// `./dev soak` takes 7B, 13.5 GB that are read and written, and exports them again.
TEST(LargeModelTest, IsImportedWithinAGibibyte) {
  constexpr int64_t kMebibytesMax = 1024;
  const LlamaShape shape = IsSoak() ? kSevenBillions : kOneBillion;
  SCOPED_TRACE(shape.name);
  const hugging_face::TestFolder folder;
  WriteLlama(shape, folder);
  const std::string weights = folder.path() + "/weights", out = folder.path() + "/out";
  const CommandResult imported = Checkpoint({"import", folder.path(), "--out", weights});
  EXPECT_EQ(imported.exit_code, 0) << imported.err;
  EXPECT_LE(PeakMebibytes(), kMebibytesMax);
  const auto reader = checkpoint::CheckpointReader::Open(weights);
  ASSERT_TRUE(reader.ok()) << reader.status();
  if (!IsSoak()) return;
  const CommandResult exported = Checkpoint({"export", weights, "--out", out});
  EXPECT_EQ(exported.exit_code, 0) << exported.err;
  EXPECT_LE(PeakMebibytes(), kMebibytesMax);
  int num_files = 0;
  for (const auto& file : std::filesystem::directory_iterator(out)) {
    if (file.path().extension() == ".safetensors") ++num_files;
  }
  EXPECT_GE(num_files, 3) << "13.5 GB in files of at most 5 GB";
  EXPECT_TRUE(std::filesystem::exists(out + "/model.safetensors.index.json"));
  const auto again = hugging_face::Weights::Open(out);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->config().model.num_hidden_layers(), shape.layers);
}

}  // namespace
}  // namespace megascale::e2e
