// What the heartbeat slots of a job's ranks show while the ranks load their weights.
#pragma once

#include <vector>

#include "proto/telemetry.pb.h"
#include "runtime/engine/testing/test_job.h"

namespace megascale::engine {

struct ShownByRank {
  // Each time that the rank was about to write a tensor of its weights, in order.
  std::vector<megascale::telemetry::v1::RankStatus> meanwhile;
  megascale::telemetry::v1::RankStatus at_end;  // Load has returned
};

// Runs a job on strict devices, whose use of the host's memory tells when to look. Fails the test
// if a rank cannot load. Replaces `make_device`, `before_load` and `on_load`.
std::vector<ShownByRank> ShownWhileLoading(RunOptions options);

}  // namespace megascale::engine
