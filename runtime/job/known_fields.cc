#include "runtime/job/known_fields.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/base/version.h"

namespace megascale::job {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

absl::Status Unknown(const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, ", which megascale ", base::kVersion,
                   " on this machine does not know; upgrade it, or leave that out of the job"));
}

absl::Status CheckEnum(const Message& message, const FieldDescriptor* field,
                       const std::string& name) {
  const Reflection& values = *message.GetReflection();
  std::vector<int> numbers;
  if (field->is_repeated()) {
    for (int i = 0; i < values.FieldSize(message, field); ++i) {
      numbers.push_back(values.GetRepeatedEnumValue(message, field, i));
    }
  } else {
    numbers.push_back(values.GetEnumValue(message, field));
  }
  for (const int number : numbers) {
    if (field->enum_type()->FindValueByNumber(number) != nullptr) continue;
    return Unknown(absl::StrCat(name, ": has value ", number));
  }
  return absl::OkStatus();
}

// `prefix`: the path of `message` in the job, "parallel.".
absl::Status CheckMessage(const Message& message, const std::string& prefix) {
  const Reflection& values = *message.GetReflection();
  const auto& unknown = values.GetUnknownFields(message);
  if (!unknown.empty()) {
    return Unknown(absl::StrCat(prefix.empty() ? "job" : prefix.substr(0, prefix.size() - 1),
                                ": has field ", unknown.field(0).number()));
  }
  std::vector<const FieldDescriptor*> fields;
  values.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string name = absl::StrCat(prefix, field->name());
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      RETURN_IF_ERROR(CheckEnum(message, field, name));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && field->is_repeated()) {
      for (int i = 0; i < values.FieldSize(message, field); ++i) {
        RETURN_IF_ERROR(
            CheckMessage(values.GetRepeatedMessage(message, field, i), absl::StrCat(name, ".")));
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      RETURN_IF_ERROR(CheckMessage(values.GetMessage(message, field), absl::StrCat(name, ".")));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckIsKnown(const v1::JobSpec& spec) { return CheckMessage(spec, ""); }

}  // namespace megascale::job
