// The driver's state, and what follows from it. The state is a message (DriverState of
// proto/driver_log.proto), so a snapshot is its bytes. All effects of the driver are pure functions
// of the state: desired states, timers, cuts of loss logs. They do not depend on the newest event,
// so a restarted driver has the same effects as the one before it.
// Threads: plain functions. Start with driver_core.h for how events change the state.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "controlplane/driver/exchanges/party.h"  // FindNode
#include "proto/driver_log.pb.h"

namespace megascale::driver {

using DriverState = megascale::driver::v1::DriverState;
using JobRecord = megascale::driver::v1::JobRecord;
using NodeRecord = megascale::driver::v1::NodeRecord;
using Event = megascale::driver::v1::Event;

class IndexedState;  // job_index.h

// Find a job by its id; null: there is no such job.
const JobRecord* FindJob(const DriverState& state, absl::string_view job_id);
JobRecord* FindJob(DriverState* state, absl::string_view job_id);
// Returns whether the suspicion explains a stall; false: a slow job, or a machine that differs from
// the others.
bool IsOfStall(const megascale::control::v1::Suspicion& suspicion);
// Returns whether all ranks train, and none of them has ended.
bool Trains(const JobRecord& job);
// Returns whether the driver itself found why the job stands still.
bool HasStallSuspicion(const JobRecord& job);

inline const std::string& JobId(const JobRecord& job) { return job.submitted().job_id(); }

// Adds a node at its place in the order of ids and returns it.
NodeRecord* AddNode(DriverState* state, absl::string_view node_id);

// True when ranks may be placed on the node: it lives, is neither evicted nor quarantined, does not
// drain, does not wait for an operator to name it, and no process of a test hangs there.
bool TakesRanks(const NodeRecord& node);

// Machine tests: a machine gets its first rank only after its agent's test has passed, and is
// tested again after a failure that could be its own. A result is valid for one start of the
// machine's agent. A machine that fails is quarantined.
//
// How long an agent lets one process of a test run, and how many it may start for one test.
inline constexpr int kTestStartsMax = 5;
absl::Duration TestDeadline(megascale::agent::v1::TestKind kind);
// True while the driver waits for the result of the node's test.
bool IsTestDue(const NodeRecord& node);
// Returns the nodes where processes of jobs may run. Tests wait on these nodes.
std::set<std::string> BusyNodes(const DriverState& state);

// Returns the number of ranks of the job: data * pipeline * tensor sizes.
int WorldSize(const JobRecord& job);

// Returns the jobs that wait for their first slots, in the order in which they start. A step of
// priority counts as much as an hour of waiting, so no priority makes a job wait for ever.
std::vector<const JobRecord*> Queue(const IndexedState& state);

// Returns the key by which queued jobs are ordered; the job with the least key starts first.
// `submitted`: the latest time of submission of this job and the jobs before it, because the clock
// may have stepped back.
int64_t QueueKey(const DriverState& state, const JobRecord& job, int64_t submitted);

// True for SUCCEEDED, FAILED and CANCELLED.
bool IsTerminal(const JobRecord& job);

// True when agents are told PHASE_HOLD: they run no process and keep the memory.
bool IsHold(megascale::driver::v1::Stage stage);

// True while processes of the job may exist.
bool HoldsSlots(const JobRecord& job);

// True while the ranks of the attempt are asked to stop at a step's end: cancelled, or leaving.
bool StopsAtStep(const JobRecord& job);

// Returns the step of the job's newest committed checkpoint; -1: there is no checkpoint.
int64_t NewestCommittedStep(const JobRecord& job);

// Returns the distinct nodes of the job's placement, sorted.
std::vector<std::string> NodesOf(const JobRecord& job);
// Returns those of NodesOf that live.
std::vector<std::string> LiveNodesOf(const DriverState& state, const JobRecord& job);
// Returns the node of a rank; empty: the rank is not placed.
std::string NodeOfRank(const JobRecord& job, int rank);

bool IsFenced(const JobRecord& job, absl::string_view node_id);
// True when the node takes no ranks, the job is on hold, and it is fenced there. The agent then
// keeps no memory of the job.
bool HasLeft(const JobRecord& job, const NodeRecord& node);
// True when this agent has passed the job's preflight.
bool HasPreflight(const JobRecord& job, const megascale::agent::v1::Hello& agent);
// True when every node of the job's placement has passed.
bool HasAllPreflights(const DriverState& state, const JobRecord& job);
// Returns the nodes whose present agents have refused the job.
std::set<std::string> RefusingNodesOf(const DriverState& state, const JobRecord& job);
const megascale::driver::v1::EndedRank* FindEnded(const JobRecord& job, int rank);

void SetTime(int64_t unix_nanos, google::protobuf::Timestamp* timestamp);

// The reason of a job whose attempt ends because the driver's log was restored from a copy.
inline constexpr char kDriverRestored[] = "DriverRestored";
// True while the job must be fenced on every node, because the driver's log is a copy that may lack
// later placements.
bool IsFencedEverywhere(const DriverState& state, const JobRecord& job);
// True when the node has no process left of any job of an older epoch.
bool HasFencedEpoch(const DriverState& state, const NodeRecord& node);
// Returns the living nodes that must confirm that no process of the attempt is left.
std::vector<std::string> NodesToFence(const DriverState& state, const JobRecord& job);
// The longest time that agents in contact need to kill and reap the processes of an attempt,
// however much memory these have and however busy the machine is.
inline constexpr absl::Duration kFenceTimeout = absl::Minutes(5);
// Returns the nodes of NodesToFence that have not confirmed it yet.
std::vector<std::string> UnfencedNodesOf(const DriverState& state, const JobRecord& job);
// True when no process of the attempt is left on any living node.
bool AllFenced(const DriverState& state, const JobRecord& job);
// True when no rank of the attempt runs any more.
bool AllGone(const JobRecord& job);

// True when a checkpoint of the last step is committed.
bool HasAllSteps(const JobRecord& job);

// True when every rank ended well and the checkpoint of the last step is not committed yet.
bool WaitsForFinalCheckpoint(const JobRecord& job);

// Returns the step whose checkpoint must still reach storage after every rank of an attempt that
// was asked to stop has ended well at that step; 0: there is nothing to wait for.
int64_t StepBeingStored(const DriverState& state, const JobRecord& job);

// True when only the deletion of older checkpoints is left to do: the job is in STAGE_RETAIN; or
// every rank ended, well unless the job was cancelled, the last checkpoint is committed, no host
// process has failed, and the node of rank 0, whose host deletes, lives.
bool WaitsForRetention(const DriverState& state, const JobRecord& job);

// True when the job may have more checkpoints on storage than it is to keep once it has ended: its
// newest commit made older ones superfluous, and no host has said that it deleted them.
bool LeavesCheckpoints(const DriverState& state, const JobRecord& job);

// Returns the node whose host process deletes the checkpoints of a job that ended elsewhere than at
// a step's end: one of its nodes that live and take ranks, first that of rank 0, with the agent
// that ran the attempt and no test to make; empty: none can.
std::string RetainingNodeOf(const DriverState& state, const JobRecord& job);

// True while the host of rank 0 still has to write the manifest of a checkpoint, which then is the
// newest one.
bool WritesManifest(const JobRecord& job);

// Returns the folder of the job's checkpoints. If the specification names a directory, this is a
// folder in it with the job id as its name, because several jobs may name one directory; otherwise
// it is a folder in the job's folder.
std::string CheckpointDirectory(const JobRecord& job);

// Returns the identity of the driver's log: made of the random secret with which the log began, so
// that it stays the same in restarts, snapshots and restored copies. Empty: no driver of this
// release has started on the log.
std::string LogId(const DriverState& state);

// Returns the owner of the job's checkpoint directory; without fields: see LogId.
megascale::checkpoint::v1::Owner OwnerOf(const DriverState& state, const JobRecord& job);

// Returns the lowest version of a desired state after `num_events` events. Desired states that
// differ only in parts that are not logged have the versions between two of these.
inline int64_t VersionOfEvent(int64_t num_events) { return num_events << 32; }

// A timer that must run while TimersFor lists it; when it is due, the driver logs `when_due`.
struct Timer {
  std::string key;  // the same timer has the same key in every state
  absl::Duration delay;
  Event when_due;
};
std::vector<Timer> TimersFor(const IndexedState& state);

// Demands that a job's loss log has no steps beyond `restore_step` from attempts before `attempt`.
struct LossLogCut {
  std::string job_id;
  int64_t restore_step = 0;
  int64_t attempt = 0;
};
// Returns the cut that the job's present attempt needs.
LossLogCut CutOf(const JobRecord& job);
std::vector<LossLogCut> LossLogCutsFor(const IndexedState& state);

}  // namespace megascale::driver
