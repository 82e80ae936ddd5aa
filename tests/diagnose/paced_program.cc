// The program, whose workers compute on the paced device (paced_device.h), and whose hosts read
// from storage that can be slow (slow_storage.h).
#include <cstdlib>
#include <string>

#include "cli/program.h"
#include "tests/diagnose/paced_device.h"
#include "tests/diagnose/slow_storage.h"

int main(int argc, char** argv) {
  const char* const folder = std::getenv("MEGASCALE_PACE");
  if (folder != nullptr && argc > 1 && std::string(argv[1]) == "host") {
    megascale::injection::SlowStorage(folder);
  }
  return megascale::cli::RunProgram(
      argc, argv,
      [folder](const auto& /*spec*/, const megascale::actors::DevicePlace& place)
          -> absl::StatusOr<std::unique_ptr<megascale::device::Device>> {
        return megascale::injection::MakePacedDevice(place.local_rank,
                                                     folder == nullptr ? "" : folder);
      });
}
