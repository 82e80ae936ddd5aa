#include "runtime/base/thread_environment.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace megascale::base {

std::vector<std::string> ThreadEnvironment(bool has_cores) {
  // Counted in the processor's pauses, of 10 to 50 ns.
  // A limit of the user's shell would change how many threads a job has, which it says itself.
  return {"OMP_WAIT_POLICY=passive", has_cores ? "GOMP_SPINCOUNT=10000" : "GOMP_SPINCOUNT=0",
          "OMP_THREAD_LIMIT=2147483647"};
}

void EnterEnvironment(const std::vector<std::string>& environment, char** argv) {
  bool missing = false;
  for (const std::string& entry : environment) {
    const size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (std::getenv(name.c_str()) != nullptr) continue;
    missing = true;
    if (::setenv(name.c_str(), entry.c_str() + equals + 1, 0) != 0) return;
  }
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (missing && !error) ::execv(program.c_str(), argv);
}

bool HaveCores(int num_processes, int num_threads, double cores) {
  return static_cast<double>(int64_t{num_processes} * num_threads) <= cores;
}

}  // namespace megascale::base
