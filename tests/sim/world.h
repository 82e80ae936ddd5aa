// State that all parts of a simulation share: time, randomness, the observers, and hooks with which
// a test breaks something on purpose.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/shell/driver_shell.h"
#include "controlplane/driver/storage/event_log.h"
#include "proto/agent.pb.h"
#include "proto/control.pb.h"
#include "proto/telemetry.pb.h"
#include "tests/sim/rng.h"
#include "tests/sim/timeline.h"

namespace megascale::sim {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;
using driver::DriverState;
using driver::JobRecord;

// A process of a job. Rank -1: the host process.
struct ProcessName {
  std::string node_id;
  std::string incarnation;  // of the agent that started it
  std::string job_id;
  int64_t attempt = 0;
  int rank = 0;
  int64_t process_id = 0;
  bool only_deletes = false;  // a host of a job that is about to end (PHASE_RETAIN)
};

// What each simulated driver lets an agent offer, and a certificate make.
inline constexpr int kSlotsOfAgentMax = 8;
inline constexpr int64_t kNewNodesPerHour = 6;
// The liar (liar.h): its key, and the beginning of node ids that nobody else has.
inline constexpr char kLiarsKey[] = "key of the liar";
inline constexpr char kMadeUpNode[] = "made-up-";

// The verdict of made-up suspicions (operators.h).
inline constexpr char kSuspicion[] = "drawn";

// What a fault can explain. docs/invariants.md: RecoveryHasACause.
enum class Harm {
  kNothing,    // it concerns nobody
  kDriver,     // the driver ended or stood still, and with it the store at which ranks meet
  kAway,       // the driver may believe that the machine's agent is gone
  kProcess,    // a process was killed, hangs, or was not started
  kMemory,     // there is no memory for an attempt
  kReads,      // the machine cannot read checkpoints
  kData,       // the machine lacks the training data
  kTest,       // the test of the machine failed
  kSlowKills,  // processes take long to end
  kStorage,    // nobody can write checkpoints
  kLink,       // the ranks of the machine cannot connect to those of another one
  kPeople,     // somebody wants the machine's jobs to leave
};

struct Fault {
  std::string node_id;  // empty: no machine
  Harm harm = Harm::kNothing;
  std::string job_id = {};  // of kProcess
  int rank = -1;            // of kProcess; -1: the host process
};

// Is told what really happens. The checkers are observers, so they do not depend on what the
// product reports about itself, unless they check these reports.
class Observer {
 public:
  virtual ~Observer() = default;
  // The driver's durable state before and after one of its rounds, or a restart.
  virtual void OnState(const DriverState& before, const DriverState& after) {}
  virtual void OnSubmitAcknowledged(const std::string& job_id) {}
  virtual void OnCancelAcknowledged(const std::string& job_id) {}
  // An operator saw `job` while `durable` was the driver's durable state.
  virtual void OnStatus(const control::Job& job, const DriverState& durable) {}
  virtual void OnProcessStarted(const ProcessName& process) {}
  virtual void OnProcessEnded(const ProcessName& process) {}
  // The agent ends a process, which may take minutes to die.
  virtual void OnProcessKilled(const ProcessName& process) {}
  // A rank has loaded its weights, at `step`.
  virtual void OnLoaded(const ProcessName& process, int64_t step) {}
  // A rank could not read its checkpoint, because no machine of the job can read it, or it is
  // damaged.
  virtual void OnReadRefused(const ProcessName& process) {}
  // A rank could not read its restore point, and no fault explains it.
  virtual void OnRestoreFailed(const ProcessName& process, const absl::Status& why) {}
  virtual void OnStepCompleted(const ProcessName& process, int64_t step) {}
  // An agent sends a report.
  virtual void OnReport(const std::string& node_id, const agent::ActualState& report) {}
  // The preflight of a job passed on this machine.
  virtual void OnPreflightPassed(const ProcessName& process) {}
  // The agent of this incarnation begins to test its machine; the test ended with a result, or was
  // killed (`passed` is false).
  virtual void OnTestStarted(const std::string& incarnation) {}
  virtual void OnTestEnded(const std::string& incarnation, bool passed) {}
  // The agent's part of an exchange with another machine ended, or was killed. OnTestStarted told
  // of its begin.
  virtual void OnExchangeEnded(const std::string& incarnation) {}
  // An agent is asked to end.
  virtual void OnDrainBegan(const std::string& node_id) {}
  // An agent that was asked to end does so: it has no job any more, or neither a connection to the
  // driver nor a process.
  virtual void OnDrained(const std::string& node_id) {}
  // A host process deleted a checkpoint directory.
  virtual void OnCheckpointDeleted(const std::string& job_id, const agent::CheckpointId& id) {}
  // Something was broken on purpose, or repaired.
  virtual void OnFault(const Fault& fault) {}
  // All faults are over.
  virtual void OnHealed() {}
  // The run is over.
  virtual void OnEnd(const DriverState& durable) {}
};

// Hooks with which a test breaks the product on purpose, to see that a checker finds it. Empty
// functions do nothing.
struct Tampering {
  std::function<void(agent::ActualState*)> report = {};    // changes a report to the driver
  std::function<void(agent::DesiredState*)> desired = {};  // changes a desired state to an agent
  // Changes the checkpoints that a host is told to keep.
  std::function<void(std::vector<agent::CheckpointId>*)> retain = {};
  // Wraps the driver's log.
  std::function<std::unique_ptr<driver::EventLog>(std::unique_ptr<driver::EventLog>)> log = {};
  // Changes a watcher's place in the steps of a job.
  std::function<void(int64_t*)> position = {};
  // Changes a page of a list of jobs.
  std::function<void(control::ListJobsResponse*)> list = {};
  // The time of the driver's log follows steps of the wall clock.
  bool log_follows_wall_clock = false;
  // Changes the driver's state before a round without noting the change in the job index, as a
  // faulty event would.
  std::function<void(DriverState*)> state = {};
  // Changes the driver's options.
  std::function<void(driver::DriverShell::Options*)> options = {};
  // Hosts do not check the owner of a checkpoint directory.
  bool no_owners = false;
};

struct Violation {
  std::string invariant;
  std::string what;
  absl::Duration when;
};

class World {
 public:
  World(uint64_t seed, bool print, Tampering broken)
      : rng(seed), timeline(print), tampering(std::move(broken)) {}

  Rng rng;
  Timeline timeline;
  Tampering tampering;
  std::vector<Observer*> observers;
  bool storm = true;                                       // messages are late, lost or repeated
  absl::Duration storage_fails_until;                      // shared storage refuses all writes
  absl::Duration storage_full_until;                       // shared storage refuses some writes
  absl::Duration storage_away_until;                       // shared storage is not mounted anywhere
  std::map<std::string, absl::Duration> reads_fail_until;  // reads of shared storage, by node
  std::map<std::string, absl::Duration> data_gone_until;   // the training data, by node
  std::map<std::string, absl::Duration> tests_fail_until;  // tests of machines, by node
  std::map<std::string, absl::Duration> tests_hang_until;
  std::set<std::string> bad_links;  // nodes that fail every exchange with another machine
  // Until when packets from the first node to the second are lost, on the network of the ranks.
  std::map<std::pair<std::string, std::string>, absl::Duration> cut_until;
  // When each rank that lives made progress: by node, job, attempt and rank.
  std::map<std::tuple<std::string, std::string, int64_t, int>, absl::Duration> progressed;
  std::set<std::pair<std::string, std::string>> exchanging;  // group, node that has begun its part
  std::set<std::string> damaged_memory;         // incarnations whose snapshots were changed
  std::set<std::string> old_agents;             // nodes whose agents are of an older version
  std::map<std::string, std::string> numerics;  // versions, of incarnations that tell it
  bool old_driver = false;       // the driver is of an older version: no tests, no duties
  bool forgets_jobs = false;     // the driver forgets jobs soon after their end
  bool logs_take_turns = false;  // the driver syncs loss logs seldom, as with 1,000 jobs
  agent::TestKind machine_tests = agent::TEST_KIND_UNSPECIFIED;  // how the driver tests machines
  int64_t num_driver_starts = 0;
  std::vector<Violation> violations;  // the first of each invariant

  template <typename... Parameters, typename... Arguments>
  void Tell(void (Observer::*heard)(Parameters...), const Arguments&... arguments) {
    for (Observer* observer : observers) (observer->*heard)(arguments...);
  }

  void Say(absl::string_view who, absl::string_view what) { timeline.Say(who, what); }

  void Break(const Fault& fault, absl::string_view what) {
    Say(fault.node_id.empty() ? "fault" : fault.node_id, what);
    Tell(&Observer::OnFault, fault);
  }

  // Whether the two cannot connect now, and whether they ever could not. A connection needs both
  // directions.
  bool IsCut(const std::string& one, const std::string& other) const {
    return std::max(CutUntil(one, other), CutUntil(other, one)) > timeline.now();
  }
  bool WasCut(const std::string& one, const std::string& other) const {
    return cut_until.count({one, other}) + cut_until.count({other, one}) > 0;
  }
  absl::Duration CutUntil(const std::string& from, const std::string& to) const {
    const auto cut = cut_until.find({from, to});
    return cut == cut_until.end() ? -absl::InfiniteDuration() : cut->second;
  }

  void Violate(absl::string_view invariant, absl::string_view what) {
    for (const Violation& known : violations) {
      if (known.invariant == invariant) return;
    }
    Say("VIOLATED", std::string(invariant) + ": " + std::string(what));
    violations.push_back({std::string(invariant), std::string(what), timeline.now()});
  }
};

}  // namespace megascale::sim
