#include "runtime/telemetry/machine_sample.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace megascale::telemetry {
namespace {

constexpr int64_t kSectorBytes = 512;

using Words = std::vector<absl::string_view>;

Words WordsOf(absl::string_view line) {
  return absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
}

// Returns a counter; 0: there is none at `index`, or it is no number.
int64_t Number(const Words& words, size_t index) {
  int64_t value = 0;
  if (index >= words.size() || !absl::SimpleAtoi(words[index], &value)) return 0;
  return std::max<int64_t>(0, value);
}

// Returns the number after the first word `name` at the beginning of a line.
int64_t Value(absl::string_view text, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const Words words = WordsOf(line);
    if (words.size() >= 2 && words[0] == name) return Number(words, 1);
  }
  return 0;
}

// Busy are all states but idle and waiting for I/O.
absl::Duration Busy(absl::string_view stat, absl::Duration tick) {
  for (const absl::string_view line : absl::StrSplit(stat, '\n')) {
    const Words words = WordsOf(line);
    if (words.empty() || words[0] != "cpu") continue;
    int64_t ticks = 0;
    for (const size_t index : {1, 2, 3, 6, 7, 8}) ticks += Number(words, index);
    return static_cast<double>(ticks) * tick;
  }
  return absl::ZeroDuration();
}

// Whole disks only: what goes to a partition counts for its disk as well.
bool IsWholeDisk(absl::string_view name, const Words& disks) {
  if (absl::StartsWith(name, "loop") || absl::StartsWith(name, "ram") ||
      absl::StartsWith(name, "dm-")) {
    return false;
  }
  return std::none_of(disks.begin(), disks.end(), [&](absl::string_view disk) {
    return disk != name && absl::StartsWith(name, disk);
  });
}

void AddDisks(absl::string_view diskstats, MachineCounters* counters) {
  Words disks;
  for (const absl::string_view line : absl::StrSplit(diskstats, '\n')) {
    const Words words = WordsOf(line);
    if (words.size() < 10 || !IsWholeDisk(words[2], disks)) continue;
    disks.push_back(words[2]);
    counters->disk_read_bytes += Number(words, 5) * kSectorBytes;
    counters->disk_written_bytes += Number(words, 9) * kSectorBytes;
  }
}

void AddInterfaces(absl::string_view net_dev, MachineCounters* counters) {
  for (const absl::string_view line : absl::StrSplit(net_dev, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    const Words words = WordsOf(parts.second);
    if (words.size() < 12 || name == "lo") continue;
    counters->interfaces[std::string(name)] = {
        .received_bytes = Number(words, 0),
        .sent_bytes = Number(words, 8),
        .errors = Number(words, 2) + Number(words, 3) + Number(words, 10) + Number(words, 11)};
  }
}

// /proc/net/snmp has a line of names before each line of values.
int64_t Retransmitted(absl::string_view snmp) {
  Words names;
  for (const absl::string_view line : absl::StrSplit(snmp, '\n')) {
    if (!absl::StartsWith(line, "Tcp:")) continue;
    Words words = WordsOf(line);
    if (names.empty()) {
      names = std::move(words);
      continue;
    }
    const auto found = std::find(names.begin(), names.end(), "RetransSegs");
    return Number(words, static_cast<size_t>(found - names.begin()));
  }
  return 0;
}

template <typename Field>
void CutTo(int size, Field* field) {
  if (field->size() > size) field->DeleteSubrange(size, field->size() - size);
}

double Rate(int64_t before, int64_t now, absl::Duration length) {
  return static_cast<double>(std::max<int64_t>(0, now - before)) / absl::ToDoubleSeconds(length);
}

}  // namespace

MachineCounters ParseMachine(const MachineTexts& texts, absl::Duration tick) {
  MachineCounters counters;
  counters.busy = Busy(texts.stat, tick);
  // In microseconds (version 2), or in nanoseconds (version 1).
  counters.throttled = absl::Microseconds(Value(texts.cpu_stat, "throttled_usec")) +
                       absl::Nanoseconds(Value(texts.cpu_stat, "throttled_time"));
  const Words load = WordsOf(texts.loadavg);
  if (load.empty() || !absl::SimpleAtod(load[0], &counters.load)) counters.load = 0;
  counters.memory_available_bytes = Value(texts.meminfo, "MemAvailable:") * 1024;
  counters.major_faults = Value(texts.vmstat, "pgmajfault");
  AddDisks(texts.diskstats, &counters);
  AddInterfaces(texts.net_dev, &counters);
  counters.retransmitted_segments = Retransmitted(texts.net_snmp);
  return counters;
}

// A process may choose its name, which is in parentheses and may hold some.
ProcessCounters ParseProcess(absl::string_view stat, absl::Duration tick, int64_t page_bytes) {
  const size_t end = stat.rfind(')');
  if (end == absl::string_view::npos) return {};
  const Words words = WordsOf(stat.substr(end + 1));
  return {.busy = static_cast<double>(Number(words, 11) + Number(words, 12)) * tick,
          .memory_bytes = Number(words, 21) * page_bytes};
}

v1::MachineSample SampleOf(const MachineCounters& before, const MachineCounters& now,
                           absl::Duration length) {
  const auto share = [&](absl::Duration from, absl::Duration to) {
    return std::max(0.0, absl::FDivDuration(to - from, length));
  };
  v1::MachineSample sample;
  sample.set_busy_cores(share(before.busy, now.busy));
  sample.set_throttled_share(share(before.throttled, now.throttled));
  sample.set_load(now.load);
  sample.set_memory_available_bytes(now.memory_available_bytes);
  sample.set_major_faults(Rate(before.major_faults, now.major_faults, length));
  sample.set_disk_read_bytes(Rate(before.disk_read_bytes, now.disk_read_bytes, length));
  sample.set_disk_written_bytes(Rate(before.disk_written_bytes, now.disk_written_bytes, length));
  sample.set_disk_free_bytes(now.disk_free_bytes);
  sample.set_retransmitted_segments(
      Rate(before.retransmitted_segments, now.retransmitted_segments, length));
  for (const auto& [name, counters] : now.interfaces) {
    const auto known = before.interfaces.find(name);
    if (known == before.interfaces.end()) continue;  // it is new: there is no rate yet
    if (sample.interfaces_size() == SampleRing::kInterfacesMax) break;
    v1::InterfaceSample* shown = sample.add_interfaces();
    shown->set_name(name);
    shown->set_received_bytes(Rate(known->second.received_bytes, counters.received_bytes, length));
    shown->set_sent_bytes(Rate(known->second.sent_bytes, counters.sent_bytes, length));
    shown->set_errors(Rate(known->second.errors, counters.errors, length));
  }
  return sample;
}

void SampleRing::Add(v1::MachineSample sample) {
  CutTo(kRanksMax, sample.mutable_ranks());
  CutTo(kGpusMax, sample.mutable_gpus());
  samples_.push_back(std::move(sample));
  if (samples_.size() > kSamplesMax) samples_.pop_front();
}

}  // namespace megascale::telemetry
