// The tokens that end a text, as a Hugging Face folder names them. Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::hugging_face {

// Returns the "eos_token_id" of a config.json or generation_config.json: one id or a list of them.
// Empty if it is missing or null. `file` names it in errors. Errors: InvalidArgument - not JSON, or
// something else than ids.
absl::StatusOr<std::vector<int32_t>> ParseEndTokens(absl::string_view json, absl::string_view file);

// Returns the end tokens of a folder: those of generation_config.json, or if it has none, those of
// config.json. Errors: as ParseEndTokens; those of the file system, but a missing file is no error.
absl::StatusOr<std::vector<int32_t>> ReadEndTokens(const std::string& folder);

}  // namespace megascale::hugging_face
