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

// Reads where one rank stands from its spans.
RankPosition PositionOf(const RankPlan& plan, const timeline::RankSpans& rank) {
  std::unordered_map<uint64_t, size_t> indices;
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    indices.emplace(plan.instructions[i].id.packed(), i);
  }
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
    // An exchange that failed, because a peer went away, has not ended: the rank stands there.
    const bool runs = span.end_nanos == 0 || span.code != 0;
    const auto id = plan::InstructionId::FromPacked(span.instruction);
    const auto found = indices.find(span.instruction);
    if (found != indices.end()) {
      InstructionState& state = position.states[found->second];
      if (!runs || state == InstructionState::kNotBegun) {
        state = runs ? InstructionState::kRuns : InstructionState::kEnded;
      }
    } else if (runs && plan::IsExchangeOfPass(id) && indices.count(id.WithPiece(0).packed()) > 0) {
      position.piece = id.piece();
    }
  }
  return position;
}

}  // namespace

absl::StatusOr<MeasuredJob> JobOfSteps(absl::Span<const RankPlan> plans,
                                       const std::vector<bool>& known,
                                       absl::Span<const TimedStep> steps) {
  return MeasuredJobBuilder(plans, known, steps).Build();
}

std::vector<RankPosition> PositionsOf(absl::Span<const RankPlan> plans,
                                      absl::Span<const timeline::RankSpans> ranks) {
  MEGASCALE_CHECK(plans.size() == ranks.size());
  std::vector<RankPosition> positions;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    positions.push_back(ranks[rank].known ? PositionOf(plans[rank], ranks[rank]) : RankPosition());
  }
  return positions;
}

}  // namespace megascale::diagnose
