#include "runtime/plan/schedule.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::plan {
namespace {

std::vector<ComputeItem> AllForwardAllBackward(const ScheduleOptions& options, int stage) {
  std::vector<ComputeItem> order;
  for (const OpKind kind : {OpKind::kForward, OpKind::kBackward}) {
    for (int i = 0; i < options.num_microbatches; ++i) order.push_back({kind, stage, i});
  }
  return order;
}

// Returns pass number i, in one direction, of a stage whose chunks take turns; a turn is a group of
// num_stages micro-batches. Backward the chunks come in the opposite order.
ComputeItem ItemInTurn(const ScheduleOptions& options, int stage, OpKind kind, int i) {
  const int turn = options.num_stages * options.chunks_per_stage;
  const int forward_chunk = i % turn / options.num_stages;
  const int chunk =
      kind == OpKind::kForward ? forward_chunk : options.chunks_per_stage - 1 - forward_chunk;
  return {kind, chunk * options.num_stages + stage,
          i / turn * options.num_stages + i % options.num_stages};
}

// Returns `num_ahead` forwards, then one forward and one backward in turn.
std::vector<ComputeItem> OneForwardOneBackward(const ScheduleOptions& options, int stage) {
  const bool interleaved = options.chunks_per_stage > 1;
  const int num_stages = options.num_stages;
  const int num_passes = options.num_microbatches * options.chunks_per_stage;
  const int behind = num_stages - stage - 1;
  // When interleaved, a micro-batch returns to this stage before the ones ahead of it are finished.
  const int num_ahead = std::min(
      num_passes, interleaved ? 2 * behind + (options.chunks_per_stage - 1) * num_stages : behind);
  const auto item = [&](OpKind kind, int i) {
    return interleaved ? ItemInTurn(options, stage, kind, i) : ComputeItem{kind, stage, i};
  };
  std::vector<ComputeItem> order;
  order.reserve(2 * static_cast<size_t>(num_passes));
  for (int i = 0; i < num_passes + num_ahead; ++i) {
    if (i < num_passes) order.push_back(item(OpKind::kForward, i));
    if (i >= num_ahead) order.push_back(item(OpKind::kBackward, i - num_ahead));
  }
  return order;
}

std::vector<ComputeItem> ZeroBubbleH1(const ScheduleOptions& options, int stage) {
  const int num_microbatches = options.num_microbatches;
  const int num_ahead = std::min(num_microbatches, options.num_stages - stage - 1);
  std::vector<ComputeItem> order;
  order.reserve(3 * static_cast<size_t>(num_microbatches));
  int forwards = 0;
  int weights = 0;
  const auto add = [&](OpKind kind, int microbatch) { order.push_back({kind, stage, microbatch}); };
  while (forwards < num_ahead) add(OpKind::kForward, forwards++);
  for (int backwards = 0; backwards < num_microbatches; ++backwards) {
    // W runs as late as memory for num_stages micro-batches permits, and when no forward is left.
    const bool full = forwards - weights >= options.num_stages;
    if (weights < backwards && (full || forwards == num_microbatches)) {
      add(OpKind::kWeightGradient, weights++);
    }
    if (forwards < num_microbatches) add(OpKind::kForward, forwards++);
    add(OpKind::kBackward, backwards);
  }
  while (weights < num_microbatches) add(OpKind::kWeightGradient, weights++);
  return order;
}

}  // namespace

absl::string_view Name(Schedule schedule) {
  switch (schedule) {
    case Schedule::k1F1B:
      return "1f1b";
    case Schedule::kGPipe:
      return "gpipe";
    case Schedule::kInterleaved1F1B:
      return "interleaved_1f1b";
    case Schedule::kZeroBubbleH1:
      return "zb_h1";
  }
  return "?";
}

std::optional<ScheduleMisfit> FindMisfit(const ScheduleOptions& options) {
  using Option = ScheduleMisfit::Option;
  const int chunks = options.chunks_per_stage;
  for (const auto& [option, what, size] :
       {std::tuple(Option::kNumStages, "the number of stages", options.num_stages),
        std::tuple(Option::kChunksPerStage, "chunks per stage", chunks),
        std::tuple(Option::kNumMicrobatches, "num_microbatches", options.num_microbatches)}) {
    if (size >= 1) continue;
    return ScheduleMisfit{option, absl::StrCat(what, " is ", size, "; expected 1 or more")};
  }
  if (chunks > 1 && options.num_stages == 1) {
    return ScheduleMisfit{Option::kChunksPerStage,
                          absl::StrCat(chunks,
                                       " chunks per stage need 2 or more stages, not 1; "
                                       "expected 1, or more stages")};
  }
  const bool takes_turns = options.schedule == Schedule::kInterleaved1F1B;
  const absl::string_view name = Name(options.schedule);
  const absl::string_view of_turns = Name(Schedule::kInterleaved1F1B);
  if (chunks > 1 && !takes_turns) {
    return ScheduleMisfit{Option::kSchedule,
                          absl::StrCat(name, " has 1 chunk per stage, not ", chunks, "; expected ",
                                       of_turns, ", or 1 chunk")};
  }
  if (!takes_turns) return std::nullopt;
  if (chunks == 1) {
    return ScheduleMisfit{Option::kSchedule,
                          absl::StrCat(name, " needs 2 or more chunks per stage, not 1; expected ",
                                       Name(Schedule::k1F1B), ", or more of them")};
  }
  const int left = options.num_microbatches % options.num_stages;
  if (left == 0) return std::nullopt;
  return ScheduleMisfit{
      Option::kNumMicrobatches,
      absl::StrCat(name, " needs a number of micro-batches that the number of stages divides; ",
                   options.num_microbatches, " / ", options.num_stages, " leaves ", left)};
}

absl::Status CheckSchedule(const ScheduleOptions& options) {
  const std::optional<ScheduleMisfit> misfit = FindMisfit(options);
  return misfit ? absl::InvalidArgumentError(misfit->why) : absl::OkStatus();
}

Schedule DefaultSchedule(int chunks_per_stage) {
  return chunks_per_stage > 1 ? Schedule::kInterleaved1F1B : Schedule::k1F1B;
}

Schedule ScheduleInUse(const ScheduleOptions& options) {
  return options.num_stages == 1 ? Schedule::k1F1B : options.schedule;
}

std::vector<ComputeItem> ComputeOrder(const ScheduleOptions& options, int stage) {
  MEGASCALE_CHECK(stage >= 0 && stage < options.num_stages && CheckSchedule(options).ok());
  switch (options.schedule) {
    case Schedule::k1F1B:
    case Schedule::kInterleaved1F1B:
      return OneForwardOneBackward(options, stage);
    case Schedule::kGPipe:
      return AllForwardAllBackward(options, stage);
    case Schedule::kZeroBubbleH1:
      return ZeroBubbleH1(options, stage);
  }
  MEGASCALE_CHECK_MSG(false, "unknown schedule");
}

bool SplitsBackward(Schedule schedule) { return schedule == Schedule::kZeroBubbleH1; }

}  // namespace megascale::plan
