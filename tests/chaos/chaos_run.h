// One job under faults: a driver, two agents, four workers and a redis-server as real processes,
// struck at the moments that a seed names, each stroke followed until the job steps on. The first
// checkpoint after the last fault must have the bits of a calm run; and nothing may have happened
// that no fault asked for. Source: DESIGN section 1.4 (same bits after any crash).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/client/job_client.h"
#include "runtime/comm/redis/test_redis_server.h"
#include "tests/chaos/calm_run.h"
#include "tests/chaos/fault.h"
#include "tests/chaos/probe.h"
#include "tests/e2e/cluster.h"

namespace megascale::chaos {

// One fault and what came of it.
struct FaultReport {
  Fault fault;
  bool aimed = true;    // the moment was seen; else the stroke fell when the wait for it ended
  std::string seen;     // what the victim was in
  int64_t step = 0;     // completed, at the stroke
  int64_t attempt = 0;  // at the stroke, and when the job had stepped on
  int64_t attempt_after = 0;
  absl::Duration healed_after = absl::ZeroDuration();  // from the stroke to the next steps
  std::string said;                                    // the culprit that `status` named; "": none
};

struct Report {
  uint64_t seed = 0;
  std::vector<FaultReport> faults;
  Ending ending;
  absl::Duration took = absl::ZeroDuration();
  std::vector<std::string> problems;  // what must not have happened
};

class ChaosRun {
 public:
  // `say` is told one line for every fault as it is over.
  ChaosRun(uint64_t seed, ChaosJob job, std::function<void(const std::string&)> say);

  Report Run(int num_faults, CalmRun* calm);

 private:
  // Something that has to be done a while after a stroke.
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
  pid_t PidOf(const Strike& strike);
  bool IsThere(const Strike& strike);  // its victim
  void Reap(const Strike& strike);
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
  comm::TestRedisServer store_;  // where ranks find each other as an attempt starts
  e2e::Cluster cluster_;
  std::unique_ptr<client::JobClient> client_;
  std::vector<AgentProbe> probes_;  // by agent
  std::string checkpoints_;
  std::vector<pid_t> to_end_;  // processes of the present fault that somebody must end or has ended
};

// One line for people: "fault 2: SIGKILL to rank 3 inside a collective …".
std::string Describe(int number, const FaultReport& report);

}  // namespace megascale::chaos
