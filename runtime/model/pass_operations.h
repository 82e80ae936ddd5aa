// The operations of a pass of one micro-batch through a chunk: its operators and the exchanges of
// tensor ranks, in the order in which TransformerChunk begins them. They are the second level of a
// step plan: the plan gives the order of passes, and these lists give the operations of each pass.
//
// The lists are recorded, not written by hand. TransformerChunk runs with an Ops and a TensorGroup
// that record their calls and compute nothing, at addresses that have no memory behind them. So a
// chunk of any size can be recorded on any machine. If the model changes, the estimated times, the
// memory of the kernels and the timelines change with it.
//
//   ASSIGN_OR_RETURN(ChunkPasses passes, RecordChunk(options, /*first_layers=*/{0}));
//   double seconds = SecondsOf(passes.forward, rates, /*overlap=*/true);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/model/activation_memory.h"
#include "runtime/ops/ops.h"

namespace megascale::model {

enum class OperationKind : uint8_t {
  kProduct,      // a matrix product
  kAttention,    // attention, forward or backward
  kElementwise,  // norms, activation functions, embeddings, losses, sums: bound by memory
  kGather,       // begins an all-gather in the tensor group, or a rank's piece of it
  kScatter,      // begins a reduce-scatter in the tensor group, or a rank's piece of it
};

// True for exchanges of tensor ranks.
bool IsExchange(OperationKind kind);

struct PassOperation {
  OperationKind kind = OperationKind::kElementwise;
  // A product is named after its weights: "attn.qkv", "attn.qkv input" (the gradient of its input)
  // or "attn.qkv weights". An exchange is named after the operation whose result it moves. Other
  // operations are named after their operator.
  std::string name;
  int64_t flops = 0;  // model FLOPs of this tensor rank, as in ops/work.h
  int64_t bytes = 0;  // of an exchange's buffer; otherwise the least bytes moved through memory
  int after = 0;      // begins once the pass's first `after` exchanges are done
  bool operator==(const PassOperation&) const = default;
};

// Returns the operation's name for people: "gather: norm", "attn.qkv".
std::string Describe(const PassOperation& operation);

// One tensor rank's part of a pass. With recomputation a backward begins with the part of the
// forward that it repeats. All exchanges have ended when the pass ends.
using PassOperations = std::vector<PassOperation>;

int64_t FlopsOf(const PassOperations& pass);
// Returns the bytes of the exchanges' buffers.
int64_t ExchangedBytesOf(const PassOperations& pass);

// The speeds at which operations are priced.
struct PassRates {
  double flops_per_second = 0;            // of matrix products
  double memory_bytes_per_second = 0;     // of this rank's memory
  double exchanged_bytes_per_second = 0;  // of exchanges' buffers
};

// Returns the duration of a pass. An operation takes the time of its FLOPs or of its bytes,
// whichever is longer. Exchanges run one after another, while other operations run. Without
// `overlap`, the pass waits for each exchange.
double SecondsOf(const PassOperations& pass, const PassRates& rates, bool overlap);

// The passes of one micro-batch through a chunk.
struct ChunkPasses {
  PassOperations forward;
  PassOperations backward;  // with options.split_backward without `weights`
  PassOperations weights;   // with options.split_backward plan::kWeightGradient; else empty
  // The pass that completes the weight gradients, cut at the layers that the caller gave.
  std::vector<PassOperations> pieces;
  ops::KernelShapes kernels;  // the calls that determine how much memory kernels need
};

// Records a chunk's passes; ignores options.num_slots. Piece i ends with layer first_layers[i] of
// the chunk. Requires: first_layers descend to 0. Errors: as TransformerChunk::Create;
// ResourceExhausted - not enough addresses for the chunk. Cost: microseconds per layer; takes no
// memory for tensors.
absl::StatusOr<ChunkPasses> RecordChunk(const ChunkOptions& options,
                                        absl::Span<const int> first_layers);

}  // namespace megascale::model
