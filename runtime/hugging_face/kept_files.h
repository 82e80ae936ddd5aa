// The small files of a Hugging Face folder that travel with its weights: the configuration and the
// tokenizer. A checkpoint of imported weights keeps them in a folder of its own. Threads: plain
// functions. Blocking: storage.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::hugging_face {

inline constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";
inline constexpr char kGenerationConfigFile[] = "generation_config.json";

// Returns the folder in which a checkpoint keeps them.
std::string KeptFolderOf(const std::string& checkpoint);

// Makes a folder, or does nothing if it exists and is empty. Errors: AlreadyExists - it is not.
absl::Status MakeEmptyFolder(const std::string& path);

// Copies the files of tokenizers that `from` has into `to`, which is made. Errors: those of the
// file system; a file of more than 64 MiB.
absl::Status CopyTokenizerFiles(const std::string& from, const std::string& to);

// As CopyTokenizerFiles, and copies generation_config.json; not config.json.
absl::Status CopyKeptFiles(const std::string& from, const std::string& to);

}  // namespace megascale::hugging_face
