// Faults as data: what happens to which process, and at which moment of the job. Pure.
// A seed determines its faults: consecutive faults go through every pair of an aim and a blow
// (their counts have no common divisor), and the other fields are drawn.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace megascale::chaos {

// The moment of a fault, as the heartbeat slots, the checkpoint directory or the driver show it.
enum class Aim {
  kAnyTime,
  kStarting,    // ranks find each other
  kSockets,     // the first rank listens for the others
  kLoading,     // ranks load weights or a checkpoint
  kFirstStep,   // the first step of an attempt
  kForward,     // inside a forward pass
  kBackward,    // inside a backward pass
  kCollective,  // inside a reduction, a gather, a send or a receive
  kSnapshot,    // copying device memory to shared memory
  kShardWrite,  // writing a checkpoint's files
  kCommit,      // a checkpoint is complete and the driver has not committed it yet
  kRecovery,    // between two attempts
};
inline constexpr int kNumAims = 12;

enum class Victim {
  kWorker,
  kHost,
  kAgent,
  kDriver,
  kStore,    // redis-server
  kStorage,  // the file system of the checkpoints or of the data is away while all agents restart
  // The job's checkpoint directory: a job of the same name, of another driver's log, wants it.
  kDirectory,
};

struct Blow {
  Victim victim;
  int signal;
  // For SIGSTOP: the time until SIGCONT; infinite: the product must notice and end the process.
  absl::Duration pause = absl::ZeroDuration();
  // For a worker: its agent gets SIGKILL 0.4 s later.
  bool before_agent = false;
};

// Returns all blows.
const std::vector<Blow>& AllBlows();

struct Strike {
  Blow blow;
  int rank = 0;          // the worker's rank
  int agent = 0;         // the index of the host or agent
  bool of_data = false;  // storage: the file system of the data, and not that of the checkpoints
  // Time until an agent, driver or store that ended is started again.
  absl::Duration absence = absl::ZeroDuration();
  absl::Duration delay = absl::ZeroDuration();  // after the fault's first strike
};

struct Fault {
  Aim aim = Aim::kAnyTime;
  std::vector<Strike> strikes;  // one, or two at once
};

// How the processes of a run talk to each other, and which store their ranks meet at.
enum class Setting {
  kDefault,    // Unix sockets; the store that the driver serves
  kMutualTls,  // TCP with certificates of both sides; the same store
  kRedis,      // Unix sockets; a redis-server
};

// What a soak runs: every pair of a moment and a blow at least once.
inline constexpr uint64_t kSoakSeeds = 76;
inline constexpr int kFaultsPerSeed = 3;

// Returns the setting in which the faults of a seed can happen, by turns: one that strikes the
// store needs a redis-server, and the probe sees only the Unix sockets of ranks.
Setting SettingOf(uint64_t seed, const std::vector<Fault>& faults);
std::string Describe(Setting setting);

// Returns the faults of a seed. Requires: num_agents >= 1, each with the same number of ranks.
std::vector<Fault> DrawFaults(uint64_t seed, int count, int num_ranks, int num_agents);

// Return for people "inside a collective", "SIGKILL to rank 2".
std::string Describe(Aim aim);
std::string Describe(const Strike& strike);

// True when the attempt must survive all strikes, because the victims are restarted in place or are
// not needed while the job trains.
bool IsSurvived(const Fault& fault);

// True when the moment lies between the start of an attempt and its second step.
bool IsAtAStart(Aim aim);

}  // namespace megascale::chaos
