// Which versions of the agents' protocol this program speaks. Its newest is
// agent::v1::PROTOCOL_VERSION_CURRENT. docs/versions.md has the rule: a program speaks its own
// version and that of the minor release before it. When two programs meet, the newer one knows
// whether it speaks the version of the older one.
#pragma once

#include "absl/status/status.h"
#include "proto/agent.pb.h"

namespace megascale::protocol {

// The oldest version that driver and agents of this program speak. Raise it only after a minor
// release that spoke both the old and the new version.
inline constexpr int kOldestVersion = 5;

// The maximum number of worker processes that an agent runs; the driver's default for what it takes
// of one agent.
inline constexpr int kSlotsMax = 992;

// Writes into `hello` the versions that this program's agent speaks.
void SetVersions(agent::v1::Hello* hello);

// Returns OK if this program's driver works with the agent that says `hello`. Errors:
// FailedPrecondition - neither speaks the other's version; the message is for the agent's log.
absl::Status CheckVersions(const agent::v1::Hello& hello);

}  // namespace megascale::protocol
