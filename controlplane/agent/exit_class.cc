#include "controlplane/agent/exit_class.h"

#include <sys/wait.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/launch/process_keeper.h"
#include "runtime/base/fd.h"

namespace megascale::agent {
namespace {

constexpr size_t kCounterFileBytesMax = 1 << 20;

// Adds the count that stands behind "oom_kill " on a line of the file. False: no such file or line.
bool ReadCounter(const std::string& path, int64_t* count) {
  const absl::StatusOr<std::string> text = base::ReadFile(path, kCounterFileBytesMax);
  if (!text.ok()) return false;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::StartsWith(line, "oom_kill ")) continue;
    return absl::SimpleAtoi(line.substr(9), count);
  }
  return false;
}

}  // namespace

v1::RankFailure ClassifyEnd(const ProcessEnd& end, const std::optional<v1::RankFailure>& reported) {
  if (reported.has_value()) return *reported;
  const bool killed = (WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGKILL) ||
                      (WIFEXITED(end.status) && WEXITSTATUS(end.status) == 128 + SIGKILL);
  v1::RankFailure failure;
  failure.set_peer_rank(-1);
  if (killed && end.out_of_memory) {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_OUT_OF_MEMORY);
    failure.set_message("killed by the kernel: out of memory");
  } else {
    failure.set_failure_class(telemetry::v1::FAILURE_CLASS_EXITED);
    failure.set_message(end.status == 0 ? "exited with status 0 before its work was done"
                                        : launch::DescribeExit(end.status));
  }
  if (!end.last_lines.empty()) {
    failure.set_message(absl::StrCat(failure.message(), "; its last lines:\n", end.last_lines));
  }
  return failure;
}

int64_t ReadOutOfMemoryKills() {
  int64_t count = 0;
  const std::string groups = base::ReadFile("/proc/self/cgroup", kCounterFileBytesMax).value_or("");
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    // Inside a container the path may be that of the host's tree; its own group is the root then.
    for (const std::string& path : {parts[2], std::string()}) {
      if (parts[1] == "memory" &&
          ReadCounter(absl::StrCat("/sys/fs/cgroup/memory", path, "/memory.oom_control"), &count)) {
        return count;
      }
      if (parts[1].empty() &&
          ReadCounter(absl::StrCat("/sys/fs/cgroup", path, "/memory.events"), &count)) {
        return count;
      }
    }
  }
  ReadCounter("/proc/vmstat", &count);
  return count;
}

}  // namespace megascale::agent
