// Who holds up a job that stands still or has become slow, from the spans of a few of its ranks.
// Blocking: reads them from the agents. The reports of all ranks are in the driver's view of the
// job; they tell which of many ranks to read.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "controlplane/driver/relay/evidence_stream.h"
#include "controlplane/driver/relay/span_stream.h"
#include "proto/control.pb.h"
#include "runtime/diagnose/sampling/trigger.h"

namespace megascale::driver {

// The spans of more ranks are not read, however many the job has.
inline constexpr int kSuspectRanksRead = 256;

// Returns the rank that the others wait for (runtime/diagnose/stall.h), with its machine as the
// driver placed it. Begins at the ranks `sample` and reads the ranks that those wait for, then the
// groups of the one that it names. Of a group with many ranks it reads those whose reports differ
// from most; another rank that reports the same step and instruction as one that was read, and has
// the same plan, counts as standing where that one stands.
//
// Not named, unless its process shows no life: a rank of which nothing is known, that nobody waits
// for, that goes on, or that only one other machine says is behind in an exchange. So a machine's
// spans cannot make another machine a suspect. `ports.emit` gets each message after it was used,
// and ends the reading by false. Errors: NotFound - nothing tells one rank from the others, or it
// waits for storage or data; those of the ports.
absl::StatusOr<megascale::control::v1::Suspicion> FindSuspect(
    const megascale::control::v1::Job& job, const std::vector<int>& sample, SpanStreamPorts ports);

// Where the examination of a slow job reads from. The `emit` of each gets each message after it was
// used, and ends the reading by false.
struct SlowPorts {
  SpanStreamPorts spans;
  EvidenceStreamPorts metrics;
};

// Returns why the steps of a job take longer than before, as a suspicion of KIND_SLOW
// (runtime/diagnose/slow_verdict.h). `trigger`: what it said.
//
// It reads the spans of all ranks of a job of at most 64. For a larger job it first asks the agents
// how long each rank computes in a step, and reads the ranks `sample` and those that stand out; if
// none of them computes longer, then the ranks for which those have begun to wait longer. Source:
// MegaScale (Jiang et al., 2024), 5: first a heat map of all ranks, then the traces of some.
//
// A rank is named if it, or all ranks of its machine, compute longer than they did themselves, by
// the machine's own spans, and do so beside those of the other machines without any one of these:
// so on three machines at least. What others measure with it, such as a slow link, is told with
// rank -1, so that no machine is evicted by the word of another one. Errors: NotFound - the steps
// are not slower, or nothing explains why; Unavailable - no step of all ranks could be read; those
// of the ports.
absl::StatusOr<megascale::control::v1::Suspicion> FindSlowSuspect(
    const megascale::control::v1::Job& job, const std::vector<int>& sample,
    const diagnose::TriggerVerdict& trigger, SlowPorts ports);

}  // namespace megascale::driver
