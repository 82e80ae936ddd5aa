// Parts of tensors that a folder has in another arrangement than ours: any box of a matrix, and any
// range of a box, of matrices that are larger than a block in memory.
#include "runtime/hugging_face/weights.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/hugging_face/import.h"
#include "runtime/hugging_face/limits.h"
#include "runtime/hugging_face/testing/test_folder.h"

namespace megascale::hugging_face {
namespace {

using checkpoint::Box;

// Matrices of an MLP, and of queries, keys and values, have more elements than a block, and blocks
// end within a row.
constexpr int64_t kHeads = 9;
constexpr int64_t kHeadDim = 70;
constexpr int64_t kHidden = kHeads * kHeadDim;  // 630
constexpr int64_t kInner = 1700;
constexpr int64_t kVocab = 10;
constexpr int64_t kPositions = 8;
static_assert(3 * kHidden * kHidden > kBlockElements);
static_assert(kInner * kHidden > kBlockElements);
static_assert(kBlockElements % kHidden != 0 && kBlockElements % kInner != 0);

// One of our tensors, one of theirs, and the place there of our element.
struct Tensor {
  std::string ours, theirs;
  std::vector<int64_t> shape;  // ours
  std::function<int64_t(int64_t row, int64_t col)> place;

  int64_t cols() const { return shape.size() > 1 ? shape[1] : 1; }
};

// GPT-2 stores [in, out].
Tensor Transposed(const std::string& ours, const std::string& theirs, int64_t rows, int64_t cols) {
  return {"model.layers.0." + ours,
          "transformer.h.0." + theirs,
          {rows, cols},
          [rows](int64_t row, int64_t col) { return col * rows + row; }};
}

Tensor Same(const std::string& ours, const std::string& theirs, std::vector<int64_t> shape) {
  Tensor tensor{ours, theirs, std::move(shape), nullptr};
  tensor.place = [cols = tensor.cols()](int64_t row, int64_t col) { return row * cols + col; };
  return tensor;
}

// NeoX stores [heads, (query, key, value), elements of a head].
Tensor ByHead(const std::string& kind, std::vector<int64_t> shape) {
  Tensor tensor{"model.layers.0.attn.qkv." + kind,
                "gpt_neox.layers.0.attention.query_key_value." + kind, std::move(shape), nullptr};
  tensor.place = [cols = tensor.cols()](int64_t row, int64_t col) {
    const int64_t which = row / kHidden, head = row % kHidden / kHeadDim, within = row % kHeadDim;
    return ((head * 3 + which) * kHeadDim + within) * cols + col;
  };
  return tensor;
}

std::vector<Tensor> NormsOf(const std::string& ours, const std::string& theirs) {
  return {Same(ours + ".weight", theirs + ".weight", {kHidden}),
          Same(ours + ".bias", theirs + ".bias", {kHidden})};
}

std::vector<Tensor> Gpt2() {
  const std::string layer = "model.layers.0.", theirs = "transformer.h.0.";
  std::vector<Tensor> tensors = {
      Same("model.embed_tokens.weight", "transformer.wte.weight", {kVocab, kHidden}),
      Same("model.embed_positions.weight", "transformer.wpe.weight", {kPositions, kHidden}),
      Transposed("attn.qkv.weight", "attn.c_attn.weight", 3 * kHidden, kHidden),
      Same(layer + "attn.qkv.bias", theirs + "attn.c_attn.bias", {3 * kHidden}),
      Transposed("attn.out.weight", "attn.c_proj.weight", kHidden, kHidden),
      Same(layer + "attn.out.bias", theirs + "attn.c_proj.bias", {kHidden}),
      Transposed("mlp.up.weight", "mlp.c_fc.weight", kInner, kHidden),
      Same(layer + "mlp.up.bias", theirs + "mlp.c_fc.bias", {kInner}),
      Transposed("mlp.down.weight", "mlp.c_proj.weight", kHidden, kInner),
      Same(layer + "mlp.down.bias", theirs + "mlp.c_proj.bias", {kHidden})};
  for (const auto& [ours_norm, their_norm] :
       {std::pair(layer + "input_norm", theirs + "ln_1"),
        std::pair(layer + "post_attention_norm", theirs + "ln_2"),
        std::pair(std::string("model.norm"), std::string("transformer.ln_f"))}) {
    for (Tensor& tensor : NormsOf(ours_norm, their_norm)) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<Tensor> NeoX() {
  const std::string layer = "model.layers.0.", theirs = "gpt_neox.layers.0.";
  std::vector<Tensor> tensors = {
      Same("model.embed_tokens.weight", "gpt_neox.embed_in.weight", {kVocab, kHidden}),
      ByHead("weight", {3 * kHidden, kHidden}),
      ByHead("bias", {3 * kHidden}),
      Same(layer + "attn.out.weight", theirs + "attention.dense.weight", {kHidden, kHidden}),
      Same(layer + "attn.out.bias", theirs + "attention.dense.bias", {kHidden}),
      Same(layer + "mlp.up.weight", theirs + "mlp.dense_h_to_4h.weight", {kInner, kHidden}),
      Same(layer + "mlp.up.bias", theirs + "mlp.dense_h_to_4h.bias", {kInner}),
      Same(layer + "mlp.down.weight", theirs + "mlp.dense_4h_to_h.weight", {kHidden, kInner}),
      Same(layer + "mlp.down.bias", theirs + "mlp.dense_4h_to_h.bias", {kHidden}),
      Same("lm_head.weight", "embed_out.weight", {kVocab, kHidden})};
  for (const auto& [ours_norm, their_norm] :
       {std::pair(layer + "input_norm", theirs + "input_layernorm"),
        std::pair(layer + "post_attention_norm", theirs + "post_attention_layernorm"),
        std::pair(std::string("model.norm"), std::string("gpt_neox.final_layer_norm"))}) {
    for (Tensor& tensor : NormsOf(ours_norm, their_norm)) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::string Gpt2Config() {
  return absl::StrCat(R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": )", kVocab,
                      R"(, "n_embd": )", kHidden, R"(, "n_layer": 1, "n_head": )", kHeads,
                      R"(, "n_inner": )", kInner, R"(, "n_positions": )", kPositions, "}");
}

std::string NeoXConfig() {
  return absl::StrCat(R"({"architectures": ["GPTNeoXForCausalLM"], "vocab_size": )", kVocab,
                      R"(, "hidden_size": )", kHidden, R"(, "num_hidden_layers": 1)",
                      R"(, "num_attention_heads": )", kHeads, R"(, "intermediate_size": )", kInner,
                      R"(, "max_position_embeddings": )", kPositions, R"(, "rotary_pct": 0.2})");
}

// A folder of one file, in which each number is its place.
class NumberedFolder {
 public:
  NumberedFolder(const std::string& config, std::vector<Tensor> tensors)
      : tensors_(std::move(tensors)) {
    folder_.Write("config.json", config);
    checkpoint::SafetensorsHeader header;
    int64_t count = 0;
    for (const Tensor& tensor : tensors_) {
      const int64_t elements = checkpoint::NumElements(tensor.shape).value();
      // Transposed, if its form is that.
      std::vector<int64_t> shape = tensor.shape;
      if (shape.size() > 1 && tensor.place(1, 0) == 1) std::swap(shape[0], shape[1]);
      header.entries.push_back({tensor.theirs, "F32", shape, count * 4, elements * 4});
      first_[tensor.theirs] = count;
      count += elements;
    }
    std::vector<float> numbers(static_cast<size_t>(count));
    std::iota(numbers.begin(), numbers.end(), 0.0F);
    EXPECT_LT(count, 1 << 24) << "else a float is not the place";
    std::ofstream file(path() + "/model.safetensors", std::ios::binary);
    file << checkpoint::SerializeSafetensorsHeader(header);
    file.write(reinterpret_cast<const char*>(numbers.data()),
               static_cast<std::streamsize>(numbers.size() * sizeof(float)));
  }

  const std::string& path() const { return folder_.path(); }
  const std::vector<Tensor>& tensors() const { return tensors_; }

  // Expects the right numbers of elements [begin, begin + count) of a box.
  void ExpectRead(const Weights& weights, const Tensor& tensor, const Box& box, int64_t begin,
                  int64_t count) const {
    std::vector<double> read(static_cast<size_t>(count), -1);
    ASSERT_EQ(weights.Read(tensor.ours, box, begin, absl::MakeSpan(read)), absl::OkStatus());
    const int64_t first = first_.at(tensor.theirs);
    const bool is_matrix = box.shape.size() > 1;
    const int64_t cols = is_matrix ? box.shape[1] : 1, first_col = is_matrix ? box.offset[1] : 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = box.offset[0] + (begin + i) / cols;
      const int64_t col = first_col + (begin + i) % cols;
      const auto expected = static_cast<double>(first + tensor.place(row, col));
      if (read[static_cast<size_t>(i)] == expected) continue;
      FAIL() << tensor.ours << " has " << read[static_cast<size_t>(i)] << " instead of " << expected
             << " in row " << row << ", column " << col << " of the box at "
             << absl::StrJoin(box.offset, ", ") << " with the shape "
             << absl::StrJoin(box.shape, ", ");
    }
  }

 private:
  const std::vector<Tensor> tensors_;
  std::map<std::string, int64_t> first_;  // place of the first element, by their name
  const TestFolder folder_;
};

// Boxes as ranks with tensor parallelism have them, and one with an odd edge on each side.
std::vector<Box> BoxesOf(const std::vector<int64_t>& shape) {
  const int64_t rows = shape[0];
  if (shape.size() == 1) {
    return {Box{{0}, {rows}}, Box{{rows / 2}, {rows - rows / 2}}, Box{{kHeadDim + 1}, {kHeadDim}}};
  }
  const int64_t cols = shape[1];
  return {Box{{0, 0}, {rows, cols}},
          Box{{rows / 2, 0}, {rows - rows / 2, cols}},
          Box{{0, cols / 2}, {rows, cols - cols / 2}},
          Box{{rows - 1, 0}, {1, cols}},
          Box{{0, cols - 1}, {rows, 1}},
          Box{{1, 1}, {rows - 2, cols - 2}}};
}

void ExpectAllParts(const NumberedFolder& folder) {
  const auto weights = Weights::Open(folder.path());
  ASSERT_EQ(weights.status(), absl::OkStatus());
  ASSERT_EQ((*weights)->tensors().size(), folder.tensors().size());
  for (const Tensor& tensor : folder.tensors()) {
    if (tensor.shape[0] < 2 * kHeadDim) continue;  // embeddings
    for (const Box& box : BoxesOf(tensor.shape)) {
      const int64_t elements = checkpoint::NumElements(box.shape).value();
      folder.ExpectRead(**weights, tensor, box, 0, elements);
      // As shards of an optimizer: from within a row to within another one, and the last element.
      folder.ExpectRead(**weights, tensor, box, elements / 7, elements / 3);
      folder.ExpectRead(**weights, tensor, box, elements - 1, 1);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

void ExpectTheSameFolderBack(const NumberedFolder& folder) {
  const std::string weights = folder.path() + "/weights", out = folder.path() + "/out";
  ASSERT_EQ(Import(folder.path(), weights).status(), absl::OkStatus());
  ASSERT_EQ(Export({.checkpoint = weights, .folder = out}).status(), absl::OkStatus());
  const auto a = Folder::Open(folder.path()).value();
  const auto b = Folder::Open(out).value();
  ASSERT_EQ(a->tensors().size(), b->tensors().size());
  for (const auto& [name, tensor] : a->tensors()) {
    const StoredTensor* other = b->Find(name);
    ASSERT_NE(other, nullptr) << name;
    ASSERT_EQ(tensor.shape, other->shape) << name;
    std::string expected(static_cast<size_t>(checkpoint::NumElements(tensor.shape).value()) * 4,
                         '\0');
    std::string exported = expected;
    ASSERT_TRUE(a->Read(tensor, 0, absl::MakeSpan(expected)).ok());
    ASSERT_TRUE(b->Read(*other, 0, absl::MakeSpan(exported)).ok());
    EXPECT_TRUE(expected == exported) << name;
  }
}

TEST(WeightsTest, PartsOfTransposedMatricesAreTheirElements) {
  ExpectAllParts(NumberedFolder(Gpt2Config(), Gpt2()));
}

TEST(WeightsTest, PartsOfQueriesKeysAndValuesByHeadAreTheirElements) {
  ExpectAllParts(NumberedFolder(NeoXConfig(), NeoX()));
}

TEST(WeightsTest, MatricesLargerThanABlockComeBackFromACheckpoint) {
  ExpectTheSameFolderBack(NumberedFolder(Gpt2Config(), Gpt2()));
  ExpectTheSameFolderBack(NumberedFolder(NeoXConfig(), NeoX()));
}

}  // namespace
}  // namespace megascale::hugging_face
