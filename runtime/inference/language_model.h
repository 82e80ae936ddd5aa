// A model that keeps the keys and values of earlier tokens, so that one more token costs one row of
// each product, which takes about as long as reading the weights once. Its input is token ids;
// generate.h chooses the next ones, and text_generator.h is for text. Works on the CPU and on test
// devices that use its operators.
//
//   ASSIGN_OR_RETURN(auto model, LanguageModel::Load({.model = model_with_from, .capacity = 512}));
//   RETURN_IF_ERROR(model->Read(0, prompt_ids, &logits));             // logits [V]
//   RETURN_IF_ERROR(model->Step({{.sequence = 0, .token = id}}, &logits));
//
// Determinism: a sequence's logits do not depend on the other sequences. Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"
#include "runtime/device/device.h"
#include "runtime/model/config.h"

namespace megascale::inference {

struct LanguageModelOptions {
  // Resolved; `from` is the path of the weights, as for InitialWeights.
  job::v1::ModelSpec model = {};
  tensor::DType compute = tensor::DType::kF32;
  int num_threads = 0;                               // 0: all cores
  int64_t num_sequences = 1;                         // kept at the same time; at most ops::kFewRows
  int64_t capacity = 0;                              // maximum tokens of a sequence
  std::unique_ptr<device::Device> device = nullptr;  // null: the CPU
};

// One more token of a sequence.
struct NextToken {
  int64_t sequence = 0;
  int32_t token = 0;
};

class LanguageModel {
 public:
  // Reads the weights. Errors: those of InitialWeights; InvalidArgument - more positions than the
  // model has learned; ResourceExhausted - no memory for the weights or the cache.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Load(LanguageModelOptions options);
  ~LanguageModel();

  const model::ModelConfig& config() const;
  int64_t capacity() const;
  int64_t num_sequences() const;
  // Returns the number of tokens that a sequence holds.
  int64_t SizeOf(int64_t sequence) const;
  // Returns the bytes of the weights that each step reads: all weights except embeddings that serve
  // only for look-ups.
  int64_t step_bytes() const;

  void Clear(int64_t sequence);
  // Appends at least one token to a sequence; `logits` receives the logits [V] after the last one.
  // Requires: the sequence then has at most capacity() tokens, and all ids are below V. Errors:
  // those of the device.
  absl::Status Read(int64_t sequence, absl::Span<const int32_t> tokens,
                    std::vector<double>* logits);
  // Appends one token to each of several sequences; `logits` receives [tokens.size(), V].
  absl::Status Step(absl::Span<const NextToken> tokens, std::vector<double>* logits);

 private:
  struct Impl;
  explicit LanguageModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::inference
