// The choice of algorithms for matrix products, on devices that have several for one product. Each
// algorithm adds in an order of its own, so the choice is a part of a job's numerics: it is
// measured at the job's first start, written down in a table, and every rank and attempt computes
// by that table. runtime/engine/product_agreement.h makes the ranks agree on it.
//
// A table is text; only the device knows its format. Empty text is a table without products.
//
// Threads: one at a time, not a stream's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/ops/product.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/tensor.h"

namespace megascale::device {

// The matrix products that a rank computes on one of the device's streams, with its own memory.
// Calls may repeat.
struct ProductCalls {
  stream::Stream* stream = nullptr;  // idle
  tensor::DType compute = tensor::DType::kF32;
  std::vector<ops::MatMulArgs> calls;
};

class ProductTuner {
 public:
  virtual ~ProductTuner() = default;

  // Returns the names of the products among `calls` that `table` has no algorithm for: each once,
  // sorted. Ranks whose products differ in size, layout or type get different names. Errors:
  // InvalidArgument - it is no table.
  virtual absl::StatusOr<std::vector<std::string>> Missing(absl::string_view table,
                                                           const ProductCalls& calls) = 0;

  // Told how many of a rank's products have their algorithm.
  using OnProgress = std::function<void(int done, int total)>;
  // Measures the algorithms of each product that Missing names, and returns a table of the fastest
  // ones. Only algorithms that repeat their bits are candidates. Effects: overwrites the memory of
  // the calls, and leaves zeros. Blocking: a second or so for each product. Errors: as Missing;
  // FailedPrecondition - a product has no algorithm; Internal - the device failed;
  // ResourceExhausted - it has no memory for a workspace.
  virtual absl::StatusOr<std::string> Measure(absl::string_view table, const ProductCalls& calls,
                                              const OnProgress& on_progress) = 0;

  // Returns one table with the products of all `tables`. Where several have a product, the first
  // one counts. Errors: as Missing.
  virtual absl::StatusOr<std::string> Join(absl::Span<const std::string> tables) = 0;

  // Makes the operators of this device compute by `table`, and checks that they can. Requires:
  // these operators have not computed a product yet. Errors: as Missing; FailedPrecondition - the
  // table lacks a product of `calls`, or this device or library cannot run an algorithm of it; the
  // message names the product.
  virtual absl::Status Use(absl::string_view table, const ProductCalls& calls) = 0;
};

}  // namespace megascale::device
