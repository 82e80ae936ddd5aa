// What follows a failure: who is to blame, whether to try again, from where. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "controlplane/driver/driver_state.h"

namespace megascale::driver {

using FailureClass = megascale::telemetry::v1::FailureClass;
using Culprit = megascale::control::v1::Culprit;

// "RankExited", "NodeLost" …: the reason of a job that this culprit stopped.
std::string ReasonOf(const Culprit& culprit);

// "rank 1 on n0: killed by signal 9", for people.
std::string Describe(const Culprit& culprit);

// "step 30 in /checkpoints/…", for people.
std::string Describe(const megascale::agent::v1::RestorePoint& restore);

// Who is to blame when all steps are done and their checkpoint does not reach storage: the host
// that writes the manifest stands for all that write.
Culprit CheckpointNotStored(const JobRecord& job);

// True when `candidate` explains the end of its attempt better than `known`: a death that only
// followed from a peer's never stands before another; else what was noticed first, and where one of
// them does not say when, the one that is known.
bool IsBetterCause(const megascale::driver::v1::Failure& candidate,
                   const megascale::driver::v1::Failure& known);

// Failures of one attempt that are kept.
inline constexpr int kFailuresMax = 16;

// Adds to the failures of the job's attempt: as the cause, before all others, or among the
// consequences, in the order in which they were noticed. Only the cause keeps more than the first
// line of its evidence.
void AddFailure(const megascale::driver::v1::Failure& failure, bool is_cause, JobRecord* job);

// A bad specification and diverged numbers come back however often they are tried; storage was
// tried for as long as the job allows.
bool IsRetried(FailureClass failure_class);

// Before the next attempt, when `attempts_without_progress` were made in a row: zero after an
// attempt that progressed, restart_backoff before the second, then doubling up to a minute.
absl::Duration BackoffOf(const JobRecord& job);

// Where an attempt with these placements starts: the highest step of which every rank has a sealed
// snapshot on the node it is placed on, or a newer committed checkpoint, or the beginning. The
// snapshots are those that the fenced nodes reported, but for steps that were rolled back before.
megascale::agent::v1::RestorePoint ChooseRestore(
    const JobRecord& job, const std::vector<megascale::agent::v1::Placement>& placements);

// True when the job could not read the checkpoint that it was told to start from: there is no older
// one to try.
bool CannotStart(const JobRecord& job);

// After a failure whose culprit could not read what its attempt was to start from: forgets that
// copy, so that storage instead of memory is next, or the checkpoint before, and adds to the
// culprit's evidence what is used instead.
void StepOverCorrupt(JobRecord* job);

}  // namespace megascale::driver
