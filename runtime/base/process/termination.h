// Keeps SIGTERM from ending a process whose agent drains. A scheduler that takes a machine away, as
// scancel of Slurm does, sends SIGTERM to the agent and to all its processes at once; the ranks
// then have to go on to the end of a step and to their checkpoint. Threads: any.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

namespace megascale::base {

class Termination {
 public:
  // Holds SIGTERM back. If the agent has not said within 2 s of the signal that it drains, the
  // signal ends the process. Make it before any thread starts, because threads inherit the mask.
  Termination();

  // The agent drains: the process ends when the agent asks it to.
  void OnDraining();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool draining = false;
  };
  static void Watch(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_ = std::make_shared<State>();  // shared with a thread
};

}  // namespace megascale::base
