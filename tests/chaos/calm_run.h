// The job of a chaos run without faults, to compare with.
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

// `FIELD=VALUE` pairs that replace the job file's. The job does not end by itself: it trains until
// all faults have happened, however fast the machine is.
struct ChaosJob {
  std::vector<std::string> fields = {};
};

// The results of a job at one of its complete checkpoints.
struct Ending {
  int64_t step = 0;                 // the checkpoint's step; 0: there is no checkpoint
  std::string digest;               // the checkpoint's digest
  std::vector<std::string> losses;  // "step loss-bits" of every step up to it
};

// Returns the fields with which the job is submitted, in both kinds of run.
std::vector<std::string> JobFields(const ChaosJob& job);

// The lines of `losses` up to `step`.
std::vector<std::string> LossesUpTo(const std::vector<std::string>& losses, int64_t step);

class CalmRun {
 public:
  // With `is_shared`, several runs with faults are compared with it.
  CalmRun(ChaosJob job, bool is_shared) : job_(std::move(job)), is_shared_(is_shared) {}

  // Returns the results at the checkpoint of `step`; an empty result if the job did not get there.
  // Trains, unless it is shared and an earlier call has trained that far.
  Ending At(int64_t step);

 private:
  void TrainTo(int64_t step);

  const ChaosJob job_;
  const bool is_shared_;
  std::map<int64_t, Ending> endings_;  // by step
};

}  // namespace megascale::chaos
