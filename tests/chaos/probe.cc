#include "tests/chaos/probe.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::chaos {
namespace {

using telemetry::v1::RankStatus;

constexpr absl::Duration kRefresh = absl::Milliseconds(3);

struct Found {
  std::string path;
  std::string inode;
};

// Finds the descriptor of the agent's heartbeat region; the highest number is the newest.
std::optional<Found> FindHeartbeats(pid_t agent) {
  std::optional<Found> found;
  std::error_code error;
  const std::string fds = absl::StrCat("/proc/", agent, "/fd");
  for (auto it = std::filesystem::directory_iterator(fds, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(it->path(), gone).string();
    if (gone || !absl::StrContains(target, "memfd:megascale-heartbeats")) continue;
    struct stat status;
    if (::stat(it->path().c_str(), &status) != 0) continue;
    found = Found{it->path().string(), absl::StrCat(status.st_ino)};
  }
  return found;
}

}  // namespace

void AgentProbe::Refresh() {
  const absl::Duration now = base::RealClock().Monotonic();
  if (now - refreshed_ < kRefresh) return;
  refreshed_ = now;
  const std::optional<Found> found = FindHeartbeats(agent_);
  if (!found.has_value()) {
    heartbeats_.reset();
    inode_.clear();
    return;
  }
  if (found->inode == inode_) return;
  auto mapped =
      base::SharedMemory::Map(base::UniqueFd(::open(found->path.c_str(), O_RDWR | O_CLOEXEC)));
  heartbeats_ = mapped.ok() ? *std::move(mapped) : nullptr;
  inode_ = mapped.ok() ? found->inode : "";
}

int AgentProbe::NumSlots() const {
  if (heartbeats_ == nullptr) return 0;
  int slots = 1;
  while (telemetry::HeartbeatBytes(slots + 1) <= heartbeats_->size_bytes()) ++slots;
  return slots;
}

std::vector<RankStatus> AgentProbe::Ranks() {
  Refresh();
  std::vector<RankStatus> ranks;
  const absl::Duration now = base::RealClock().Monotonic();
  // The last slot is the host's.
  for (int slot = 0; slot + 1 < NumSlots(); ++slot) {
    ranks.push_back(telemetry::ReadHeartbeat(*heartbeats_, slot, now));
  }
  return ranks;
}

pid_t AgentProbe::HostPid() {
  Refresh();
  if (heartbeats_ == nullptr) return 0;
  return telemetry::ReadHeartbeat(*heartbeats_, NumSlots() - 1, base::RealClock().Monotonic())
      .pid();
}

bool IsAt(Aim aim, const RankStatus& status) {
  if (status.pid() == 0) return false;
  const auto id = plan::InstructionId::FromPacked(status.instruction());
  const bool runs = status.activity() == telemetry::v1::ACTIVITY_INSTRUCTION;
  switch (aim) {
    case Aim::kStarting:
      return status.phase() == telemetry::v1::PHASE_STARTING;
    case Aim::kLoading:
      return status.phase() == telemetry::v1::PHASE_LOADING;
    case Aim::kFirstStep:
      return status.phase() == telemetry::v1::PHASE_FIRST_STEP;
    case Aim::kSnapshot:
      return status.phase() == telemetry::v1::PHASE_CHECKPOINT;
    case Aim::kForward:
      return runs && id.operation() == plan::OpKind::kForward;
    case Aim::kBackward:
      return runs && id.operation() == plan::OpKind::kBackward;
    case Aim::kCollective:
      return runs && plan::NeedsPeers(id) && !plan::IsPass(id.operation());
    case Aim::kAnyTime:
    case Aim::kSockets:
    case Aim::kShardWrite:
    case Aim::kCommit:
    case Aim::kRecovery:
      return false;
  }
  return false;
}

bool IsBeingWritten(const std::string& checkpoints) {
  const auto steps = checkpoint::ListStepDirectories(checkpoints);
  if (!steps.ok() || steps->empty()) return false;
  const std::filesystem::path newest =
      std::filesystem::path(checkpoints) /
      checkpoint::StepDirectoryName(steps->back().step(), steps->back().attempt());
  std::error_code error;
  return !std::filesystem::is_empty(newest, error) && !error &&
         !std::filesystem::exists(newest / std::string(checkpoint::kManifestFile), error);
}

int64_t NewestComplete(const std::string& checkpoints) {
  const auto steps = checkpoint::ListStepDirectories(checkpoints);
  if (!steps.ok()) return 0;
  for (auto it = steps->rbegin(); it != steps->rend(); ++it) {
    const std::filesystem::path manifest =
        std::filesystem::path(checkpoints) /
        checkpoint::StepDirectoryName(it->step(), it->attempt()) /
        std::string(checkpoint::kManifestFile);
    std::error_code error;
    if (std::filesystem::exists(manifest, error)) return it->step();
  }
  return 0;
}

}  // namespace megascale::chaos
