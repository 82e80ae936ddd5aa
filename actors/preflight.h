// What a host process checks before any worker starts: that the step's plan is legal, that there is
// memory, that the data can be read here, that the checkpoint to start from fits the job, that the
// checkpoint directory can be written and is the same on every machine; and how fast the machine
// is.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"

namespace megascale::actors {

// Never fails: what is wrong is a refusal in the result. Blocking: reads the data once, measures
// for a fraction of a second.
megascale::agent::v1::Preflight RunPreflight(const megascale::link::v1::HostAssignment& assignment);

}  // namespace megascale::actors
