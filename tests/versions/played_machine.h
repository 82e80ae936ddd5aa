// A machine whose agent decides with the AgentCore of today, while what happens on it is taken from
// recorded reports: processes start, say and end what the reports tell. So the agent of today is to
// report what the recorded one did.
// Threads: none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/agent/core/agent_core.h"
#include "proto/agent.pb.h"

namespace megascale::versions {

class PlayedMachine {
 public:
  PlayedMachine(const std::string& node_id, const std::string& incarnation)
      : core_(node_id, incarnation) {}

  // Takes a desired state, at once.
  void Take(const agent::v1::DesiredState& desired);
  // Lets the machine do what `recorded` tells, and returns what the agent then reports.
  agent::v1::ActualState Follow(const agent::v1::ActualState& recorded);

  int num_starts() const { return num_starts_; }
  int num_kills() const { return num_kills_; }

 private:
  struct Process {
    int64_t id = 0;
    std::string job_id;
    int rank = 0;
    int64_t attempt = 0;
    int num_restarts = 0;  // of a host process: how many the attempt had before it
    bool killed = false;
  };

  // What the core was told of an attempt.
  struct Told {
    agent::v1::Preflight preflight;
    int64_t step = 0;
    int num_warnings = 0;
    int num_hosts = 0;  // started
  };

  static bool Shows(const agent::v1::ActualJob& job, const Process& process);
  // Carries out what the core wants until it wants nothing more.
  void Settle();
  void Do(const agent::Action& action);
  void FollowJob(const agent::v1::ActualJob& recorded);
  void FollowHost(const agent::v1::ActualJob& recorded);
  void FollowSteps(const agent::v1::ActualJob& recorded);
  void FollowRank(const agent::v1::ActualJob& recorded, const agent::v1::ActualRank& rank);
  void FollowSnapshots(const agent::v1::ActualJob& recorded);
  // Ends processes that were killed, as long as the report has fewer of them.
  void EndKilled(const agent::v1::ActualState& recorded);
  void End(int64_t process_id, const agent::ProcessEnd& end);
  // Returns a process that has not ended; null: there is none. It may say something, or end by
  // itself, before a kill reaches it.
  const Process* Find(const std::string& job_id, int64_t attempt, int rank) const;
  // Returns some worker of the attempt; null: there is none.
  const Process* AnyWorker(const agent::v1::ActualJob& recorded) const;
  agent::v1::ActualState Report(const agent::v1::ActualState& recorded);

  agent::AgentCore core_;
  absl::Duration now_ = absl::Seconds(1000);
  std::map<int64_t, Process> processes_;
  std::map<std::string, Told> told_;                                     // by job and attempt
  std::map<std::string, std::vector<checkpoint::SealedSnapshot>> held_;  // by job
  int num_starts_ = 0;
  int num_kills_ = 0;
};

}  // namespace megascale::versions
