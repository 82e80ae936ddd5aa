#include "runtime/base/process/thread_environment.h"

#include <cstdint>

namespace megascale::base {

std::vector<std::string> ThreadEnvironment(bool has_cores) {
  // GOMP_SPINCOUNT counts the processor's pauses, of 10 to 50 ns. OMP_THREAD_LIMIT overrides a
  // limit of the user's shell, which would change the number of threads that the job asks for.
  return {"OMP_WAIT_POLICY=passive", has_cores ? "GOMP_SPINCOUNT=10000" : "GOMP_SPINCOUNT=0",
          "OMP_THREAD_LIMIT=2147483647"};
}

bool HaveCores(int num_processes, int num_threads, double cores) {
  return static_cast<double>(int64_t{num_processes} * num_threads) <= cores;
}

}  // namespace megascale::base
