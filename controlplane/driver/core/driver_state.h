// What the driver knows, and what follows from it. The state itself is a message (DriverState of
// proto/driver_log.proto), so that a snapshot is its bytes. Everything that leaves the driver is a
// pure function of the state: desired states, timers, cuts of loss logs. Nothing is sent "because
// of" an event, so a restarted driver sends the same as the one before it.
// Threads: plain functions. Start with driver_core.h for how events change the state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/driver_log.pb.h"

namespace megascale::driver {

using DriverState = megascale::driver::v1::DriverState;
using JobRecord = megascale::driver::v1::JobRecord;
using NodeRecord = megascale::driver::v1::NodeRecord;
using Event = megascale::driver::v1::Event;

// Null when there is none.
const JobRecord* FindJob(const DriverState& state, absl::string_view job_id);
JobRecord* FindJob(DriverState* state, absl::string_view job_id);
const NodeRecord* FindNode(const DriverState& state, absl::string_view node_id);
NodeRecord* FindNode(DriverState* state, absl::string_view node_id);

inline const std::string& JobId(const JobRecord& job) { return job.submitted().job_id(); }

// The new node of that id, in its place.
NodeRecord* AddNode(DriverState* state, absl::string_view node_id);

// True when ranks may be placed there: it lives, and nobody wants it to be free.
bool TakesRanks(const NodeRecord& node);

// Ranks of the job: data * pipeline * tensor sizes.
int WorldSize(const JobRecord& job);

// Of a job that waits for its first slots, from 1; 0 for every other.
int64_t QueuePosition(const DriverState& state, const JobRecord& job);

// True for SUCCEEDED, FAILED and CANCELLED.
bool IsTerminal(const JobRecord& job);

// True when agents are told to hold: no process, memory kept.
bool IsHold(megascale::driver::v1::Stage stage);

// True while processes of the job may be anywhere.
bool HoldsSlots(const JobRecord& job);

// True while the ranks of the attempt are asked to stop at a step's end: cancelled, or leaving.
bool StopsAtStep(const JobRecord& job);

// Of the job's newest committed checkpoint; -1: none.
int64_t NewestCommittedStep(const JobRecord& job);

// The distinct nodes of the job's placement, sorted.
std::vector<std::string> NodesOf(const JobRecord& job);
// Those of them that live.
std::vector<std::string> LiveNodesOf(const DriverState& state, const JobRecord& job);
// The node of a rank; empty when it has none.
std::string NodeOfRank(const JobRecord& job, int rank);

bool IsFenced(const JobRecord& job, absl::string_view node_id);
// True when the node is to be free and nothing of the job is left there: such a node keeps no
// memory of a job that was fenced on it.
bool HasLeft(const JobRecord& job, const NodeRecord& node);
bool HasPreflight(const JobRecord& job, absl::string_view node_id);
const megascale::driver::v1::EndedRank* FindEnded(const JobRecord& job, int rank);

// The living nodes of the job on which processes of the attempt may be left.
std::vector<std::string> UnfencedNodesOf(const DriverState& state, const JobRecord& job);
// No process of the attempt is left on any living node.
bool AllFenced(const DriverState& state, const JobRecord& job);
// No rank of the attempt runs any more.
bool AllGone(const JobRecord& job);

// A checkpoint of the last step is committed.
bool HasAllSteps(const JobRecord& job);

// True when every rank ended well and the checkpoint of the last step is not committed yet.
bool WaitsForFinalCheckpoint(const JobRecord& job);

// The step at which every rank of an attempt that was asked to stop ended well, while the
// checkpoint of that step is on its way to storage; 0: there is nothing to wait for.
int64_t StepBeingStored(const DriverState& state, const JobRecord& job);

// True when nothing but the deletion of older checkpoints is left to do: every rank ended well, its
// last checkpoint is committed, and the host of rank 0, which deletes, is believed to live.
bool WaitsForRetention(const DriverState& state, const JobRecord& job);

// Where the job's checkpoints are: the specification's directory (a folder named by the job id in
// it, because several jobs may name one directory), or a folder in the job's own.
std::string CheckpointDirectory(const JobRecord& job);

// The lowest version of a desired state that `num_events` events made; versions of states that
// differ only in what is not logged lie between two of these.
inline int64_t VersionOfEvent(int64_t num_events) { return num_events << 32; }

// A timer that must run while the state says so; when it is due, `when_due` is the next event.
struct Timer {
  std::string key;  // the same timer has the same key in every state
  absl::Duration delay;
  Event when_due;
};
std::vector<Timer> TimersFor(const DriverState& state);

// The loss log of a job must not hold steps beyond `restore_step` of attempts before `attempt`.
struct LossLogCut {
  std::string job_id;
  int64_t restore_step = 0;
  int64_t attempt = 0;
};
std::vector<LossLogCut> LossLogCutsFor(const DriverState& state);

}  // namespace megascale::driver
