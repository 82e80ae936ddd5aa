// Counts Ctrl-C and SIGTERM, so that they do not end the program; the program polls the count.
#pragma once

#include "runtime/base/fd.h"

namespace megascale::cli {

// While an object exists, SIGINT and SIGTERM are blocked and counted. Make it in the main thread
// before any other thread starts, because threads inherit the blocked signals. Processes that a
// ProcessKeeper starts do not inherit the blocked signals.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Returns the number of signals so far. Threads: one at a time.
  int Count();

 private:
  base::UniqueFd signals_;
  int count_ = 0;
};

}  // namespace megascale::cli
