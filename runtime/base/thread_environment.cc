#include "runtime/base/thread_environment.h"

#include <cstdint>
#include <thread>

namespace megascale::base {

std::vector<std::string> ThreadEnvironment(bool has_cores) {
  // Counted in the processor's pauses, of 10 to 50 ns.
  return {"OMP_WAIT_POLICY=passive", has_cores ? "GOMP_SPINCOUNT=10000" : "GOMP_SPINCOUNT=0"};
}

bool HaveCores(int num_processes, int num_threads) {
  return int64_t{num_processes} * num_threads <= std::thread::hardware_concurrency();
}

}  // namespace megascale::base
