// Keeps a thread at the sockets of this process's gRPC servers. In a server that has a callback
// service, only the threads of gRPC's callback queue read, and each of them sleeps for 100 ms
// whenever that queue had nothing for a second (as of gRPC 1.51). A driver that hears no agent
// would so answer no call in 100 ms of each 1.1 s. Events of callback services still wait for those
// threads; agents report too often for that.
#pragma once

#include <memory>

namespace megascale::driver {

// Reads while it exists, for services that use the synchronous API.
class SteadyPoller {
 public:
  SteadyPoller();
  ~SteadyPoller();
  SteadyPoller(const SteadyPoller&) = delete;
  SteadyPoller& operator=(const SteadyPoller&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::driver
