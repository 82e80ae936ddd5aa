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
// driver placed it. Not named, unless its process shows no life: a rank of which nothing is known,
// that nobody waits for, that goes on, or that only one other machine says is behind in an
// exchange. So a machine's spans cannot make another machine a suspect. `ports.emit` gets each
// message after it was used, and ends the reading by false. Errors: NotFound - nothing tells one
// rank from the others, or it waits for storage or data; those of the ports.
absl::StatusOr<megascale::control::v1::Suspicion> FindSuspect(
    const megascale::control::v1::Job& job, SpanStreamPorts ports);

}  // namespace megascale::driver
