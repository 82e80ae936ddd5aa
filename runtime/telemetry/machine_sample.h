// What a machine and its ranks did in a second, from texts of /proc: pure functions of two
// readings, and a ring of the newest samples. The agent reads the files
// (controlplane/agent/evidence/machine_reader.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/telemetry.pb.h"

namespace megascale::telemetry {

// Texts as the kernel gives them. An empty or malformed text counts as zeros.
struct MachineTexts {
  std::string stat;       // /proc/stat
  std::string loadavg;    // /proc/loadavg
  std::string meminfo;    // /proc/meminfo
  std::string vmstat;     // /proc/vmstat
  std::string diskstats;  // /proc/diskstats
  std::string net_dev;    // /proc/net/dev
  std::string net_snmp;   // /proc/net/snmp
  std::string cpu_stat;   // cpu.stat of the agent's control group; empty: it has no quota
};

// Counters since the machine's start, and current values.
struct MachineCounters {
  struct Interface {
    int64_t received_bytes = 0;
    int64_t sent_bytes = 0;
    int64_t errors = 0;
  };
  absl::Duration busy;       // of all cores
  absl::Duration throttled;  // of the control group
  double load = 0;
  int64_t memory_available_bytes = 0;
  int64_t major_faults = 0;
  int64_t disk_read_bytes = 0;
  int64_t disk_written_bytes = 0;
  int64_t disk_free_bytes = 0;  // filled in by the caller
  int64_t retransmitted_segments = 0;
  std::map<std::string, Interface> interfaces;  // without the loopback
};

// `tick`: length of one clock tick of /proc.
MachineCounters ParseMachine(const MachineTexts& texts, absl::Duration tick);

// A process, from /proc/PID/stat.
struct ProcessCounters {
  absl::Duration busy;
  int64_t memory_bytes = 0;
};
ProcessCounters ParseProcess(absl::string_view stat, absl::Duration tick, int64_t page_bytes);

// Returns the rates between two readings. If a counter went back, its rate is zero. Requires:
// `length` is positive.
v1::MachineSample SampleOf(const MachineCounters& before, const MachineCounters& now,
                           absl::Duration length);

// The samples of the newest 15 minutes, if one sample is added each second. A message with all
// samples has less than 2 MiB, if every fifth sample has GPUs.
class SampleRing {
 public:
  static constexpr size_t kSamplesMax = 900;
  // Interfaces, ranks and GPUs in a sample beyond these numbers are left out.
  static constexpr int kInterfacesMax = 4;
  static constexpr int kRanksMax = 16;
  static constexpr int kGpusMax = 16;

  void Add(v1::MachineSample sample);
  const std::deque<v1::MachineSample>& samples() const { return samples_; }

 private:
  std::deque<v1::MachineSample> samples_;
};

}  // namespace megascale::telemetry
