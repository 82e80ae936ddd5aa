// One job under faults: a driver, two agents, four workers and, in some settings, a redis-server as
// real processes. A seed names the faults and their moments; after each fault the run waits until
// the job trains again. The first checkpoint after the last fault must have the bits of a calm run,
// and no failure may occur without a fault.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/comm/store/redis/testing/test_redis_server.h"
#include "tests/chaos/calm_run.h"
#include "tests/chaos/fault.h"
#include "tests/chaos/probe.h"
#include "tests/e2e/cluster.h"

namespace megascale::chaos {

// One fault and its consequences.
struct FaultReport {
  Fault fault;
  bool aimed = true;  // false: the awaited moment did not come, and the strike came at its timeout
  std::string seen;   // what the victim was doing
  int64_t step = 0;   // newest completed step at the strike
  int64_t attempt = 0;                                 // at the strike
  int64_t attempt_after = 0;                           // when the job trained again
  absl::Duration healed_after = absl::ZeroDuration();  // from the strike to the next steps
  std::string said;  // the culprit that `status` named; "": it named no culprit
};

struct Report {
  uint64_t seed = 0;
  Setting setting = Setting::kDefault;
  std::vector<FaultReport> faults;
  Ending ending;
  absl::Duration took = absl::ZeroDuration();
  std::vector<std::string> problems;  // things that must not have happened
};

class ChaosRun {
 public:
  // `say` is called with one line after every fault.
  ChaosRun(uint64_t seed, ChaosJob job, std::function<void(const std::string&)> say);

  // In the setting that the seed's faults need.
  Report Run(int num_faults, CalmRun* calm);

 private:
  // Something to do a while after a strike.
  struct Aftermath {
    absl::Duration due;
    std::function<void()> act;
  };

  void StartAll();
  control::v1::Job Job();
  void Inject(const Fault& fault);
  void OpenRecovery();
  bool WaitForAim(const Fault& fault, int64_t attempt);
  bool IsNow(const Fault& fault);
  void Hit(const Strike& strike, std::vector<Aftermath>* aftermath);
  void HitStore(const Strike& strike, std::vector<Aftermath>* aftermath);
  void HitStorage(const Strike& strike, std::vector<Aftermath>* aftermath);
  void HitDirectory(std::vector<Aftermath>* aftermath);
  // Starts what the strikes need, and waits until the job has what they take from it.
  void Prepare(const Fault& fault);
  pid_t PidOf(const Strike& strike);
  bool IsThere(const Strike& strike);  // true if its victim exists
  void Reap(const Strike& strike);
  int64_t StepOfRanks();  // the greatest, by their own heartbeat slots
  bool VictimsLive() const;
  bool IsHealed(int64_t reached, const control::v1::Job& now) const;
  void WaitUntilHealed(int64_t reached, FaultReport* report);
  void Judge(const Fault& fault, int64_t openers, FaultReport* report);
  std::string WhatIsSeen();
  void Problem(const std::string& text);
  void Finish();
  void Compare(const Ending& calm);

  const ChaosJob job_;
  const std::function<void(const std::string&)> say_;
  Report report_;
  std::optional<comm::TestRedisServer> redis_;  // set: the rendezvous store
  e2e::Cluster cluster_;
  std::vector<AgentProbe> probes_;  // by agent
  std::string disk_;                // where a file system with the checkpoints could be mounted
  std::string checkpoints_;
  std::optional<e2e::Cluster> other_;  // has the driver that claims the checkpoint directory
  int64_t attempt_with_sockets_ = 0;   // the newest such attempt before the present fault
  std::vector<pid_t> to_end_;          // victims of the present fault that must end
};

// Returns one line for people: "fault 2: SIGKILL to rank 3 inside a collective …".
std::string Describe(int number, const FaultReport& report);

}  // namespace megascale::chaos
