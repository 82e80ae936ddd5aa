// Reads SentencePiece models (tokenizer.model) of type BPE, as Llama 2 and Mistral have them: the
// scores of pieces become ranks of merges. The format is read here and not by SentencePiece's own
// library, whose shared object brings a second protobuf runtime into the process.
// Special tokens that stand in text are text, as in that library. Threads: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace megascale::tokenizer {

// Errors: InvalidArgument - not such a file, a piece that contradicts another one, or something
// that is not supported: other types of models, a normaliser that changes text, user-defined
// pieces. Cost: memory of about 100 times the file's size at most.
absl::StatusOr<TokenizerParts> ParseSentencePiece(absl::string_view content);

// What a folder says about a model that the tokenizer class of Llama reads.
struct LlamaOptions {
  bool legacy = true;            // each text between added tokens begins with a space of its own
  bool add_prefix_space = true;  // else no text does
};

// As the tokenizer class of Llama reads the file: control pieces that stand in text become their
// ids, user-defined pieces are found in text, all bytes fall back. Errors: as ParseSentencePiece,
// but user-defined pieces are read, and a model without add_dummy_prefix is refused.
absl::StatusOr<TokenizerParts> ParseSentencePieceAsLlama(absl::string_view content,
                                                         const LlamaOptions& options);

}  // namespace megascale::tokenizer
