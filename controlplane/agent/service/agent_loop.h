// The agent's main thread. It waits for children, the driver and signals, tells AgentCore what
// happened, and carries out the actions of AgentCore. Private to this folder.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/agent/core/agent_core.h"
#include "controlplane/agent/evidence/last_attempts.h"
#include "controlplane/agent/evidence/machine_reader.h"
#include "controlplane/agent/evidence/out_of_memory_watch.h"
#include "controlplane/agent/service/child_process.h"
#include "controlplane/agent/service/driver_stream.h"
#include "controlplane/agent/service/heartbeat.h"
#include "controlplane/agent/service/job_memory.h"
#include "controlplane/agent/service/store_forwarder.h"
#include "controlplane/launch/process_keeper.h"
#include "runtime/telemetry/gpu_metrics.h"
#include "runtime/telemetry/recording.h"

namespace megascale::agent {

struct AgentLoopOptions {
  std::string node_id;
  std::string incarnation;
  std::string run_directory;
  std::string log_directory;
  std::string interface;
  StoreAccess store;
  int signals_fd = -1;  // a signalfd: SIGTERM drains the agent, a second one or SIGINT ends it
  absl::Duration drain_timeout;   // the agent ends after this time even if jobs are left
  telemetry::ReadGpus read_gpus;  // empty: there are none
};

class AgentLoop {
 public:
  AgentLoop(AgentLoopOptions options, launch::ProcessKeeper* keeper, DriverStream* stream);

  // Runs until a signal has ended or drained the agent (OK), the driver refuses the agent (Aborted,
  // FailedPrecondition), or the process keeper is gone (Unavailable).
  absl::Status Run();

 private:
  void Wait();
  void TakeSignals();
  bool drains() const { return drain_deadline_ < absl::InfiniteDuration(); }
  void EndWhenDrained();
  absl::Duration NextReport() const;
  absl::Duration NextWake() const;
  absl::Status TakeStream();
  absl::Status TakeExits();
  std::string RecentOf(const ChildName& name);
  void ReadChild(ChildProcess* child);
  void OnMessage(const ChildProcess& child, const std::string& message);
  void OnWorkerMessage(const ChildProcess& child, const std::string& message);
  void WarnOfUnknown();
  void OnDesired(const v1::DesiredState& desired);

  void Act();
  void Do(const PrepareMemory& action);
  void Do(const StartProcess& action);
  void Do(const CheckStore& action);
  void Do(const KillProcess& action);
  void Do(const SendToWorker& action);
  void Do(const SendToHost& action);
  void Do(const MarkPersisted& action);
  void Do(const DropMemory& action);
  void Do(const StartTest& action);
  absl::StatusOr<int> StartTestChild(const StartTest& action);
  absl::StatusOr<int> StartChild(const StartProcess& action);
  // Kills a process that does not read its link, or for which a message was too large. `sent`: of
  // ChildProcess::Send.
  void KillUnlessTold(const ChildProcess& child, const absl::Status& sent);
  void SendToChild(int64_t process_id, const google::protobuf::MessageLite& message);
  // Tells a rank or a host process that this agent drains, which lets it survive a SIGTERM.
  void TellThatItDrains(const ChildName& name);
  void RefreshSnapshots(const std::string& job_id);
  JobMemory& MemoryOf(const std::string& job_id);

  void DriveStores();
  void AnswerFetchLog(const v1::FetchLog& fetch);
  void AnswerFetchSpans(const v1::FetchSpans& fetch);
  absl::StatusOr<v1::SpanChunk> ReadSpans(const v1::FetchSpans& fetch);
  void AnswerFetchEvidence(const v1::FetchEvidence& fetch);
  void AnswerFetchDataFiles(const v1::FetchDataFiles& fetch);
  // Passes the driver's list to the host process that asked for it.
  void OnDataFiles(const v1::DataFiles& files);
  void SendEvidence(const std::string& request_id, absl::StatusOr<telemetry::v1::Evidence> read);
  // Starts a process that reads the stacks of a rank's process. It ends by itself in time.
  absl::Status StartStacks(const v1::FetchEvidence& fetch);
  void OnStacks(int64_t process_id, const v1::EvidenceChunk& chunk);
  absl::StatusOr<telemetry::v1::Evidence> ReadEvidence(const v1::FetchEvidence& fetch);
  void SampleExchanges();
  void SampleMachine();
  void PingKeeper();
  void ReportWhenDue();
  void NoteHostProgress();

  const AgentLoopOptions options_;
  launch::ProcessKeeper* const keeper_;
  DriverStream* const stream_;
  AgentCore core_;
  std::map<int64_t, std::unique_ptr<ChildProcess>> children_;
  std::map<std::string, std::unique_ptr<JobMemory>> memory_;
  int num_socket_directories_ = 0;
  LastAttempts last_attempts_;
  OutOfMemoryWatch out_of_memory_;
  const bool is_recording_ = telemetry::IsRecording();

  StoreForwarder stores_;
  std::map<std::string, int64_t> published_;  // newest step in the batch ring, by job

  bool stopping_ = false;
  bool warned_of_unknown_ = false;
  absl::Duration next_size_warning_ = -absl::InfiniteDuration();
  absl::Duration next_epoch_warning_ = -absl::InfiniteDuration();
  absl::Duration drain_deadline_ = absl::InfiniteDuration();  // finite: the agent drains
  bool changed_ = true;                                       // since the last report
  absl::Duration reported_ = -absl::InfiniteDuration();
  telemetry::GpuMetrics gpus_;
  MachineReader machine_;
  absl::Duration sampled_ = -absl::InfiniteDuration();
  absl::Duration pinged_ = -absl::InfiniteDuration();
  Heartbeat heartbeat_;
  std::map<int64_t, std::string> stack_requests_;  // by process: the request that it answers
  int64_t last_stack_process_;
};

}  // namespace megascale::agent
