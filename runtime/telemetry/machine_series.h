// The metrics by which runtime/minder compares the machines of a job: those of one machine, as
// columns. Pure.
//
//   SeriesOf(samples, "job-1");
#pragma once

#include <string>

#include "proto/telemetry.pb.h"

namespace megascale::telemetry {

// The names of the columns. Recordings and models use the same names. Rates are per second.
inline constexpr char kComputeShare[] = "compute share";
inline constexpr char kThrottledShare[] = "throttled share";
inline constexpr char kBusyCores[] = "busy cores";
inline constexpr char kNetworkBytes[] = "network bytes per second";
inline constexpr char kAwaitingShare[] = "awaiting share";
inline constexpr char kLostPackets[] = "lost packets per second";
inline constexpr char kDiskBytes[] = "disk bytes per second";
inline constexpr char kMajorFaults[] = "major faults per second";
inline constexpr char kMemoryBytes[] = "memory bytes";

// Appends a sample if ranks of the job were on the machine. Shares are means over these ranks,
// memory is their sum, and everything else is measured for the whole machine.
void AppendSample(const v1::MachineSample& sample, const std::string& job_id,
                  v1::MachineSeries* series);

// Returns the series of all samples, oldest first. `Samples`: a range of v1::MachineSample.
template <typename Samples>
v1::MachineSeries SeriesOf(const Samples& samples, const std::string& job_id) {
  v1::MachineSeries series;
  for (const v1::MachineSample& sample : samples) AppendSample(sample, job_id, &series);
  return series;
}

}  // namespace megascale::telemetry
