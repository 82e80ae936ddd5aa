// The job of a chaos run, undisturbed: what a struck one is compared with.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace megascale::chaos {

inline constexpr char kJobId[] = "chaos";
inline constexpr int kNumAgents = 2;
inline constexpr int kSlots = 2;
inline constexpr int kNumRanks = kNumAgents * kSlots;
inline constexpr int kEndSeconds = 300;

// `FIELD=VALUE` instead of the job file's. The job has no end of its own: it trains until all that
// was meant for it has happened, however fast the machine is.
struct ChaosJob {
  std::vector<std::string> fields = {};
};

// What a job has left when one of its checkpoints is complete.
struct Ending {
  int64_t step = 0;                 // the checkpoint's; 0: there is none
  std::string digest;               // its bits
  std::vector<std::string> losses;  // "step loss-bits" of every step up to it
};

// The fields with which a job is submitted, chaos or none.
std::vector<std::string> JobFields(const ChaosJob& job);

// The lines of `losses` up to `step`.
std::vector<std::string> LossesUpTo(const std::vector<std::string>& losses, int64_t step);

class CalmRun {
 public:
  explicit CalmRun(ChaosJob job) : job_(std::move(job)) {}

  // What the job has left at its checkpoint of `step`. Trains, unless it has come that far before;
  // an empty ending where the job did not get there.
  Ending At(int64_t step);

 private:
  void TrainTo(int64_t step);

  const ChaosJob job_;
  std::map<int64_t, Ending> endings_;  // by step
};

}  // namespace megascale::chaos
