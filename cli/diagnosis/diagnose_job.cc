#include "cli/diagnosis/diagnose_job.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/diagnosis/exchange_report.h"
#include "cli/diagnosis/job_report.h"
#include "cli/diagnosis/job_trace.h"
#include "cli/diagnosis/stack_report.h"
#include "cli/view/live_view.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/diagnose/heat_map.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/slow_verdict.h"
#include "runtime/diagnose/stall.h"
#include "runtime/diagnose/what_if_json.h"

namespace megascale::cli {
namespace {

using nlohmann::json;

// Slowness is judged from this many steps on.
constexpr size_t kStepsMin = 3;
// The evidence of at most this many ranks is read.
constexpr int kRanksAsked = 64;
// How often, and how much later, the driver is asked again which processes are silent.
constexpr int kLivenessTries = 4;
constexpr absl::Duration kLivenessDelay = absl::Milliseconds(700);

// Numbers in a colour: a slowdown of 2 and more is red.
std::string SlownessPicture(const diagnose::OperationGraph& graph, const diagnose::WhatIf& result,
                            const std::string& title, absl::Span<const std::string> names) {
  std::vector<diagnose::HeatMapCell> cells;
  std::vector<std::vector<int>> columns;  // by stage: workers
  for (size_t w = 0; w < graph.workers().size(); ++w) {
    const diagnose::Worker& worker = graph.workers()[w];
    columns.resize(std::max(columns.size(), static_cast<size_t>(worker.stage) + 1));
    std::vector<int>& row = columns[static_cast<size_t>(worker.stage)];
    const double slowdown = result.by_worker.all[w];
    cells.push_back({.row = worker.stage,
                     .column = static_cast<int>(row.size()),
                     .label = absl::StrCat("rank ", worker.rank),
                     .value = absl::StrFormat("%.2f", slowdown),
                     .note = names[w],
                     .heat = slowdown - 1});
    row.push_back(static_cast<int>(w));
  }
  return diagnose::HeatMapSvg(title, cells);
}

std::vector<bool> KnownRanks(const trace::JobSpans& spans) {
  std::vector<bool> known;
  for (const timeline::RankSpans& rank : spans.ranks()) known.push_back(rank.known);
  return known;
}

// Returns how long ago the last instruction of any rank began or ended. The newest spans of each
// rank count by the clock that they were read by.
double SecondsSinceProgress(const trace::JobSpans& spans) {
  double seconds = std::numeric_limits<double>::max();
  for (const timeline::RankSpans& rank : spans.ranks()) {
    if (!rank.known) continue;
    int64_t newest = 0;
    for (const telemetry::Span& span : rank.spans) {
      newest = std::max({newest, span.begin_nanos, span.end_nanos});
    }
    seconds = std::min(seconds, static_cast<double>(rank.seen_nanos - newest) / 1e9);
  }
  return std::max(0.0, seconds);
}

// Returns the mean time from the end of one whole step to the end of the next; 0: not known.
double StepSeconds(const std::vector<timeline::TimedStep>& steps) {
  int64_t first = 0;
  int64_t last = 0;
  int count = 0;
  for (const timeline::TimedStep& step : steps) {
    if (!step.whole) continue;
    if (count == 0) first = step.time.end;
    last = step.time.end;
    ++count;
  }
  if (count == 0) return 0;
  return count == 1 ? static_cast<double>(first) / 1e9
                    : static_cast<double>(last - first) / 1e9 / (count - 1);
}

std::string NodeOf(const control::v1::Job& job, int rank) {
  return rank >= 0 && rank < job.ranks_size() ? base::Printable(job.ranks(rank).node_id()) : "";
}

std::string LimitText(const google::protobuf::Duration& limit) {
  return absl::StrCat(limit.seconds() + (limit.nanos() > 0 ? 1 : 0), " s");
}

void AddEviction(const std::string& node, Findings* findings) {
  findings->advice.push_back(
      absl::StrCat("move the job off its machine: `megascale evict ", node, "`"));
}

void AddStallAdvice(const control::v1::Job& job, Diagnosis* diagnosis) {
  const job::v1::FaultSpec& fault = job.spec().fault();
  diagnosis->findings.done.push_back(absl::StrCat(
      "the driver starts the next attempt once a process is silent for ",
      LimitText(fault.heartbeat_timeout()), " or a rank makes no progress for ",
      LimitText(fault.progress_timeout()), " (fault.heartbeat_timeout, fault.progress_timeout)"));
  if (diagnosis->rank < 0) {
    diagnosis->findings.advice.push_back(
        absl::StrCat("look at what the ranks wrote: `megascale logs ", job.job_id(), "`"));
    return;
  }
  diagnosis->findings.advice.push_back(absl::StrCat(
      "look at what it wrote: `megascale logs ", job.job_id(), " --rank ", diagnosis->rank, "`"));
  if (!diagnosis->node.empty() && diagnosis->findings.cause != "checkpoint") {
    AddEviction(diagnosis->node, &diagnosis->findings);
  }
}

json WaitingJson(const diagnose::StallVerdict& verdict) {
  json waiting = json::array();
  for (const diagnose::WaitingRank& rank : verdict.waiting) {
    waiting.push_back({{"rank", rank.rank},
                       {"instruction", rank.instruction.ToString()},
                       {"waits_for", rank.waits_for}});
  }
  return waiting;
}

std::string StallPicture(const diagnose::StallVerdict& verdict, const trace::JobSpans& spans,
                         const std::string& title) {
  std::vector<diagnose::HeatMapCell> cells;
  for (const plan::RankPlan& plan : spans.plans()) {
    const plan::Coordinate at = plan.mesh.CoordinateOf(plan.rank);
    const bool is_cause = plan.rank == verdict.root.rank;
    const auto waiting = std::find_if(verdict.waiting.begin(), verdict.waiting.end(),
                                      [&](const auto& rank) { return rank.rank == plan.rank; });
    cells.push_back({.row = at.pipeline,
                     .column = at.data * plan.mesh.tensor_size() + at.tensor,
                     .label = absl::StrCat("rank ", plan.rank),
                     .value = is_cause ? verdict.root.instruction.ToString()
                              : waiting != verdict.waiting.end() ? waiting->instruction.ToString()
                                                                 : "",
                     .note = spans.names()[static_cast<size_t>(plan.rank)],
                     .heat = is_cause                           ? 1.0
                             : waiting != verdict.waiting.end() ? 0.2
                                                                : 0.0});
  }
  return diagnose::HeatMapSvg(title, cells);
}

// Reads evidence about ranks. What cannot be read is not known.
std::vector<control::v1::StreamEvidenceResponse> ReadEvidence(client::JobClient* client,
                                                              const control::v1::Job& job,
                                                              telemetry::v1::EvidenceKind kind,
                                                              absl::Span<const int> ranks) {
  control::v1::StreamEvidenceRequest request;
  request.set_job_id(job.job_id());
  request.set_kind(kind);
  for (const int rank : ranks) {
    if (request.ranks_size() < kRanksAsked) request.add_ranks(rank);
  }
  std::vector<control::v1::StreamEvidenceResponse> responses;
  client
      ->Evidence(request, {[&](const control::v1::StreamEvidenceResponse& response) {
                             responses.push_back(response);
                           },
                           {}})
      .IgnoreError();
  return responses;
}

Diagnosis DiagnoseStall(client::JobClient* client, const control::v1::Job& job,
                        const JobTrace& traced, double seconds, bool with_stacks) {
  std::vector<diagnose::RankPosition> positions =
      diagnose::PositionsOf(traced.spans.plans(), KnownRanks(traced.spans), traced.steps);
  for (size_t rank = 0; rank < positions.size(); ++rank) {
    if (static_cast<int>(rank) >= job.ranks_size()) break;
    positions[rank].silent_seconds = job.ranks(static_cast<int>(rank)).status().alive_age_seconds();
  }
  const diagnose::StallVerdict verdict = diagnose::ExplainStall(traced.spans.plans(), positions);
  Diagnosis diagnosis;
  diagnosis.findings = DescribeStall(verdict, seconds, traced.spans.names());
  diagnosis.rank = verdict.root.rank;
  diagnosis.is_undecided = diagnosis.rank < 0;
  if (verdict.root.cause == diagnose::StallCause::kExchange) {
    const auto evidence =
        ReadEvidence(client, job, telemetry::v1::EVIDENCE_KIND_EXCHANGES, verdict.root.members);
    const auto shown = ShownCallsOf(evidence, verdict.root.instruction, verdict.root.members);
    AddExchange(diagnose::ExplainExchange(shown), traced.spans.names(), &diagnosis);
  }
  diagnosis.node = NodeOf(job, diagnosis.rank);
  std::vector<int> waiting;
  for (const diagnose::WaitingRank& rank : verdict.waiting) waiting.push_back(rank.rank);
  AddReport(job, waiting, &diagnosis);
  AddStallAdvice(job, &diagnosis);
  if (with_stacks) {
    const std::vector<int> ranks = RanksToRead(job.ranks_size(), diagnosis.rank, waiting);
    AddStacks(ReadEvidence(client, job, telemetry::v1::EVIDENCE_KIND_STACKS, ranks), &diagnosis);
  }
  diagnosis.details["waiting"] = WaitingJson(verdict);
  diagnosis.details["instruction"] = verdict.root.instruction.ToString();
  diagnosis.details["step"] = verdict.root.step;
  diagnosis.picture = StallPicture(verdict, traced.spans, diagnosis.findings.verdict);
  return diagnosis;
}

// Drops the oldest steps of a large job, so that the analysis replays about `replayed_max`
// operations: each part of the job costs a replay of every step. False: too few steps would be
// left, and kStepsMin remain.
bool KeepFewSteps(double replayed_max, diagnose::MeasuredJob* job) {
  const diagnose::OperationGraph& graph = job->graph;
  int num_places = 0;
  for (const diagnose::Worker& worker : graph.workers()) {
    num_places = std::max({num_places, worker.replica + 1, worker.stage + 1});
  }
  const double replays = 2.0 * num_places + static_cast<double>(graph.kinds().size()) +
                         diagnose::kMeasuredJobOptions.exact_workers_max;
  const double steps_max = replayed_max / (replays * static_cast<double>(graph.size()) + 1);
  const size_t kept = std::max(kStepsMin, static_cast<size_t>(steps_max));
  if (job->steps.size() > kept) {
    job->steps.erase(job->steps.begin(), job->steps.end() - static_cast<int64_t>(kept));
  }
  return steps_max >= static_cast<double>(kStepsMin);
}

// Says how to get a diagnosis that takes longer than the caller wants to wait.
Diagnosis Postponed(const control::v1::Job& job) {
  Diagnosis diagnosis;
  diagnosis.findings.cause = "unknown";
  diagnosis.findings.verdict =
      absl::StrCat("not made, because the job is large: `megascale diagnose ", job.job_id(), "`");
  return diagnosis;
}

absl::StatusOr<Diagnosis> DiagnoseTraced(client::JobClient* client, const control::v1::Job& job,
                                         const JobTrace& traced, const DiagnoseOptions& options) {
  const double seconds = SecondsSinceProgress(traced.spans);
  if (seconds > StallLimitSeconds(job.spec().fault(), StepSeconds(traced.steps))) {
    return DiagnoseStall(client, job, traced, seconds, /*with_stacks=*/!options.is_brief);
  }
  const auto num_whole = static_cast<size_t>(std::count_if(
      traced.steps.begin(), traced.steps.end(), [](const auto& step) { return step.whole; }));
  if (num_whole < kStepsMin) {
    Diagnosis diagnosis = DiagnoseState(
        job, absl::StrCat("the ranks make progress; ", num_whole, " steps are recorded, and ",
                          kStepsMin, " are needed to judge: repeat this later"));
    return diagnosis;
  }
  ASSIGN_OR_RETURN(
      diagnose::MeasuredJob measured,
      diagnose::JobOfSteps(traced.spans.plans(), KnownRanks(traced.spans), traced.steps));
  if (!KeepFewSteps(options.replayed_max, &measured) && options.is_brief) return Postponed(job);
  std::vector<std::string> names;
  for (const diagnose::Worker& worker : measured.graph.workers()) {
    names.push_back(traced.spans.names()[static_cast<size_t>(worker.rank)]);
  }
  Diagnosis diagnosis =
      DiagnoseSteps(measured.graph, measured.steps, diagnose::kMeasuredJobOptions, names);
  diagnosis.node = NodeOf(job, diagnosis.rank);
  if (!diagnosis.node.empty()) AddEviction(diagnosis.node, &diagnosis.findings);
  if (job.has_culprit()) {
    const control::v1::Culprit& culprit = job.culprit();
    diagnosis.findings.done.push_back(absl::StrCat(
        "attempt ", culprit.attempt(),
        " failed: ", culprit.rank() >= 0 ? absl::StrCat("rank ", culprit.rank(), " on ") : "",
        "node ", base::Printable(culprit.node_id()), "; the driver started the job again"));
  }
  return diagnosis;
}

}  // namespace

Diagnosis DiagnoseSteps(const diagnose::OperationGraph& graph,
                        absl::Span<const diagnose::MeasuredStep> steps,
                        const diagnose::WhatIfOptions& options,
                        absl::Span<const std::string> names) {
  const diagnose::WhatIf result = diagnose::AnalyzeSteps(graph, steps, options);
  const diagnose::SlowVerdict verdict = diagnose::ExplainSlowness(graph, steps, options, result);
  Diagnosis diagnosis;
  diagnosis.findings = DescribeSlowness(graph, result, verdict, names);
  const diagnose::SlowCause cause = verdict.cause.cause;
  if (verdict.cause.worker >= 0 &&
      (cause == diagnose::SlowCause::kOneWorker || cause == diagnose::SlowCause::kDataWait)) {
    diagnosis.rank = graph.workers()[static_cast<size_t>(verdict.cause.worker)].rank;
  }
  diagnosis.details = diagnose::WhatIfJson(graph, result);
  diagnosis.picture = SlownessPicture(graph, result, diagnosis.findings.verdict, names);
  return diagnosis;
}

absl::StatusOr<Diagnosis> DiagnoseJob(client::JobClient* client, const std::string& job_id,
                                      const DiagnoseOptions& options) {
  ASSIGN_OR_RETURN(control::v1::Job job, client->Get(job_id));
  if (IsTerminal(job.state())) return DiagnoseState(job, "");
  const absl::StatusOr<JobTrace> traced = TraceJob(client, job, options.num_steps);
  // Ranks show their life to the driver about once a second: ask for it last.
  ASSIGN_OR_RETURN(job, client->Get(job_id));
  if (!traced.ok()) {
    if (traced.status().code() != absl::StatusCode::kFailedPrecondition) return traced.status();
    return DiagnoseState(job, std::string(traced.status().message()));
  }
  ASSIGN_OR_RETURN(Diagnosis diagnosis, DiagnoseTraced(client, job, *traced, options));
  const int tries = options.is_brief ? 0 : kLivenessTries;
  for (int i = 0; i < tries && diagnosis.is_undecided; ++i) {
    absl::SleepFor(kLivenessDelay);
    ASSIGN_OR_RETURN(job, client->Get(job_id));
    ASSIGN_OR_RETURN(diagnosis, DiagnoseTraced(client, job, *traced, options));
  }
  AddNumbers(job, &diagnosis);
  for (const std::string& error : traced->spans.errors()) {
    diagnosis.notes.push_back(absl::StrCat("not known: ", base::Printable(error)));
  }
  return diagnosis;
}

}  // namespace megascale::cli
