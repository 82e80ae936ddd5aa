// Reads the machine's counters from /proc and keeps the samples of the newest 15 minutes. Threads:
// one at a time. Blocking: /proc and statvfs of one directory; no disk.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/agent/evidence/recent_exchanges.h"
#include "proto/telemetry.pb.h"
#include "runtime/telemetry/machine_sample.h"

namespace megascale::agent {

// A rank on this machine, for a sample.
struct SampledRank {
  std::string job_id;
  int rank = 0;
  int pid = 0;
  int64_t step = 0;
  double compute_share = 0;
  double wait_share = 0;
  std::optional<RecentExchanges::Shares> exchanges = std::nullopt;  // not measured
  double tokens_per_second = 0;
};

class MachineReader {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(1);

  // `directory`: whose file system's free space is shown. `proc`: "/proc", or a test's directory.
  explicit MachineReader(std::string directory, std::string proc = "/proc");

  // Whether the next sample is due.
  bool IsDue(absl::Duration now) const { return now >= read_ + kInterval; }
  // Reads everything. The first call makes no sample, because there are no rates yet. `gpus`: the
  // samples that were read from them since the last call.
  void Read(absl::Duration now, const std::vector<SampledRank>& ranks,
            std::vector<telemetry::v1::GpuSample> gpus = {});

  // Returns the samples, oldest first, with the ranks of one job, or of all if `job_id` is empty.
  telemetry::v1::Evidence Samples(const std::string& job_id = "") const;
  // Returns the series by which machines are compared, from the samples with ranks of the job.
  telemetry::v1::Evidence Series(const std::string& job_id) const;
  // Returns how the ranks of the job spent their time in these ranges of steps, from the samples.
  telemetry::v1::Evidence Work(const std::string& job_id,
                               std::vector<telemetry::v1::StepRange> ranges) const;

 private:
  std::string Text(const std::string& name) const;

  const std::string directory_;
  const std::string proc_;
  const std::string cpu_stat_;  // path of the control group's cpu.stat; "": there is none
  absl::Duration read_ = -absl::InfiniteDuration();
  telemetry::MachineCounters before_;
  std::map<int, absl::Duration> busy_before_;  // by process
  telemetry::SampleRing ring_;
};

}  // namespace megascale::agent
