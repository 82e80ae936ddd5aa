// The program. Starts no thread before a command runs: driver, agent and local fork first.
#include "cli/program.h"
#include "runtime/device/cpu_device.h"

int main(int argc, char** argv) {
  return megascale::cli::RunProgram(
      argc, argv, [](const auto& /*spec*/) { return megascale::device::MakeCpuDevice(); });
}
