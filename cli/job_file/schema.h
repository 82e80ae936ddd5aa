// Properties of proto/job.proto that the reading and writing of job files need. Private to this
// folder.
#pragma once

#include <string>

#include "google/protobuf/descriptor.h"

namespace megascale::cli {

bool IsDuration(const google::protobuf::FieldDescriptor& field);

// True for a field that itself has fields.
bool IsSection(const google::protobuf::FieldDescriptor& field);

// "POSITION_EMBEDDING_ROTARY" -> "rotary". Every enum's first value is PREFIX_UNSPECIFIED.
std::string ShortName(const google::protobuf::EnumDescriptor& type, int value_index);

}  // namespace megascale::cli
