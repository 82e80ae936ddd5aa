#include "actors/ceiling.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/version.h"
#include "runtime/ops/ops.h"

namespace megascale::actors {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;
constexpr absl::Duration kIdleLook = absl::Milliseconds(200);
constexpr double kBusyShareMax = 0.1;  // of all processors

// Returns the file of a key; characters that not every file system allows are replaced.
std::string FileOf(const std::string& directory, const std::string& key) {
  std::string name = key.substr(0, 200);
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return absl::StrCat(directory, "/ceiling-", name);
}

// "FLOPS UNIX-SECONDS IDLE KEY"
std::optional<Ceiling> ReadKept(const std::string& file, const std::string& key) {
  const absl::StatusOr<std::string> text = base::ReadFile(file, kFileBytesMax);
  if (!text.ok()) return std::nullopt;
  const std::vector<std::string> words =
      absl::StrSplit(absl::StripSuffix(*text, "\n"), absl::MaxSplits(' ', 3));
  Ceiling kept;
  int64_t seconds = 0;
  if (words.size() != 4 || words[3] != key || !absl::SimpleAtod(words[0], &kept.flops_per_second) ||
      !absl::SimpleAtoi(words[1], &seconds) || !std::isfinite(kept.flops_per_second) ||
      kept.flops_per_second <= 0) {
    return std::nullopt;
  }
  kept.measured_at = absl::FromUnixSeconds(seconds);
  kept.idle = words[2] == "1";
  return kept;
}

void Keep(const std::string& file, const std::string& key, const Ceiling& ceiling) {
  const std::string text =
      absl::StrFormat("%.6e %d %d %s\n", ceiling.flops_per_second,
                      absl::ToUnixSeconds(ceiling.measured_at), ceiling.idle ? 1 : 0, key);
  // Without the file the next job measures again.
  base::WriteFileDurably(file, text).IgnoreError();
}

std::string LineOf(const char* file, const char* beginning) {
  const std::string text = base::ReadFile(file, kFileBytesMax).value_or("");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, beginning)) return std::string(line);
  }
  return "";
}

struct ProcessorTime {
  double busy = 0;
  double all = 0;
};

// Reads the processor time since the machine started; time that a hypervisor stole counts as busy.
ProcessorTime ReadProcessorTime() {
  constexpr size_t kIdleColumn = 4, kWaitColumn = 5, kColumns = 9;  // "cpu", user …, steal
  const std::vector<std::string> words =
      absl::StrSplit(LineOf("/proc/stat", "cpu "), ' ', absl::SkipEmpty());
  ProcessorTime time;
  for (size_t i = 1; i < std::min(words.size(), kColumns); ++i) {
    double ticks = 0;
    if (!absl::SimpleAtod(words[i], &ticks)) return {};
    time.all += ticks;
    if (i != kIdleColumn && i != kWaitColumn) time.busy += ticks;
  }
  return time;
}

std::string AgeText(absl::Duration age) {
  const int64_t minutes = absl::ToInt64Minutes(age);
  if (minutes < 1) return "just now";
  if (minutes < 60) return absl::StrCat(minutes, " min ago");
  if (minutes < 48 * 60) return absl::StrCat(minutes / 60, " h ago");
  return absl::StrCat(minutes / 60 / 24, " days ago");
}

}  // namespace

Ceiling FindCeiling(const std::string& key, const CeilingSources& sources) {
  const std::string file = FileOf(sources.directory, key);
  const std::optional<Ceiling> kept =
      sources.directory.empty() ? std::nullopt : ReadKept(file, key);
  if (kept.has_value() && kept->idle) return *kept;
  Ceiling best;
  best.idle = sources.is_idle();
  best.flops_per_second = sources.measure(best.idle);
  best.measured_at = sources.now();
  if (!best.idle && kept.has_value() && kept->flops_per_second > best.flops_per_second) {
    return *kept;
  }
  if (!sources.directory.empty() && base::MakeDirectories(sources.directory).ok()) {
    Keep(file, key, best);
  }
  return best;
}

std::string CeilingText(const Ceiling& ceiling, absl::Time now) {
  return absl::StrFormat("%.0f GFLOP/s, measured %s %s", ceiling.flops_per_second / 1e9,
                         AgeText(now - ceiling.measured_at),
                         ceiling.idle ? "on the idle machine" : "while the machine was busy");
}

std::string CeilingKey(const std::string& compute, int cores) {
  const std::string machine = base::ReadFile("/etc/machine-id", kFileBytesMax).value_or("");
  const std::string model = LineOf("/proc/cpuinfo", "model name");
  return absl::StrCat(compute, " ", cores, " cores ", ops::InstructionSet(), " ", base::kVersion,
                      " ", absl::StripSuffix(machine, "\n"), " ",
                      model.substr(std::min(model.size(), model.find(':') + 1)));
}

bool MachineIsIdle() {
  const ProcessorTime before = ReadProcessorTime();
  absl::SleepFor(kIdleLook);
  const ProcessorTime after = ReadProcessorTime();
  return after.all > before.all &&
         after.busy - before.busy <= kBusyShareMax * (after.all - before.all);
}

}  // namespace megascale::actors
