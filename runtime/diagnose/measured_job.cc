#include "runtime/diagnose/measured_job.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/plan/operation.h"

namespace megascale::diagnose {
namespace {

using plan::Instruction;
using plan::OpClass;
using plan::RankPlan;
using timeline::SpanTime;
using timeline::TimedStep;

Role RoleOf(plan::OpKind kind) {
  switch (plan::OperationOf(kind).op_class) {
    case OpClass::kLoad:
      return Role::kLoad;
    case OpClass::kForward:
    case OpClass::kBackward:
    case OpClass::kWeights:
    case OpClass::kOptimizer:
      return Role::kCompute;
    case OpClass::kSend:
    case OpClass::kReceive:
      return Role::kTransfer;
    case OpClass::kCollective:
      return Role::kCollective;
    case OpClass::kUnknown:
      return Role::kOther;
  }
  return Role::kOther;
}

double Seconds(int64_t nanos) { return static_cast<double>(nanos) / 1e9; }

class MeasuredJobBuilder {
 public:
  MeasuredJobBuilder(absl::Span<const RankPlan> plans, const std::vector<bool>& known,
                     absl::Span<const TimedStep> steps)
      : plans_(plans), known_(known), steps_(steps) {
    MEGASCALE_CHECK(plans.size() == known.size());
    computes_.resize(plans.size());
    ends_.resize(plans.size());
  }

  absl::StatusOr<MeasuredJob> Build() && {
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      if (known_[rank]) AddRank(rank);
    }
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      if (known_[rank]) Link(rank);
    }
    MeasuredJob job;
    ASSIGN_OR_RETURN(job.graph, OperationGraph::Create(std::move(kinds_), std::move(workers_),
                                                       std::move(operations_)));
    for (const TimedStep& step : steps_) {
      if (step.whole) job.steps.push_back(Measure(step, job.graph));
    }
    if (job.steps.empty()) {
      return absl::InvalidArgumentError(
          "no step of the job is recorded on every rank; repeat this once some steps have ended");
    }
    return job;
  }

 private:
  // What makes operations comparable: name, number of buckets, whether a backward computes the
  // input's gradient alone, bytes of a collective.
  using KindKey = std::tuple<std::string, int, bool, int64_t>;

  int KindOf(const KindKey& key, Role role) {
    const auto [found, is_new] = kind_numbers_.try_emplace(key, static_cast<int>(kinds_.size()));
    if (is_new) {
      const std::string& name = std::get<0>(key);
      const bool moves = role == Role::kTransfer || role == Role::kCollective;
      kinds_.push_back({name, name, moves ? Ideal::kMedian : Ideal::kMean, role});
    }
    return found->second;
  }

  int Add(int kind, int worker) {
    operations_.push_back({.kind = kind, .worker = worker});
    return static_cast<int>(operations_.size()) - 1;
  }

  void AddRank(size_t rank) {
    const RankPlan& plan = plans_[rank];
    const plan::Coordinate at = plan.mesh.CoordinateOf(plan.rank);
    const auto worker = static_cast<int>(workers_.size());
    workers_.push_back({plan.rank, at.data, at.pipeline});
    for (const Instruction& instruction : plan.instructions) {
      const Role role = RoleOf(instruction.kind());
      workers_.back().planned_work += static_cast<double>(instruction.flops);
      const bool meets = instruction.group != plan::GroupKind::kNone;
      const bool is_pass = plan::IsPass(instruction.kind());
      const std::string name(plan::OperationOf(instruction.kind()).name);
      const int64_t bytes = role == Role::kCollective ? instruction.bytes : 0;
      const int kind = KindOf({name, instruction.num_buckets, instruction.input_only, bytes}, role);
      const int operation = Add(kind, worker);
      computes_[rank].push_back(operation);
      if (meets && !is_pass) {
        operations_.back().meeting = MeetingOf(plan, instruction);
      } else if (meets) {
        const int exchange = KindOf({"exchange within a pass", instruction.num_buckets,
                                     instruction.input_only, instruction.bytes},
                                    Role::kCollective);
        Add(exchange, worker);
        operations_.back().meeting = MeetingOf(plan, instruction);
        operations_.back().depends_on = {operation};
      }
      ends_[rank].push_back(static_cast<int>(operations_.size()) - 1);
    }
  }

  int MeetingOf(const RankPlan& plan, const Instruction& instruction) {
    const auto number = static_cast<int>(meetings_.size());
    return meetings_.try_emplace(timeline::MeetingOf(plan, instruction), number).first->second;
  }

  void Link(size_t rank) {
    const std::vector<Instruction>& instructions = plans_[rank].instructions;
    std::array<int, plan::kNumStreamKinds> last;
    last.fill(-1);
    for (size_t i = 0; i < instructions.size(); ++i) {
      Operation& operation = operations_[static_cast<size_t>(computes_[rank][i])];
      const auto follow = [&](int earlier) {
        operation.depends_on.push_back(ends_[rank][static_cast<size_t>(earlier)]);
      };
      for (const int earlier : instructions[i].depends_on) follow(earlier);
      int& previous = last[static_cast<size_t>(instructions[i].stream)];
      if (previous >= 0) follow(previous);
      previous = static_cast<int>(i);
    }
  }

  MeasuredStep Measure(const TimedStep& step, const OperationGraph& graph) const {
    std::vector<double> start(graph.size());
    std::vector<double> end(graph.size());
    std::vector<double> duration(graph.size());
    std::map<int, double> exchange_of_meeting;  // the shortest: the last rank does not wait
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (size_t i = 0; i < computes_[rank].size(); ++i) {
        const SpanTime& span = step.time.ranks[rank][i];
        const auto compute = static_cast<size_t>(computes_[rank][i]);
        const auto last = static_cast<size_t>(ends_[rank][i]);
        start[compute] = Seconds(span.ready);
        end[compute] = Seconds(span.end);
        duration[compute] = Seconds(span.end - span.begin);
        if (last == compute) continue;
        duration[compute] = Seconds(span.end - span.begin - span.exchange);
        end[compute] = start[compute] + duration[compute];
        start[last] = end[compute];
        end[last] = Seconds(span.end);
        const auto [shortest, is_new] = exchange_of_meeting.try_emplace(
            graph.operations()[last].meeting, Seconds(span.exchange));
        shortest->second = std::min(shortest->second, Seconds(span.exchange));
      }
    }
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (size_t i = 0; i < computes_[rank].size(); ++i) {
        if (ends_[rank][i] == computes_[rank][i]) continue;
        const auto last = static_cast<size_t>(ends_[rank][i]);
        duration[last] = exchange_of_meeting.at(graph.operations()[last].meeting);
      }
    }
    MeasuredStep measured = {.step = step.step};
    measured.times.delay = graph.DelaysOf(start, end);
    measured.times.duration = std::move(duration);
    measured.seconds =
        *std::max_element(end.begin(), end.end()) - *std::min_element(start.begin(), start.end());
    return measured;
  }

  const absl::Span<const RankPlan> plans_;
  const std::vector<bool>& known_;
  const absl::Span<const TimedStep> steps_;
  std::vector<OperationKind> kinds_;
  std::map<KindKey, int> kind_numbers_;
  std::vector<Worker> workers_;
  std::vector<Operation> operations_;
  // By rank and instruction: the operation that begins it, and the one that ends it.
  std::vector<std::vector<int>> computes_;
  std::vector<std::vector<int>> ends_;
  std::map<timeline::MeetingName, int> meetings_;
};

using Indices = std::unordered_map<uint64_t, size_t>;

Indices IndicesOf(const RankPlan& plan) {
  Indices indices;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    indices.emplace(plan.instructions[i].id.packed(), i);
  }
  return indices;
}

bool IsOfEvaluation(const telemetry::Span& span) {
  const auto id = plan::InstructionId::FromPacked(span.instruction);
  return plan::OperationOf(id.operation()).for_evaluation;
}

// An exchange that failed, because a peer went away, has not ended: the rank stands there.
bool Runs(const telemetry::Span& span) { return span.end_nanos == 0 || span.code != 0; }

// In which exchange of a running pass the rank waits; 0: the span is of something else.
int PieceOf(const telemetry::Span& span, const Indices& indices) {
  const auto id = plan::InstructionId::FromPacked(span.instruction);
  const bool is_of_plan = indices.count(id.WithPiece(0).packed()) > 0;
  return Runs(span) && plan::IsExchangeOfPass(id) && is_of_plan ? id.piece() : 0;
}

// Reads where one rank stands in its newest step from its spans.
RankPosition PositionOf(const RankPlan& plan, const timeline::RankSpans& rank) {
  const Indices indices = IndicesOf(plan);
  RankPosition position;
  for (const telemetry::Span& span : rank.spans) {
    if (indices.count(span.instruction) == 0) continue;
    position.step = position.known ? std::max(position.step, span.step) : span.step;
    position.known = true;
  }
  if (!position.known) return position;
  position.states.assign(plan.instructions.size(), InstructionState::kNotBegun);
  for (const telemetry::Span& span : rank.spans) {
    if (span.step != position.step) continue;
    const auto found = indices.find(span.instruction);
    if (found != indices.end()) {
      InstructionState& state = position.states[found->second];
      if (!Runs(span) || state == InstructionState::kNotBegun) {
        state = Runs(span) ? InstructionState::kRuns : InstructionState::kEnded;
      }
    } else if (const int piece = PieceOf(span, indices); piece > 0) {
      position.piece = piece;
    }
  }
  return position;
}

bool HasEnded(const RankPosition& position) {
  return std::all_of(position.states.begin(), position.states.end(),
                     [](InstructionState state) { return state == InstructionState::kEnded; });
}

// Moves ranks to where they stand in an evaluation. Each batch runs the same plan once, in order.
class Evaluations {
 public:
  Evaluations(absl::Span<const timeline::RankSpans> ranks, const EvaluationPlanOf& plan_of,
              std::vector<RankPosition>* positions)
      : ranks_(ranks), plan_of_(plan_of), positions_(*positions) {}

  void Move() {
    std::vector<size_t> overwritten;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const int64_t step = StepOf(rank);
      RankPosition& position = positions_[rank];
      if (step == 0 || (position.known && position.step > step)) continue;
      const RankPlan* plan = plan_of_(static_cast<int>(rank));
      if (plan == nullptr) continue;
      const bool is_whole = position.known && position.step == step && HasEnded(position);
      position = PositionIn(*plan, ranks_[rank], step);
      if (!is_whole) overwritten.push_back(rank);
      if (is_whole) newest_[step] = std::max(newest_[step], position.batch);
    }
    for (const size_t rank : overwritten) {
      RankPosition& position = positions_[rank];
      position.batch = std::max(position.batch, newest_[position.step]);
    }
    for (const size_t rank : overwritten) {
      newest_[positions_[rank].step] =
          std::max(newest_[positions_[rank].step], positions_[rank].batch);
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) MoveOn(rank);
  }

 private:
  // Returns the newest step that the rank evaluates; 0: it shows no evaluation.
  int64_t StepOf(size_t rank) const {
    int64_t step = 0;
    for (const telemetry::Span& span : ranks_[rank].spans) {
      if (IsOfEvaluation(span)) step = std::max(step, span.step);
    }
    return step;
  }

  static RankPosition PositionIn(const RankPlan& plan, const timeline::RankSpans& rank,
                                 int64_t step) {
    const Indices indices = IndicesOf(plan);
    std::vector<int64_t> begun(plan.instructions.size());
    std::vector<bool> runs(plan.instructions.size());
    RankPosition position = {
        .known = true, .step = step, .batch = 1, .evaluation_plan = &plan, .states = {}};
    for (const telemetry::Span& span : rank.spans) {
      if (span.step != step) continue;
      const auto found = indices.find(span.instruction);
      if (found != indices.end()) {
        position.batch = std::max(position.batch, ++begun[found->second]);
        runs[found->second] = runs[found->second] || Runs(span);
      } else if (const int piece = PieceOf(span, indices); piece > 0) {
        position.piece = piece;
      }
    }
    for (size_t i = 0; i < begun.size(); ++i) {
      position.states.push_back(begun[i] < position.batch ? InstructionState::kNotBegun
                                : runs[i]                 ? InstructionState::kRuns
                                                          : InstructionState::kEnded);
    }
    return position;
  }

  // A rank that has ended what it began stands before the batch that others have begun.
  void MoveOn(size_t rank) {
    RankPosition& position = positions_[rank];
    if (!position.known || !HasEnded(position)) return;
    const auto newest = newest_.find(position.step);
    if (newest == newest_.end() || newest->second <= position.batch) return;
    const RankPlan* plan = plan_of_(static_cast<int>(rank));
    if (plan == nullptr) return;
    ++position.batch;
    position.evaluation_plan = plan;
    position.piece = 0;
    position.states.assign(plan->instructions.size(), InstructionState::kNotBegun);
  }

  const absl::Span<const timeline::RankSpans> ranks_;
  const EvaluationPlanOf& plan_of_;
  std::vector<RankPosition>& positions_;
  std::map<int64_t, int64_t> newest_;  // by step: the newest batch that a rank has begun
};

}  // namespace

absl::StatusOr<MeasuredJob> JobOfSteps(absl::Span<const RankPlan> plans,
                                       const std::vector<bool>& known,
                                       absl::Span<const TimedStep> steps) {
  return MeasuredJobBuilder(plans, known, steps).Build();
}

std::vector<RankPosition> PositionsOf(absl::Span<const RankPlan> plans,
                                      absl::Span<const timeline::RankSpans> ranks,
                                      const EvaluationPlanOf& evaluation_plan_of) {
  MEGASCALE_CHECK(plans.size() == ranks.size());
  std::vector<RankPosition> positions;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    positions.push_back(ranks[rank].known ? PositionOf(plans[rank], ranks[rank]) : RankPosition());
  }
  if (evaluation_plan_of != nullptr) Evaluations(ranks, evaluation_plan_of, &positions).Move();
  return positions;
}

}  // namespace megascale::diagnose
