// Tests in which a process is killed: what it leaves in shared memory must be whole.
#pragma once

#include <functional>

namespace megascale::base {

// Runs `body` in a child process and kills that (SIGKILL) once it has called what it is given, at
// whatever instruction it is by then. Fatal failure: the child ended, or could not be made.
void KillOnceReady(const std::function<void(const std::function<void()>& ready)>& body);

// The same, but the child goes no further than the call.
void RunAndKill(const std::function<void(const std::function<void()>& die_here)>& body);

}  // namespace megascale::base
