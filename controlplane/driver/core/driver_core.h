// The driver's state machine: (state, event) -> state. The work that is left to do follows from the
// state (driver_state.h). No clock, no I/O, no thread, no randomness: time and random bytes come in
// events. See docs/how-a-failure-is-handled.md.
//
// Life of a job: QUEUED -> PREFLIGHT -> RUN -> ENDED. A failure leads to FENCE, which lasts until
// no process of the attempt is left on any living node. After five minutes of FENCE each node that
// still has some is quarantined; a node that joined meanwhile has five minutes from then on. Then
// BACKOFF and WAIT_FOR_SLOTS follow where needed. The next attempt begins with RUN, or with
// PREFLIGHT if it uses a node that has not passed it. A job that must leave a node passes through
// LEAVE and FENCE, a cancelled one through STOP and FENCE.
#pragma once

#include "absl/status/statusor.h"
#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/core/job_index.h"

namespace megascale::driver {

// The version of the rules by which events are applied. Raise it when the effect of an existing
// kind of event changes. A replay applies to each event the rules of the driver that logged it:
// each DriverStarted in the log names the rules for the events after it.
//   1: jobs are placed in the order of their submission.
//   2: recovering jobs are placed before queued ones, and a recovering job may take slots that are
//      kept for recovering jobs submitted after it.
//   3: restore_order.h handles checkpoints that could not be read.
//   4: if the agent of a node has not passed the job's preflight, an attempt on this node begins
//      with a preflight; a refusal there excludes the node; failures of machines are counted
//      separately from the others; processes that cannot be ended, and checkpoints that only one
//      machine cannot read, quarantine the machine.
//   5: queued jobs start by priority; jobs may start before a job that waits for more slots than
//      there are; a spare stays a spare when a job is placed on it; when the log is restored from a
//      copy, every job, queued jobs included, is first fenced on all machines (FENCE).
//   6: when tests are turned on, running jobs continue, and lost nodes are tested when they
//      return; a recovering job counts as waiting for slots until it makes progress, not only until
//      an attempt starts; only a machine that was there for the whole fence timeout is blamed.
//   7: after its own test a machine exchanges bytes with others, and so do all machines of a job
//      whose ranks lost each other without a known cause; if a machine is lost only after
//      its processes of the failed attempt have ended, it is not the cause.
//   8: machines exchange in rounds, too (rounds.h): new ones, those of a failed attempt whose ranks
//      lost each other, and those on which a job is to start; a machine is tested once its agent
//      says that it can run tests, even if the agent first joined a driver of an older version,
//      which did not know tests.
//   9: the machines of an attempt have the same numerics version.
//  10: exchanges and refusals are counted by who made them (party.h), not by node ids; of the files
//      of a job's data the log has one list at most, and digests of the others; a cancelled job
//      waits for the deletion of older checkpoints even without a checkpoint of its own; a restore
//      point names the attempt that committed it; an attempt that could not read its checkpoint or
//      its data is followed by one that begins with a preflight, which waits for storage; the
//      ranks of an attempt bind their proofs to addresses if all its agents can; an attempt that
//      ended because a rank got no answer from the machine of another rank, while both machines
//      reach the driver, names both and counts as ended by machines, and later attempts avoid this
//      link (failed_links.h).
//  11: the ranks of an attempt evaluate held-out text if all its agents can; the checkpoint after
//      the lowest loss on held-out text may be kept.
inline constexpr int kRules = 11;

// A restored copy of the log begins a new epoch (epoch.h), which adds this to the attempts of all
// jobs: each later attempt has a greater number than every attempt that the lost part of the log
// may have begun.
inline constexpr int64_t kAttemptsOfAnEpoch = 1'000'000;

// Applies one event. Returns false when the event is refused, because it belongs to an older
// attempt or incarnation or repeats what the state knows; then only the count of events and the
// newest time change.
// Determinism: the state depends on nothing but the events. `index`: the index of the state, which
// is kept up to date. Without an index every job is looked at.
bool Apply(const Event& event, DriverState* state, JobIndex* index);
bool Apply(const Event& event, DriverState* state);

// The maximum number of jobs that have not ended. Each of them costs memory, a file descriptor, and
// time in every round.
inline constexpr int kOpenJobsMax = 1000;

// Returns whether the job ended because its first preflight refused it, so that it never ran.
bool WasRefusedAtStart(const JobRecord& job);

// Returns whether a submit must be logged; a submit that takes a checkpoint directory over replaces
// a job with its id that WasRefusedAtStart, whose record must be forgotten first. False: the same
// submit is in the log, so the caller answers with the job that it made. Errors: AlreadyExists -
// another submit has made a job with the id; ResourceExhausted - kOpenJobsMax jobs have not ended;
// the message says what to do.
absl::StatusOr<bool> IsNewSubmit(const IndexedState& state,
                                 const megascale::driver::v1::JobSubmitted& submit);

// Returns the NotFound error for a job id that the driver does not know.
absl::Status NoSuchJob(absl::string_view job_id);

// Returns whether a cancel must be logged; false: the job is being cancelled or has been cancelled.
// Errors: NotFound; FailedPrecondition - the job has succeeded or failed.
absl::StatusOr<bool> IsNewCancel(const IndexedState& state, absl::string_view job_id);

// Return whether an eviction, or its end, must be logged; false: the node is already in that state.
// Uncordon also ends a quarantine, and the exclusions of a node by jobs whose preflight it refused,
// and it names a node that waits for that.
// Errors: NotFound - no such node; the message names the one with the most similar id.
absl::StatusOr<bool> IsNewEviction(const DriverState& state,
                                   const megascale::driver::v1::NodeEvicted& evicted);
absl::StatusOr<bool> IsNewUncordon(const DriverState& state, absl::string_view node_id);

// As above, for a change of a node's pool.
absl::StatusOr<bool> IsNewSpareSet(const DriverState& state,
                                   const megascale::driver::v1::NodeSpareSet& spare_set);

// Checks a client's report (ReportSuspect) that a node of a job differs from the others. Sets the
// kind, and the job's lowest rank on that node; a `began_at` later than `now` becomes `now`.
// Returns false if the job's suspicion was confirmed within the last minute, or within the last 5 s
// if it is of another node than the report's, or if the analysis of a stall has already found a
// suspect. Requires: attempt, node and texts are set. Errors: InvalidArgument, NotFound,
// FailedPrecondition - as proto/control.proto says for ReportSuspect.
absl::StatusOr<bool> IsNewReport(const IndexedState& state, absl::Time now,
                                 megascale::driver::v1::SuspectFound* found);

// Returns whether a suspicion that does not come from the analysis of a stall may replace the job's
// current one now. False while the job has a suspicion from that analysis, and for some time after
// any suspicion, because each one is logged.
bool MayReplaceSuspicion(const JobRecord& job, const megascale::control::v1::Suspicion& found,
                         absl::Time now);

// The driver's contact with the agent that holds a node id.
enum class Contact {
  kUnknown,  // nothing since the driver started
  kGone,     // its stream ended, or its report is overdue
  kHeard,    // its stream is open and its reports come in time
};

// Returns OK if an agent may take the node id that it asks for. The holder is the agent that took
// this node id last. An agent with the holder's key on the holder's machine is the same agent,
// started again: it takes over at once, unless the holder still reports. If the machine looks
// different, the agent must wait until the holder is lost, because the key may be a copy. A
// rebooted machine also looks different, so it waits, too. An agent with another key must wait,
// too. `certificate`: the name in the agent's certificate; empty: it connected without TLS. A node
// id is bound to the certificate that it first joined with. An agent with the holder's key may move
// the binding to a renewed certificate, and an eviction frees the node id for another machine.
// Errors: AlreadyExists - another agent holds the node id; asking again later may help;
// PermissionDenied - the node id is bound to another certificate. The message says what to do.
absl::Status CheckJoin(const DriverState& state, const megascale::agent::v1::Hello& hello,
                       absl::string_view certificate, Contact contact);

}  // namespace megascale::driver
