// Decides what follows a failure: its cause, whether to try again, and from which restore point.
// Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"

namespace megascale::driver {

using FailureClass = megascale::telemetry::v1::FailureClass;
using Culprit = megascale::control::v1::Culprit;

// Returns the reason of a job that this culprit stopped: "RankExited", "NodeLost" …
std::string ReasonOf(const Culprit& culprit);

// Returns for people: "rank 1 on n0: killed by signal 9".
std::string Describe(const Culprit& culprit);

// Returns for people: "step 30 in /checkpoints/…".
std::string Describe(const megascale::agent::v1::RestorePoint& restore);

// Returns the culprit when all steps are done and the last checkpoint does not reach storage: the
// host that writes the manifest, on behalf of all hosts that write shards.
Culprit CheckpointNotStored(const JobRecord& job);

// True when `candidate` is a better cause for the end of the attempt than `known`. A failure of
// class ABORTED, which only follows from a peer's failure, loses to any other class. Otherwise the
// failure that was noticed first wins; if one of them has no time, `known` wins. The loss of a
// machine is a better cause than a link that failed.
bool IsBetterCause(const megascale::driver::v1::Failure& candidate,
                   const megascale::driver::v1::Failure& known);

// The maximum number of failures that are kept of one attempt.
inline constexpr int kFailuresMax = 16;

// Adds a failure to those of the job's attempt. The cause goes before all others; a consequence
// goes among the other consequences, in the order in which they were noticed. Only the cause keeps
// more than the first line of its evidence.
void AddFailure(const megascale::driver::v1::Failure& failure, bool is_cause, JobRecord* job);

// True when an attempt that failed with this class is tried again. False for failures that would
// repeat (an error in the job file, the data or the numerics; diverged numbers), and for storage,
// which was already tried for as long as the job allows. Failures that a network or a dead process
// can cause are tried again.
bool IsRetried(FailureClass failure_class);

// The maximum number of attempts in a row that make no progress and that failures of machines end.
// It is high because each such failure loses a machine. If a job itself takes its machines down,
// kFailuresOfOneNodeMax ends it sooner.
inline constexpr int kMachineFailuresMax = 20;
// After this many attempts without progress that failed on one node, the job is placed elsewhere.
// If this many nodes were lost since the job last progressed, the job counts as the cause that
// takes its machines down.
inline constexpr int kFailuresOfOneNodeMax = 3;

// True when a machine or a link, and not the job, is at fault for the end of the newest of
// job.causes().
bool IsFaultOfMachine(const JobRecord& job);

// False: the failure came from elsewhere, a peer, a link or the rendezvous store.
bool MayBlameNode(const Culprit& cause);

// True if the machine could be at fault for the newest failure of the job: wrong numbers or bytes,
// a hang, a signal that a broken core or memory can cause, or the exit of a process if the job has
// failed twice on this machine since it last progressed. Call it after the failure is in
// job.causes().
bool CouldBeOfMachine(const JobRecord& job);

// Returns the nodes on which the job failed kFailuresOfOneNodeMax times since it last progressed,
// for causes that may blame a node.
std::set<std::string> NodesThatFailedOften(const JobRecord& job);

// Forgets the failures from before the job's last progress.
void ForgetFailures(JobRecord* job);

// True when the newest attempt ended because the preflight of a node refused the job, which had
// passed elsewhere.
bool WasRefusedByNode(const JobRecord& job);

// Returns the wait before the next attempt. After an attempt that progressed, it is zero. After an
// attempt that made no progress or could not read its checkpoint, it is restart_backoff, doubled
// for each further such attempt in a row, up to a minute.
absl::Duration BackoffOf(const JobRecord& job);

// Returns where an attempt with these placements starts: at the highest step of which every rank
// has a sealed snapshot on its node, or at the newest committed checkpoint if that is newer. If
// there is neither, it starts where the job began. The snapshots are those that the fenced nodes
// reported, without steps that were rolled back before. `rules`: DriverState.rules.
megascale::agent::v1::RestorePoint ChooseRestore(
    int rules, const JobRecord& job,
    const std::vector<megascale::agent::v1::Placement>& placements);

// Appends `words` to the first line of the culprit's evidence.
void AddToEvidence(const std::string& words, JobRecord* job);

// The next two functions handle unreadable checkpoints by the rules before 3. They serve only to
// replay logs of older drivers.
// True when the job could not read the checkpoint that it was told to start from.
bool CannotStartByRules2(const JobRecord& job);
// Drops the restore point that the culprit could not read, so that the next attempt uses storage
// instead of memory, or the checkpoint before.
void StepOverCorruptByRules2(JobRecord* job);

}  // namespace megascale::driver
