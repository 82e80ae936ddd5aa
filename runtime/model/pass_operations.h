// What a pass of one micro-batch through a chunk consists of: the matrix products, attention and
// the exchanges of tensor ranks, in the order in which TransformerChunk begins them. The second
// level of a step plan: the plan says which pass comes when, and all layers of all passes share
// these. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/activation_memory.h"

namespace megascale::model {

// As TransformerChunk's functions of these names. With recomputation a backward begins with what it
// does again.
enum class Pass : uint8_t { kForward, kBackward, kBackwardInput, kBackwardWeights };

enum class OperationKind : uint8_t {
  kProduct,
  kAttention,
  kGather,   // a rank's piece of an all-gather of the tensor group: begins here
  kScatter,  // a rank's piece of a reduce-scatter of the tensor group: begins here
};

struct PassOperation {
  OperationKind kind = OperationKind::kProduct;
  const char* name = "";  // "attn.qkv", "attn.qkv weights", "norm": of which matrix, or of what
  int64_t flops = 0;      // of this tensor rank, as model::FlopsPerToken counts them
  int64_t bytes = 0;      // that the exchange's buffer has
  int after = 0;          // begins once so many of the exchanges listed with it are done
  bool operator==(const PassOperation&) const = default;
};

// One rank's; what is listed in a vector begins once all exchanges before it are done. Norms,
// activation functions and the rest are not listed: they are no matrix products, and run in
// between.
struct PassOperations {
  std::vector<PassOperation> before;  // the first layer: embedding; or what the head leaves
  std::vector<PassOperation> layer;   // the same for each
  std::vector<PassOperation> after;   // the last one
  int num_layers = 0;

  int64_t flops() const;
  int64_t exchanged_bytes() const;
};

// What operations are priced at.
struct PassRates {
  double flops_per_second = 0;
  double bytes_per_second = 0;  // of an exchange's buffer
};

// How long a pass takes, if exchanges follow one another beside products, or, without `overlap`,
// each ends before the pass goes on.
double SecondsOf(const PassOperations& pass, const PassRates& rates, bool overlap);

// Requires: the pass is one that a chunk of these options has.
PassOperations OperationsOf(const ChunkOptions& options, Pass pass);

}  // namespace megascale::model
