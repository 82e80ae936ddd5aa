// The driver's state machine: (state, event) -> state, and from the state everything that is to be
// done (driver_state.h). No clock, no I/O, no thread, no randomness: time and random bytes come in
// events. Source: DESIGN sections 1.3, 2 and 9.
//
// Life of a job: QUEUED -> PREFLIGHT -> RUN -> ENDED; a failure leads to FENCE (no process of the
// attempt is left on any living node), then, with a restore point and slots, to RUN of the next
// attempt, over BACKOFF and WAIT_FOR_SLOTS where needed. A cancelled job goes over STOP and FENCE.
#pragma once

#include "absl/status/statusor.h"
#include "controlplane/driver/driver_state.h"

namespace megascale::driver {

// How events are applied. A change of what an event of an existing kind does gets the next number:
// the log of an older driver is replayed by the rules of its time, up to the DriverStarted of the
// first newer one. 1: jobs are placed in the order of their submission. 2: recovering jobs before
// queued ones, and one may take slots that later recovering jobs hold.
inline constexpr int kRules = 2;

// Applies one event. Returns false when it was refused (of an older attempt or incarnation, or
// said before): then only the count of events changed. Determinism: the state depends on nothing
// but the events.
bool Apply(const Event& event, DriverState* state);

// Jobs that have not ended, at most: each takes memory, a descriptor, and time of every round.
inline constexpr int kOpenJobsMax = 1000;

// Whether a submit is to be logged: true - yes; false - the same one is there, answer with that
// job. Errors: AlreadyExists - the id is taken by another specification; ResourceExhausted - there
// are kOpenJobsMax; the message says what to do.
absl::StatusOr<bool> IsNewSubmit(const DriverState& state,
                                 const megascale::driver::v1::JobSubmitted& submit);

// Whether a cancel is to be logged: true - yes; false - it was already asked for or done.
// Errors: NotFound; FailedPrecondition - the job ended otherwise.
absl::StatusOr<bool> IsNewCancel(const DriverState& state, absl::string_view job_id);

// Whether an eviction, or taking it back, is to be logged: false - the node is so already.
// Errors: NotFound - no such node; the message names the nearest.
absl::StatusOr<bool> IsNewEviction(const DriverState& state,
                                   const megascale::driver::v1::NodeEvicted& evicted);
absl::StatusOr<bool> IsNewUncordon(const DriverState& state, absl::string_view node_id);

}  // namespace megascale::driver
