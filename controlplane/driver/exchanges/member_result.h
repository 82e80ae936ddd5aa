// What a member of an exchange reported about its part. Private to this folder.
#pragma once

#include <string>

#include "proto/agent.pb.h"

namespace megascale::driver {

// Returns the failure of the part as its machine reported it; "": it did not fail.
std::string FailureOfPart(const megascale::agent::v1::MachineTest& test);

// Returns why the part was not carried out; "": it was.
std::string NoteOfPart(const megascale::agent::v1::MachineTest& test);

// Whether the test ended without the machine's part: its agent, or the test's process, is silent.
bool GaveNoResult(const megascale::agent::v1::MachineTest& test);

// Longer texts of results are cut.
inline constexpr size_t kFailureBytesMax = 400;

}  // namespace megascale::driver
