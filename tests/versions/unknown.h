// Messages as a newer version would write them: with fields and values that this version does not
// know.
#pragma once

#include <google/protobuf/message.h>

#include <functional>

namespace megascale::versions {

// Adds fields that no version knows to `message` and to each message in it.
void AddUnknownFields(google::protobuf::Message* message);

// Calls `take` for each enumeration field that `message` has somewhere, with a copy of `message` in
// which all fields of this kind have a value that no version knows. Only enumerations of the
// agents' protocol and of telemetry: those of a job say what it computes, and machines may refuse
// them.
void ForEachUnknownValue(const google::protobuf::Message& message,
                         const std::function<void(const google::protobuf::Message&)>& take);

}  // namespace megascale::versions
