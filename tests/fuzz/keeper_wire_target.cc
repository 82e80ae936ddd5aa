#include <cstring>
#include <string>

#include "controlplane/launch/keeper_wire.h"
#include "runtime/base/check.h"
#include "runtime/base/frame.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {

// The first byte says how many descriptors came with the payload.
void RunKeeperWire(absl::string_view input) {
  if (input.empty()) return;
  constexpr int kDescriptors = 4;
  base::Frame frame;
  frame.payload = std::string(input.substr(1));
  frame.fds.resize(static_cast<unsigned char>(input[0]) % kDescriptors);
  launch::KeeperCommand command;
  launch::SpawnCommand spawn;
  if (!launch::ReadCommand(frame, &command) || !launch::ReadSpawn(&frame, &spawn)) return;
  // The strings lie in the payload, one after the other.
  size_t text_bytes = std::strlen(spawn.program) + 1;
  for (const char* text : spawn.arguments) text_bytes += std::strlen(text) + 1;
  for (const char* text : spawn.environment) text_bytes += std::strlen(text) + 1;
  MEGASCALE_CHECK(text_bytes + sizeof(command) <= frame.payload.size());
  MEGASCALE_CHECK(spawn.descriptors.size() <= frame.fds.size());
}

}  // namespace megascale::fuzz
