#include "runtime/timeline/measured_step.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/plan/operation.h"

namespace megascale::timeline {
namespace {

using plan::Instruction;
using plan::RankPlan;
using telemetry::Span;

class Measurement {
 public:
  Measurement(absl::Span<const RankPlan> plans, absl::Span<const RankSpans> ranks)
      : plans_(plans), ranks_(ranks), indices_(plans.size()) {
    MEGASCALE_CHECK(plans.size() == ranks.size());
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      for (size_t i = 0; i < plans[rank].instructions.size(); ++i) {
        indices_[rank].emplace(plans[rank].instructions[i].id.packed(), i);
      }
    }
  }

  std::vector<TimedStep> Measure(int num_steps) {
    Choose(num_steps);
    for (auto& [number, step] : steps_) {
      step.step = number;
      step.time.ranks.resize(plans_.size());
      step.exchanges.resize(plans_.size());
      step.evaluations.resize(plans_.size());
      for (size_t rank = 0; rank < plans_.size(); ++rank) {
        step.time.ranks[rank].resize(plans_[rank].instructions.size(),
                                     SpanTime{.state = SpanState::kNotBegun});
      }
    }
    origin_ = FirstBegin();
    for (size_t rank = 0; rank < plans_.size(); ++rank) Place(rank);
    std::vector<TimedStep> measured;
    for (auto& [number, step] : steps_) {
      FindWaits(&step.time);
      measured.push_back(std::move(step));
    }
    return measured;
  }

 private:
  // Returns the index in the rank's plan; -1 if the plan has no such instruction.
  int64_t IndexOf(size_t rank, const Span& span) const {
    const auto found = indices_[rank].find(span.instruction);
    return found == indices_[rank].end() ? -1 : static_cast<int64_t>(found->second);
  }

  // Creates `steps_`, without times.
  void Choose(int num_steps) {
    std::map<int64_t, size_t> num_ranks;  // ranks that have ended each step
    std::set<int64_t> begun;
    std::vector<int64_t> newest;  // by known rank that has begun a step
    size_t num_known = 0;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank].known) continue;
      ++num_known;
      std::map<int64_t, std::set<int64_t>> ended;
      std::set<int64_t> of_rank;
      for (const Span& span : ranks_[rank].spans) {
        const int64_t index = IndexOf(rank, span);
        if (index < 0) continue;
        of_rank.insert(span.step);
        if (span.end_nanos != 0) ended[span.step].insert(index);
      }
      begun.insert(of_rank.begin(), of_rank.end());
      if (!of_rank.empty()) newest.push_back(*of_rank.rbegin());
      for (const auto& [step, indices] : ended) {
        if (indices.size() == plans_[rank].instructions.size()) ++num_ranks[step];
      }
    }
    for (auto it = num_ranks.rbegin(); it != num_ranks.rend(); ++it) {
      if (static_cast<int>(steps_.size()) >= num_steps) break;
      if (it->second == num_known) steps_[it->first].whole = true;
    }
    if (begun.empty()) return;
    std::sort(newest.begin(), newest.end());
    const int64_t reached = newest[newest.size() / 2];
    const int64_t next = steps_.empty() ? reached - 1 : steps_.rbegin()->first + 1;
    for (const int64_t step : {next, next + 1}) {
      if (begun.count(step) > 0) steps_[step].whole = false;
    }
  }

  int64_t FirstBegin() const {
    int64_t first = std::numeric_limits<int64_t>::max();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (const Span& span : ranks_[rank].spans) {
        if (steps_.count(span.step) == 0 || IndexOf(rank, span) < 0) continue;
        first = std::min(first, span.begin_nanos);
      }
    }
    return first;
  }

  void Place(size_t rank) {
    for (const Span& span : ranks_[rank].spans) {
      const auto step = steps_.find(span.step);
      if (step == steps_.end()) continue;
      PlaceExchange(rank, span, &step->second);
      PlaceEvaluation(rank, span, &step->second);
      const int64_t index = IndexOf(rank, span);
      if (index < 0) continue;
      SpanTime& time = step->second.time.ranks[rank][static_cast<size_t>(index)];
      if (time.state == SpanState::kEnded) continue;
      time.state = span.end_nanos == 0 ? SpanState::kRuns : SpanState::kEnded;
      time.ready = span.begin_nanos - origin_;
      time.end = EndOf(rank, span);
      time.begin = time.ready;
      if (plan::IsPass(plans_[rank].instructions[static_cast<size_t>(index)].kind())) {
        time.exchange = std::clamp<int64_t>(span.exchange_nanos, 0, time.end - time.ready);
      }
      step->second.time.end = std::max(step->second.time.end, time.end);
    }
  }

  int64_t EndOf(size_t rank, const Span& span) const {
    const int64_t end = span.end_nanos == 0 ? ranks_[rank].seen_nanos : span.end_nanos;
    return std::max(span.begin_nanos, end) - origin_;
  }

  void PlaceExchange(size_t rank, const Span& span, TimedStep* step) const {
    const auto id = plan::InstructionId::FromPacked(span.instruction);
    const bool is_known = indices_[rank].count(id.WithPiece(0).packed()) > 0 ||
                          plan::OperationOf(id.operation()).for_evaluation;
    if (!plan::IsExchangeOfPass(id) || !is_known) return;
    step->exchanges[rank].push_back(
        {.id = id,
         .bytes = span.bytes,
         .begin = span.begin_nanos - origin_,
         .end = EndOf(rank, span),
         .state = span.end_nanos == 0 ? SpanState::kRuns : SpanState::kEnded});
  }

  void PlaceEvaluation(size_t rank, const Span& span, TimedStep* step) const {
    const auto id = plan::InstructionId::FromPacked(span.instruction);
    if (!plan::OperationOf(id.operation()).for_evaluation || id.piece() != 0) return;
    step->evaluations[rank].push_back(
        {.id = id,
         .stream = plan::OperationOf(id.operation()).stream,
         .bytes = span.bytes,
         .begin = span.begin_nanos - origin_,
         .end = EndOf(rank, span),
         .state = span.end_nanos == 0 ? SpanState::kRuns : SpanState::kEnded});
  }

  struct Member {
    SpanTime* time = nullptr;
    bool sends = false;
    bool is_pass = false;
  };
  struct Meeting {
    std::vector<Member> members;
    size_t size = 0;  // expected members
    int64_t last_ready = 0;
  };

  void FindWaits(StepTime* time) const {
    std::map<MeetingName, Meeting> meetings;
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      const RankPlan& plan = plans_[rank];
      for (size_t i = 0; i < plan.instructions.size(); ++i) {
        const Instruction& instruction = plan.instructions[i];
        if (instruction.group == plan::GroupKind::kNone || !ranks_[rank].known) continue;
        Meeting& meeting = meetings[MeetingOf(plan, instruction)];
        ++meeting.size;
        SpanTime& member = time->ranks[rank][i];
        if (member.state == SpanState::kNotBegun) continue;
        const bool sends = plan::OperationOf(instruction.kind()).op_class == plan::OpClass::kSend;
        meeting.members.push_back({&member, sends, plan::IsPass(instruction.kind())});
        meeting.last_ready = std::max(meeting.last_ready, member.ready);
      }
    }
    for (auto& [name, meeting] : meetings) {
      const bool all_came = meeting.members.size() == meeting.size;
      for (const auto& [time_of, sends, is_pass] : meeting.members) {
        if (!all_came && time_of->state == SpanState::kRuns) {
          time_of->begin = time_of->end;
        } else if (!sends || meeting.last_ready <= time_of->end) {
          const int64_t limit = is_pass ? time_of->ready + time_of->exchange : time_of->end;
          time_of->begin = std::clamp(meeting.last_ready, time_of->ready, limit);
        }
        // In its first exchange a pass waits for the last tensor rank to begin the pass.
        const int64_t waited = time_of->begin - time_of->ready;
        time_of->exchange = std::max<int64_t>(0, time_of->exchange - waited);
      }
    }
  }

  const absl::Span<const RankPlan> plans_;
  const absl::Span<const RankSpans> ranks_;
  std::vector<std::unordered_map<uint64_t, size_t>> indices_;  // by rank: index in its plan, by id
  std::map<int64_t, TimedStep> steps_;
  int64_t origin_ = 0;
};

}  // namespace

double QuietSeconds(const RankSpans& rank) {
  int64_t newest = 0;
  for (const Span& span : rank.spans) {
    newest = std::max({newest, span.begin_nanos, span.end_nanos});
  }
  return std::max(0.0, static_cast<double>(rank.seen_nanos - newest) / 1e9);
}

std::vector<TimedStep> MeasureSteps(absl::Span<const RankPlan> plans,
                                    absl::Span<const RankSpans> ranks, int num_steps) {
  return Measurement(plans, ranks).Measure(num_steps);
}

}  // namespace megascale::timeline
