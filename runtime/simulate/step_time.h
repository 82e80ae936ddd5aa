// When each instruction of a step begins and ends, if each takes a stated time: the longest path
// over dependencies, the order of streams and the meetings of ranks. Nothing runs. What did run has
// the same form: measured_step.h.
//
// A rank's instruction is ready when what it depends on and what stands before it on its stream has
// ended. What computes then begins. A send and its receive, or the members of a collective, move
// their data once all of them are ready, as ValidatePlans reads a plan; what is ready early waits.
//
//   ASSIGN_OR_RETURN(StepTime time, TimeStep(plans, [](const Instruction& i) { … }));
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/plan/step_plan.h"

namespace megascale::simulate {

enum class SpanState : uint8_t {
  kEnded,
  kRuns,      // still, when it was looked at: that is its `end`
  kNotBegun,  // it has no times
};

// Nanoseconds since the first step that is looked at began.
struct SpanTime {
  int64_t ready = 0;
  int64_t begin = 0;  // later than ready where others were waited for
  int64_t end = 0;
  SpanState state = SpanState::kEnded;
  // Of a pass: how much of it, from `begin` on, tensor-parallel ranks exchange while it waits.
  int64_t exchange = 0;
  bool operator==(const SpanTime&) const = default;
};

struct StepTime {
  std::vector<std::vector<SpanTime>> ranks;  // by plan given, then as its instructions
  int64_t end = 0;                           // of the last instruction
};

// What tensor-parallel ranks exchanged within a pass.
struct ExchangeTime {
  plan::InstructionId id;  // the pass's, with the piece
  int64_t bytes = 0;
  int64_t begin = 0;
  int64_t end = 0;
  SpanState state = SpanState::kEnded;
  bool operator==(const ExchangeTime&) const = default;
};

// One of several steps, on one clock.
struct TimedStep {
  int64_t step = 0;   // from 1; 0: any, a planned one
  bool whole = true;  // every instruction has ended, on every rank
  StepTime time;
  // By rank; of a measured step. Those that were lost are not there.
  std::vector<std::vector<ExchangeTime>> exchanges = {};
};

// "stage 2" where each stage is one rank, so that it stands for every replica; else with the rank.
std::string NameOf(const plan::RankPlan& plan);

// What the two ends of a transfer, or the members of a collective, call it alike: group, channel,
// message.
using MeetingName = std::tuple<std::string, std::string, uint64_t>;
// Requires: the instruction, of this plan, communicates.
MeetingName MeetingOf(const plan::RankPlan& plan, const plan::Instruction& instruction);

// Nanoseconds from begin to end; of a transfer or collective, the longest that a member gives.
using DurationOf = std::function<int64_t(const plan::Instruction&)>;

// `plans`: of all ranks, in order; or of the roles of a mesh (plan::BuildRolePlans), whose times
// are those of every replica, since replicas are alike and meet as soon as one is ready. Requires:
// each plan passes ValidateRankPlan, and durations are not negative. Cost: O(instructions). Errors:
// InvalidArgument - other plans; ranks that wait for each other, or for a part that nobody does:
// names an instruction.
absl::StatusOr<StepTime> TimeStep(absl::Span<const plan::RankPlan> plans,
                                  const DurationOf& duration);

// The first part of a step, for what would be too large of the whole.
struct Beginning {
  StepTime time;             // instructions that are left out have not begun; it ends before them
  int64_t num_left_out = 0;  // instructions
};
// At most `instructions_max` of them; of those that are ready at once all or none. All of the step
// where it has no more. Requires: every instruction has ended.
Beginning BeginningOf(const StepTime& time, int64_t instructions_max);

// Where a rank's time goes in a step.
struct RankTime {
  int64_t compute = 0;  // on the compute stream
  int64_t idle = 0;     // of the step, no instruction computes: bubble, and waiting for links
};
std::vector<RankTime> Summarize(absl::Span<const plan::RankPlan> plans, const StepTime& time);

}  // namespace megascale::simulate
