#include "controlplane/page/trace_json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/text/printable.h"
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
constexpr size_t kTimelineRanksMax = 64;

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

// Returns by rank how much longer steps take because of it; empty: not analysed.
json Slowdowns(const trace::JobSpans& spans, absl::Span<const TimedStep> steps) {
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

json MeshJson(const plan::Mesh& mesh) {
  return {{"data", mesh.data_size()},
          {"pipeline", mesh.pipeline_size()},
          {"tensor", mesh.tensor_size()}};
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

std::vector<int> RanksOf(const plan::Mesh& mesh, TimelineView view, int rank) {
  const plan::GroupKind kind = view == TimelineView::kPipeline ? plan::GroupKind::kPipeline
                               : view == TimelineView::kData   ? plan::GroupKind::kData
                                                               : plan::GroupKind::kTensor;
  std::vector<int> ranks = mesh.Has(kind) ? mesh.GroupOf(kind, rank).ranks : std::vector<int>{rank};
  ranks.resize(std::min(ranks.size(), kTimelineRanksMax));
  return ranks;
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

int64_t BeginOf(const timeline::StepTime& time, const std::vector<int>& ranks) {
  int64_t begin = time.end;
  for (const int rank : ranks) {
    for (const SpanTime& span : time.ranks[static_cast<size_t>(rank)]) {
      if (span.state != SpanState::kNotBegun) begin = std::min(begin, span.ready);
    }
  }
  return begin;
}

}  // namespace

json HeatMapJson(const trace::JobSpans& spans, absl::Span<const TimedStep> steps) {
  std::vector<const TimedStep*> whole;
  for (const TimedStep& step : steps) {
    if (step.whole) whole.push_back(&step);
  }
  std::map<std::string, std::vector<double>> kinds;
  const auto count = static_cast<int64_t>(whole.size());
  for (size_t rank = 0; count > 0 && rank < spans.plans().size(); ++rank) {
    StepBreakdown sum;
    PassTime passes;
    for (const TimedStep* step : whole) {
      sum += timeline::BreakDown(spans.plans()[rank], step->time.ranks[rank]);
      AddPasses(spans.plans()[rank], step->time.ranks[rank], &passes);
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
  if (count > 0) {
    map["first_step"] = whole.front()->step;
    map["last_step"] = whole.back()->step;
    if (json slowdowns = Slowdowns(spans, steps); !slowdowns.is_null()) {
      map["kinds"]["slowdown"] = std::move(slowdowns);
    }
  }
  return map;
}

absl::StatusOr<TimelineView> TimelineViewFromWord(const std::string& word) {
  if (word == "pipeline") return TimelineView::kPipeline;
  if (word == "data") return TimelineView::kData;
  if (word == "tensor") return TimelineView::kTensor;
  return absl::InvalidArgumentError(
      absl::StrCat("view '", base::Printable(word, 40), "': expected pipeline, data or tensor"));
}

json TimelineJson(const trace::JobSpans& spans, const TimedStep& step, TimelineView view,
                  int rank) {
  const plan::Mesh& mesh = spans.plans().front().mesh;
  std::vector<int> ranks = RanksOf(mesh, view, rank);
  size_t num_spans = 0;
  size_t num_shown = 0;
  while (num_shown < ranks.size()) {
    num_spans += spans.plans()[static_cast<size_t>(ranks[num_shown])].instructions.size();
    if (num_shown > 0 && num_spans > kTimelineSpansMax) break;
    ++num_shown;
  }
  const size_t num_left_out = ranks.size() - num_shown;
  ranks.resize(num_shown);
  const int64_t origin = BeginOf(step.time, ranks);
  json rows = json::array();
  json streams = json::array();
  for (int stream = 0; stream < plan::kNumStreamKinds; ++stream) {
    streams.push_back(std::string(plan::Name(static_cast<plan::StreamKind>(stream))));
  }
  json messages = json::array();  // [row, index, row, index]
  std::map<timeline::MeetingName, std::pair<size_t, size_t>> senders;
  std::vector<std::pair<timeline::MeetingName, std::pair<size_t, size_t>>> receivers;
  for (size_t row = 0; row < ranks.size(); ++row) {
    const plan::RankPlan& plan = spans.plans()[static_cast<size_t>(ranks[row])];
    const std::vector<SpanTime>& times = step.time.ranks[static_cast<size_t>(plan.rank)];
    json instructions = json::array();
    for (size_t i = 0; i < plan.instructions.size(); ++i) {
      const plan::Instruction& instruction = plan.instructions[i];
      instructions.push_back(SpanJson(instruction, times[i], origin));
      const plan::OpClass op_class = plan::OperationOf(instruction.id.operation()).op_class;
      if (op_class == plan::OpClass::kSend) {
        senders[timeline::MeetingOf(plan, instruction)] = {row, i};
      } else if (op_class == plan::OpClass::kReceive) {
        receivers.push_back({timeline::MeetingOf(plan, instruction), {row, i}});
      }
    }
    rows.push_back({{"rank", plan.rank},
                    {"name", spans.names()[static_cast<size_t>(plan.rank)]},
                    {"spans", std::move(instructions)}});
  }
  for (const auto& [name, to] : receivers) {
    const auto from = senders.find(name);
    if (from == senders.end()) continue;
    messages.push_back({from->second.first, from->second.second, to.first, to.second});
  }
  return {{"step", step.step},     {"whole", step.whole},  {"rows", rows},
          {"streams", streams},    {"messages", messages}, {"ranks_left_out", num_left_out},
          {"mesh", MeshJson(mesh)}};
}

}  // namespace megascale::page
