#include "runtime/base/thread_environment.h"

#include <cstdint>

namespace megascale::base {

std::vector<std::string> ThreadEnvironment(bool has_cores) {
  // Counted in the processor's pauses, of 10 to 50 ns.
  // A limit of the user's shell would change how many threads a job has, which it says itself.
  return {"OMP_WAIT_POLICY=passive", has_cores ? "GOMP_SPINCOUNT=10000" : "GOMP_SPINCOUNT=0",
          "OMP_THREAD_LIMIT=2147483647"};
}

bool HaveCores(int num_processes, int num_threads, double cores) {
  return static_cast<double>(int64_t{num_processes} * num_threads) <= cores;
}

}  // namespace megascale::base
