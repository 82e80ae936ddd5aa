#include "controlplane/protocol/protocol.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/version.h"

namespace megascale::protocol {
namespace {

constexpr int kNewestVersion = agent::v1::PROTOCOL_VERSION_CURRENT;
static_assert(kOldestVersion <= kNewestVersion);
constexpr size_t kNodeIdShownMax = 60;

std::string Range(int oldest, int newest) {
  return oldest == newest ? absl::StrCat(newest) : absl::StrCat(oldest, " to ", newest);
}

}  // namespace

void SetVersions(agent::v1::Hello* hello) {
  hello->set_protocol_version(kNewestVersion);
  hello->set_oldest_protocol_version(kOldestVersion);
}

absl::Status CheckVersions(const agent::v1::Hello& hello) {
  const int newest = hello.protocol_version();
  // An agent that names no oldest version speaks only one.
  const int oldest = hello.oldest_protocol_version() > 0 ? hello.oldest_protocol_version() : newest;
  if (newest >= kOldestVersion && oldest <= kNewestVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "node ", base::Printable(hello.node_id(), kNodeIdShownMax), ": its agent speaks version ",
      Range(oldest, newest), " of the agents' protocol, the driver (megascale ", base::kVersion,
      ") speaks ", Range(kOldestVersion, kNewestVersion), "; upgrade the ",
      newest < kOldestVersion ? "agent" : "driver",
      ", one minor release after the other; workers of the agent go on until it is drained"));
}

}  // namespace megascale::protocol
