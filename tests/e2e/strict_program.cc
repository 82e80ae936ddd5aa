// The program with workers that compute on the strict device: the host cannot touch its memory, and
// its work runs late, in an order drawn by the seed in MEGASCALE_STRICT_SEED (default 1).
#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "cli/program.h"
#include "runtime/device/testing/strict_device.h"

int main(int argc, char** argv) {
  return megascale::cli::RunProgram(argc, argv, [](const auto& /*spec*/, const auto& /*place*/) {
    uint64_t seed = 1;
    const char* const text = std::getenv("MEGASCALE_STRICT_SEED");
    if (text != nullptr) (void)absl::SimpleAtoi(text, &seed);
    return megascale::device::StrictDevice::Create({.seed = seed});
  });
}
