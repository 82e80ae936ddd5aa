// Messages as JSON text, with the fields' own names. Keeps the heavy headers of the library out of
// the way.
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

// Replaces `message`. Unknown fields are skipped: a newer version may have written them.
// Errors: DataLoss - with `file` and what the parser says.
absl::Status FromJson(absl::string_view json, absl::string_view file,
                      google::protobuf::Message* message);

}  // namespace megascale::checkpoint
