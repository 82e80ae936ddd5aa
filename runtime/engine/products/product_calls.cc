#include "runtime/engine/products/product_calls.h"

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/model/tensor_group.h"
#include "runtime/tensor/arena.h"

namespace megascale::engine {
namespace {

using ops::Matrix;
using ops::Vector;

// What tells two products apart.
using ProductKey = std::array<int64_t, 44>;

class KeyMaker {
 public:
  void Add(int64_t number) { key_.at(next_++) = number; }
  void Add(const void* data) {
    Add(static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) % tensor::Arena::kAlignment));
  }
  void Add(const Matrix& matrix) {
    Add(matrix ? 1 : 0);
    Add(matrix.data);
    Add(static_cast<int64_t>(matrix.dtype));
    Add(matrix.rows);
    Add(matrix.cols);
    Add(matrix.stride);
  }
  void Add(const Vector& vector) {
    Add(vector ? 1 : 0);
    Add(vector.data);
  }
  const ProductKey& key() const { return key_; }

 private:
  ProductKey key_ = {};
  size_t next_ = 0;
};

ProductKey KeyOf(const ops::MatMulArgs& args) {
  KeyMaker maker;
  for (const Matrix& matrix :
       {args.a, args.b, args.c, args.activated, args.activation_in, args.d_activation_in}) {
    maker.Add(matrix);
  }
  maker.Add(args.bias);
  maker.Add(args.d_bias);
  maker.Add(static_cast<int64_t>(args.transpose_a));
  maker.Add(static_cast<int64_t>(args.transpose_b));
  maker.Add(args.accumulate ? 1 : 0);
  maker.Add(static_cast<int64_t>(args.activation));
  return maker.key();
}

// Operators that keep the products that they are asked for, and compute nothing.
class ProductRecorder final : public ops::Ops {
 public:
  explicit ProductRecorder(tensor::DType compute) : compute_(compute) {}

  std::vector<ops::MatMulArgs> Take() { return std::move(products_); }

  tensor::DType compute() const override { return compute_; }
  void MatMul(const ops::MatMulArgs& args) override {
    if (known_.insert(KeyOf(args)).second) products_.push_back(args);
  }
  void Norm(const ops::NormArgs&) override {}
  void NormBackward(const ops::NormBackwardArgs&) override {}
  void Attention(const ops::AttentionArgs&) override {}
  void AttentionBackward(const ops::AttentionBackwardArgs&) override {}
  void Rotary(const ops::RotaryArgs&) override {}
  void Activation(const ops::ActivationArgs&) override {}
  void ActivationBackward(const ops::ActivationBackwardArgs&) override {}
  void Embedding(const ops::EmbeddingArgs&) override {}
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs&) override {}
  void LogitStatistics(const ops::LogitStatisticsArgs&) override {}
  void CrossEntropy(const ops::CrossEntropyArgs&) override {}
  void AdamW(absl::Span<const ops::AdamWArgs>) override {}
  void TrustStep(absl::Span<const ops::TrustStepArgs>) override {}
  void CombineNorms(const ops::CombineNormsArgs&) override {}
  void AddColumnSums(const Matrix&, const Vector&) override {}
  void Add(const Matrix&, const Matrix&, const Matrix&) override {}
  void AddScaled(double, const Vector&, const Vector&) override {}
  void AddSumOfSquares(const Vector&, const Vector&) override {}
  void AddTotal(const Vector&, const Vector&) override {}
  void FirstNotFinite(const Matrix&, const Vector&) override {}
  void Cast(const Vector&, const Vector&) override {}
  void FillZero(const Vector&) override {}

 private:
  const tensor::DType compute_;
  std::set<ProductKey> known_;
  std::vector<ops::MatMulArgs> products_;
};

// A place in a tensor group whose exchanges do nothing.
class SilentGroup final : public model::TensorGroup {
 public:
  explicit SilentGroup(model::TensorPlace place) : place_(place) {}

  model::TensorPlace place() const override { return place_; }
  Exchange Broadcast(int, const Vector&, const Vector&) override { return ++num_begun_; }
  Exchange Reduce(int, const Vector&, const Vector&) override { return ++num_begun_; }
  Exchange AllGather(const Vector&, const Vector&) override { return ++num_begun_; }
  Exchange ReduceScatter(const Vector&, const Vector&) override { return ++num_begun_; }
  void Wait(Exchange) override {}
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  const model::TensorPlace place_;
  Exchange num_begun_ = 0;
};

void RunPass(const RankWork& work, const plan::Instruction& instruction,
             model::TransformerChunk* chunk) {
  if (instruction.gradient_buffer != plan::kNoBuffer) work.add_gradients(instruction, chunk);
  const int slot = instruction.activation_slot;
  double loss = 0;
  switch (instruction.kind()) {
    case plan::OpKind::kForward:
      return chunk->Forward(slot, {.sum = {&loss, tensor::DType::kF64, 1}});
    case plan::OpKind::kBackward:
      if (instruction.input_only) return chunk->BackwardInput(slot);
      return chunk->Backward(slot, work.first_layer_of(instruction));
    default:
      return chunk->BackwardWeights(slot, work.first_layer_of(instruction));
  }
}

}  // namespace

absl::StatusOr<std::vector<ops::MatMulArgs>> ProductCallsOf(const RankWork& work) {
  MEGASCALE_CHECK(!work.chunks.empty());
  const model::ChunkOptions& first = work.chunks.front().options;
  ProductRecorder recorder(first.compute);
  SilentGroup group(first.tensor);
  std::vector<std::unique_ptr<model::TransformerChunk>> chunks;
  for (const ChunkWork& chunk : work.chunks) {
    ASSIGN_OR_RETURN(
        chunks.emplace_back(),
        model::TransformerChunk::CreateIn(
            tensor::Arena::Over(chunk.activations, chunk.activation_bytes), chunk.options,
            &recorder, chunk.parameters, first.tensor.size > 1 ? &group : nullptr));
  }
  for (const plan::Instruction& instruction : work.plan->instructions) {
    if (!plan::IsPass(instruction.kind())) continue;
    const auto index = static_cast<size_t>(work.plan->IndexOfChunk(instruction.id.chunk()));
    RunPass(work, instruction, chunks[index].get());
  }
  return recorder.Take();
}

}  // namespace megascale::engine
