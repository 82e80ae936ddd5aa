// What the agents said last, and for how long they have been silent. Time comes in as an argument.
// A gap between two calls counts for at most `kStallMax`, so that a driver that stalled does not
// take its nodes for lost: this is awake time. Threads: one at a time, const calls included. Open
// agent_monitor.h first.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_core.h"

namespace megascale::driver {

// The newest sample of a GPU, and when it came.
struct ReportedGpu {
  megascale::telemetry::v1::GpuSample sample;
  absl::Duration heard = absl::ZeroDuration();  // in awake time
};
using ReportedGpus = std::map<int, std::shared_ptr<const ReportedGpu>>;  // by index

class AgentReports {
 public:
  // A sample that came longer ago is not shown, because the machine's GPU driver hangs. Agents
  // report each GPU about every five seconds.
  static constexpr absl::Duration kGpuAgeMax = absl::Seconds(30);
  // The maximum number of GPUs that are kept of a machine, whatever it reports.
  static constexpr size_t kGpusMax = 64;
  // A longer gap between two calls means that the driver itself stalled.
  static constexpr absl::Duration kStallMax = absl::Seconds(1);

  // What is known of a node.
  struct Agent {
    megascale::agent::v1::Hello hello;
    std::shared_ptr<const megascale::agent::v1::ActualState> report;  // null: there is none
    std::shared_ptr<const ReportedGpus> gpus;                         // null: there are none
    absl::Duration heard = absl::ZeroDuration();                      // in awake time
    bool punctual = false;
  };

  // `now`: monotonic time at which the driver began to listen. `node_timeout`: the longest silence
  // of a node that is well.
  AgentReports(absl::Duration now, absl::Duration node_timeout)
      : node_timeout_(node_timeout), now_(now) {}

  // Lets time pass until `now`.
  void Advance(absl::Duration now);

  // Takes an agent that connected. The report of an earlier incarnation is forgotten.
  void TakeHello(const megascale::agent::v1::Hello& hello);
  // Takes a report. Returns false, and ignores it, unless it comes from the incarnation that said
  // hello last. What a stalled rank did last stays known until the rank makes progress, even if a
  // report leaves it out. A report that was too large to be sent leaves what the agent said last,
  // with a warning for each of its jobs.
  bool TakeReport(const std::string& node_id,
                  std::shared_ptr<const megascale::agent::v1::ActualState> report);
  // Requires: TakeHello was called for the node.
  const megascale::agent::v1::Hello& HelloOf(const std::string& node_id) const {
    return agents_.at(node_id).hello;
  }

  // Returns who holds the node id; null: no agent has said hello to this driver.
  const megascale::agent::v1::Hello* FindHello(const std::string& node_id) const;

  // Returns true once the node's present incarnation has reported in this epoch.
  bool HasReported(const DriverState& state, const std::string& node_id) const;

  // Returns a node's newest report, which does not change any more; null: its present incarnation
  // has not reported.
  std::shared_ptr<const megascale::agent::v1::ActualState> ReportOf(
      const std::string& node_id) const;
  // Returns the newest samples of the node's GPUs, some of them too old; null: there are none. They
  // do not change any more.
  std::shared_ptr<const ReportedGpus> GpusOf(const std::string& node_id) const;
  // Returns when the node was heard last, in awake time; zero: not since the driver started.
  absl::Duration HeardAt(const std::string& node_id) const;

  // Returns the jobs in a node's newest report.
  const google::protobuf::RepeatedPtrField<megascale::agent::v1::ActualJob>& JobsOn(
      const std::string& node_id) const;

  // Returns a node's newest report about a job; null: its present incarnation has not reported it.
  const megascale::agent::v1::ActualJob* LastReport(const std::string& node_id,
                                                    const std::string& job_id) const;
  // Returns LastReport if it is about the job's present attempt, else null.
  const megascale::agent::v1::ActualJob* ReportOfAttempt(const std::string& node_id,
                                                         const JobRecord& job) const;

  // Returns NodesOf(job), cached for an attempt because every report asks for it.
  const std::vector<std::string>& Nodes(const JobRecord& job) const;
  // Returns what is known of each of Nodes(job), without a search; null: no agent has said hello.
  // Valid until an agent says hello or is forgotten.
  const std::vector<const Agent*>& AgentsOf(const JobRecord& job) const;
  bool IsOn(const JobRecord& job, const std::string& node_id) const;
  // Returns how many ranks of the job are placed on the node.
  int NumRanksOn(const JobRecord& job, const std::string& node_id) const;
  // Forgets a node that is lost.
  void ForgetNode(const std::string& node_id) {
    agents_.erase(node_id);
    ++agents_version_;
  }
  // Forgets what is cached for a job.
  void Forget(const std::string& job_id) { job_nodes_.erase(job_id); }

  // Returns the time since the node's last report, or since the start of the driver.
  absl::Duration SilenceOf(const std::string& node_id) const;
  // Returns whether the node's newest report came soon after the one before it.
  bool IsPunctual(const std::string& node_id) const;
  // Returns the contact with a node's agent, judged by its reports alone.
  Contact ContactWith(const std::string& node_id) const;

  absl::Duration node_timeout() const { return node_timeout_; }
  // Returns the time `age` ago on the driver's monotonic clock, as events have it.
  google::protobuf::Duration NoticedAt(absl::Duration age) const;
  // Returns how old the node's newest report was when it came (ActualState.age_seconds).
  absl::Duration AgeOf(const std::string& node_id) const;
  // The elapsed time without the driver's own stalls. Limits are counted in it.
  absl::Duration awake() const { return awake_; }
  // Returns true if the driver itself stood still for kLongStall or longer within the last
  // `duration` of awake time: then machines that were to begin something together began apart.
  bool StalledWithin(absl::Duration duration) const { return awake_ - stalled_at_ <= duration; }
  static constexpr absl::Duration kLongStall = absl::Seconds(5);
  // Returns how many times reports were searched for one about a job.
  int64_t num_looks() const { return num_looks_; }

 private:
  void KeepGpus(const megascale::agent::v1::ActualState& report, Agent* taken) const;
  struct JobNodes {  // the nodes of one attempt
    int64_t attempt = -1;
    int num_ranks = 0;
    std::vector<std::string> nodes;  // sorted
    std::vector<int> ranks_on;       // the number of ranks on each of them
    int64_t agents_version = -1;
    std::vector<const Agent*> agents;  // of agents_version
  };
  JobNodes& NodesOfAttempt(const JobRecord& job) const;

  absl::Duration node_timeout_;
  absl::Duration now_;
  absl::Duration awake_ = absl::ZeroDuration();
  absl::Duration stalled_at_ = -absl::InfiniteDuration();  // in awake time
  std::map<std::string, Agent> agents_;
  int64_t agents_version_ = 0;  // changes with the keys of agents_
  mutable std::map<std::string, JobNodes> job_nodes_;
  mutable int64_t num_looks_ = 0;
};

}  // namespace megascale::driver
