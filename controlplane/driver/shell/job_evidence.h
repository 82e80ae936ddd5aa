// What is kept of a job that has ended: evidence.json in its folder, beside job.json and the loss
// log. It stays readable when the job's machines, or the driver's record of them, are gone. The
// file is small however large the job was.
// Threads: one at a time. Blocking: Keep and Refresh may wait for the disk. Errors of the files are
// only logged, because no job depends on these files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "controlplane/driver/core/job_index.h"
#include "controlplane/driver/detection/agent_monitor.h"
#include "controlplane/driver/shell/job_view.h"
#include "controlplane/driver/storage/job_files.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Returns the evidence of a job that has ended. `ranks`: what its ranks did when its last failure
// became known. Keeps at most 64 ranks and at most 64 nodes, those of failures first.
megascale::control::v1::JobEvidence EvidenceOf(
    const DriverState& state, const JobRecord& job, int64_t last_step,
    const std::vector<megascale::control::v1::RankView>& ranks);

// Reads the evidence of a job that has ended. Threads: any. Errors: NotFound - there is no such
// file; DataLoss - it is too large or cannot be parsed.
absl::StatusOr<megascale::control::v1::JobEvidence> ReadEvidence(const JobRecord& job,
                                                                 JobFiles* files);

class JobEvidences {
 public:
  explicit JobEvidences(JobFiles* files) : files_(files) {}

  // If the event ends an attempt, or may end it, keeps what the ranks of the attempt do now. Call
  // before the event is applied.
  void OnEvent(const Event& event, const IndexedState& state, const AgentMonitor& monitor);
  // Keeps the warnings in the node's report about each job that has not ended and has ranks on the
  // node.
  void OnReport(const std::string& node_id, const megascale::agent::v1::ActualState& report,
                const IndexedState& state);
  // Writes the evidence of a job that has ended. `log_warning`: JobLogs::WarningOf.
  void Keep(const DriverState& state, const JobRecord& job, int64_t last_step,
            const std::string& log_warning, const AgentMonitor& monitor);
  // If a machine of a job was being tested when the job ended, writes the job's evidence again once
  // that test is over. Call after events were committed.
  void Refresh(const DriverState& state);
  // True if the file of a job that has just ended may be missing, because the driver ended before
  // it wrote the file.
  bool MayBeMissing(const DriverState& state, const JobRecord& job) const;
  void Forget(const std::string& job_id) {
    last_ranks_.erase(job_id);
    warnings_.erase(job_id);
  }

 private:
  using Evidence = megascale::control::v1::JobEvidence;
  struct LastRanks {
    int64_t attempt = 0;
    bool is_at_failure = false;
    std::vector<megascale::control::v1::RankView> ranks;
  };
  void Write(const JobRecord& job, const Evidence& evidence);

  JobFiles* files_;
  std::map<std::string, LastRanks> last_ranks_;      // by job: at the newest such event
  std::map<std::string, NodesOfWarnings> warnings_;  // by job
  std::map<std::string, int64_t> due_;               // by node: the test that it was to pass
};

}  // namespace megascale::driver
