// The key that identifies an agent: random bytes, made at its first start and kept in its state
// directory. An agent that is started again has the same key and takes its node id back at once. An
// agent with another key that claims the same node id is refused while the first one is healthy.
// Private to this folder. Blocking: storage.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace megascale::agent {

// The name of the file in the state directory: 64 hexadecimal digits, readable by its owner only.
inline constexpr char kAgentKeyFile[] = "agent.key";

// Returns the SHA-256, hexadecimal, of the key in `directory`; makes the key if there is none. The
// driver identifies the agent by this value, so only agent and driver may know it.
// Requires: `directory` exists, and the caller holds its lock.
// Errors: DataLoss - the file is not a key; the message says what to do; those of the file system.
absl::StatusOr<std::string> LoadOrMakeKey(const std::string& directory);

}  // namespace megascale::agent
