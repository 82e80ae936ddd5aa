#include "tests/versions/unknown.h"

#include <google/protobuf/descriptor.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace megascale::versions {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr int kNumber = 30001;  // of the first field that no version has
constexpr int kValue = 1000;    // of an enumeration

// Calls `visit` for `message` and for each message in it.
void ForEachMessage(Message* message, const std::function<void(Message*)>& visit) {
  const Reflection& values = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  values.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      ForEachMessage(values.MutableMessage(message, field), visit);
      continue;
    }
    for (int i = 0; i < values.FieldSize(*message, field); ++i) {
      ForEachMessage(values.MutableRepeatedMessage(message, field, i), visit);
    }
  }
  visit(message);
}

bool IsOfProtocol(const FieldDescriptor& field) {
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM || field.is_repeated()) return false;
  const std::string& package = field.enum_type()->file()->package();
  return package == "megascale.agent.v1" || package == "megascale.telemetry.v1";
}

}  // namespace

void AddUnknownFields(Message* message) {
  ForEachMessage(message, [](Message* one) {
    auto* unknown = one->GetReflection()->MutableUnknownFields(one);
    unknown->AddVarint(kNumber, 7);
    unknown->AddLengthDelimited(kNumber + 1, "of a newer version");
  });
}

void ForEachUnknownValue(const Message& message, const std::function<void(const Message&)>& take) {
  const std::unique_ptr<Message> whole(message.New());
  whole->CopyFrom(message);
  std::set<const FieldDescriptor*> kinds;
  ForEachMessage(whole.get(), [&](Message* one) {
    std::vector<const FieldDescriptor*> fields;
    one->GetReflection()->ListFields(*one, &fields);
    for (const FieldDescriptor* field : fields) {
      if (IsOfProtocol(*field)) kinds.insert(field);
    }
  });
  for (const FieldDescriptor* kind : kinds) {
    whole->CopyFrom(message);
    ForEachMessage(whole.get(), [&](Message* one) {
      if (one->GetDescriptor() != kind->containing_type()) return;
      if (one->GetReflection()->HasField(*one, kind)) {
        one->GetReflection()->SetEnumValue(one, kind, kValue);
      }
    });
    take(*whole);
  }
}

}  // namespace megascale::versions
