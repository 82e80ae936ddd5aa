// Reads vocab.json and merges.txt: the files of GPT-2's and Qwen2's tokenizers that are older than
// tokenizer.json. They hold the model alone, so the class that the folder names decides the rest.
// Threads: pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/data/tokenizer/files/settings.h"
#include "runtime/data/tokenizer/tokenizer.h"

namespace megascale::tokenizer {

inline constexpr char kVocabularyFile[] = "vocab.json";
inline constexpr char kMergesFile[] = "merges.txt";

// As the class of `settings` reads the files, before ApplySettings: GPT-2's drops the first line of
// the merges and what follows the last newline, Qwen2's only a first line that begins with
// "#version:" and empty lines. Where a merge is there twice, the first one counts.
// Errors: InvalidArgument, beginning with the file - another class, no class at all, not JSON, not
// UTF-8, a line that is not two tokens, a token that the vocabulary does not have.
absl::StatusOr<TokenizerParts> ParseVocabularyFiles(absl::string_view vocabulary,
                                                    absl::string_view merges,
                                                    const Settings& settings);

}  // namespace megascale::tokenizer
