// Which Hugging Face tensors our tensors consist of, for each architecture. Our tensors fuse
// queries, keys and values, and the MLP's gate and up; our linear weights are [out, in]. Hugging
// Face's tensors have the forms below. Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/hugging_face/config/config.h"
#include "runtime/model/config.h"

namespace megascale::hugging_face {

enum class Form : uint8_t {
  kSame,        // [out, in] or [out], as ours
  kTransposed,  // GPT-2's Conv1D: [in, out]
  kByHead,      // NeoX: queries, keys and values of the first head, then of the second …
};

// One of Hugging Face's tensors, which is consecutive rows of one of our tensors.
struct Part {
  std::string name;  // theirs
  Form form = Form::kSame;
  int64_t first_row = 0;  // in ours
  int64_t rows = 0;
};

struct TensorMap {
  std::string name;            // ours
  std::vector<int64_t> shape;  // ours
  std::vector<Part> parts;     // in the order of the rows
  int64_t num_heads = 0;       // for kByHead
  int64_t head_dim = 0;        // for kByHead

  int64_t cols() const { return shape.size() > 1 ? shape[1] : 1; }
  // Returns the shape of their tensor.
  std::vector<int64_t> ShapeOf(const Part& part) const;
  // Returns the row of ours that is row `row` of theirs, and the number of rows from it on that
  // follow each other in both. Requires: form kSame or kByHead.
  struct Run {
    int64_t row = 0;
    int64_t count = 0;
  };
  Run OurRow(const Part& part, int64_t row) const;
  // The same the other way. `row` is one of ours, within the part.
  Run TheirRow(const Part& part, int64_t row) const;
};

// Returns the whole model's tensors, in the order of the forward pass.
std::vector<TensorMap> MapTensors(Architecture architecture, const model::ModelConfig& config);

// Their names of the embedding and of the output matrix.
std::string EmbeddingName(Architecture architecture);
std::string HeadName(Architecture architecture);

// Whether a folder may have this tensor although the model does not consist of it: masks and tables
// that older versions stored.
bool IsTable(absl::string_view name);

}  // namespace megascale::hugging_face
