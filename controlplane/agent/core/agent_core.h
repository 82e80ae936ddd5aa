// What an agent decides, without doing it: from the desired state, what was observed and the time,
// to the actions that bring the machine nearer to it, and to the actual state that is reported.
//
// The shell tells observations (On…), then calls Reconcile, carries out the actions in order and
// tells what came of them, until Reconcile has no more. Any order, loss or repetition of desired
// states ends in the same place, because actions follow from differences and not from messages.
//
// A process is named by an id that is never used again, so an observation about one that is reaped
// is known as stale. Rank -1 is the host process. Threads: none; no I/O, no clock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/checkpoint/snapshot.h"

namespace megascale::agent {

inline constexpr int kHostRank = -1;

// --- actions
// ----------------------------------------------------------------------------------------

// Make the shared memory of the job's attempt and of its local ranks' snapshots; forget that of
// older attempts, and snapshots of ranks that are no longer here. Tell OnPrepareFailed when it
// cannot be done.
struct PrepareMemory {
  const v1::DesiredJob* job;
};
// Start a process and send it its assignment. Tell OnStarted.
struct StartProcess {
  int64_t process_id;
  int rank;
  bool preflight_only;
  const v1::DesiredJob* job;
};
// Ask the store of the job, which is a Redis server, whether it serves. Tell OnStoreChecked.
struct CheckStore {
  const v1::DesiredJob* job;
};
struct KillProcess {
  int64_t process_id;
};
struct SendToWorker {
  int64_t process_id;
  link::v1::ToWorker message;
};
struct SendToHost {
  int64_t process_id;
  link::v1::ToHost message;
};
// The buffer of the rank's snapshot region is on storage and may be overwritten.
struct MarkPersisted {
  std::string job_id;
  checkpoint::SealedSnapshot snapshot;
};
// Forget all memory of the job. Its processes are gone.
struct DropMemory {
  std::string job_id;
};

// Pointers in actions are good until the next OnDesired or Reconcile.
using Action = std::variant<PrepareMemory, StartProcess, CheckStore, KillProcess, SendToWorker,
                            SendToHost, MarkPersisted, DropMemory>;

// --- observations
// -------------------------------------------------------------------------------------

struct ProcessEnd {
  int status = 0;  // as of waitpid
  std::string
      out_of_memory;       // why the kernel must have killed it for lack of memory; "": it did not
  std::string recent;      // the instructions that it was in and completed last; "": none
  std::string last_lines;  // of its log
  bool killed = false;     // it lived when a KillProcess was carried out
  std::string store_failure = {};  // how the store that it asked failed it; "": it did not
};

class JobCore;

class AgentCore {
 public:
  AgentCore(std::string node_id, std::string incarnation);
  AgentCore(const AgentCore&) = delete;
  AgentCore& operator=(const AgentCore&) = delete;
  ~AgentCore();

  // Takes over `desired` unless it is older than what is known or meant for another incarnation.
  void OnDesired(const v1::DesiredState& desired, absl::Duration now);

  // From now on the reports ask the driver to take the jobs away and to place no more here.
  void Drain() { draining_ = true; }
  // The driver knows that this agent drains, and nothing of any job is left here.
  bool drained() const { return draining_ && drain_known_ && jobs_.empty(); }
  bool has_processes() const;

  void OnPrepareFailed(const std::string& job_id, const absl::Status& why);
  // What came of CheckStore in this attempt.
  void OnStoreChecked(const std::string& job_id, int64_t attempt, const absl::Status& outcome);
  // `pid`, or why it could not be started.
  void OnStarted(int64_t process_id, absl::StatusOr<int> pid, absl::Duration now);
  // The process is reaped and all that it wrote was told before.
  void OnEnded(int64_t process_id, const ProcessEnd& end, absl::Duration now);
  // Store requests are not for the core: the shell forwards them.
  void OnWorkerMessage(int64_t process_id, const link::v1::FromWorker& message);
  void OnHostMessage(int64_t process_id, const link::v1::FromHost& message);
  // The host made progress: what forgives its restarts.
  void OnHostProgress(int64_t process_id);
  // All sealed snapshots in the regions of the job's ranks here. Tell after a rank's SnapshotSealed
  // and after it ended: a buffer that was being overwritten is none any more.
  void OnSnapshots(const std::string& job_id, std::vector<checkpoint::SealedSnapshot> held);

  // The next actions, in order; empty when there is nothing to do now.
  std::vector<Action> Reconcile(absl::Duration now);
  // When to call Reconcile although nothing happened; infinite: never.
  absl::Duration NextWake() const;

  // The whole actual state. `heartbeats`: of live processes, by process id; ages and phases are
  // taken from there, rank and pid are filled in.
  v1::ActualState Report(const std::map<int64_t, telemetry::v1::RankStatus>& heartbeats) const;

  // Host processes that stand still, by their heartbeats: to be killed. What ends of itself or by a
  // kill that the core did not ask for is started again, in place.
  std::vector<int64_t> HungHosts(
      const std::map<int64_t, telemetry::v1::RankStatus>& heartbeats) const;

  // The shortest heartbeat interval that a job asks for; at most 1 s.
  absl::Duration report_interval() const;

 private:
  JobCore* JobOf(int64_t process_id);

  std::string node_id_;
  std::string incarnation_;
  int64_t version_ = 0;
  int64_t applied_version_ = 0;
  int64_t last_process_id_ = 0;
  bool draining_ = false;
  bool drain_known_ = false;
  std::map<std::string, std::unique_ptr<JobCore>> jobs_;
};

}  // namespace megascale::agent
