// Simulated agents: each has its own gRPC stream to a real driver and reports healthy ranks as a
// real agent does. They reach every desired state at once. Asked for metrics, they answer with the
// samples of 15 minutes. Threads: those of gRPC, and one that reports.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "proto/control.pb.h"
#include "proto/telemetry.pb.h"

namespace megascale::bench {

class SimulatedAgent;

inline constexpr char kFleetJobId[] = "fleet";

// Returns a job that takes all slots of a fleet: a pipeline within each agent.
control::v1::SubmitJobRequest JobForFleet(int num_agents, int slots);

class Fleet {
 public:
  struct Options {
    std::string address;  // of the driver
    int num_agents = 1;
    int slots = 8;
    absl::Duration heartbeat_interval = absl::Seconds(1);
    int checkpoint_steps = 0;  // between two checkpoints; 0: there are none
    int num_silent = 0;        // the last agents never answer a question, as machines that hang
    // Agent i answers with `samples[samples_of[i]]`, agents beyond these with the first. Empty:
    // what eight ranks have.
    std::vector<telemetry::v1::Evidence> samples = {};
    std::vector<size_t> samples_of = {};
    // Called on gRPC's threads with what an agent gets; may be empty.
    std::function<void(int index, const agent::v1::DesiredState&)> on_desired = {};
    std::function<void(int index, const agent::v1::StoreReply&)> on_store = {};
  };

  // Connects all agents. Until it is destroyed, each reports once per interval, spread over the
  // interval.
  explicit Fleet(Options options);
  ~Fleet();

  static std::string NodeId(int index);

  // Sets the step that the ranks have completed. The agents report completed steps until they are
  // acknowledged.
  void SetStep(int64_t step) { step_ = step; }
  // Makes agent 0 report at once.
  void ReportFirst();
  // Sends a message of an agent, after those that wait.
  void Send(int index, agent::v1::AgentUp message);
  // Ends one agent's stream for good.
  void Lose(int index);
  // The monotonic time, in seconds, at which an agent sent its newest report; 0: it sent none.
  double LastReport(int index) const;
  // The monotonic times, in seconds and in order, at which agents that ran the fleet's job got a
  // desired state without its attempt: to stop it, or to run a later one.
  std::vector<double> LeftAt() const;
  // Makes a rank fail of each job that the agent has now.
  void Fail(int index);

  int64_t num_reports() const { return num_reports_; }
  // Mean size of a report.
  double report_bytes() const;
  // Returns a report as agent `index` would send it now.
  std::string SampleReport(int index) const;

 private:
  const telemetry::v1::Evidence* SamplesOf(int index) const;
  void Beat();

  const Options options_;
  std::vector<std::unique_ptr<SimulatedAgent>> agents_;
  std::atomic<int64_t> step_ = 0;
  std::atomic<int64_t> num_reports_ = 0;
  std::atomic<int64_t> report_bytes_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread beating_;
};

}  // namespace megascale::bench
