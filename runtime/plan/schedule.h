// Pipeline schedules: the order in which a stage computes. The rest of a plan follows from it.
//
// The model is cut into `num_stages` x `chunks_per_stage` chunks; chunk c is on stage c %
// num_stages. The formulas below assume p stages, m >= p micro-batches, and links that take no
// time. T_F, T_B and T_W are the times of a forward, a backward and a W through one stage's share
// of the model. T_B includes T_W, except for kZeroBubbleH1. Each stage computes for m (T_F + T_B),
// or with kZeroBubbleH1 for m (T_F + T_B + T_W); the bubble is the time by which a step takes
// longer than that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/instruction.h"

namespace megascale::plan {

enum class Schedule : uint8_t {
  // One forward, one backward: stage s of p runs p - s - 1 forwards ahead, then alternates, so it
  // keeps at most p - s micro-batches. Bubble: (p - 1) (T_F + T_B).
  // Source: PipeDream-Flush, Narayanan et al., 2021.
  k1F1B,
  // All forwards, then all backwards: keeps m micro-batches. Bubble: as k1F1B.
  // Source: Huang et al., 2019.
  kGPipe,
  // 1F1B over the v = chunks_per_stage chunks of each stage: p micro-batches go through a chunk
  // before the next chunk begins. Bubble: (p - 1) (T_F + T_B) / v. Requires: p divides m. Source:
  // Narayanan et al., 2021, section 2.2; MegaScale, section 3.1.
  kInterleaved1F1B,
  // 1F1B with a separate instruction for the weight gradients of each backward (W), so that the
  // gradient of a chunk's input is sent earlier, and W fills the bubble. Keeps at most p
  // micro-batches on every stage. Bubble: (p - 1) (T_F + T_B - T_W) if T_F = T_B = T_W; T_B
  // excludes T_W. Source: ZB-H1, Qi et al., 2023.
  kZeroBubbleH1,
};

// "1f1b", "gpipe", "interleaved_1f1b", "zb_h1".
absl::string_view Name(Schedule schedule);

struct ScheduleOptions {
  Schedule schedule = Schedule::k1F1B;
  int num_stages = 1;
  int chunks_per_stage = 1;  // "virtual stages"; more than 1 with kInterleaved1F1B only
  int num_microbatches = 1;
};

// An option whose value does not fit the others.
struct ScheduleMisfit {
  enum class Option : uint8_t { kSchedule, kNumStages, kChunksPerStage, kNumMicrobatches };
  Option option = Option::kSchedule;
  std::string why;  // has the value, what the schedule needs, what to do
  bool operator==(const ScheduleMisfit&) const = default;
};

// Returns the first misfit, if any: a size below 1, or a value that the schedule does not support.
std::optional<ScheduleMisfit> FindMisfit(const ScheduleOptions& options);

// Errors: InvalidArgument - FindMisfit found a misfit.
absl::Status CheckSchedule(const ScheduleOptions& options);

// Returns the default schedule for this number of chunks per stage.
Schedule DefaultSchedule(int chunks_per_stage);

// Returns the schedule that stages really run if a job asks for options.schedule. A single stage
// always runs 1F1B. It has no bubble to fill, and GPipe would add to the gradient of a tied
// embedding in another order, but a schedule must not change the numerics.
Schedule ScheduleInUse(const ScheduleOptions& options);

// One pass of one micro-batch through one chunk, or a part of a pass.
struct ComputeItem {
  OpKind kind = OpKind::kForward;  // kForward, kBackward or kWeightGradient
  int chunk = 0;                   // in the model
  int microbatch = 0;
  bool operator==(const ComputeItem&) const = default;
};

// Returns the passes that `stage` computes in a step, in order.
// Requires: 0 <= stage < num_stages, CheckSchedule(options).ok().
std::vector<ComputeItem> ComputeOrder(const ScheduleOptions& options, int stage);

// True if the schedule has a W for every backward.
bool SplitsBackward(Schedule schedule);

}  // namespace megascale::plan
