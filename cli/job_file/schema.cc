#include "cli/job_file/schema.h"

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace megascale::cli {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

bool IsDuration(const FieldDescriptor& field) {
  return field.message_type() != nullptr &&
         field.message_type()->full_name() == "google.protobuf.Duration";
}

bool IsSection(const FieldDescriptor& field) {
  return field.message_type() != nullptr && !IsDuration(field);
}

std::string ShortName(const EnumDescriptor& type, int value_index) {
  constexpr absl::string_view kZero = "UNSPECIFIED";
  const std::string& zero = type.value(0)->name();
  return absl::AsciiStrToLower(type.value(value_index)->name().substr(zero.size() - kZero.size()));
}

}  // namespace megascale::cli
