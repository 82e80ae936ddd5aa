#include "runtime/checkpoint/format/message_json.h"

#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::checkpoint {

std::string ToJson(const google::protobuf::Message& message, JsonStyle style) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = style == JsonStyle::kPretty;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
  return json;
}

absl::Status FromJson(absl::string_view json, absl::string_view file,
                      google::protobuf::Message* message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  message->Clear();
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), message, options);
  if (status.ok()) return absl::OkStatus();
  // Drop the parser's second line, which only shows the place in the text.
  const std::string why = status.ToString();
  return absl::DataLossError(absl::StrCat(file, ": is not a ", message->GetTypeName(),
                                          " as JSON: ", why.substr(0, why.find('\n')),
                                          "; it was damaged or half-written"));
}

}  // namespace megascale::checkpoint
