// The fields of a tokenizer.json that this program knows: it reads them, or they do not change the
// tokens of a text. Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace megascale::tokenizer {

// `section`: normalizer, pre_tokenizer, post_processor, decoder or model, and `type` a component's;
// "" for both: of the file itself; "added_tokens" and "": of an added token.
bool IsKnownField(absl::string_view section, absl::string_view type, absl::string_view field);

// Returns the paths of fields that this program does not know, at most 1,000 of them.
// Components of types that are not supported are left out, because they are refused.
std::vector<std::string> UnknownFieldsOf(const nlohmann::json& file);

}  // namespace megascale::tokenizer
