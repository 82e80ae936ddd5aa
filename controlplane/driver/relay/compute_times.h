// How long each rank of a job computes in a step, from the metrics that agents keep. This takes one
// question and a short answer for each machine, however many ranks and steps there are. Blocking:
// asks the agents, for at most kComputeTimesTimeout. Private to this folder.
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

// Returns the times of the ranks whose agents reported them, in ascending order of ranks. What a
// machine reports about ranks of other machines is ignored. `ports.emit` gets each message after it
// was used, and ends the reading if it returns false. Errors: those of StreamEvidence. Cost: three
// numbers for each rank. If agents are so old that they send samples: also memory for
// kNodesAskedAtOnce answers of at most 1 MiB.
absl::StatusOr<std::vector<diagnose::ComputeTime>> ReadComputeTimes(
    const megascale::control::v1::Job& job, EvidenceStreamPorts ports,
    const ComputeTimesRequest& request);

}  // namespace megascale::driver
