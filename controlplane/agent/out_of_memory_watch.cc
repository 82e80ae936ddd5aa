#include "controlplane/agent/out_of_memory_watch.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kWatchInterval = absl::Seconds(10);
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

void OutOfMemoryWatch::Sample(absl::Duration now) {
  if (now - sampled_ < kWatchInterval) return;
  sampled_ = now;
  older_ = newer_;
  newer_ = ReadCount();
}

bool OutOfMemoryWatch::Rose() const { return ReadCount() > older_; }

int64_t OutOfMemoryWatch::ReadCount() {
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
