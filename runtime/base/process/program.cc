#include "runtime/base/process/program.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace megascale::base {

std::string ProgramPath() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
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
  if (missing) ::execv(ProgramPath().c_str(), argv);
}

}  // namespace megascale::base
