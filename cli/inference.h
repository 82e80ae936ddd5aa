// A trained model in one process, from a checkpoint of any layout: text sampled from it, and how
// well it predicts text. Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"

namespace megascale::cli {

// `directory` where it is a checkpoint, else the newest complete one in it.
// Errors: NotFound - neither.
absl::StatusOr<std::string> FindCheckpoint(const std::string& directory);

struct SampleOptions {
  std::string prompt = "\n";
  int64_t num_tokens = 300;
  double temperature = 0.8;  // 0: always the likeliest
  int64_t top_k = 0;         // choose among so many of the likeliest; 0: all
  uint64_t seed = 1;         // the same seed, prompt and options give the same text
};

// Text that was predicted: whole windows of the training's sequence length from its beginning.
struct HeldOutLoss {
  int64_t num_bytes = 0;
  double bits_per_byte = 0;
};

class Inference {
 public:
  // Reads the weights of a checkpoint (a step directory), checked, and keeps the precision that it
  // was trained in. `num_threads` 0: all cores.
  // Errors: NotFound, DataLoss - the checkpoint; ResourceExhausted - no memory.
  static absl::StatusOr<std::unique_ptr<Inference>> Load(const std::string& step_directory,
                                                         int num_threads);
  ~Inference();

  const checkpoint::v1::Manifest& manifest() const;

  // Continues the prompt, and tells each byte as it is chosen. Cost: one forward pass over the
  // context (at most the sequence length) a byte.
  // Errors: InvalidArgument - the options.
  absl::Status Sample(const SampleOptions& options,
                      const std::function<void(absl::string_view)>& on_text);

  // How many bits a byte of `text` costs under the model. Deterministic.
  // Errors: InvalidArgument - the text is shorter than one window.
  absl::StatusOr<HeldOutLoss> Evaluate(absl::string_view text);

 private:
  struct Impl;
  explicit Inference(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The held-out part of the text that a job's data section names.
absl::StatusOr<std::string> ReadHeldOutText(const job::v1::JobSpec& spec);

// Bytes that `xz -9` makes of `text`; NotFound where there is no xz.
absl::StatusOr<int64_t> XzSize(absl::string_view text);

}  // namespace megascale::cli
