// The driver's jobs and machines as Prometheus metrics, in its text format. A pure function.
// Names and units: docs/metrics.md.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "controlplane/page/failure_history.h"
#include "proto/control.pb.h"

namespace megascale::page {

struct ExportedJobs {
  std::vector<control::v1::Job> jobs;
  control::v1::GetClusterResponse cluster;
  FailureHistory failures;
};

// Jobs that have not ended come first, then the newest jobs; machines that are not well come before
// the others. Jobs beyond kExportedJobsMax are left out. If the text would be longer than
// kExportedBytesMax, machines are left out, and jobs only if no machine is left.
// `megascale_jobs_left_out` and `megascale_nodes_left_out` count what was left out.
inline constexpr size_t kExportedJobsMax = 200;
inline constexpr size_t kExportedBytesMax = 1'000'000;
std::string PrometheusText(const ExportedJobs& exported);

}  // namespace megascale::page
