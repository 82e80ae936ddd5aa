// The helper process of a ProcessKeeper: what runs after the fork. Private to this folder.
#pragma once

#include <csignal>
#include <string>
#include <vector>

#include "controlplane/launch/keeper_wire.h"

namespace megascale::launch {

// What the keeper takes as data. Blocked before the fork: a signal to the whole group of processes
// that comes at once would end the keeper otherwise.
sigset_t KeeperSignals();

// Serves until the parent is gone, then kills and reaps everything, removes `remove_at_end` and
// exits.
[[noreturn]] void RunKeeperProcess(const KeeperSetup& setup,
                                   const std::vector<std::string>& remove_at_end);

}  // namespace megascale::launch
