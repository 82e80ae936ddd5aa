// Pipeline schedules: in which order a stage computes. The rest of a plan follows from it.
//
// The model is cut into `num_stages` x `chunks_per_stage` chunks; chunk c is on stage c %
// num_stages. With T_F, T_B, T_W the time of a forward, of a backward (its W included, but for
// kZeroBubbleH1) and of a W through one stage's share of the model, p stages, m >= p micro-batches
// and no time for links, a step computes m (T_F + T_B) on each stage and takes longer by its
// bubble.
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
  // k1F1B over v = chunks_per_stage chunks of each stage, p micro-batches at a time through each.
  // Bubble: (p - 1) (T_F + T_B) / v. Needs p to divide m. Source: Narayanan et al., 2021, section
  // 2.2; MegaScale, section 3.1.
  kInterleaved1F1B,
  // k1F1B with the weights' part of each backward apart (W): the gradient of a chunk's input goes
  // on earlier, and W fills what would be bubble. Keeps at most p micro-batches on every stage.
  // Bubble: (p - 1) (T_F + T_B - T_W) where T_F = T_B = T_W, T_B without T_W. Source: ZB-H1, Qi et
  // al., 2023.
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

// An option that does not go with the others.
struct ScheduleMisfit {
  enum class Option : uint8_t { kSchedule, kNumStages, kChunksPerStage, kNumMicrobatches };
  Option option = Option::kSchedule;
  std::string why;  // what it is, what the schedule needs, what to do
  bool operator==(const ScheduleMisfit&) const = default;
};

// The first misfit, if any: a size below 1, or one that the schedule cannot have.
std::optional<ScheduleMisfit> FindMisfit(const ScheduleOptions& options);

// Errors: InvalidArgument - FindMisfit finds one.
absl::Status CheckSchedule(const ScheduleOptions& options);

// The schedule of a stage with so many chunks, where none is asked for.
Schedule DefaultSchedule(int chunks_per_stage);

// The schedule that stages run where options.schedule is asked for. One stage has no bubble to
// fill and always alternates: all forwards first would add to the gradient of a tied embedding in
// another order, and a schedule is no part of the numerics.
Schedule ScheduleInUse(const ScheduleOptions& options);

// One pass, or part of one, of one micro-batch through one chunk.
struct ComputeItem {
  OpKind kind = OpKind::kForward;  // kForward, kBackward or kWeightGradient
  int chunk = 0;                   // in the model
  int microbatch = 0;
  bool operator==(const ComputeItem&) const = default;
};

// What `stage` computes in a step, in order.
// Requires: 0 <= stage < num_stages, CheckSchedule(options).ok().
std::vector<ComputeItem> ComputeOrder(const ScheduleOptions& options, int stage);

// True where every backward has its W.
bool SplitsBackward(Schedule schedule);

}  // namespace megascale::plan
