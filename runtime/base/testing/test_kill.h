// Kills processes in tests: the data that they leave in shared memory must be consistent.
#pragma once

#include <functional>

namespace megascale::base {

// Runs `body` in a child process and kills it (SIGKILL) at an arbitrary instruction after it has
// called `ready`. Fatal failure: the child ended, or could not be made.
void KillOnceReady(const std::function<void(const std::function<void()>& ready)>& body);

// The same, but the child never gets past the call of `die_here`.
void RunAndKill(const std::function<void(const std::function<void()>& die_here)>& body);

}  // namespace megascale::base
