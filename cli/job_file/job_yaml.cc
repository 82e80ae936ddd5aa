// The part of job_file.h that writes.
#include <charconv>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/job_file/job_file.h"
#include "cli/job_file/schema.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/message.h"

namespace megascale::cli {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using job::v1::JobSpec;

namespace {

std::string YamlText(const std::string& text) {
  bool plain = !text.empty() && (absl::ascii_isalpha(text[0]) || text[0] == '/') && text != "null";
  for (const char c : text)
    plain = plain && (absl::ascii_isalnum(c) || absl::StrContains("._/+-", std::string(1, c)));
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppend(&quoted, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// Returns the shortest text that reads back as the same number.
std::string NumberText(double value) {
  char buffer[32];
  const std::to_chars_result result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return std::string(buffer, result.ptr);
}

std::string DurationText(const google::protobuf::Duration& duration) {
  return absl::FormatDuration(absl::Seconds(duration.seconds()) +
                              absl::Nanoseconds(duration.nanos()));
}

// Returns the value of a field that is neither a list nor a section; "": leave the field out.
std::string ValueText(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  if (field.has_presence() && !reflection.HasField(message, &field)) return "";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(reflection.GetInt64(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberText(reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int index = reflection.GetEnum(message, &field)->index();
      return index == 0 ? "" : ShortName(*field.enum_type(), index);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = reflection.GetString(message, &field);
      return text.empty() ? "" : YamlText(text);
    }
    default:
      return DurationText(
          static_cast<const google::protobuf::Duration&>(reflection.GetMessage(message, &field)));
  }
}

void AppendSection(const Message& message, const std::string& indent, std::string* yaml) {
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.is_repeated()) {
      const int count = reflection.FieldSize(message, &field);
      if (count > 0) absl::StrAppend(yaml, indent, field.name(), ":\n");
      for (int item = 0; item < count; ++item) {
        absl::StrAppend(yaml, indent, "  - ",
                        YamlText(reflection.GetRepeatedString(message, &field, item)), "\n");
      }
    } else if (IsSection(field)) {
      if (!reflection.HasField(message, &field)) continue;
      absl::StrAppend(yaml, indent, field.name(), ":\n");
      AppendSection(reflection.GetMessage(message, &field), indent + "  ", yaml);
    } else if (const std::string value = ValueText(message, field); !value.empty()) {
      absl::StrAppend(yaml, indent, field.name(), ": ", value, "\n");
    }
  }
}

}  // namespace

std::string ToYaml(const JobSpec& spec) {
  std::string yaml;
  AppendSection(spec, "", &yaml);
  return yaml;
}

}  // namespace megascale::cli
