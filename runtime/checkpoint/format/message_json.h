// Converts messages to and from JSON text, with the field names of the .proto file. Keeps the large
// headers of the library out of other files.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

namespace megascale::checkpoint {

enum class JsonStyle { kOneLine, kPretty };

std::string ToJson(const google::protobuf::Message& message, JsonStyle style);

// Overwrites `message`. Unknown fields are skipped: a newer version may have written them. Errors:
// DataLoss - names `file` and gives the parser's message.
absl::Status FromJson(absl::string_view json, absl::string_view file,
                      google::protobuf::Message* message);

}  // namespace megascale::checkpoint
