#include "runtime/hugging_face/end_tokens.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/json_nesting.h"
#include "runtime/base/text/printable.h"
#include "runtime/hugging_face/config/json_fields.h"
#include "runtime/hugging_face/folder.h"
#include "runtime/hugging_face/kept_files.h"
#include "runtime/hugging_face/weights.h"

namespace megascale::hugging_face {
namespace {

using Json = nlohmann::json;

constexpr char kField[] = "eos_token_id";

absl::Status Refused(absl::string_view file, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

bool IsTokenId(const Json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= INT32_MAX;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseEndTokens(absl::string_view json,
                                                    absl::string_view file) {
  const absl::Status nesting = base::CheckJsonNesting(json);
  if (!nesting.ok()) return Refused(file, nesting.message());
  const Json config = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Refused(file, "is not a JSON object");
  const auto found = config.find(kField);
  std::vector<int32_t> ids;
  if (found == config.end() || found->is_null()) return ids;
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& id : list) {
    if (!IsTokenId(id)) {
      const std::string shown = id.dump(-1, ' ', false, Json::error_handler_t::replace);
      return Refused(file, absl::StrCat(kField, found->is_array() ? " has " : " is ",
                                        base::Printable(shown, kShownBytesMax),
                                        ": expected a token id, or a list of them"));
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::StatusOr<std::vector<int32_t>> ReadEndTokens(const std::string& folder) {
  for (const absl::string_view name : {absl::string_view(kGenerationConfigFile), kConfigFile}) {
    const std::string path = absl::StrCat(folder, "/", name);
    const absl::StatusOr<std::string> text = base::ReadFile(path, kConfigBytesMax);
    if (absl::IsNotFound(text.status())) continue;
    if (!text.ok()) return text.status();
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, ParseEndTokens(*text, path));
    if (!ids.empty()) return ids;
  }
  return std::vector<int32_t>();
}

}  // namespace megascale::hugging_face
