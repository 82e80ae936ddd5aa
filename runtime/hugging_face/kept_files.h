// The small files of a Hugging Face folder that travel with its weights: the configuration and the
// tokenizer. A checkpoint of imported weights keeps them in a folder of its own. Threads: plain
// functions. Blocking: storage.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace megascale::hugging_face {

inline constexpr absl::string_view kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr char kGenerationConfigFile[] = "generation_config.json";

// Returns the folder in which a checkpoint keeps these files.
std::string KeptFolderOf(const std::string& checkpoint);

// Makes a folder, or does nothing if it exists and is empty. Errors: AlreadyExists - it is not
// empty.
absl::Status MakeEmptyFolder(const std::string& path);

// True if the folder has the file.
bool Exists(const std::string& folder, absl::string_view name);

// Writes a file of this name into a folder.
using WriteFile = std::function<absl::Status(absl::string_view name, absl::string_view text)>;

// Copies the files of tokenizers that `from` has. Errors: those of the file system and of `write`;
// a file of more than 64 MiB.
absl::Status CopyTokenizerFiles(const std::string& from, const WriteFile& write);

// Copies the files of tokenizers and generation_config.json, not config.json, into `to`, which is
// made. Errors: as CopyTokenizerFiles.
absl::Status CopyKeptFiles(const std::string& from, const std::string& to);

}  // namespace megascale::hugging_face
