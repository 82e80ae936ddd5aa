// The metrics of a job's machines, fetched from their agents through the driver.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/client/job_client.h"
#include "runtime/minder/recording.h"
#include "runtime/minder/training.h"

namespace megascale::cli {

// What an agent measures, in order of priority: what shows a slow machine best comes first.
const std::vector<minder::MetricKind>& MachineMetrics();

struct JobSeries {
  minder::Recording recording;
  std::vector<int> groups;         // of machines: those with a number hold the same pipeline stages
  std::vector<std::string> notes;  // what could not be fetched
  control::v1::Job job;
};

// Adds a machine's series, or those of its samples in which it held ranks of the job, for the
// metrics that the recording names. Agents use clocks of their own, which say only how old a sample
// is: `read_at` is when they were read.
void AddMachine(const std::string& name, const telemetry::v1::Evidence& evidence,
                const std::string& job_id, absl::Time read_at, minder::Recording* recording);

// Leaves the awaiting share out if an agent of the release before, which does not measure it, is
// among those of the job: the lowest value means a late rank. Returns that in words; "": nothing.
std::string LeaveOutUnmeasured(minder::Recording* recording);

// Returns for each machine of the recording a number that it shares with the machines that hold
// ranks of the same pipeline stages.
std::vector<int> GroupsByStage(const minder::Recording& recording, const control::v1::Job& job);

// Fetches up to 15 minutes of each machine. Errors: those of JobClient::Evidence; Aborted - the job
// began another attempt meanwhile: fetch again.
absl::StatusOr<JobSeries> FetchSeries(client::JobClient* client, const std::string& job_id,
                                      const std::function<bool()>& stop);

}  // namespace megascale::cli
