// A model in one process, from a checkpoint of any layout or from a Hugging Face folder: measures
// how well the model predicts text. text_generator.h continues text. Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"
#include "runtime/data/dataset/dataset.h"
#include "runtime/device/device.h"

namespace megascale::cli {

// Returns `directory` if it is a checkpoint, else the newest complete checkpoint in it.
// Errors: NotFound - there is no checkpoint.
absl::StatusOr<std::string> FindCheckpoint(const std::string& directory);

// Returns whether a job wrote the weights at `path`; then they also name the job's text. False for
// "weights alone", which are imported weights or a Hugging Face folder. Reads no weights. Errors:
// those of hugging_face::FindSource.
absl::StatusOr<bool> IsWrittenByJob(const std::string& path);

// How many windows to measure, from the text's beginning. A window has the training's sequence
// length, or InferenceOptions::seq_length.
struct WindowLimit {
  int64_t num_windows = 0;  // maximum number; 0: all
  double flops = 0;         // as many windows as need this many FLOP, at least 1; 0: no limit
};

// Reads "all", a number of windows, or "auto": 2e13 FLOP, about a minute if matrix products run at
// 300 GFLOP/s. Errors: InvalidArgument - any other word.
absl::StatusOr<WindowLimit> ParseWindowLimit(const std::string& flag, const std::string& words);

struct EvaluateOptions {
  WindowLimit limit;
  bool keep_text = false;  // whether to fill HeldOutLoss::text
  // Called before the first window with the numbers of windows to measure and of windows in the
  // text; may be empty.
  std::function<void(int64_t num_windows, int64_t whole_windows)> on_start;
  // Called after every few windows with the numbers of measured and of all windows; may be empty.
  std::function<void(int64_t done, int64_t all)> on_progress;
};

// How well the model predicts a text, measured over whole windows from its beginning. A limit or an
// incomplete window leaves out the rest.
struct HeldOutLoss {
  int64_t num_tokens = 0;   // measured tokens
  int64_t text_tokens = 0;  // of the whole text
  int64_t num_bytes = 0;    // bytes of text of the measured tokens; end tokens have 0
  double nats_per_token = 0;
  double bits_per_byte = 0;
  std::string text;  // the measured bytes, if keep_text
};

// The length of a window for weights alone, because they do not tell the sequence length of their
// training. A model with fewer positions has shorter windows.
inline constexpr int64_t kWindowOfWeights = 1024;

struct InferenceOptions {
  // A checkpoint, a folder of them (the newest counts), imported weights, or a Hugging Face folder.
  std::string path;
  // For weights alone: the tokenizer to use instead of their own; "bytes": every byte is a token.
  std::string tokenizer = {};
  // For weights alone: the token that ends a document, as the tokenizer writes it. Empty: the
  // tokenizer's usual one; if it has none, the first end token of the weights' own folder.
  std::string end_token = {};
  // Tokens of a window. 0: the training's sequence length; for weights alone kWindowOfWeights.
  int64_t seq_length = 0;
  int num_threads = 0;                               // 0: all cores
  std::unique_ptr<device::Device> device = nullptr;  // null: the CPU
};

class Inference {
 public:
  // Reads and verifies the weights. The model computes in the precision of the training; with
  // weights alone, in the precision of the stored weights. Errors: NotFound, DataLoss - the
  // checkpoint; ResourceExhausted - no memory; InvalidArgument - an option that the model does not
  // allow, a malformed folder, no end token; FailedPrecondition - weights alone without a
  // tokenizer.
  static absl::StatusOr<std::unique_ptr<Inference>> Load(InferenceOptions options);
  ~Inference();

  // The checkpoint's manifest, whose data section names the tokenizer that the checkpoint keeps.
  // For weights alone: what is known about them, in the form of a job without text.
  const checkpoint::v1::Manifest& manifest() const;
  // The settings of a Hugging Face folder that this program ignores, one line each.
  const std::vector<std::string>& warnings() const;

  // The tokenizer with which the model was trained, from the checkpoint's folder; null: bytes are
  // tokens.
  const tokenizer::Tokenizer* tokenizer() const;

  // Measures how well the model predicts each token of `text`. Deterministic. Errors:
  // InvalidArgument - the text is shorter than one window; those of reading the text.
  absl::StatusOr<HeldOutLoss> Evaluate(const data::TokenText& text,
                                       const EvaluateOptions& options = {});

 private:
  struct Impl;
  explicit Inference(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct EvaluationText {
  std::unique_ptr<data::Dataset> dataset;
  const data::TokenText& text() const { return dataset->held_out(); }
};
// Opens the held-out part of the text in the data section of `spec` (Inference::manifest has one),
// or with `whole` all of the text, encoded by the section's tokenizer. Errors: those of
// Dataset::Open.
absl::StatusOr<EvaluationText> OpenEvaluationText(const job::v1::JobSpec& spec,
                                                  const data::DatasetOptions& options);

// Returns the size in bytes of `text` compressed by `xz -9`. Errors: NotFound - xz is not
// installed.
absl::StatusOr<int64_t> XzSize(absl::string_view text);

}  // namespace megascale::cli
