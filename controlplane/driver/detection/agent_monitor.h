// Turns what agents report, and time, into the events that the driver logs. Pure: time comes in as
// an argument. It joins four parts: agent_reports.h keeps what the agents said last,
// reported_events.h derives events from a report, failure_detector.h judges silence and hangs, and
// step_reporters.h says which agents report steps.
// Threads: one at a time, const calls included.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/detection/agent_reports.h"
#include "controlplane/driver/detection/failure_detector.h"
#include "controlplane/driver/detection/reported_events.h"
#include "controlplane/driver/detection/step_reporters.h"

namespace megascale::driver {

// What the driver itself knows about an agent's connection; all else is the agent's claim.
struct AgentPeer {
  std::string certificate;  // the name in the agent's certificate; empty: it connected without TLS
  std::string address;      // the IP address from which it connected; empty: a Unix socket
};

class AgentMonitor {
 public:
  // `now`: monotonic time at which the driver began to listen; nodes have until `now` +
  // `node_timeout` to report.
  explicit AgentMonitor(absl::Duration now,
                        absl::Duration node_timeout = FailureDetector::kNodeTimeout)
      : reports_(now, node_timeout) {}

  // Takes over an agent that connected and may join (CheckJoin). Returns NodeJoined when this
  // incarnation, its certificate or its address is new, or when the node was lost.
  std::vector<Event> OnHello(const DriverState& state, const megascale::agent::v1::Hello& hello,
                             absl::Duration now, const AgentPeer& peer = {});

  // Returns the events that follow from an agent's report, in the order in which they must be
  // applied. A report is ignored unless its incarnation is the one in the state.
  std::vector<Event> OnReport(const IndexedState& state, const std::string& node_id,
                              megascale::agent::v1::ActualState report, absl::Duration now);

  // Returns the events that follow from the passing of time. Call several times per second. Cost:
  // looks at the jobs that have not ended.
  std::vector<Event> OnTick(const IndexedState& state, absl::Duration now);

  // Notes the newest step in a job's loss log, for AttemptProgressed. Call before OnReport.
  void NoteStep(const std::string& job_id, int64_t step) {
    events_.NoteStep(job_id, step);
    step_reporters_.NoteStep(job_id, step);
  }

  // Forgets a job that has ended.
  void ForgetJob(const std::string& job_id) {
    reports_.Forget(job_id);
    events_.Forget(job_id);
    detector_.Forget(job_id);
    step_reporters_.Forget(job_id);
  }

  // Forgets a node that is lost.
  void ForgetNode(const std::string& node_id) { reports_.ForgetNode(node_id); }

  const AgentReports& reports() const { return reports_; }
  StepReporters& step_reporters() { return step_reporters_; }

  // Returns for each job whose checkpoints cannot be written since when that is so, in awake time
  // (AgentReports::awake).
  std::map<std::string, absl::Duration> StorageFailures() const {
    return detector_.StorageFailures();
  }

 private:
  AgentReports reports_;
  ReportedEvents events_;
  FailureDetector detector_;
  StepReporters step_reporters_;
};

}  // namespace megascale::driver
