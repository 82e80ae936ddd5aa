// How long each rank of a job computes in a step, from the metrics that agents keep: one question
// and a short answer for each machine, however many ranks and steps there are. Blocking: asks the
// agents, for at most kComputeTimesTimeout. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/relay/evidence_stream.h"
#include "proto/control.pb.h"
#include "runtime/diagnose/sampling/slow_outliers.h"

namespace megascale::driver {

inline constexpr absl::Duration kComputeTimesTimeout = absl::Seconds(20);

struct ComputeTimesRequest {
  int64_t normal_step = 0;           // steps up to this one are `before`; 0: none are
  std::function<bool()> should_end;  // asked after each answer
};

// Returns the ranks whose agents told it, ascending. A machine tells it of its own ranks only,
// whatever it says of others. `ports.emit` gets each message after it was used, and ends the
// reading by false. Errors: those of StreamEvidence. Cost: three numbers for each rank;
// memory for kNodesAskedAtOnce answers of at most 1 MiB, if agents are so old that they send
// samples.
absl::StatusOr<std::vector<diagnose::ComputeTime>> ReadComputeTimes(
    const megascale::control::v1::Job& job, EvidenceStreamPorts ports,
    const ComputeTimesRequest& request);

}  // namespace megascale::driver
