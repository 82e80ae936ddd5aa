// Keeps a thread at the sockets of this process's gRPC connections. The threads that serve gRPC's
// callback API stop reading for 100 ms whenever they had nothing to do for a second (as of gRPC
// 1.51), and calls and messages that arrive meanwhile wait.
#pragma once

#include <memory>

namespace megascale::security {

// Reads from its construction to its destruction. Costs no time while nothing arrives.
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

}  // namespace megascale::security
