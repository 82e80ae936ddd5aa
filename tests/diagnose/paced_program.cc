// The program, whose workers compute on the paced device (paced_device.h).
#include <cstdlib>

#include "cli/program.h"
#include "tests/diagnose/paced_device.h"

int main(int argc, char** argv) {
  return megascale::cli::RunProgram(
      argc, argv,
      [](const auto& /*spec*/, const megascale::actors::DevicePlace& place)
          -> absl::StatusOr<std::unique_ptr<megascale::device::Device>> {
        const char* const folder = std::getenv("MEGASCALE_PACE");
        return megascale::injection::MakePacedDevice(place.local_rank,
                                                     folder == nullptr ? "/nonexistent" : folder);
      });
}
