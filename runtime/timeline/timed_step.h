// A step in time: when each instruction was ready, began and ended, either measured
// (measured_step.h) or computed (runtime/simulate). All code that draws, sums up or explains steps
// reads this form. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/rank_plan.h"

namespace megascale::timeline {

enum class SpanState : uint8_t {
  kEnded,
  kRuns,      // still running when the spans were read, at `end`
  kNotBegun,  // its times are meaningless
};

// Nanoseconds since the first of the returned steps began.
struct SpanTime {
  int64_t ready = 0;
  int64_t begin = 0;  // later than `ready` if it waited for other ranks
  int64_t end = 0;
  SpanState state = SpanState::kEnded;
  // For a pass: how long, from `begin` on, it waits for exchanges of its tensor-parallel ranks.
  int64_t exchange = 0;
  bool operator==(const SpanTime&) const = default;
};

struct StepTime {
  std::vector<std::vector<SpanTime>> ranks;  // indexed like the plans, then like their instructions
  int64_t end = 0;                           // end of the last instruction
};

// One exchange of tensor-parallel ranks within a pass.
struct ExchangeTime {
  plan::InstructionId id;  // the pass's id with the piece
  int64_t bytes = 0;
  int64_t begin = 0;
  int64_t end = 0;
  SpanState state = SpanState::kEnded;
  bool operator==(const ExchangeTime&) const = default;
};

// An instruction of the evaluation after a step.
struct EvaluationTime {
  plan::InstructionId id;
  plan::StreamKind stream = plan::StreamKind::kCompute;
  int64_t bytes = 0;
  int64_t begin = 0;
  int64_t end = 0;
  SpanState state = SpanState::kEnded;
  bool operator==(const EvaluationTime&) const = default;
};

// One of several steps, whose times are all on one clock.
struct TimedStep {
  int64_t step = 0;   // from 1; 0: a planned step, which stands for any
  bool whole = true;  // every instruction has ended, on every rank
  StepTime time;
  // By rank, for measured steps only. Exchanges whose spans were lost are missing.
  std::vector<std::vector<ExchangeTime>> exchanges = {};
  // The same for the evaluation after the step, whose time is no part of the step's. Its batches
  // have the same ids.
  std::vector<std::vector<EvaluationTime>> evaluations = {};
};

// Returns "stage 2" if the mesh has one rank for each stage; otherwise the name includes the rank.
std::string NameOf(const plan::RankPlan& plan);

// The name that the two ends of a transfer, or all members of a collective, have in common: group,
// channel, message.
using MeetingName = std::tuple<std::string, std::string, uint64_t>;
// Returns the name of an instruction's meeting. Requires: the instruction belongs to `plan` and
// communicates.
MeetingName MeetingOf(const plan::RankPlan& plan, const plan::Instruction& instruction);

// The first part of a step, for readers that cannot hold the whole step.
struct Beginning {
  StepTime time;             // left-out instructions are kNotBegun; `end` is before them
  int64_t num_left_out = 0;  // instructions
};
// Returns the first instructions of a step, at most `instructions_max`. If several instructions are
// ready at the same time, it keeps all of these or none. A step with no more than the maximum is
// returned whole. Requires: every instruction has ended.
Beginning BeginningOf(const StepTime& time, int64_t instructions_max);

// How long a rank computes and idles in a step.
struct RankTime {
  int64_t compute = 0;  // the compute stream runs an instruction
  int64_t idle = 0;     // the rest of the step: bubble, and waiting for links
};
std::vector<RankTime> Summarize(absl::Span<const plan::RankPlan> plans, const StepTime& time);

}  // namespace megascale::timeline
