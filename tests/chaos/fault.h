// Faults as data: what is done to which process, and at which moment of the job. Pure.
// A seed stands for its faults: consecutive numbers of faults go through every pair of an aim and a
// blow (their counts have no common divisor), and the rest is drawn.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace megascale::chaos {

// The moment that is waited for, as the heartbeat slots, the checkpoint directory or the driver
// show it.
enum class Aim {
  kAnyTime,
  kStarting,    // processes find each other
  kLoading,     // weights or a checkpoint
  kFirstStep,   // of an attempt
  kForward,     // inside
  kBackward,    // inside
  kCollective,  // inside a reduction, a gather, a send or a receive
  kSnapshot,    // device memory to shared memory
  kShardWrite,  // a checkpoint's files are being written
  kCommit,      // a checkpoint is complete and the driver has not said yet that it counts
  kRecovery,    // between two attempts
};
inline constexpr int kNumAims = 11;

enum class Victim { kWorker, kHost, kAgent, kDriver, kStore };  // kStore: redis-server

struct Blow {
  Victim victim;
  int signal;
  // Of SIGSTOP: time to SIGCONT; infinite: whoever notices ends the process.
  absl::Duration pause = absl::ZeroDuration();
};

// What can be done to a process.
const std::vector<Blow>& AllBlows();

struct Strike {
  Blow blow;
  int rank = 0;   // of a worker
  int agent = 0;  // of a host or an agent
  // Until an agent, a driver or a store that ended is started again.
  absl::Duration absence = absl::ZeroDuration();
};

struct Fault {
  Aim aim = Aim::kAnyTime;
  std::vector<Strike> strikes;  // one, or two at once
};

// The faults of a seed. Requires: `num_ranks` ranks and `num_agents` agents, at least 1 each.
std::vector<Fault> DrawFaults(uint64_t seed, int count, int num_ranks, int num_agents);

// "inside a collective", "SIGKILL to rank 2", for people.
std::string Describe(Aim aim);
std::string Describe(const Strike& strike);

// True when the attempt must survive all strikes: what is hit is restarted in place, or not needed
// by a job that trains.
bool IsSurvived(const Fault& fault);

// True when the moment lies between the start of an attempt and its second step.
bool IsAtAStart(Aim aim);

}  // namespace megascale::chaos
