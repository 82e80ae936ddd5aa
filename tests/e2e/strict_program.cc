// The program with workers that compute on the strict device: the host cannot touch its memory, and
// its work runs late, in an order drawn by the seed in MEGASCALE_STRICT_SEED (default 1). While the
// file that MEGASCALE_STRICT_GONE names exists, the machine has no device.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "cli/program.h"
#include "runtime/device/testing/strict_device.h"

namespace {

absl::StatusOr<std::unique_ptr<megascale::device::Device>> MakeDevice(
    const megascale::job::v1::JobSpec& /*spec*/, const megascale::actors::DevicePlace& /*place*/) {
  const char* const gone = std::getenv("MEGASCALE_STRICT_GONE");
  if (gone != nullptr && ::access(gone, F_OK) == 0) {
    return absl::FailedPreconditionError("this machine has no strict device");
  }
  uint64_t seed = 1;
  const char* const text = std::getenv("MEGASCALE_STRICT_SEED");
  if (text != nullptr) (void)absl::SimpleAtoi(text, &seed);
  return megascale::device::StrictDevice::Create({.seed = seed});
}

}  // namespace

int main(int argc, char** argv) { return megascale::cli::RunProgram(argc, argv, &MakeDevice); }
