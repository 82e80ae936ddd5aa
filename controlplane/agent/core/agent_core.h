// The agent's decisions, without their execution. AgentCore computes two things from the desired
// state, the observations and the time: the actions that bring the machine nearer to the desired
// state, and the actual state to report.
//
// The shell (agent_loop.h of ../service, which has the clock, the processes and the messages)
// passes observations (On…), then calls Reconcile, carries out the actions in order and passes
// their results, until Reconcile returns no more. Desired states may arrive in any order, get lost
// or repeat: the end is the same, because actions follow from differences and not from messages.
//
// A process has an id that is never used again, so an observation about a reaped process is known
// to be stale. Rank -1 is the job's host process on this machine, which runs the preflight and
// stores shards. Threads: none; no I/O, no clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "controlplane/agent/core/gpu_turns.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/checkpoint/snapshot.h"

namespace megascale::agent {

inline constexpr int kHostRank = -1;

// --- actions --------------------------------------------------------------------------------

// Make the shared memory of the job's attempt and of its local ranks' snapshots. Free the memory of
// older attempts, and the snapshots of ranks that are no longer here. Call OnPrepareFailed if this
// fails.
struct PrepareMemory {
  const v1::DesiredJob* job;
};
// Start a process and send it its assignment. Call OnStarted.
struct StartProcess {
  int64_t process_id;
  int rank;
  bool preflight_only;
  const v1::DesiredJob* job;
};
// Check that the job's store, a Redis server, works. Call OnStoreChecked.
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
// Mark the snapshot as stored: its buffer in the rank's snapshot region may be overwritten.
struct MarkPersisted {
  std::string job_id;
  checkpoint::SealedSnapshot snapshot;
};
// Free all memory of the job. Its processes are gone.
struct DropMemory {
  std::string job_id;
};

// Start the process that tests the machine and send it the request. Call OnStarted.
struct StartTest {
  int64_t process_id;
  v1::MachineTestRequest request;
};

// Pointers in actions are valid until the next call of OnDesired or Reconcile.
using Action = std::variant<PrepareMemory, StartProcess, CheckStore, KillProcess, SendToWorker,
                            SendToHost, MarkPersisted, DropMemory, StartTest>;

// --- observations ---------------------------------------------------------------------------

struct ProcessEnd {
  int status = 0;  // as waitpid returns it
  // The evidence that the kernel killed the process for lack of memory; "": the kernel did not.
  std::string out_of_memory;
  std::string recent;              // its running and newest completed instructions; "": unknown
  std::string last_lines;          // the last lines of its log
  bool killed = false;             // it still lived when a KillProcess was carried out
  std::string store_failure = {};  // the error of the job's Redis server; "": no error
};

class JobCore;
class MachineCheckCore;

class AgentCore {
 public:
  AgentCore(std::string node_id, std::string incarnation);
  AgentCore(const AgentCore&) = delete;
  AgentCore& operator=(const AgentCore&) = delete;
  ~AgentCore();

  // Takes over `desired`, unless it is older than the known one or meant for another incarnation.
  // A driver whose log was restored from a copy begins a new epoch. Then nothing of older epochs
  // counts: before a job begins again, its old processes end and its old memory is freed. If a
  // driver of another version wants a phase or a restore point that this version does not know, the
  // job continues as before, and `desired` does not count as applied.
  void OnDesired(const v1::DesiredState& desired, absl::Duration now);

  // Answers the driver, which asks for the list of files of a job's data.
  v1::DataFiles DataFilesOf(const v1::FetchDataFiles& fetch) const;
  // Returns what it knows of epochs, for Hello.
  v1::KnownState known() const;

  // From now on the reports ask the driver to move the jobs elsewhere and to place no more here.
  void Drain() { draining_ = true; }
  // True when no job has anything left here, and the driver knows that this agent drains.
  bool drained() const { return draining_ && drain_known_ && jobs_.empty(); }
  bool has_processes() const;

  void OnPrepareFailed(const std::string& job_id, const absl::Status& why, absl::Duration now);
  // Passes the result of CheckStore in this attempt.
  void OnStoreChecked(const std::string& job_id, int64_t attempt, const absl::Status& outcome,
                      absl::Duration now);
  // Passes the result of StartProcess: the pid, or why the process could not be started.
  void OnStarted(int64_t process_id, absl::StatusOr<int> pid, absl::Duration now);
  // The process is reaped. Call after all its messages were passed.
  void OnEnded(int64_t process_id, const ProcessEnd& end, absl::Duration now);
  // The shell forwards store requests itself and does not pass them here. Returns true if this
  // message should reach the driver soon, so that the next report is due early.
  bool OnWorkerMessage(int64_t process_id, const link::v1::FromWorker& message);
  void OnHostMessage(int64_t process_id, const link::v1::FromHost& message);
  void OnTestMessage(int64_t process_id, const v1::MachineTest& message);
  // The host process made progress: its failures in a row count from zero again.
  void OnHostProgress(int64_t process_id);
  // Passes all sealed snapshots in the regions of the job's ranks here. Call after a rank's
  // SnapshotSealed and after a rank ended: a buffer that was being overwritten when the rank ended
  // no longer holds a snapshot.
  void OnSnapshots(const std::string& job_id, std::vector<checkpoint::SealedSnapshot> held);

  // Returns the next actions, in order; empty: there is nothing to do now.
  std::vector<Action> Reconcile(absl::Duration now);
  // Returns when to call Reconcile even if nothing happens; infinite: never.
  absl::Duration NextWake() const;

  // Evidence for diagnosis that an agent sends unasked, in bytes a second: what stalled ranks did
  // last, and samples of the GPUs. Everything else is fetched when somebody asks for it.
  static constexpr int kUnaskedBytesMax = 1024;

  // The maximum size of a report, below that of a message that a driver reads (16 MiB). A larger
  // one would never arrive, and the machine would be taken for lost.
  static constexpr size_t kReportBytesMax = size_t{12} << 20;

  // Returns the whole actual state; one with ActualState.too_large_bytes in place of a state of
  // more than `bytes_max`. `heartbeats`: of live processes, by process id. The report copies each
  // rank's status from `heartbeats` (of a host process only the age of its last sign of life), and
  // the core adds the rank and the pid. The texts of stalled ranks share kUnaskedBytesMax bytes for
  // each second of report_interval(), or half as many if the machine has GPUs; each text is cut to
  // an equal part.
  v1::ActualState Report(const std::map<int64_t, telemetry::v1::RankStatus>& heartbeats,
                         size_t bytes_max = kReportBytesMax) const;

  // Removes the texts of stalled ranks from a report if less than report_interval() has passed
  // since the last report with texts: changes of other jobs can cause many reports a second. The
  // driver keeps a text until its rank makes progress.
  void SpaceTexts(absl::Duration now, v1::ActualState* report);

  static constexpr absl::Duration kKeeperSilenceMin = absl::Seconds(5);
  // Tells the core for how long the process keeper has owed an answer; zero: it owes no answer.
  // After kKeeperSilenceMin the report gives each job a warning about it.
  void OnKeeperSilence(absl::Duration silence) { keeper_silence_ = silence; }

  // Takes the samples that were read from the GPUs; empty: nothing was read.
  void OnGpus(std::vector<telemetry::v1::GpuSample> read) { gpus_.Take(std::move(read)); }
  // Returns the samples of GPUs for the report that is sent now: see gpu_turns.h.
  std::vector<telemetry::v1::GpuSample> NextGpus(absl::Duration now) { return gpus_.Next(now); }

  // Returns the host processes that the shell must kill because their heartbeats stopped. Because
  // no KillProcess ordered these ends, the core treats them as failures and starts the processes
  // again within the same attempt.
  std::vector<int64_t> HungHosts(
      const std::map<int64_t, telemetry::v1::RankStatus>& heartbeats) const;

  // Returns the shortest heartbeat interval that a job asks for; at most 1 s.
  absl::Duration report_interval() const;

 private:
  JobCore* JobOf(int64_t process_id);

  std::string node_id_;
  std::string incarnation_;
  int64_t epoch_ = 0;
  int64_t version_ = 0;
  std::string proof_;  // DesiredState.proof, which came with epoch_ and version_
  int64_t applied_version_ = 0;
  bool is_understood_ = true;  // the newest desired state has nothing unknown
  int64_t last_process_id_ = 0;
  bool draining_ = false;
  bool drain_known_ = false;
  bool driver_takes_digests_ = false;
  std::map<std::string, std::unique_ptr<JobCore>> jobs_;
  std::unique_ptr<MachineCheckCore> check_;
  GpuTurns gpus_;
  absl::Duration keeper_silence_;
  absl::Duration texts_due_ = -absl::InfiniteDuration();  // when a report may have them again
};

}  // namespace megascale::agent
