#include "controlplane/driver/detection/agent_hello.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "controlplane/protocol/protocol.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;

constexpr size_t kTextBytesMax = 255;

}  // namespace

absl::Status CheckHello(const agent::Hello& hello) {
  RETURN_IF_ERROR(protocol::CheckVersions(hello));
  if (hello.node_id().empty() || hello.incarnation().empty() || hello.num_slots() < 0) {
    return absl::InvalidArgumentError(
        "the first message of an agent needs node_id, incarnation and num_slots");
  }
  for (const std::string* text :
       {&hello.node_id(), &hello.incarnation(), &hello.machine_id(), &hello.instruction_set(),
        &hello.hostname(), &hello.key(), &hello.numerics_version()}) {
    if (text->size() <= kTextBytesMax && base::Printable(*text) == *text) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the first message of an agent has '", base::Printable(*text, 60),
        "'; expected texts of at most ", kTextBytesMax, " bytes without control characters"));
  }
  return absl::OkStatus();
}

}  // namespace megascale::driver
