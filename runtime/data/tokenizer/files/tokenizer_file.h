// Loads a tokenizer from a file. Start here to use one.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace megascale::tokenizer {

// Returns the file that LoadTokenizer reads: `path`, or if that is a folder, the file in it.
// Errors: NotFound.
absl::StatusOr<std::string> FindTokenizerFile(const std::string& path);

// Loads a tokenizer.json, a SentencePiece model (*.model), or the file of either kind in a folder.
// If the folder has both, loads tokenizer.json. Errors, each with the path: NotFound;
// PermissionDenied; ResourceExhausted - larger than 64 MiB; those of ParseTokenizerJson and
// ParseSentencePiece.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);

}  // namespace megascale::tokenizer
