// What is kept of a job that has ended: evidence.json in its folder, beside job.json and the loss
// log. It stays readable when the job's machines, or the driver's record of them, are gone. The
// file is small however large the job was.
// Threads: one at a time. Blocking: Keep, Refresh and Find may wait for the disk. Errors at the
// files are logged: they concern no job's life.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/reports/agent_monitor.h"
#include "controlplane/driver/storage/job_files.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Returns the evidence of a job that has ended. `ranks`: what its ranks did when its last failure
// became known. Keeps at most 64 of them, and at most 64 nodes: those of failures first.
megascale::control::v1::JobEvidence EvidenceOf(
    const DriverState& state, const JobRecord& job, int64_t last_step,
    const std::vector<megascale::control::v1::RankView>& ranks);

class JobEvidences {
 public:
  explicit JobEvidences(JobFiles* files) : files_(files) {}

  // Keeps what the ranks do when an event that ends an attempt comes. Call before it is applied.
  void OnEvent(const Event& event, const DriverState& state, const AgentMonitor& monitor);
  // Writes the evidence of a job that has ended.
  void Keep(const DriverState& state, const JobRecord& job, int64_t last_step,
            const AgentMonitor& monitor);
  // Writes the evidence of jobs again of which a machine was being tested at their end, once that
  // test is over. Call after events were committed.
  void Refresh(const DriverState& state);
  // True if a driver that ended early may have left a job that has just ended without its file.
  bool MayBeMissing(const DriverState& state, const JobRecord& job) const;
  // Returns the evidence, from the file at the first call; null: there is none that can be read.
  const megascale::control::v1::JobEvidence* Find(const JobRecord& job);
  void Forget(const std::string& job_id);

 private:
  using Evidence = megascale::control::v1::JobEvidence;
  struct LastRanks {
    int64_t attempt = 0;
    std::vector<megascale::control::v1::RankView> ranks;
  };
  void Write(const JobRecord& job, const Evidence& evidence);

  JobFiles* files_;
  std::map<std::string, LastRanks> last_ranks_;           // by job: at the newest failure
  std::map<std::string, std::optional<Evidence>> known_;  // by job: what Find has read
  std::map<std::string, int64_t> due_;                    // by node: the test that it was to pass
};

}  // namespace megascale::driver
