// Who holds up a job that stands still, from the spans of its ranks. Blocking: reads them from the
// agents.
#pragma once

#include "absl/status/statusor.h"
#include "controlplane/driver/relay/span_stream.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// The spans of more ranks are not read.
inline constexpr int kSuspectRanksMax = 512;

// Returns the rank that the others wait for (runtime/diagnose/stall.h), with its machine as the
// driver placed it. A rank of which nothing is known is not named, unless its process shows no
// life, and neither is one that nobody waits for. `ports.emit` gets each message after it was used,
// and ends the reading by false. Errors: NotFound - nothing tells one rank from the others, or it
// waits for storage or data; those of the ports.
absl::StatusOr<megascale::control::v1::Suspicion> FindSuspect(
    const megascale::control::v1::Job& job, SpanStreamPorts ports);

}  // namespace megascale::driver
