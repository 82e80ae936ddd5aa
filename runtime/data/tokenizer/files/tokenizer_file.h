// Loads a tokenizer from a file. Start here to use one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace megascale::tokenizer {

// Returns the file that LoadTokenizer reads: `path`, or if that is a folder, the file in it; for
// vocab.json and merges.txt, the former. Errors: NotFound.
absl::StatusOr<std::string> FindTokenizerFile(const std::string& path);

// A tokenizer with the files that make it again in a folder of their own.
struct LoadedTokenizer {
  struct File {
    std::string name;
    std::string content;
  };
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<File> files;
};

// Loads a tokenizer.json or a SentencePiece model (*.model) alone, or a folder with a file of
// either kind or with vocab.json and merges.txt; the first of these that the folder has. In a
// folder, tokenizer_config.json, special_tokens_map.json, added_tokens.json and config.json decide,
// too (settings.h). Errors, each with the path: NotFound; PermissionDenied; ResourceExhausted -
// larger than 64 MiB; those of ParseTokenizerJson, ParseSentencePiece, ParseVocabularyFiles,
// ReadSettings and ApplySettings.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);
absl::StatusOr<LoadedTokenizer> LoadTokenizerWithFiles(const std::string& path);

// Returns what to load for the tokenizer in the checkpoint of a job: the folder if it has settings
// beside the tokenizer's file, else that file, which was used alone. Errors: as FindTokenizerFile.
absl::StatusOr<std::string> TokenizerOfCheckpoint(const std::string& checkpoint);

}  // namespace megascale::tokenizer
