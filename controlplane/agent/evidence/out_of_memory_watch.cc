#include "controlplane/agent/evidence/out_of_memory_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kCountInterval = absl::Seconds(10);
constexpr absl::Duration kLookInterval = absl::Milliseconds(500);
constexpr double kNearLimit = 0.9;
constexpr int kKernelRecordsMax = 100000;  // more than a kernel's buffer holds

int64_t CountNow() {
  const std::optional<base::OutOfMemoryKills> kills = base::CountOutOfMemoryKills();
  return kills.has_value() ? kills->count : 0;
}

// The memory that a process holds; 0: unknown.
int64_t ResidentBytes(pid_t pid) {
  const std::string text = base::ReadFile(absl::StrCat("/proc/", pid, "/statm"), 4096).value_or("");
  const std::vector<std::string> fields = absl::StrSplit(text, ' ');
  int64_t pages = 0;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &pages)) return 0;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// Returns the newest line of the kernel's log about a kill of `pid`; "": there is no such line, or
// this user may not read the log.
std::string KernelWords(pid_t pid, absl::Duration since) {
  const base::UniqueFd log(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::string words;
  std::array<char, 8192> record;  // a read gives one record
  for (int i = 0; log.valid() && i < kKernelRecordsMax; ++i) {
    const ssize_t got = ::read(log.get(), record.data(), record.size());
    if (got < 0 && (errno == EINTR || errno == EPIPE)) continue;  // EPIPE: some were overwritten
    if (got <= 0) break;
    std::string found = KernelKillText({record.data(), static_cast<size_t>(got)}, pid, since);
    if (!found.empty()) words = std::move(found);
  }
  return words;
}

}  // namespace

std::string KernelKillText(absl::string_view record, pid_t pid, absl::Duration since) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(record, absl::MaxSplits(';', 1));
  const std::vector<absl::string_view> header = absl::StrSplit(parts.first, ',');
  int64_t micros = 0;
  if (header.size() < 3 || !absl::SimpleAtoi(header[2], &micros)) return "";
  // The kernel's log uses another clock, which is slightly off.
  if (absl::Microseconds(micros) + absl::Seconds(1) < since) return "";
  const absl::string_view line = parts.second.substr(0, parts.second.find('\n'));
  if (!absl::StrContains(line, "ut of memory") ||
      !absl::StrContains(line, absl::StrCat("Killed process ", pid, " "))) {
    return "";
  }
  return std::string(line.data(), line.size());
}

std::string DescribeOutOfMemory(const KillFacts& facts) {
  std::string how;
  if (!facts.kernel_line.empty()) {
    how = absl::StrCat("the kernel's log: ", facts.kernel_line);
  } else if (facts.kills.has_value() && facts.kills->count > facts.kills_explained) {
    how = absl::StrCat("oom_kill of ", facts.kills->source, " rose from ", facts.kills_explained,
                       " to ", facts.kills->count);
  } else if (!facts.kills.has_value() && facts.limit.has_value() &&
             static_cast<double>(facts.resident_bytes) >
                 kNearLimit * static_cast<double>(facts.limit->limit_bytes)) {
    how = "it held nearly all that there is";
  } else {
    return "";
  }
  std::string text = absl::StrCat("killed by the kernel: out of memory (", how, ")");
  if (facts.resident_bytes > 0) {
    absl::StrAppend(&text, "; it held ", base::FormatBytes(facts.resident_bytes),
                    " when last seen");
  }
  if (facts.limit.has_value()) {
    absl::StrAppend(&text, "; the limit is ", base::FormatBytes(facts.limit->limit_bytes), ", ",
                    facts.limit->source);
  }
  return text;
}

OutOfMemoryWatch::OutOfMemoryWatch() : explained_(CountNow()), older_(explained_), newer_(older_) {}

void OutOfMemoryWatch::OnStarted(int64_t process_id, pid_t pid, absl::Duration now) {
  processes_[process_id] = {
      .pid = pid, .started = now, .kills_before = CountNow(), .resident_bytes = 0};
}

void OutOfMemoryWatch::Sample(absl::Duration now) {
  if (now - looked_ >= kLookInterval) {
    looked_ = now;
    for (auto& [id, process] : processes_) {
      // 0: it is a zombie, so keep the memory that it held before.
      const int64_t bytes = ResidentBytes(process.pid);
      if (bytes > 0) process.resident_bytes = bytes;
    }
  }
  if (now - counted_ < kCountInterval) return;
  counted_ = now;
  older_ = newer_;
  newer_ = CountNow();
}

std::string OutOfMemoryWatch::OnEnded(int64_t process_id, bool killed) {
  const auto found = processes_.find(process_id);
  if (found == processes_.end()) return "";
  const Process process = found->second;
  processes_.erase(found);
  if (!killed) return "";
  KillFacts facts;
  facts.kills = base::CountOutOfMemoryKills();
  facts.kills_explained = std::max({explained_, older_, process.kills_before});
  facts.kernel_line = KernelWords(process.pid, process.started);
  facts.resident_bytes = process.resident_bytes;
  facts.limit = base::LeastMemoryLimit();
  std::string text = DescribeOutOfMemory(facts);
  if (!text.empty()) explained_ = facts.kills_explained + 1;
  return text;
}

}  // namespace megascale::agent
