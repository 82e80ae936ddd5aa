// Reads the components of a tokenizer.json around the model: normalizer, pre-tokenizer,
// post-processor, decoder. Each function returns InvalidArgument, with the component's name, if the
// component is malformed or no supported model family uses it. Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/tokenizer/decoder.h"
#include "runtime/data/tokenizer/files/json_object.h"
#include "runtime/data/tokenizer/text_steps.h"

namespace megascale::tokenizer {

// `file`: the whole document. An absent or null component is an empty one.
absl::StatusOr<std::vector<NormalizerStep>> ReadNormalizer(const JsonObject& file);
absl::StatusOr<PreTokenizer> ReadPreTokenizer(const JsonObject& file);

struct TokensAround {
  std::vector<int32_t> begin;
  std::vector<int32_t> end;
};
// Reads which tokens are added around one text.
absl::StatusOr<TokensAround> ReadPostProcessor(const JsonObject& file);

absl::StatusOr<Decoder> ReadDecoder(const JsonObject& file);

}  // namespace megascale::tokenizer
