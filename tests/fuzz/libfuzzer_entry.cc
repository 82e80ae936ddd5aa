// The targets under libFuzzer, which measures coverage and keeps inputs that reach new code.
// MEGASCALE_FUZZ_TARGET names the target: ./dev fuzz --libfuzzer TARGET.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/fuzz/target.h"

namespace {

const megascale::fuzz::Target& Chosen() {
  static const megascale::fuzz::Target* const target = [] {
    const char* name = std::getenv("MEGASCALE_FUZZ_TARGET");
    const auto* found = megascale::fuzz::FindTarget(name == nullptr ? "" : name);
    if (found != nullptr) return found;
    std::fprintf(stderr, "fuzz: MEGASCALE_FUZZ_TARGET: expected the name of a target\n");
    std::exit(2);
  }();
  return *target;
}

}  // namespace

// libFuzzer's own mutation; the linker finds it in libFuzzer.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Chosen().run({reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max,
                                          unsigned int seed) {
  megascale::fuzz::Random random(seed);
  if (Chosen().mutate == nullptr || random.OneIn(2)) return LLVMFuzzerMutate(data, size, size_max);
  const std::string mutated = Chosen().mutate({reinterpret_cast<const char*>(data), size}, &random);
  const size_t taken = std::min(mutated.size(), size_max);
  std::memcpy(data, mutated.data(), taken);
  return taken;
}
