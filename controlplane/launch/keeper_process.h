// The helper process of a ProcessKeeper: the code that runs after the fork. Private to this folder.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "controlplane/launch/keeper_wire.h"

namespace megascale::launch {

// Returns the signals that the keeper reads from a signalfd. They are blocked before the fork,
// because an early signal to the process group would otherwise end the keeper.
sigset_t KeeperSignals();

// Serves until the parent is gone, then kills and reaps everything, removes `remove_at_end` and
// exits.
[[noreturn]] void RunKeeperProcess(const KeeperSetup& setup,
                                   const std::vector<std::string>& remove_at_end);

}  // namespace megascale::launch
