#include "controlplane/page/trace_json.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "controlplane/page/mesh_json.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/what_if.h"
#include "runtime/timeline/step_breakdown.h"

namespace megascale::page {
namespace {

using nlohmann::json;
using timeline::SpanState;
using timeline::SpanTime;
using timeline::StepBreakdown;
using timeline::TimedStep;

// The analysis of slowdowns replays about this many operations at most: a fifth of a second.
constexpr double kReplayedMax = 1e7;
constexpr size_t kSlowdownStepsMin = 3;

double Milliseconds(int64_t nanos, int64_t count = 1) {
  return std::round(static_cast<double>(nanos) / static_cast<double>(count) / 1e3) / 1e3;
}

double Microseconds(int64_t nanos) { return std::round(static_cast<double>(nanos) / 1e2) / 10; }

// Time of a rank in forward and in backward passes, waits for tensor-parallel ranks included.
struct PassTime {
  int64_t forward = 0;
  int64_t backward = 0;
};

void AddPasses(const plan::RankPlan& plan, const std::vector<SpanTime>& spans, PassTime* sum) {
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].state != SpanState::kEnded) continue;
    const int64_t nanos = spans[i].end - spans[i].begin;
    switch (plan::OperationOf(plan.instructions[i].id.operation()).op_class) {
      case plan::OpClass::kForward:
        sum->forward += nanos;
        break;
      case plan::OpClass::kBackward:
      case plan::OpClass::kWeights:
        sum->backward += nanos;
        break;
      default:
        break;
    }
  }
}

std::vector<bool> KnownRanks(const trace::JobSpans& spans) {
  std::vector<bool> known;
  for (const timeline::RankSpans& rank : spans.ranks()) known.push_back(rank.known);
  return known;
}

bool HasAllRanks(const trace::JobSpans& spans) {
  return static_cast<int>(spans.plans().size()) == spans.plans().front().mesh.world_size();
}

// Returns by rank how much longer steps take because of it; empty: not analysed.
json Slowdowns(const trace::JobSpans& spans, absl::Span<const TimedStep> steps) {
  if (!HasAllRanks(spans)) return json();
  size_t num_instructions = 0;
  for (const plan::RankPlan& plan : spans.plans()) num_instructions += plan.instructions.size();
  const double parts = static_cast<double>(spans.plans().size()) * 2 + 30;
  if (static_cast<double>(num_instructions * steps.size()) * parts > kReplayedMax) return json();
  const auto job = diagnose::JobOfSteps(spans.plans(), KnownRanks(spans), steps);
  if (!job.ok() || job->steps.size() < kSlowdownStepsMin) return json();
  const diagnose::WhatIf result =
      diagnose::AnalyzeSteps(job->graph, job->steps, diagnose::kMeasuredJobOptions);
  std::vector<double> by_rank(spans.plans().size(), 1);
  for (size_t w = 0; w < job->graph.workers().size(); ++w) {
    const auto rank = static_cast<size_t>(job->graph.workers()[w].rank);
    by_rank[rank] = std::round(result.by_worker.all[w] * 1e3) / 1e3;
  }
  return by_rank;
}

// "forward": what colours and filters stand for.
const char* ClassWord(plan::OpClass op_class) {
  switch (op_class) {
    case plan::OpClass::kForward:
      return "forward";
    case plan::OpClass::kBackward:
      return "backward";
    case plan::OpClass::kWeights:
      return "weights";
    case plan::OpClass::kLoad:
      return "load";
    case plan::OpClass::kSend:
      return "send";
    case plan::OpClass::kReceive:
      return "receive";
    case plan::OpClass::kCollective:
      return "collective";
    case plan::OpClass::kOptimizer:
      return "optimizer";
    default:
      return "other";
  }
}

// Returns `count` ranks of the ascending `ranks`, with `rank` in their middle where possible.
std::vector<int> Around(const std::vector<int>& ranks, int rank, size_t count) {
  if (ranks.size() <= count) return ranks;
  const auto at =
      static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  const size_t first = std::min(at - std::min(at, count / 2), ranks.size() - count);
  const auto begin = ranks.begin() + static_cast<int64_t>(first);
  return {begin, begin + static_cast<int64_t>(count)};
}

// [stream, class, begin, end, wait before, state, name, what it depends on]; microseconds.
json SpanJson(const plan::Instruction& instruction, const SpanTime& time, int64_t origin) {
  const int64_t waited = std::max<int64_t>(0, time.begin - time.ready);
  return json::array({static_cast<int>(instruction.stream),
                      ClassWord(plan::OperationOf(instruction.id.operation()).op_class),
                      Microseconds(time.begin - origin), Microseconds(time.end - origin),
                      Microseconds(waited), static_cast<int>(time.state), instruction.id.ToString(),
                      instruction.depends_on});
}

// A row of the timeline, and an instruction in it.
using Place = std::pair<size_t, size_t>;

// The ranks of a timeline in one step.
class TimelineRows {
 public:
  TimelineRows(const trace::JobSpans& spans, const TimedStep& step, const std::vector<int>& ranks)
      : spans_(spans), step_(step) {
    for (const int rank : ranks) rows_.push_back(static_cast<size_t>(spans.IndexOf(rank)));
  }

  json Rows() const {
    const int64_t origin = Begin();
    json rows = json::array();
    for (const size_t index : rows_) {
      const plan::RankPlan& plan = spans_.plans()[index];
      json instructions = json::array();
      for (size_t i = 0; i < plan.instructions.size(); ++i) {
        instructions.push_back(SpanJson(plan.instructions[i], step_.time.ranks[index][i], origin));
      }
      rows.push_back({{"rank", plan.rank},
                      {"name", spans_.names()[index].Text()},
                      {"spans", std::move(instructions)}});
    }
    return rows;
  }

  // [row, index, row, index]: a send and its receive.
  json Messages() const {
    json messages = json::array();
    for (const auto& [name, members] : Meetings(/*transfers=*/true)) {
      if (members.size() != 2) continue;
      const bool sends_first = ClassAt(members[0]) == plan::OpClass::kSend;
      const Place from = members[sends_first ? 0 : 1];
      const Place to = members[sends_first ? 1 : 0];
      messages.push_back({from.first, from.second, to.first, to.second});
    }
    return messages;
  }

  // [[row, index], …] for each collective: its members that have begun, the last to come first.
  json Collectives() const {
    json collectives = json::array();
    for (auto& [name, members] : Meetings(/*transfers=*/false)) {
      std::vector<Place> came;
      std::copy_if(members.begin(), members.end(), std::back_inserter(came),
                   [&](Place at) { return TimeAt(at).state != SpanState::kNotBegun; });
      if (came.size() < 2) continue;
      std::stable_sort(came.begin(), came.end(),
                       [&](Place a, Place b) { return TimeAt(a).ready > TimeAt(b).ready; });
      collectives.push_back(came);
    }
    return collectives;
  }

 private:
  const plan::Instruction& InstructionAt(Place at) const {
    return spans_.plans()[rows_[at.first]].instructions[at.second];
  }
  const SpanTime& TimeAt(Place at) const { return step_.time.ranks[rows_[at.first]][at.second]; }
  plan::OpClass ClassAt(Place at) const {
    return plan::OperationOf(InstructionAt(at).id.operation()).op_class;
  }

  int64_t Begin() const {
    int64_t begin = step_.time.end;
    for (const size_t index : rows_) {
      for (const SpanTime& span : step_.time.ranks[index]) {
        if (span.state != SpanState::kNotBegun) begin = std::min(begin, span.ready);
      }
    }
    return begin;
  }

  std::map<timeline::MeetingName, std::vector<Place>> Meetings(bool transfers) const {
    std::map<timeline::MeetingName, std::vector<Place>> meetings;
    for (size_t row = 0; row < rows_.size(); ++row) {
      const plan::RankPlan& plan = spans_.plans()[rows_[row]];
      for (size_t i = 0; i < plan.instructions.size(); ++i) {
        const plan::Instruction& instruction = plan.instructions[i];
        if (instruction.group == plan::GroupKind::kNone) continue;
        if (plan::IsTransfer(instruction.id.operation()) != transfers) continue;
        meetings[timeline::MeetingOf(plan, instruction)].push_back({row, i});
      }
    }
    return meetings;
  }

  const trace::JobSpans& spans_;
  const TimedStep& step_;
  std::vector<size_t> rows_;  // index in `spans`
};

// The newest whole ones, at most `num_steps`: whole steps come before those that still run.
absl::Span<const TimedStep> NewestWhole(absl::Span<const TimedStep> steps, int64_t num_steps) {
  const auto is_whole = [](const TimedStep& step) { return step.whole; };
  const auto num_whole =
      static_cast<size_t>(std::find_if_not(steps.begin(), steps.end(), is_whole) - steps.begin());
  const size_t count = std::min(num_whole, static_cast<size_t>(std::max<int64_t>(0, num_steps)));
  return steps.subspan(num_whole - count, count);
}

}  // namespace

json HeatMapJson(const trace::JobSpans& spans, absl::Span<const TimedStep> steps,
                 int64_t num_steps) {
  const absl::Span<const TimedStep> newest = NewestWhole(steps, num_steps);
  std::map<std::string, std::vector<double>> kinds;
  const auto count = static_cast<int64_t>(newest.size());
  for (size_t rank = 0; count > 0 && rank < spans.plans().size(); ++rank) {
    StepBreakdown sum;
    PassTime passes;
    for (const TimedStep& step : newest) {
      sum += timeline::BreakDown(spans.plans()[rank], step.time.ranks[rank]);
      AddPasses(spans.plans()[rank], step.time.ranks[rank], &passes);
    }
    kinds["forward"].push_back(Milliseconds(passes.forward, count));
    kinds["backward"].push_back(Milliseconds(passes.backward, count));
    kinds["compute"].push_back(Milliseconds(sum.compute, count));
    kinds["optimizer"].push_back(Milliseconds(sum.optimizer, count));
    kinds["tensor_parallel"].push_back(Milliseconds(sum.tensor_parallel, count));
    kinds["pipeline"].push_back(Milliseconds(sum.pipeline, count));
    kinds["data_parallel"].push_back(Milliseconds(sum.data_parallel, count));
    kinds["data_wait"].push_back(Milliseconds(sum.data_wait, count));
    kinds["bubble"].push_back(Milliseconds(sum.bubble, count));
    kinds["total"].push_back(Milliseconds(sum.total(), count));
  }
  json map = {{"mesh", MeshJson(spans.plans().front().mesh)},
              {"num_steps", count},
              {"kinds", kinds},
              {"known", KnownRanks(spans)},
              {"num_lost", spans.num_lost()},
              {"clock_error_us", Microseconds(spans.clock_error_nanos())}};
  if (!HasAllRanks(spans)) {
    for (const plan::RankPlan& plan : spans.plans()) map["ranks"].push_back(plan.rank);
    // One rank is read of those that are at the same stage of the same replica.
    const plan::Mesh& mesh = spans.plans().front().mesh;
    map["ranks_each"] = mesh.world_size() / mesh.pipeline_size() / mesh.data_size();
  }
  if (count > 0) {
    map["first_step"] = newest.front().step;
    map["last_step"] = newest.back().step;
    if (json slowdowns = Slowdowns(spans, newest); !slowdowns.is_null()) {
      map["kinds"]["slowdown"] = std::move(slowdowns);
    }
  }
  return map;
}

std::vector<int> TimelineRanks(const plan::Mesh& mesh, plan::Axis axis, int rank) {
  return Around(RanksAlong(mesh, axis, rank), rank, kTimelineRanksMax);
}

json TimelineJson(const trace::JobSpans& spans, const TimedStep& step, plan::Axis axis, int rank) {
  const plan::Mesh& mesh = spans.plans().front().mesh;
  std::vector<int> ranks = TimelineRanks(mesh, axis, rank);
  size_t instructions_max = 1;  // of a rank
  for (const int shown : ranks) {
    const auto index = static_cast<size_t>(spans.IndexOf(shown));
    instructions_max = std::max(instructions_max, spans.plans()[index].instructions.size());
  }
  ranks = Around(ranks, rank, std::max<size_t>(1, kTimelineSpansMax / instructions_max));
  json streams = json::array();
  for (int stream = 0; stream < plan::kNumStreamKinds; ++stream) {
    streams.push_back(std::string(plan::Name(static_cast<plan::StreamKind>(stream))));
  }
  const TimelineRows rows(spans, step, ranks);
  return {{"step", step.step},
          {"whole", step.whole},
          {"rows", rows.Rows()},
          {"streams", std::move(streams)},
          {"messages", rows.Messages()},
          {"collectives", rows.Collectives()},
          {"ranks_left_out", static_cast<size_t>(mesh.size(axis)) - ranks.size()},
          {"other_ranks_known", HasAllRanks(spans)},
          {"mesh", MeshJson(mesh)}};
}

}  // namespace megascale::page
