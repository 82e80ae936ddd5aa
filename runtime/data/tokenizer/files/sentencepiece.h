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

}  // namespace megascale::tokenizer
