// Tells a process that the kernel killed for lack of memory from one that somebody killed. Private
// to this folder.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace megascale::agent {

// Watches the kernel's count of processes killed for lack of memory: in this process's cgroup
// (version 1 or 2), else on the whole machine.
class OutOfMemoryWatch {
 public:
  // Call now and then, so that a kill of long ago is not taken for one of now.
  void Sample(absl::Duration now);
  // Whether the count rose within the last 10 to 20 s.
  bool Rose() const;

 private:
  static int64_t ReadCount();

  int64_t older_ = ReadCount();
  int64_t newer_ = older_;
  absl::Duration sampled_ = -absl::InfiniteDuration();
};

}  // namespace megascale::agent
