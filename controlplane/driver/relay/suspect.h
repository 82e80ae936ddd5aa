// Which rank holds up a job that stands still or has become slow, from the spans of a few of its
// ranks. Blocking: reads the spans from the agents. The driver's view of the job has the reports of
// all ranks; these tell which of many ranks to read.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "controlplane/driver/relay/evidence_stream.h"
#include "controlplane/driver/relay/span_stream.h"
#include "proto/control.pb.h"
#include "runtime/diagnose/sampling/trigger.h"

namespace megascale::driver {

// The maximum number of ranks whose spans are read, however many ranks the job has.
inline constexpr int kSuspectRanksRead = 256;

// Returns the rank that the others wait for (runtime/diagnose/stall.h), with its machine as the
// driver placed it. First reads the ranks `sample` and some whose processes show no life; then the
// ranks for which these wait; then members of the groups of the rank that it would name. If more
// ranks are awaited than it reads at a time, reads first those whose reports differ from most. A
// rank that was left out for this reason counts as standing where a rank stands that was read, if
// the two report the same step and instruction and have the same plan. A rank whose process is
// alive is not named if nothing is known of it, if no rank waits for it, if it began or ended an
// instruction just now, or if only one other machine says that it is behind in an exchange. So one
// machine's spans alone cannot make another machine a suspect. `ports.emit` gets each message after
// it was used, and ends the reading if it returns false. Errors: NotFound - nothing tells one rank
// from the others, the rank is not named for a reason above, or it waits for storage or data; those
// of the ports.
absl::StatusOr<megascale::control::v1::Suspicion> FindSuspect(
    const megascale::control::v1::Job& job, const std::vector<int>& sample, SpanStreamPorts ports);

// Where the examination of a slow job reads from. The `emit` of each port gets each message after
// it was used, and ends the reading if it returns false.
struct SlowPorts {
  SpanStreamPorts spans;
  EvidenceStreamPorts metrics;
};

// Returns why the steps of a job take longer than before, as a suspicion of KIND_SLOW
// (runtime/diagnose/slow_verdict.h). `trigger`: the verdict that asked for the examination.
// If a job has at most 64 ranks, it reads the spans of all of them. For a larger job it first asks
// the agents how long each rank computes in a step, and reads the ranks `sample` and those that
// stand out. If none of these computes longer than before, it then reads the ranks for which these
// have begun to wait longer. Source: MegaScale (Jiang et al., 2024), 5: first a heat map of all
// ranks, then the traces of some.
// A rank is named if it, or all ranks of its machine, compute longer than before, by the machine's
// own spans, and longer than the ranks of the other machines, even if any one of those machines is
// left out. So the job needs at least three machines. A cause that only other machines can confirm,
// such as a slow link, is returned with rank -1, so that no machine is evicted because of what one
// other machine says. Errors: NotFound - the steps are not slower, or nothing explains why;
// Unavailable - no step of all ranks could be read; those of the ports.
absl::StatusOr<megascale::control::v1::Suspicion> FindSlowSuspect(
    const megascale::control::v1::Job& job, const std::vector<int>& sample,
    const diagnose::TriggerVerdict& trigger, SlowPorts ports);

}  // namespace megascale::driver
