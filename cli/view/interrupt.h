// Ctrl-C and SIGTERM as something to ask for instead of something that happens.
#pragma once

#include "runtime/base/fd.h"

namespace megascale::cli {

// While it lives, SIGINT and SIGTERM are held back and counted. Make it in the main thread before
// any other thread starts: threads inherit what is held back. Processes that a ProcessKeeper starts
// do not.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // How many came so far. Threads: one at a time.
  int Count();

 private:
  base::UniqueFd signals_;
  int count_ = 0;
};

}  // namespace megascale::cli
