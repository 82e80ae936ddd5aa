// Invariants of a job's life. docs/invariants.md says why each must hold.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "tests/sim/world.h"

namespace megascale::sim {

// TerminalNeverChanges: the record of a job that has ended never changes.
class TerminalChecker : public Observer {
 public:
  explicit TerminalChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  World& world_;
  std::map<std::string, std::string> ended_;  // the record, by job
};

// AcknowledgedIsKept: a job whose submit was acknowledged exists, until it is forgotten some time
// after its end; a job whose cancel was
// acknowledged ends as CANCELLED.
class AcknowledgedChecker : public Observer {
 public:
  explicit AcknowledgedChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnSubmitAcknowledged(const std::string& job_id) override { submitted_.insert(job_id); }
  void OnCancelAcknowledged(const std::string& job_id) override { cancelled_.insert(job_id); }
  void OnEnd(const DriverState& durable) override { OnState(durable, durable); }

 private:
  World& world_;
  std::set<std::string> submitted_;
  std::set<std::string> cancelled_;
  std::set<std::string> ended_;
};

// RestartsEnd: at most fault.max_restarts_without_progress attempts in a row make no progress; at
// most three attempts for each checkpoint fail to read it; and attempt numbers only grow. An
// attempt has progressed when one of its ranks completed a step beyond those known at its begin, or
// when the driver learned in it of a step that an earlier attempt had really completed.
class RestartChecker : public Observer {
 public:
  explicit RestartChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnStepCompleted(const ProcessName& process, int64_t step) override;
  void OnReadRefused(const ProcessName& process) override;

 private:
  struct Job {
    int64_t attempt = 0;
    int64_t known_step = 0;        // highest known step when the attempt began
    int64_t highest_step = 0;      // highest step that a rank of the attempt completed
    int64_t completed = 0;         // highest step that a rank of any attempt completed
    int64_t without_progress = 0;  // ended attempts in a row without progress
    int64_t by_machines = 0;       // ended attempts in a row that the fault of a machine ended
    int64_t without_reading = 0;   // ended attempts in a row that could not read their checkpoint
    bool could_not_read = false;   // the present attempt could not read its checkpoint
  };
  void CountEnded(const JobRecord& record, const JobRecord& old, Job* job);
  static int64_t ReadsMax(const JobRecord& record);
  World& world_;
  std::map<std::string, Job> jobs_;
};

// NeverBeginsAnew: a job that has committed a checkpoint never starts from initial weights again,
// nor does one that is to start from a given checkpoint.
class InitialChecker : public Observer {
 public:
  explicit InitialChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnLoaded(const ProcessName& process, int64_t step) override;

 private:
  World& world_;
  std::map<std::string, int64_t> committed_in_;  // first attempt that committed, by job
};

// PairsBlameTheGuilty: no machine is quarantined for failed exchanges whose own link has always
// been in order.
class BlameChecker : public Observer {
 public:
  explicit BlameChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  World& world_;
  std::set<std::string> had_bad_links_;
};

// SuspectsAreLimited: a job evicts at most two suspects an hour, all jobs together four, and only
// jobs that ask for it; and a suspicion names no machine that does not hold the rank.
class SuspectChecker : public Observer {
 public:
  explicit SuspectChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  void CheckSuspicion(const JobRecord& job);

  World& world_;
};

// PoolsAreKept: a new attempt has no rank on a node that is evicted, drains or is quarantined, and
// the first attempt of a job none on a spare.
class PoolChecker : public Observer {
 public:
  explicit PoolChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  World& world_;
};

// NumericsAgree: all ranks of an attempt whose agents had told their numerics version when it began
// run programs of one version.
class NumericsChecker : public Observer {
 public:
  explicit NumericsChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnProcessStarted(const ProcessName& process) override;

 private:
  using Attempt = std::pair<std::string, int64_t>;

  World& world_;
  std::map<Attempt, std::set<std::string>> untold_;  // nodes
  std::map<Attempt, std::set<std::string>> versions_;
};

// DrainsEnd: an agent that is asked to end, in a cluster without faults, ends within a minute; its
// jobs leave it, and no failure is seen.
class DrainChecker : public Observer {
 public:
  static constexpr absl::Duration kWithin = absl::Minutes(1);

  explicit DrainChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnDrainBegan(const std::string& node_id) override;
  void OnDrained(const std::string& node_id) override { drained_.insert(node_id); }

 private:
  World& world_;
  std::set<std::string> drained_;
};

// TestsComeFirst: where the driver tests machines, a process of a job starts only on a machine
// whose agent has passed a test since it started and has not failed one, and no test runs beside
// such a process. A driver of an older version tests no machine; on those that joined it, jobs may
// start until the next driver has tested them.
class TestedChecker : public Observer {
 public:
  explicit TestedChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnTestStarted(const std::string& incarnation) override;
  void OnTestEnded(const std::string& incarnation, bool passed) override;
  void OnExchangeEnded(const std::string& incarnation) override { testing_.erase(incarnation); }
  void OnProcessStarted(const ProcessName& process) override;
  void OnProcessEnded(const ProcessName& process) override;

 private:
  World& world_;
  std::set<std::string> untested_;                      // incarnations that joined an older driver
  std::set<std::string> passed_;                        // incarnations
  std::set<std::string> testing_;                       // incarnations
  std::map<std::string, std::set<int64_t>> processes_;  // of jobs, by incarnation
};

// NobodyStarves: no job gets its first slots before another one that is ahead of it and would fit
// if no other job had slots; a recovering job is ahead of every queued one.
class StarvationChecker : public Observer {
 public:
  explicit StarvationChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  void Check(const DriverState& before, const DriverState& after, const JobRecord& started);

  World& world_;
};

// ClaimsAreBounded: no node offers more slots than the driver lets an agent offer, and the liar
// (liar.h) has made no more nodes than a certificate may make in an hour at each driver.
// NamesStay: the liar never takes a node id that is bound to another agent's certificate, unless an
// operator has evicted the node.
class StrangerChecker : public Observer {
 public:
  explicit StrangerChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  World& world_;
};

// TimeAddsUp: the parts of a job's time account add up to the time since its submit, or until its
// end, to the nanosecond, also after the driver was away; and no part ever shrinks but the kept
// one.
class TimeChecker : public Observer {
 public:
  explicit TimeChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnStatus(const control::Job& job, const DriverState& durable) override;

 private:
  void Check(const JobRecord& job);

  World& world_;
  std::map<std::string, control::TimeAccount> last_;  // by job
};

// DurationsAreReal: the time account of a job that has not ended has the time that really passed
// since its submit, whatever the driver's wall clock did meanwhile. How long no driver ran, only
// the wall clock can tell, so a job is not checked any more once the driver has ended.
class DurationChecker : public Observer {
 public:
  static constexpr absl::Duration kErrorMax = absl::Seconds(2);

  explicit DurationChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnFault(const Fault& fault) override;
  void OnStatus(const control::Job& job, const DriverState& durable) override;

 private:
  World& world_;
  std::set<std::string> known_;                      // jobs
  std::map<std::string, absl::Duration> submitted_;  // when, by job that is checked
};

// RunsOrEnds: once all faults are over, every job is RUNNING or has ended in bounded time.
class LivenessChecker : public Observer {
 public:
  static constexpr absl::Duration kRunningWithin = absl::Seconds(400);

  explicit LivenessChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;
  void OnHealed() override;

 private:
  void CheckAll();

  World& world_;
  bool healed_ = false;
  DriverState durable_;
  std::set<std::string> ran_;  // jobs that were RUNNING since OnHealed
};

// StorageComesBack: storage that is away for seconds ends no job that has run before, unless its
// fault.checkpoint_timeout has passed.
class StorageChecker : public Observer {
 public:
  explicit StorageChecker(World* world) : world_(*world) {}
  void OnState(const DriverState& before, const DriverState& after) override;

 private:
  World& world_;
};

}  // namespace megascale::sim
