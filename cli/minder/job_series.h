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

// The metrics that an agent measures, in order of priority: the metric that shows a slow machine
// best comes first.
const std::vector<minder::MetricKind>& MachineMetrics();

struct JobSeries {
  minder::Recording recording;
  std::vector<int> groups;         // by machine; equal numbers: ranks of the same stages
  std::vector<std::string> notes;  // what could not be fetched
  control::v1::Job job;
};

// Adds a machine's series for the metrics that the recording names. If the evidence has samples
// instead of a series, uses the samples in which the machine had ranks of the job. Each agent uses
// its own clock, which tells only how old a sample is. `read_at`: when the evidence was read.
void AddMachine(const std::string& name, const telemetry::v1::Evidence& evidence,
                const std::string& job_id, absl::Time read_at, minder::Recording* recording);

// Leaves out the awaiting share if one of the job's agents is of the previous release, which does
// not measure it, because a low value would mean a late rank. Returns a note that says so; "":
// nothing was left out.
std::string LeaveOutUnmeasured(minder::Recording* recording);

// Returns a number for each machine of the recording. Machines that have ranks of the same pipeline
// stages have the same number.
std::vector<int> GroupsByStage(const minder::Recording& recording, const control::v1::Job& job);

// Fetches up to 15 minutes of each machine. Errors: those of JobClient::Evidence; Aborted - the job
// began another attempt in the meantime, so fetch again.
absl::StatusOr<JobSeries> FetchSeries(client::JobClient* client, const std::string& job_id,
                                      const std::function<bool()>& stop);

}  // namespace megascale::cli
