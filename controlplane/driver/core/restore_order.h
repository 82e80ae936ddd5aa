// The order in which a job tries checkpoints when it cannot read one: the same checkpoint again;
// the same one on other machines, if they have room; then every older one in the same way. One that
// is another run's is tried once, because no machine reads it better. If a job
// has committed a checkpoint but can read none, it does not fall back to initial weights. It ends,
// and its message says what it tried and how to continue. Unreadable checkpoints stay on storage,
// because another machine may be able to read them. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "controlplane/driver/core/driver_state.h"

namespace megascale::driver {

// True when the job has committed a checkpoint of its own, whether it can be read or not.
bool EverCommitted(const JobRecord& job);

// Returns the job's newest own checkpoint on storage, whether it can be read or not.
// Requires: EverCommitted.
megascale::agent::v1::StoredManifest NewestCheckpoint(const JobRecord& job);

// True when the newest attempt failed because it could not read its restore point: a checkpoint on
// storage (CouldNotRead), or snapshots in the agents' memory (CouldNotReadMemory).
bool CouldNotRead(const JobRecord& job);
bool CouldNotReadMemory(const JobRecord& job);

// True when the newest attempt could not read its checkpoint, or its host process could not read
// the data: storage may be away.
bool CouldNotUseStorage(const JobRecord& job);

// Lets the next attempt begin with a preflight on all its nodes, which waits for storage.
void AskForPreflights(JobRecord* job);

// Forgets the snapshots in memory, so that the next attempt reads from storage.
void StepOverMemory(JobRecord* job);

// Adds the checkpoint that the attempt could not read to job->unread(). Requires: CouldNotRead.
void NoteFailedRead(JobRecord* job);

// Decides which checkpoint the next attempt reads. If the last one is not tried again, sets it
// aside. Returns the choice in words for people; empty: there is no checkpoint left to try.
// Requires: NoteFailedRead.
std::string NextRead(const DriverState& state, JobRecord* job);

// Returns the final message of a job whose checkpoints cannot be read: every checkpoint that was
// tried, on which machine and with which error, and how to continue.
std::string NothingCanBeRead(const JobRecord& job);

// Returns the nodes that should get no rank, because they could not read the job's checkpoint.
std::set<std::string> NodesThatCannotRead(const DriverState& state, const JobRecord& job);

// Returns the number of failed reads by which the backoff grows: a checkpoint that was set aside
// counts once, any other checkpoint as many times as attempts failed to read it.
int64_t NumFailedReads(const JobRecord& job);

// Notes that the attempt has read its checkpoint. If attempts on other nodes could not read it
// before, this shows that those nodes are at fault and not the checkpoint: adds this to the
// evidence of the earlier failure, and returns those nodes.
std::set<std::string> NoteRead(JobRecord* job);

// Drops checkpoints from job->committed() that the job no longer keeps (checkpoint.keep), and with
// checkpoint.keep_best chooses job->best_checkpoint(), which it keeps as well.
void KeepCheckpoints(JobRecord* job);

// Drops the entries of job->unread() that a commit of `committed_step` makes superfluous.
void ForgetUnread(int64_t committed_step, JobRecord* job);

// Puts the checkpoints that were set aside back among the committed ones. Call when the job ends.
void PutBackUnread(JobRecord* job);

}  // namespace megascale::driver
