#include "runtime/telemetry/machine_series.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace megascale::telemetry {
namespace {

// The job's processes on the machine, together.
struct JobOnMachine {
  int num_ranks = 0;
  double compute_share = 0;                  // means of the ranks
  std::optional<double> awaiting_share = 0;  // unset: it is not measured
  double memory_bytes = 0;
};

JobOnMachine JobOn(const v1::MachineSample& sample, const std::string& job_id) {
  JobOnMachine job;
  for (const v1::ProcessSample& process : sample.ranks()) {
    if (process.job_id() != job_id) continue;
    ++job.num_ranks;
    job.compute_share += process.compute_share();
    if (!process.has_awaiting_share()) job.awaiting_share.reset();
    // Waiting beside an instruction that computes costs no time.
    if (job.awaiting_share.has_value()) {
      *job.awaiting_share += std::min(process.awaiting_share(), process.wait_share());
    }
    job.memory_bytes += static_cast<double>(process.memory_bytes());
  }
  if (job.num_ranks > 0) {
    job.compute_share /= job.num_ranks;
    if (job.awaiting_share.has_value()) *job.awaiting_share /= job.num_ranks;
  }
  return job;
}

struct MetricValue {
  const char* metric;
  std::optional<double> value;
};

std::array<MetricValue, 9> ValuesOf(const v1::MachineSample& sample, const JobOnMachine& job) {
  double network = 0;
  double errors = 0;
  for (const v1::InterfaceSample& interface : sample.interfaces()) {
    network += interface.received_bytes() + interface.sent_bytes();
    errors += interface.errors();
  }
  return {{{kComputeShare, job.compute_share},
           {kThrottledShare, sample.throttled_share()},
           {kBusyCores, sample.busy_cores()},
           {kNetworkBytes, network},
           {kAwaitingShare, job.awaiting_share},
           {kLostPackets, sample.retransmitted_segments() + errors},
           {kDiskBytes, sample.disk_read_bytes() + sample.disk_written_bytes()},
           {kMajorFaults, sample.major_faults()},
           {kMemoryBytes, job.memory_bytes}}};
}

}  // namespace

void AppendSample(const v1::MachineSample& sample, const std::string& job_id,
                  v1::MachineSeries* series) {
  const JobOnMachine job = JobOn(sample, job_id);
  if (job.num_ranks == 0) return;
  series->add_monotonic_nanos(sample.monotonic_nanos());
  int column = 0;
  for (const MetricValue& value : ValuesOf(sample, job)) {
    if (column == series->columns_size()) series->add_columns()->set_metric(value.metric);
    constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();
    series->mutable_columns(column++)->add_values(
        static_cast<float>(value.value.value_or(kNotMeasured)));
  }
}

}  // namespace megascale::telemetry
