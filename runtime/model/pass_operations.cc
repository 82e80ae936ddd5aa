#include "runtime/model/pass_operations.h"

#include <algorithm>
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

// Which of the exchanges a gather is, counted from 1; none of one rank.
struct GatherExchanges {
  int first = 0;
  int last = 0;
};

// Appends operations in the order of transformer_block.cc and transformer_chunk.cc, and waits where
// these do.
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

  // What was added since the last call.
  Operations Take() {
    MEGASCALE_CHECK(num_waited_ == num_begun_);
    num_waited_ = 0;
    num_begun_ = 0;
    return std::exchange(operations_, {});
  }

  void Embedding() {
    for (int piece = 0; piece < pieces(); ++piece) Exchange(kScatter, "embedding", PieceBytes());
    Wait(num_begun_);
  }
  void EmbeddingBackward() { Wait(Gather("embedding's gradient")); }

  void Head() {
    ProductInPieces(head_, Gather("norm"));
    Wait(GatherPieces("statistics of logits", 3 * tokens_ * AccumulationBytes()));
    const int sum = ProductAndSum(head_, "norm's gradient");
    Weights(head_);
    Wait(sum);
  }

  void ForwardLayer() {
    GatherExchanges norm = Gather("norm");
    Attend(norm);
    if (config_.parallel_block) {
      Product(out_);
    } else {
      Wait(ProductAndSum(out_, "attn.out"));
    }
    if (config_.has_mlp_norm()) norm = Gather("norm");
    ProductInPieces(up_, norm);
    Wait(ProductAndSum(down_, config_.parallel_block ? "attn.out and mlp.down" : "mlp.down"));
  }

  void ForwardAgain() {
    if (options_.recompute != Recompute::kFull) return;
    GatherExchanges norm = Gather("norm");
    Attend(norm);
    if (!config_.parallel_block) Wait(ProductAndSum(out_, "attn.out"));
    if (config_.has_mlp_norm()) norm = Gather("norm");
    ProductInPieces(up_, norm);
  }

  // Without the gradients of weights, and what is gathered for them alone, where `weights` is
  // false.
  void BackwardLayer(bool weights) {
    GatherExchanges d_out = Gather("output's gradient");
    GatherExchanges norm = weights ? Gather("norm") : GatherExchanges();
    ProductInPieces(down_, d_out);
    if (weights) Weights(down_);
    int sum = 0;
    if (config_.has_mlp_norm()) {
      sum = ProductAndSum(up_, "norm's gradient");
    } else {
      Product(up_);
    }
    if (weights) Weights(up_, norm);
    Wait(sum);
    if (!config_.parallel_block) d_out = Gather("output's gradient");
    if (weights && config_.has_mlp_norm()) norm = Gather("norm");
    ProductInPieces(out_, d_out);
    if (weights) Weights(out_);
    Add({OperationKind::kAttention, "attention", 2 * attention_flops_, 0});
    sum = ProductAndSum(qkv_, "norm's gradient");
    if (weights) Weights(qkv_, norm);
    Wait(sum);
  }

  void WeightsOfLayer() {
    GatherExchanges d_out = Gather("output's gradient");
    GatherExchanges norm = Gather("norm");
    Weights(down_, d_out);
    if (!config_.parallel_block) d_out = Gather("output's gradient");
    Weights(up_, norm);
    if (config_.has_mlp_norm()) norm = Gather("norm");
    Weights(out_, d_out);
    Weights(qkv_, norm);
  }

 private:
  using enum OperationKind;

  void Add(PassOperation operation) {
    operation.after = num_waited_;
    operations_.push_back(operation);
  }
  void Wait(int exchange) { num_waited_ = std::max(num_waited_, exchange); }
  void Wait(const GatherExchanges& rows) { Wait(rows.last); }

  int64_t AccumulationBytes() const {
    return static_cast<int64_t>(SizeOf(AccumulationType(options_.compute)));
  }
  // Each is one rank's rows.
  int pieces() const { return options_.tensor.size; }
  int64_t PieceBytes() const {
    return tokens_ / pieces() * config_.hidden_size *
           static_cast<int64_t>(SizeOf(options_.compute));
  }
  // One rank alone exchanges nothing.
  void Exchange(OperationKind kind, const char* what, int64_t bytes) {
    if (pieces() == 1) return;
    Add({kind, what, 0, bytes});
    ++num_begun_;
  }
  GatherExchanges GatherPieces(const char* what, int64_t bytes) {
    const int before = num_begun_;
    for (int piece = 0; piece < pieces(); ++piece) Exchange(kGather, what, bytes);
    return {before + 1, num_begun_};
  }
  GatherExchanges Gather(const char* what) { return GatherPieces(what, PieceBytes()); }

  void ProductOf(const LinearShape& linear, int64_t rows) {
    Add({kProduct, linear.name, 2 * rows * linear.in * linear.out, 0});
  }
  void Product(const LinearShape& linear) { ProductOf(linear, tokens_); }
  // As TensorRows::ForEach.
  void ProductInPieces(const LinearShape& linear, const GatherExchanges& rows) {
    ProductOf(linear, tokens_ / pieces());
    for (int rank = 0; rank < pieces(); ++rank) {
      Wait(std::min(rows.first + rank, rows.last));
      if (rank != options_.tensor.index) ProductOf(linear, tokens_ / pieces());
    }
  }
  // As TensorRows::AddUp. Returns the last exchange.
  int ProductAndSum(const LinearShape& linear, const char* what) {
    for (int piece = 0; piece < pieces(); ++piece) {
      ProductOf(linear, tokens_ / pieces());
      Exchange(kScatter, what, PieceBytes());
    }
    return num_begun_;
  }
  void Weights(const LinearShape& linear, const GatherExchanges& rows = {}) {
    Wait(rows);
    Add({kProduct, linear.weights, 2 * tokens_ * linear.in * linear.out, 0});
  }
  void Attend(const GatherExchanges& norm) {
    ProductInPieces(qkv_, norm);
    Add({kAttention, "attention", attention_flops_, 0});
  }

  const ChunkOptions& options_;
  const ModelConfig config_;  // of the tensor rank's part
  const int64_t tokens_;
  LinearShape qkv_, out_, up_, down_, head_;
  int64_t attention_flops_ = 0;
  Operations operations_;
  int num_begun_ = 0;   // exchanges, since the last Take
  int num_waited_ = 0;  // of these; all up to this one
};

// Of operations that begin when all before them have ended.
double SecondsOf(const Operations& operations, const PassRates& rates, bool overlap) {
  double computed = 0;
  double exchanged = 0;
  std::vector<double> ends = {0};  // of exchanges
  for (const PassOperation& one : operations) {
    computed = std::max(computed, ends[static_cast<size_t>(one.after)]);
    if (one.kind == OperationKind::kProduct || one.kind == OperationKind::kAttention) {
      computed += static_cast<double>(one.flops) / rates.flops_per_second;
      continue;
    }
    exchanged =
        std::max(exchanged, computed) + static_cast<double>(one.bytes) / rates.bytes_per_second;
    ends.push_back(exchanged);
    if (!overlap) computed = exchanged;
  }
  return std::max(computed, exchanged);
}

}  // namespace

int64_t PassOperations::flops() const {
  return SumOf(before).flops + num_layers * SumOf(layer).flops + SumOf(after).flops;
}

int64_t PassOperations::exchanged_bytes() const {
  return SumOf(before).bytes + num_layers * SumOf(layer).bytes + SumOf(after).bytes;
}

double SecondsOf(const PassOperations& pass, const PassRates& rates, bool overlap) {
  return SecondsOf(pass.before, rates, overlap) +
         pass.num_layers * SecondsOf(pass.layer, rates, overlap) +
         SecondsOf(pass.after, rates, overlap);
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
