// Text from a trained model: finds the tokenizer and the end tokens of a checkpoint or a Hugging
// Face folder, and continues prompts. Reports each piece of text as soon as later tokens cannot
// change it. Threads: one at a time.
//
//   ASSIGN_OR_RETURN(const auto generator, TextGenerator::Open({.path = "out/checkpoints"}));
//   RETURN_IF_ERROR(generator->Generate({"Love is"}, {}, {.on_text = print, .on_end = count}));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/device/device.h"
#include "runtime/inference/generate.h"
#include "runtime/inference/text_source.h"

namespace megascale::inference {

struct TextGeneratorOptions {
  std::string path = {};                      // as FindTextSource
  std::string tokenizer = {};                 // as FindTextSource
  int num_threads = 0;                        // 0: all cores
  std::optional<tensor::DType> compute = {};  // nullopt: as trained or stored
  std::vector<std::string> stop_tokens = {};  // further end tokens, as the tokenizer writes them
  std::unique_ptr<device::Device> device = nullptr;  // null: the CPU
};

struct TextOptions {
  int64_t num_tokens = 300;  // maximum number added to a prompt
  SamplingRule rule = {.temperature = 0.8};
  uint64_t seed = 1;
  int64_t batch = 8;  // prompts that are continued at the same time
};

// Errors: InvalidArgument - an option is out of its range; names the command's option.
absl::Status CheckTextOptions(const TextOptions& options);

// How a prompt was continued.
struct Continuation {
  int64_t num_prompt_tokens = 0;
  int64_t num_tokens = 0;  // added
  EndOf end = EndOf::kNumTokens;
};

struct TextEvents {
  std::function<void()> on_begin = nullptr;  // all input is valid, and the weights are loaded
  // What is odd about the prompts but allowed, a line each, before on_begin.
  std::function<void(const std::string& warning)> on_warning = nullptr;
  // The next piece of a continuation, in whole characters of UTF-8. Bytes that are not UTF-8 become
  // U+FFFD.
  std::function<void(int64_t prompt_index, absl::string_view piece)> on_text = nullptr;
  std::function<void(int64_t prompt_index, const Continuation& continuation)> on_end = nullptr;
  std::function<bool()> is_cancelled = nullptr;  // as GenerateEvents
};

class TextGenerator {
 public:
  // Reads small files, no weights. Errors: those of FindTextSource; InvalidArgument - a stop token
  // that the tokenizer does not have.
  static absl::StatusOr<std::unique_ptr<TextGenerator>> Open(TextGeneratorOptions options);

  const TextSource& source() const { return source_; }

  // Loads the weights and continues the prompts. Call it once. Errors: InvalidArgument - an option
  // is invalid; a prompt has no tokens, not even before the text, is not UTF-8, is longer than the
  // model's sequences, or has a token that the model does not have; those of
  // LanguageModel::Load.
  absl::Status Generate(absl::Span<const std::string> prompts, const TextOptions& options,
                        const TextEvents& events);

 private:
  TextGenerator(TextGeneratorOptions options, TextSource source)
      : options_(std::move(options)), source_(std::move(source)) {}
  absl::StatusOr<std::vector<std::vector<int32_t>>> Encode(absl::Span<const std::string> prompts,
                                                           const TextEvents& events) const;

  absl::Status CheckPrompt(absl::string_view text, absl::Span<const int32_t> ids) const;

  TextGeneratorOptions options_;
  TextSource source_;
};

}  // namespace megascale::inference
