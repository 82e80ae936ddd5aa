#include "runtime/base/process/resource_limit.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <limits>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/fd.h"

namespace megascale::base {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
// Version 1 expresses "no limit" by a number close to the largest one.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 60;
constexpr char kMachineSource[] = "MemAvailable of this machine";

std::string Read(const std::string& path) { return ReadFile(path, kFileBytesMax).value_or(""); }

// Reads a file that holds one number; nullopt for "max", or if there is no such file.
std::optional<int64_t> ReadNumber(const std::string& path) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(Read(path)), &number)) return std::nullopt;
  return number;
}

// Returns the number after `name` at the beginning of a line: "oom_kill 3", "MemAvailable:  12 kB".
std::optional<int64_t> ReadField(const std::string& path, absl::string_view name) {
  const std::string text = Read(path);
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name) || !absl::StartsWith(line, " ")) continue;
    absl::ConsumeSuffix(&line, " kB");
    int64_t number = 0;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &number)) return number;
  }
  return std::nullopt;
}

// Adds the group at `path` below `mount`, then its ancestors. If the path does not exist, it
// belongs to the host's tree and is seen from inside a container: the own group is then the root of
// the mount.
void AddGroups(const std::string& mount, std::string path, int version,
               std::vector<ControlGroup>* groups) {
  while (!path.empty() && path.back() == '/') path.pop_back();
  if (::access(absl::StrCat(mount, path).c_str(), F_OK) != 0) path.clear();
  for (;;) {
    groups->push_back({absl::StrCat(mount, path), version});
    const size_t parent = path.rfind('/');
    if (parent == std::string::npos) return;
    path.resize(parent);
  }
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* droppable;  // field of memory.stat: page cache that was not used lately
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file"};

std::optional<MemoryLimit> MemoryLimitOf(const ControlGroup& group) {
  const GroupFiles& files = group.version == 1 ? kVersion1 : kVersion2;
  const auto file = [&](const char* name) { return absl::StrCat(group.directory, "/", name); };
  const std::optional<int64_t> bytes = ReadNumber(file(files.limit));
  if (!bytes.has_value() || *bytes >= kUnlimitedBytes) return std::nullopt;
  const int64_t used = ReadNumber(file(files.usage)).value_or(0);
  const int64_t droppable = ReadField(file("memory.stat"), files.droppable).value_or(0);
  MemoryLimit limit;
  limit.limit_bytes = *bytes;
  limit.available_bytes = std::clamp<int64_t>(*bytes - used + droppable, 0, *bytes);
  limit.source = absl::StrCat(files.limit, " of ", group.directory);
  return limit;
}

std::optional<MemoryLimit> MemoryLimitOfMachine(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const std::optional<int64_t> available = ReadField(path, "MemAvailable:");
  if (!available.has_value()) return std::nullopt;
  MemoryLimit limit;
  limit.available_bytes = *available << 10;
  limit.limit_bytes = ReadField(path, "MemTotal:").value_or(*available) << 10;
  limit.source = kMachineSource;
  return limit;
}

// Returns the limits of the machine and of every group, as far as they can be read.
std::vector<MemoryLimit> MemoryLimits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  if (auto machine = MemoryLimitOfMachine(root)) limits.push_back(*std::move(machine));
  for (const ControlGroup& group : ControlGroupsOf("memory", root)) {
    if (auto limit = MemoryLimitOf(group)) limits.push_back(*std::move(limit));
  }
  return limits;
}

template <typename Key>
std::optional<MemoryLimit> FirstWithLeast(std::vector<MemoryLimit> limits, Key key) {
  const auto least = std::min_element(
      limits.begin(), limits.end(),
      [&](const auto& a, const auto& b) { return std::invoke(key, a) < std::invoke(key, b); });
  if (least == limits.end()) return std::nullopt;
  return std::move(*least);
}

// Reads a group's quota. Version 1: two files in microseconds; a quota of -1 means no limit.
// Version 2: "QUOTA PERIOD" in one file; a quota of "max" means no limit.
std::optional<CpuLimit> CpuLimitOf(const ControlGroup& group) {
  const char* const name = group.version == 1 ? "cpu.cfs_quota_us" : "cpu.max";
  const std::string text = Read(absl::StrCat(group.directory, "/", name));
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(text), absl::MaxSplits(' ', 1));
  int64_t quota = 0;
  int64_t period = 0;
  if (!absl::SimpleAtoi(parts.first, &quota) || quota <= 0) return std::nullopt;
  if (group.version == 1) {
    period = ReadNumber(absl::StrCat(group.directory, "/cpu.cfs_period_us")).value_or(0);
  } else if (!absl::SimpleAtoi(parts.second, &period)) {
    return std::nullopt;
  }
  if (period <= 0) return std::nullopt;
  return CpuLimit{static_cast<double>(quota) / static_cast<double>(period),
                  absl::StrCat(name, " of ", group.directory)};
}

}  // namespace

std::vector<ControlGroup> ControlGroupsOf(const std::string& controller, const std::string& root) {
  std::vector<ControlGroup> groups;
  const std::string own = Read(root + "/proc/self/cgroup");
  for (absl::string_view line : absl::StrSplit(own, '\n', absl::SkipEmpty())) {
    // "4:memory:/path" in version 1, "0::/path" in version 2.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      // Controllers mounted together usually also have a link under each one's name.
      const std::string alone = absl::StrCat(root, "/sys/fs/cgroup/", controller);
      const bool linked = ::access(alone.c_str(), F_OK) == 0;
      AddGroups(linked ? alone : absl::StrCat(root, "/sys/fs/cgroup/", parts[1]), parts[2], 1,
                &groups);
    } else if (parts[1].empty()) {
      const std::string beside = root + "/sys/fs/cgroup/unified";  // if both versions are mounted
      const bool both = ::access(beside.c_str(), F_OK) == 0;
      AddGroups(both ? beside : root + "/sys/fs/cgroup", parts[2], 2, &groups);
    }
  }
  return groups;
}

std::optional<MemoryLimit> LeastMemoryLimit(const std::string& root) {
  return FirstWithLeast(MemoryLimits(root), &MemoryLimit::available_bytes);
}

std::optional<MemoryLimit> SmallestMemoryLimit(const std::string& root) {
  auto limit = FirstWithLeast(MemoryLimits(root), &MemoryLimit::limit_bytes);
  if (limit.has_value() && limit->source == kMachineSource) {
    limit->source = "MemTotal of this machine";
  }
  return limit;
}

CpuLimit SmallestCpuLimit(const std::string& root) {
  CpuLimit smallest = {static_cast<double>(std::max(1u, std::thread::hardware_concurrency())),
                       "cores of this machine"};
  for (const ControlGroup& group : ControlGroupsOf("cpu", root)) {
    const std::optional<CpuLimit> limit = CpuLimitOf(group);
    if (limit.has_value() && limit->cores < smallest.cores) smallest = *limit;
  }
  return smallest;
}

std::optional<OutOfMemoryKills> CountOutOfMemoryKills(const std::string& root) {
  std::vector<std::string> files;
  for (const ControlGroup& group : ControlGroupsOf("memory", root)) {
    // Only the own group: version 1 counts a kill only in the killed process's group.
    files.push_back(absl::StrCat(group.directory,
                                 group.version == 1 ? "/memory.oom_control" : "/memory.events"));
    break;
  }
  files.push_back(root + "/proc/vmstat");
  for (const std::string& file : files) {
    const std::optional<int64_t> count = ReadField(file, "oom_kill");
    if (count.has_value()) return OutOfMemoryKills{*count, file};
  }
  return std::nullopt;
}

int64_t RaiseDescriptorLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised = {limit.rlim_max, limit.rlim_max};
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<int64_t>(
      std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
}

int64_t CountOpenDescriptors() {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/self/fd", error);
  if (error) return 0;
  return std::distance(begin(all), end(all)) - 1;  // the last one reads the directory
}

std::string FormatBytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace megascale::base
