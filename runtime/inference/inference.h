// A trained model in one process, from a checkpoint of any layout: measures how well the model
// predicts text. text_generator.h continues text. Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"
#include "runtime/device/device.h"

namespace megascale::cli {

// Returns `directory` if it is a checkpoint, else the newest complete checkpoint in it.
// Errors: NotFound - there is no checkpoint.
absl::StatusOr<std::string> FindCheckpoint(const std::string& directory);

// How many windows to measure, from the text's beginning. A window has the training's sequence
// length.
struct WindowLimit {
  int64_t num_windows = 0;  // maximum number; 0: all
  double flops = 0;         // as many as this many FLOP suffice for, at least 1; 0: no limit
};

// Reads "all", a number of windows, or "auto": 2e13 FLOP, about a minute if matrix products run at
// 300 GFLOP/s. Errors: InvalidArgument - any other word.
absl::StatusOr<WindowLimit> ParseWindowLimit(const std::string& flag, const std::string& words);

struct EvaluateOptions {
  WindowLimit limit;
  // Called after every few windows with the numbers of measured and of all windows; may be empty.
  std::function<void(int64_t done, int64_t all)> on_progress;
};

// How well the model predicts a text, measured over whole windows from its beginning.
struct HeldOutLoss {
  int64_t num_bytes = 0;  // measured bytes
  int64_t text_bytes =
      0;  // size of the whole text; a limit or an incomplete window leaves some out
  double bits_per_byte = 0;
};

class Inference {
 public:
  // Reads and verifies the weights of a checkpoint (a step directory), and computes in the
  // precision in which it was trained. `num_threads` 0: all cores. `device`: null is the CPU.
  // Errors: NotFound, DataLoss - the checkpoint; ResourceExhausted - no memory.
  static absl::StatusOr<std::unique_ptr<Inference>> Load(
      const std::string& step_directory, int num_threads,
      std::unique_ptr<device::Device> device = nullptr);
  ~Inference();

  const checkpoint::v1::Manifest& manifest() const;

  // Measures how many bits the model needs for a byte of `text`. Deterministic.
  // Errors: InvalidArgument - the text is shorter than one window.
  absl::StatusOr<HeldOutLoss> Evaluate(absl::string_view text, const EvaluateOptions& options = {});

 private:
  struct Impl;
  explicit Inference(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Returns the held-out part of the text that a job's data section names.
absl::StatusOr<std::string> ReadHeldOutText(const job::v1::JobSpec& spec);

// Returns the size in bytes of `text` compressed by `xz -9`. Errors: NotFound - xz is not
// installed.
absl::StatusOr<int64_t> XzSize(absl::string_view text);

}  // namespace megascale::cli
