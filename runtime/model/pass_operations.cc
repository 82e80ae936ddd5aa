#include "runtime/model/pass_operations.h"

#include <cmath>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/model/chunk_layout.h"

namespace megascale::model {
namespace {

using Operations = std::vector<PassOperation>;

struct Sum {
  int64_t flops = 0;
  int64_t bytes = 0;
};

Sum SumOf(const Operations& operations) {
  Sum sum;
  for (const PassOperation& one : operations) {
    sum.flops += one.flops;
    sum.bytes += one.bytes;
  }
  return sum;
}

// A linear layer: [N, in] to [N, out].
struct LinearShape {
  const char* name;
  const char* weights;  // the product for the gradient of its weights
  int64_t in = 0;
  int64_t out = 0;
};

// Appends operations in the order of transformer_block.cc and transformer_chunk.cc.
class Writer {
 public:
  explicit Writer(const ChunkOptions& options)
      : options_(options),
        config_(PartOfTensorRank(options.config, options.tensor.size)),
        tokens_(options.micro_batch * options.seq) {
    const int64_t hidden = config_.hidden_size;
    qkv_ = {"attn.qkv", "attn.qkv weights", hidden, config_.qkv_size()};
    out_ = {"attn.out", "attn.out weights", config_.num_heads * config_.head_dim, hidden};
    up_ = {"mlp.up", "mlp.up weights", hidden, config_.up_size()};
    down_ = {"mlp.down", "mlp.down weights", config_.intermediate_size, hidden};
    head_ = {"lm_head", "lm_head weights", hidden, config_.vocab_size};
    const TokenFlops layer = FlopsPerToken(config_, {.num_layers = 1}, options.seq);
    attention_flops_ = std::llround((layer.forward - layer.weights) * static_cast<double>(tokens_));
  }

  Operations Take() { return std::exchange(operations_, {}); }

  void Embedding() { Scatter("embedding"); }
  void EmbeddingBackward() { Gather("embedding's gradient"); }

  void Head() {
    Gather("norm");
    Product(head_);
    Exchange(OperationKind::kGather, "statistics of logits",
             3 * tokens_ * options_.tensor.size *
                 static_cast<int64_t>(SizeOf(AccumulationType(options_.compute))));
    Weights(head_);
    Product(head_);
    Scatter("norm's gradient");
  }

  void ForwardLayer() {
    Gather("norm");
    Attend();
    Product(out_);
    if (!config_.parallel_block) Scatter("attn.out");
    if (config_.has_mlp_norm()) Gather("norm");
    Product(up_);
    Product(down_);
    Scatter(config_.parallel_block ? "attn.out and mlp.down" : "mlp.down");
  }

  void ForwardAgain() {
    if (options_.recompute != Recompute::kFull) return;
    Gather("norm");
    Attend();
    if (!config_.parallel_block) {
      Product(out_);
      Scatter("attn.out");
    }
    if (config_.has_mlp_norm()) Gather("norm");
    Product(up_);
  }

  // Without the gradients of weights, and what is gathered for them alone, where `weights` is
  // false.
  void BackwardLayer(bool weights) {
    Gather("output's gradient");
    BackwardLinear(down_, weights);
    if (weights) Gather("norm");
    BackwardLinear(up_, weights);
    if (config_.has_mlp_norm()) Scatter("norm's gradient");
    if (!config_.parallel_block) Gather("output's gradient");
    BackwardLinear(out_, weights);
    Add({OperationKind::kAttention, "attention", 2 * attention_flops_, 0});
    if (weights && config_.has_mlp_norm()) Gather("norm");
    BackwardLinear(qkv_, weights);
    Scatter("norm's gradient");
  }

  void WeightsOfLayer() {
    Gather("output's gradient");
    Weights(down_);
    Gather("norm");
    Weights(up_);
    if (!config_.parallel_block) Gather("output's gradient");
    Weights(out_);
    if (config_.has_mlp_norm()) Gather("norm");
    Weights(qkv_);
  }

 private:
  void Add(const PassOperation& operation) { operations_.push_back(operation); }

  void Exchange(OperationKind kind, const char* what, int64_t bytes) {
    if (options_.tensor.size > 1) Add({kind, what, 0, bytes});
  }
  int64_t RowBytes() const {
    return tokens_ * config_.hidden_size * static_cast<int64_t>(SizeOf(options_.compute));
  }
  void Gather(const char* what) { Exchange(OperationKind::kGather, what, RowBytes()); }
  void Scatter(const char* what) { Exchange(OperationKind::kScatter, what, RowBytes()); }

  void Product(const LinearShape& linear) {
    Add({OperationKind::kProduct, linear.name, 2 * tokens_ * linear.in * linear.out, 0});
  }
  void Weights(const LinearShape& linear) {
    Add({OperationKind::kProduct, linear.weights, 2 * tokens_ * linear.in * linear.out, 0});
  }
  void BackwardLinear(const LinearShape& linear, bool weights) {
    if (weights) Weights(linear);
    Product(linear);
  }
  void Attend() {
    Product(qkv_);
    Add({OperationKind::kAttention, "attention", attention_flops_, 0});
  }

  const ChunkOptions& options_;
  const ModelConfig config_;  // of the tensor rank's part
  const int64_t tokens_;
  LinearShape qkv_, out_, up_, down_, head_;
  int64_t attention_flops_ = 0;
  Operations operations_;
};

}  // namespace

int64_t PassOperations::flops() const {
  return SumOf(before).flops + num_layers * SumOf(layer).flops + SumOf(after).flops;
}

int64_t PassOperations::exchanged_bytes() const {
  return SumOf(before).bytes + num_layers * SumOf(layer).bytes + SumOf(after).bytes;
}

PassOperations OperationsOf(const ChunkOptions& options, Pass pass) {
  const bool splits = pass == Pass::kBackwardInput || pass == Pass::kBackwardWeights;
  MEGASCALE_CHECK(pass == Pass::kForward || splits == options.split_backward);
  Writer writer(options);
  PassOperations operations;
  operations.num_layers = options.range.num_layers;
  switch (pass) {
    case Pass::kForward:
      if (options.range.has_embedding) writer.Embedding();
      operations.before = writer.Take();
      writer.ForwardLayer();
      operations.layer = writer.Take();
      if (options.range.has_head) writer.Head();
      operations.after = writer.Take();
      break;
    case Pass::kBackward:
    case Pass::kBackwardInput:
      writer.ForwardAgain();
      writer.BackwardLayer(pass == Pass::kBackward);
      operations.layer = writer.Take();
      if (options.range.has_embedding) writer.EmbeddingBackward();
      operations.after = writer.Take();
      break;
    case Pass::kBackwardWeights:
      writer.WeightsOfLayer();
      operations.layer = writer.Take();
      break;
  }
  return operations;
}

}  // namespace megascale::model
