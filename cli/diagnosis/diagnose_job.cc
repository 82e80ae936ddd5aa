#include "cli/diagnosis/diagnose_job.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/diagnosis/diagnosis_picture.h"
#include "cli/diagnosis/exchange_report.h"
#include "cli/diagnosis/job_report.h"
#include "cli/diagnosis/job_trace.h"
#include "cli/diagnosis/stack_report.h"
#include "cli/view/live_view.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/slow_verdict.h"
#include "runtime/diagnose/stall.h"
#include "runtime/diagnose/what_if_json.h"

namespace megascale::cli {
namespace {

using nlohmann::json;

// Slowness is judged from this many steps on.
constexpr size_t kStepsMin = 3;
// The newest steps are compared with older ones in a job of at most this many ranks, but not with
// the newest of them, in which the job may have begun to be slow.
constexpr int kRanksCompared = 64;
constexpr int64_t kStepsBetween = 16;
// A brief diagnosis costs at most about half a second.
constexpr DiagnoseOptions kBrief = {
    .num_steps = 10, .num_compared = 0, .replayed_max = 2e7, .is_brief = true};
// The evidence of at most this many ranks is read.
constexpr size_t kRanksAsked = 64;
// While it is not known which rank has stopped, all is read again after a wait, because its process
// may be known as silent then. How long these waits may be together; a large job is read again
// once, since that takes seconds.
constexpr absl::Duration kLivenessWait = absl::Milliseconds(2800);
// Between two questions whether the report of a machine is still overdue.
constexpr absl::Duration kOverdueDelay = absl::Milliseconds(300);
// When a job has stood still for so long, the driver knows a silent process: agents report every
// second.
constexpr double kSilenceKnownSeconds = diagnose::kSilentSecondsMin + 1.3;

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
    if (rank.known) seconds = std::min(seconds, timeline::QuietSeconds(rank));
  }
  return seconds;
}

// Returns the mean time from the end of one whole step to the end of the next, of the newest ones;
// 0: not known. The newest alone tell how long a step takes in a job that has become slow.
double StepSeconds(const std::vector<timeline::TimedStep>& steps) {
  std::vector<int64_t> ends;
  for (const timeline::TimedStep& step : steps) {
    if (step.whole) ends.push_back(step.time.end);
  }
  if (ends.empty()) return 0;
  if (ends.size() == 1) return static_cast<double>(ends.front()) / 1e9;
  const size_t count = std::min(ends.size() - 1, kStepsMin);
  return static_cast<double>(ends.back() - ends[ends.size() - 1 - count]) / 1e9 /
         static_cast<double>(count);
}

std::string NodeOf(const control::v1::Job& job, int rank) {
  return rank >= 0 && rank < job.ranks_size() ? base::Printable(job.ranks(rank).node_id()) : "";
}

// The machine that the verdict names, or that of its rank.
std::string NodeOfVerdict(const control::v1::Job& job, const Diagnosis& diagnosis) {
  return NodeOf(job, diagnosis.rank_on_node >= 0 ? diagnosis.rank_on_node : diagnosis.rank);
}

int64_t StepsToRead(const control::v1::Job& job, const DiagnoseOptions& options) {
  const bool is_compared = job.ranks_size() <= kRanksCompared;
  return is_compared ? std::max(options.num_steps, options.num_compared) : options.num_steps;
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
  if (diagnosis->has_one_witness) {
    diagnosis->findings.advice.push_back("look at the other machine, too, before you move the job");
    return;
  }
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

// Reads evidence about ranks, of which a large job may have too many.
std::vector<control::v1::StreamEvidenceResponse> AskedEvidence(EvidenceSource* source,
                                                               telemetry::v1::EvidenceKind kind,
                                                               std::vector<int> ranks) {
  if (ranks.empty()) return {};
  ranks.resize(std::min(ranks.size(), kRanksAsked));
  return source->Evidence(kind, ranks);
}

// Returns the exchanges that all their members have begun, if nothing else explains the stall.
std::vector<const diagnose::StallRoot*> StuckExchanges(const diagnose::StallVerdict& verdict) {
  std::vector<const diagnose::StallRoot*> roots;
  if (verdict.root.cause != diagnose::StallCause::kUnknown) roots.push_back(&verdict.root);
  for (const diagnose::StallRoot& root : verdict.other_roots) roots.push_back(&root);
  const bool are_exchanges = absl::c_all_of(roots, [](const diagnose::StallRoot* root) {
    return root->cause == diagnose::StallCause::kExchange;
  });
  if (are_exchanges) return roots;
  if (verdict.root.cause == diagnose::StallCause::kExchange) return {&verdict.root};
  return {};
}

// Asks the communicators how far they have come.
void AddExchanges(EvidenceSource* source, const diagnose::StallVerdict& verdict,
                  absl::Span<const trace::RankName> names, absl::Span<const int> machine_of,
                  Diagnosis* diagnosis) {
  const std::vector<const diagnose::StallRoot*> roots = StuckExchanges(verdict);
  std::set<int> ranks;
  for (const diagnose::StallRoot* root : roots) {
    ranks.insert(root->members.begin(), root->members.end());
  }
  const auto evidence =
      AskedEvidence(source, telemetry::v1::EVIDENCE_KIND_EXCHANGES, {ranks.begin(), ranks.end()});
  std::vector<diagnose::ExchangeVerdict> verdicts;
  std::vector<plan::InstructionId> instructions;
  for (const diagnose::StallRoot* root : roots) {
    instructions.push_back(root->instruction);
    verdicts.push_back(
        diagnose::ExplainExchange(ShownCallsOf(evidence, root->instruction, root->members)));
  }
  const diagnose::ExchangeVerdict joined = diagnose::JoinExchanges(verdicts, machine_of);
  AddExchange(joined, names, machine_of, diagnosis);
  AddStandstill(evidence, instructions, joined, diagnosis);
}

// Says so if a rank is named on the word of one other machine, which may be wrong itself.
void AddWitness(const diagnose::StallVerdict& verdict, absl::Span<const int> machine_of,
                const control::v1::Job& job, Diagnosis* diagnosis) {
  const auto witnesses = diagnose::Witnesses(verdict, machine_of);
  if (!witnesses.has_value() || witnesses->size() >= diagnose::kWitnessesMin) return;
  std::string who = "no known machine";
  for (const int member : verdict.root.members) {
    const auto rank = static_cast<size_t>(member);
    if (witnesses->empty() || rank >= machine_of.size()) continue;
    if (machine_of[rank] == witnesses->front()) who = absl::StrCat("node ", NodeOf(job, member));
  }
  diagnosis->has_one_witness = true;
  diagnosis->findings.evidence.push_back(absl::StrCat(
      "by the word of ", who, " alone: its ranks say that they have left the exchange"));
}

// Several ranks may be the cause, and all of them are on one machine: names it.
void AddMachineOfAll(const diagnose::StallVerdict& verdict, absl::Span<const int> machine_of,
                     const control::v1::Job& job, Diagnosis* diagnosis) {
  const auto machine = diagnose::MachineOfAllRoots(verdict, machine_of);
  if (!machine.has_value()) return;
  diagnosis->rank_on_node = machine->ranks.front();
  // Ranks that wait for a batch are no rank's fault; else one of them may soon be known as silent.
  diagnosis->is_undecided = !machine->waits_for_data;
  Findings& findings = diagnosis->findings;
  findings.excluded.clear();  // these were the ranks that may be the cause
  findings.cause = machine->waits_for_data ? "data_wait" : "stuck_machine";
  findings.verdict =
      absl::StrCat("stuck: node ", NodeOf(job, diagnosis->rank_on_node), "; its ranks ",
                   absl::StrJoin(machine->ranks, ", "),
                   machine->waits_for_data ? " wait for their batches, and all others for them"
                                           : " do not go on, and all others wait for them");
  if (!machine->waits_for_data) return;
  findings.advice.push_back(
      "look at the storage that holds the data, and at the host process of the machine");
}

// Whether only bytes that do not move led to the verdict.
bool IsByBytes(const Findings& findings) {
  return findings.cause == kStuckLink || findings.cause == kStuckMachineLink ||
         findings.cause == kStuckExchangeRank;
}

// Takes back a verdict that may turn out to be wrong. `seconds`: how long the job has stood still.
void SayNotSure(double seconds, Diagnosis* diagnosis) {
  Findings& findings = diagnosis->findings;
  findings.evidence.push_back(
      absl::StrFormat("not sure after %.1f s, because a process may have stopped just now: %s",
                      seconds, findings.verdict));
  findings.cause = CauseWord(diagnose::StallCause::kUnknown);
  findings.verdict = "stuck: ranks wait for bytes, and it is too early to say who is at fault";
  diagnosis->rank = diagnosis->rank_on_node = diagnosis->peer = -1;
  diagnosis->is_undecided = true;
  diagnosis->sure_in = absl::Seconds(kSilenceKnownSeconds - seconds);
}

Diagnosis DiagnoseStall(EvidenceSource* source, const control::v1::Job& job, const JobTrace& traced,
                        double seconds) {
  std::vector<diagnose::RankPosition> positions = diagnose::PositionsOf(
      traced.spans.plans(), traced.spans.ranks(), traced.spans.stages()->EvaluationPlans());
  for (size_t rank = 0; rank < positions.size(); ++rank) {
    if (static_cast<int>(rank) >= job.ranks_size()) break;
    positions[rank].silent_seconds = job.ranks(static_cast<int>(rank)).status().alive_age_seconds();
  }
  const diagnose::StallVerdict verdict = diagnose::ExplainStall(traced.spans.plans(), positions);
  Diagnosis diagnosis;
  diagnosis.findings = DescribeStall(verdict, seconds, traced.spans.names());
  diagnosis.rank = verdict.root.rank;
  diagnosis.is_undecided = diagnosis.rank < 0;
  const std::vector<int> machines = trace::MachineOfRanks(job);
  AddWitness(verdict, machines, job, &diagnosis);
  AddExchanges(source, verdict, traced.spans.names(), machines, &diagnosis);
  AddMachineOfAll(verdict, machines, job, &diagnosis);
  diagnosis.node = NodeOfVerdict(job, diagnosis);
  std::vector<int> waiting;
  for (const diagnose::WaitingRank& rank : verdict.waiting) waiting.push_back(rank.rank);
  AddReport(job, waiting, &diagnosis);
  // A process that has just stopped in an exchange looks like a broken link.
  const bool may_be_silent = seconds < kSilenceKnownSeconds && !verdict.is_silent;
  if (may_be_silent && IsByBytes(diagnosis.findings)) SayNotSure(seconds, &diagnosis);
  diagnosis.node = NodeOfVerdict(job, diagnosis);  // that of a machine which saves is none
  diagnosis.peer_node = NodeOf(job, diagnosis.peer);
  AddStallAdvice(job, &diagnosis);
  diagnosis.stacks_of = RanksToRead(job.ranks_size(), diagnosis.rank, waiting);
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
  diagnosis.findings.verdict = absl::StrCat(
      "not made here, because the job is large; ask with `megascale diagnose ", job.job_id(), "`");
  return diagnosis;
}

// Takes the newest steps for those to judge, and older ones to compare them with.
struct JudgedSteps {
  std::vector<diagnose::MeasuredStep> before;
  std::vector<int> machine_of;  // by worker
};

JudgedSteps SplitSteps(const control::v1::Job& job, int64_t num_newest,
                       diagnose::MeasuredJob* measured) {
  JudgedSteps judged;
  const int64_t num_old =
      std::max<int64_t>(0, static_cast<int64_t>(measured->steps.size()) - num_newest);
  const int64_t num_compared =
      std::max<int64_t>(0, static_cast<int64_t>(measured->steps.size()) - kStepsBetween);
  judged.before.assign(measured->steps.begin(), measured->steps.begin() + num_compared);
  measured->steps.erase(measured->steps.begin(), measured->steps.begin() + num_old);
  const std::vector<int> machines = trace::MachineOfRanks(job);
  for (const diagnose::Worker& worker : measured->graph.workers()) {
    const auto rank = static_cast<size_t>(worker.rank);
    judged.machine_of.push_back(rank < machines.size() ? machines[rank] : -1);
  }
  return judged;
}

// Returns how many times as long a step takes as it did earlier in the job: by the warning of the
// newest steps, or on average of the last hour. 0: not known.
double TimesUsual(const control::v1::Job& job) {
  double times = 0;
  for (const control::v1::NumberWarning& warning : job.number_warnings()) {
    if (warning.kind() != control::v1::NumberWarning::KIND_SLOWER || warning.value() <= 0) continue;
    times = warning.usual() / warning.value();
  }
  const auto kept = static_cast<double>(job.last_hour().kept_nanos());
  const auto degraded = static_cast<double>(job.last_hour().degraded_nanos());
  return kept > 0 ? std::max(times, (kept + degraded) / kept) : times;
}

// Returns the diagnosis of steps that end.
absl::StatusOr<Diagnosis> DiagnoseSlow(const control::v1::Job& job, const JobTrace& traced,
                                       const DiagnoseOptions& options) {
  const auto num_whole = static_cast<size_t>(std::count_if(
      traced.steps.begin(), traced.steps.end(), [](const auto& step) { return step.whole; }));
  if (num_whole < kStepsMin) {
    const bool has_ended = IsTerminal(job.state());
    return DiagnoseState(
        job, absl::StrCat(has_ended ? "" : "the ranks make progress; ", num_whole, " steps are ",
                          has_ended ? "kept" : "recorded", ", and ", kStepsMin,
                          " are needed to judge", has_ended ? "" : ": repeat this later"));
  }
  ASSIGN_OR_RETURN(
      diagnose::MeasuredJob measured,
      diagnose::JobOfSteps(traced.spans.plans(), KnownRanks(traced.spans), traced.steps));
  const JudgedSteps judged = SplitSteps(job, options.num_steps, &measured);
  if (!KeepFewSteps(options.replayed_max, &measured) && options.is_brief) return Postponed(job);
  std::vector<trace::RankName> names;
  for (const diagnose::Worker& worker : measured.graph.workers()) {
    names.push_back(traced.spans.names()[static_cast<size_t>(worker.rank)]);
  }
  Diagnosis diagnosis = DiagnoseSteps(
      measured.graph, measured.steps, diagnose::kMeasuredJobOptions, names,
      {.before = judged.before, .machine_of = judged.machine_of, .times_usual = TimesUsual(job)});
  if (diagnosis.findings.cause == CauseWord(diagnose::SlowCause::kUnknown)) {
    if (std::string early = TooEarly(job); !early.empty()) {
      diagnosis.findings.verdict = std::move(early);
    }
  }
  diagnosis.node = NodeOfVerdict(job, diagnosis);
  diagnosis.peer_node = NodeOf(job, diagnosis.peer);
  if (!diagnosis.node.empty() && diagnosis.peer < 0 && !IsTerminal(job.state())) {
    AddEviction(diagnosis.node, &diagnosis.findings);
  }
  if (job.has_culprit()) {
    const control::v1::Culprit& culprit = job.culprit();
    diagnosis.findings.done.push_back(absl::StrCat(
        "attempt ", culprit.attempt(),
        " failed: ", culprit.rank() >= 0 ? absl::StrCat("rank ", culprit.rank(), " on ") : "",
        "node ", base::Printable(culprit.node_id()), "; the driver started the job again"));
  }
  return diagnosis;
}

absl::StatusOr<Diagnosis> DiagnoseTraced(EvidenceSource* source, const control::v1::Job& job,
                                         const JobTrace& traced, const DiagnoseOptions& options) {
  const double seconds = SecondsSinceProgress(traced.spans);
  if (seconds > StallLimitSeconds(job.spec().fault(), StepSeconds(traced.steps))) {
    return DiagnoseStall(source, job, traced, seconds);
  }
  return DiagnoseSlow(job, traced, options);
}

// Puts the ranks of a verdict where programs look for them.
void NamePlaces(const diagnose::OperationGraph& graph, const diagnose::Suspect& cause,
                Diagnosis* diagnosis) {
  const auto rank_of = [&](int worker) {
    return worker < 0 ? -1 : graph.workers()[static_cast<size_t>(worker)].rank;
  };
  switch (cause.cause) {
    case diagnose::SlowCause::kOneWorker:
    case diagnose::SlowCause::kLateWorker:
      diagnosis->rank = rank_of(cause.worker);
      break;
    case diagnose::SlowCause::kDataWait:
      (cause.is_machine ? diagnosis->rank_on_node : diagnosis->rank) = rank_of(cause.worker);
      break;
    case diagnose::SlowCause::kSlowMachine:
    case diagnose::SlowCause::kSlowMachineLink:
      diagnosis->rank_on_node = rank_of(cause.worker);
      break;
    case diagnose::SlowCause::kSlowLink:
      diagnosis->rank_on_node = rank_of(cause.worker);
      diagnosis->peer = rank_of(cause.peer);
      break;
    default:
      break;
  }
}

}  // namespace

Diagnosis DiagnoseSteps(const diagnose::OperationGraph& graph,
                        absl::Span<const diagnose::MeasuredStep> steps,
                        const diagnose::WhatIfOptions& options,
                        absl::Span<const trace::RankName> names, const diagnose::History& history) {
  const diagnose::WhatIf result = diagnose::AnalyzeSteps(graph, steps, options);
  const diagnose::SlowVerdict verdict =
      diagnose::ExplainSlowness(graph, steps, options, result, history);
  Diagnosis diagnosis;
  diagnosis.findings = DescribeSlowness(graph, result, verdict, names);
  NamePlaces(graph, verdict.cause, &diagnosis);
  diagnosis.details = diagnose::WhatIfJson(graph, result);
  diagnosis.picture = SlownessPicture(graph, result, diagnosis.findings.verdict, names);
  return diagnosis;
}

namespace {

// Returns the attempt in which the verdict's rank failed; if none failed, the attempt that runs.
int64_t AttemptOf(const control::v1::Job& job, const Diagnosis& diagnosis) {
  return diagnosis.findings.cause == kFailedRank ? job.culprit().attempt() : job.attempt();
}

// Adds where the ranks stood when the last attempt ended, if that was kept (last_evidence.h).
void AddLastPositions(EvidenceSource* source, const control::v1::Job& job, int64_t num_steps,
                      Diagnosis* diagnosis) {
  const absl::StatusOr<JobTrace> traced = TraceJob(source, job, num_steps);
  if (!traced.ok()) return;
  const std::vector<plan::RankPlan>& plans = traced->spans.plans();
  const std::vector<diagnose::RankPosition> positions = diagnose::PositionsOf(
      plans, traced->spans.ranks(), traced->spans.stages()->EvaluationPlans());
  const diagnose::StallVerdict verdict = diagnose::ExplainStall(plans, positions);
  const std::optional<plan::InstructionId> own =
      diagnose::StandsAt(plans, positions, diagnosis->rank);
  AddLastStall(verdict, diagnosis->rank, own, &diagnosis->findings);
  diagnosis->details["waiting"] = WaitingJson(verdict);
  const bool is_named = own.has_value();
  if (!is_named && verdict.root.rank < 0) return;
  diagnosis->details["instruction"] = (is_named ? *own : verdict.root.instruction).ToString();
  diagnosis->details["step"] =
      is_named ? positions[static_cast<size_t>(diagnosis->rank)].step : verdict.root.step;
}

// Returns whether the last steps of a job that succeeded were slow, if they were kept.
Diagnosis DiagnoseLastSteps(EvidenceSource* source, const control::v1::Job& job,
                            const DiagnoseOptions& options) {
  Diagnosis ended = DiagnoseState(job, "");
  const absl::StatusOr<JobTrace> traced = TraceJob(source, job, options.num_steps);
  if (!traced.ok()) return ended;
  absl::StatusOr<Diagnosis> slow = DiagnoseSlow(job, *traced, options);
  if (!slow.ok()) return ended;
  Findings& findings = slow->findings;
  if (findings.cause == ended.findings.cause) return *std::move(slow);  // too few steps
  findings.verdict = absl::StrCat(ended.findings.verdict, "; its last steps: ", findings.verdict);
  const bool is_healthy = findings.cause == CauseWord(diagnose::SlowCause::kNone);
  if (is_healthy) findings.cause = ended.findings.cause;
  return *std::move(slow);
}

Diagnosis DiagnoseEnded(EvidenceSource* source, const control::v1::Job& job,
                        const DiagnoseOptions& options) {
  Diagnosis diagnosis = DiagnoseState(job, "");
  if (options.is_brief || options.num_steps == 0) return diagnosis;
  if (job.state() == control::v1::JOB_STATE_SUCCEEDED) {
    return DiagnoseLastSteps(source, job, options);
  }
  AddLastPositions(source, job, options.num_steps, &diagnosis);
  return diagnosis;
}

// Waits, for at most `left`, until it is known whether a machine is silent. Asks only the driver:
// the machine's spans were waited for in vain already. Returns true if time has passed.
bool AwaitSilence(EvidenceSource* source, const control::v1::Job& job,
                  const std::vector<bool>& known, absl::Duration* left,
                  control::v1::GetClusterResponse* cluster) {
  bool has_waited = false;
  while (*left > absl::ZeroDuration() && MaySoonBeSilent(job, *cluster, known)) {
    const absl::Duration wait = std::min(*left, kOverdueDelay);
    if (!source->Wait(wait)) break;
    *left -= wait;
    has_waited = true;
    *cluster = source->Cluster();
  }
  return has_waited;
}

// Reads all and diagnoses it. `left`: how long may be waited; zero: nothing is. If the result
// `is_undecided` and time is left, evidence that takes long to read is left for the next look.
absl::StatusOr<Diagnosis> Look(EvidenceSource* source, const DiagnoseOptions& options,
                               absl::Duration* left) {
  ASSIGN_OR_RETURN(control::v1::Job job, source->Job());
  if (IsTerminal(job.state())) return DiagnoseEnded(source, job, options);
  const absl::StatusOr<JobTrace> traced = TraceJob(source, job, StepsToRead(job, options));
  // Ranks show their life to the driver about once a second: ask for it last.
  ASSIGN_OR_RETURN(job, source->Job());
  if (!traced.ok() && !absl::IsFailedPrecondition(traced.status())) return traced.status();
  const std::vector<bool> known = traced.ok()
                                      ? KnownRanks(traced->spans)
                                      : std::vector<bool>(static_cast<size_t>(job.ranks_size()));
  // Without any spans, of a job that does not run nothing is expected.
  const bool may_run = traced.ok() || job.state() == control::v1::JOB_STATE_RUNNING;
  if (may_run && absl::c_linear_search(known, false)) {
    control::v1::GetClusterResponse cluster = source->Cluster();
    const bool is_old = AwaitSilence(source, job, known, left, &cluster);
    std::optional<Diagnosis> silence = DiagnoseSilence(job, cluster, known);
    if (silence.has_value()) return *std::move(silence);
    if (is_old) {
      Diagnosis unknown;
      unknown.is_undecided = true;
      unknown.sure_in = absl::ZeroDuration();
      return unknown;
    }
  }
  if (!traced.ok()) return DiagnoseState(job, std::string(traced.status().message()));
  ASSIGN_OR_RETURN(Diagnosis diagnosis, DiagnoseTraced(source, job, *traced, options));
  if (diagnosis.is_undecided && *left > absl::ZeroDuration()) {
    if (job.ranks_size() > kBriefRanksMax) diagnosis.sure_in = *left;
    return diagnosis;
  }
  if (!options.is_brief && !diagnosis.stacks_of.empty()) {
    AddStacks(source->Evidence(telemetry::v1::EVIDENCE_KIND_STACKS, diagnosis.stacks_of),
              &diagnosis);
  }
  AddNumbers(job, &diagnosis);
  for (const std::string& error : traced->spans.errors()) {
    diagnosis.notes.push_back(absl::StrCat("not known: ", base::Printable(error)));
  }
  return diagnosis;
}

absl::StatusOr<Diagnosis> DiagnoseWithoutLog(EvidenceSource* source,
                                             const DiagnoseOptions& options) {
  absl::Duration left = options.is_brief ? absl::ZeroDuration() : kLivenessWait;
  while (left > absl::ZeroDuration()) {
    ASSIGN_OR_RETURN(Diagnosis diagnosis, Look(source, options, &left));
    if (!diagnosis.is_undecided) return diagnosis;
    const absl::Duration wait = std::min(left, diagnosis.sure_in);
    left = source->Wait(wait) ? left - wait : absl::ZeroDuration();
  }
  return Look(source, options, &left);
}

}  // namespace

absl::StatusOr<Diagnosis> DiagnoseJob(EvidenceSource* source, const DiagnoseOptions& options) {
  ASSIGN_OR_RETURN(Diagnosis diagnosis, DiagnoseWithoutLog(source, options));
  if (options.is_brief || diagnosis.rank < 0) return diagnosis;
  ASSIGN_OR_RETURN(const control::v1::Job job, source->Job());
  diagnosis.attempt = AttemptOf(job, diagnosis);
  diagnosis.findings.first_error = source->FirstErrorOf(diagnosis.rank, diagnosis.attempt);
  return diagnosis;
}

std::string BriefVerdict(EvidenceSource* source, const control::v1::Job& job) {
  if (job.state() != control::v1::JOB_STATE_RUNNING) return "";
  if (job.ranks_size() > kBriefRanksMax) return Postponed(job).findings.verdict;
  absl::StatusOr<Diagnosis> diagnosis = DiagnoseJob(source, kBrief);
  const auto is_of = [&](diagnose::SlowCause cause) {
    return diagnosis.ok() && diagnosis->findings.cause == CauseWord(cause);
  };
  if (is_of(diagnose::SlowCause::kUnequalStages) || is_of(diagnose::SlowCause::kSlowerStage)) {
    // A machine that has become slow looks like this, too. Only older steps tell.
    DiagnoseOptions compared = kBrief;
    compared.num_compared = DiagnoseOptions().num_compared;
    diagnosis = DiagnoseJob(source, compared);
  }
  return diagnosis.ok() ? diagnosis->findings.verdict : "";
}

}  // namespace megascale::cli
