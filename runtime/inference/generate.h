// Continues sequences of token ids, several at a time: a sequence that ends makes room for the next
// prompt. Each prompt's tokens depend on the prompt, its index and the options alone. Threads: one
// at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/inference/language_model.h"
#include "runtime/inference/sampling.h"

namespace megascale::inference {

struct GenerateOptions {
  int64_t num_tokens = 300;  // maximum number added to a prompt
  SamplingRule rule = {};
  uint64_t seed = 1;                     // for prompt 0; other prompts add a multiple of a constant
  std::vector<int32_t> end_tokens = {};  // each ends a sequence without being added to it
  int64_t vocabulary_size = 0;           // only tokens below this id are chosen; 0: all tokens are
};

enum class EndOf : uint8_t { kEndToken, kNumTokens };

struct GenerateEvents {
  // A token was added to the continuation of a prompt.
  std::function<absl::Status(int64_t prompt_index, int32_t token)> on_token = nullptr;
  // A prompt's continuation is complete.
  std::function<absl::Status(int64_t prompt_index, EndOf why)> on_end = nullptr;
  // Asked before every step; true ends all sequences without on_end. May be empty.
  std::function<bool()> is_cancelled = nullptr;
};

// When a sequence, with the token that was chosen last, exceeds the model's capacity C, the model
// forgets it and reads its last C / 2 tokens again, rounded up, from position 0 on. Requires: each
// prompt has at least one token and at most capacity(). Errors: those of the model and of the
// events.
absl::Status Generate(LanguageModel* model, absl::Span<const std::vector<int32_t>> prompts,
                      const GenerateOptions& options, const GenerateEvents& events);

}  // namespace megascale::inference
