// What the first message of an agent must have, whoever the agent is. Whether it may take its node
// id is CheckJoin's question (core/driver_core.h).
// Pure; threads: plain functions.
#pragma once

#include "absl/status/status.h"
#include "proto/agent.pb.h"

namespace megascale::driver {

// Errors: FailedPrecondition - the agent's version and the driver's do not work together;
// InvalidArgument - a field is missing or out of range, or a text is longer than 255 bytes or not
// printable. (The driver keeps and shows these texts for good.)
absl::Status CheckHello(const megascale::agent::v1::Hello& hello);

}  // namespace megascale::driver
