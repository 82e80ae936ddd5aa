#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controlplane/driver/relay/compute_times.h"
#include "controlplane/driver/relay/few_ranks.h"
#include "controlplane/driver/relay/suspect.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/sampling/slow_outliers.h"
#include "runtime/diagnose/sampling/slow_path.h"
#include "runtime/diagnose/slow_verdict.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

// A job of at most this many ranks is read whole: comparing all of them costs little.
constexpr int kRanksOfSmallJob = 64;
// In a larger one, so many ranks that compute longer are read first, with those on their machines.
constexpr size_t kOutliersRead = 64;
// If others wait for the members of a group, at most this many members are read. More would use up
// kSuspectRanksRead before the search comes to the end of a path.
constexpr size_t kMembersOfRound = 16;
// This many of the newest steps are judged, and compared with this many normal ones.
constexpr int64_t kStepsJudged = 10;
constexpr int64_t kStepsBefore = 16;

// The steps whose spans are read.
struct StepRange {
  int64_t normal = 0;  // the last normal step; 0: none is known
  int64_t newest = 0;
  bool IsBefore(int64_t step) const { return step <= normal && step > normal - kStepsBefore; }
  bool IsJudged(int64_t step) const { return step > normal && step > newest - kStepsJudged; }
};

// Whole steps, measured from all ranks that were read.
struct Measured {
  std::vector<timeline::TimedStep> steps;  // ascending
  size_t num_before = 0;                   // so many of these are normal

  size_t num_now() const { return steps.size() - num_before; }
  diagnose::ComparedSteps Compared() const {
    const auto all = absl::MakeConstSpan(steps);
    return {all.first(num_before), all.subspan(num_before)};
  }
};

Measured Measure(const trace::JobSpans& spans, const StepRange& range) {
  Measured measured;
  measured.steps = spans.Measure(static_cast<int>(kStepsBefore + kStepsJudged));
  std::erase_if(measured.steps, [](const auto& step) { return !step.whole; });
  measured.num_before = static_cast<size_t>(
      std::count_if(measured.steps.begin(), measured.steps.end(),
                    [&](const auto& step) { return range.IsBefore(step.step); }));
  return measured;
}

std::vector<int> AllRanks(const control::Job& job) {
  std::vector<int> ranks;
  for (int rank = 0; rank < job.ranks_size(); ++rank) ranks.push_back(rank);
  return ranks;
}

// Returns the ranks on the machine of a rank: all of them may compute longer.
std::vector<int> RanksBeside(const control::Job& job, int rank) {
  std::vector<int> ranks;
  for (int other = 0; other < job.ranks_size(); ++other) {
    if (job.ranks(other).node_id() == job.ranks(rank).node_id()) ranks.push_back(other);
  }
  return ranks;
}

// Returns the ranks of a large job to read first: the sample; the ranks that stand out by how long
// they compute, with all ranks of their machines; and groups of the one that stands out most. They
// are the sample alone if no agent tells.
std::vector<int> ChooseRanks(const control::Job& job, const std::vector<int>& sample,
                             absl::Span<const diagnose::ComputeTime> times, const FewRanks& ranks) {
  std::vector<int> chosen = sample;
  std::set<std::string> machines;
  const std::vector<int> slowest = diagnose::SlowestRanks(ranks.mesh(), times);
  for (const int rank : slowest) {
    if (!machines.insert(job.ranks(rank).node_id()).second) continue;
    const std::vector<int> beside = RanksBeside(job, rank);
    chosen.insert(chosen.end(), beside.begin(), beside.end());
    if (chosen.size() >= sample.size() + kOutliersRead) break;
  }
  if (slowest.empty()) return chosen;
  const std::vector<int> around = ranks.RanksOfGroups(slowest.front());
  chosen.insert(chosen.end(), around.begin(), around.end());
  return chosen;
}

// Returns ranks that were not asked, for which those that were read wait longer than before: of
// each group those that stand elsewhere than most. Empty: there are none.
std::vector<int> NextAwaited(const diagnose::ComparedSteps& steps, FewRanks* ranks,
                             std::set<std::string>* passed) {
  for (;;) {
    std::vector<int> next =
        diagnose::RanksAwaited(ranks->spans().plans(), ranks->Known(), steps, passed);
    if (next.empty()) return next;
    std::erase_if(next, [&](int rank) { return ranks->WasAsked(rank); });
    next = ranks->RarestFirst(std::move(next));
    next.resize(std::min(next.size(), kMembersOfRound));
    if (!next.empty()) return next;
  }
}

// Reads the ranks `next`, and then those for which the ranks that were read wait longer than
// before, until one is found that computes longer.
absl::StatusOr<Measured> ReadAwaited(const control::Job& job, const StepRange& range,
                                     std::vector<int> next, FewRanks* ranks) {
  Measured measured;
  std::set<std::string> passed;
  for (;;) {
    ASSIGN_OR_RETURN(const bool any, ranks->Read(next));
    if (any) measured = Measure(ranks->spans(), range);
    if (!any || measured.num_before == 0 || measured.num_now() == 0) break;
    const diagnose::ComparedSteps steps = measured.Compared();
    const int found =
        diagnose::RankThatComputesLonger(ranks->spans().plans(), ranks->Known(), steps);
    next = found >= 0 ? RanksBeside(job, found) : NextAwaited(steps, ranks, &passed);
  }
  return measured;
}

absl::StatusOr<std::vector<diagnose::ComputeTime>> ComputeTimesOf(const control::Job& job,
                                                                  int64_t normal_step,
                                                                  SlowPorts ports) {
  const absl::Duration end = ports.spans.now() + kComputeTimesTimeout;
  const auto should_end = [now = ports.spans.now, end] { return now() >= end; };
  return ReadComputeTimes(job, std::move(ports.metrics),
                          {.normal_step = normal_step, .should_end = should_end});
}

struct Judged {
  std::vector<diagnose::Worker> workers;
  diagnose::SlowVerdict verdict;
};

absl::StatusOr<Judged> Judge(const control::Job& job, const Measured& measured, FewRanks* ranks) {
  ASSIGN_OR_RETURN(diagnose::MeasuredJob measured_job,
                   diagnose::JobOfSteps(ranks->spans().plans(), ranks->Known(), measured.steps));
  const diagnose::OperationGraph& graph = measured_job.graph;
  diagnose::History history;
  const std::vector<int> machines = trace::MachineOfRanks(job);
  for (const diagnose::Worker& worker : graph.workers()) {
    history.machine_of.push_back(machines[static_cast<size_t>(worker.rank)]);
  }
  const auto all = absl::MakeConstSpan(measured_job.steps);
  history.before = all.first(measured.num_before);
  const auto now = all.subspan(measured.num_before);
  const auto& options = diagnose::kMeasuredJobOptions;
  Judged judged = {.workers = graph.workers(), .verdict = {}};
  judged.verdict = diagnose::ExplainSlowness(graph, now, options,
                                             diagnose::AnalyzeSteps(graph, now, options), history);
  return judged;
}

// Puts a cause into words; nullopt: the cause is in no machine.
std::optional<std::string> WordsOf(const control::Job& job, const Judged& judged) {
  const diagnose::Suspect& cause = judged.verdict.cause;
  const auto rank_of = [&](int worker) { return judged.workers[static_cast<size_t>(worker)].rank; };
  const auto node_of = [&](int worker) {
    return base::Printable(job.ranks(rank_of(worker)).node_id());
  };
  if (cause.worker < 0) return std::nullopt;
  switch (cause.cause) {
    case diagnose::SlowCause::kOneWorker:
      return absl::StrFormat("rank %d on %s computes %.1f times slower", rank_of(cause.worker),
                             node_of(cause.worker), cause.times_slower);
    case diagnose::SlowCause::kSlowMachine:
      return absl::StrFormat("%d ranks on %s compute %.1f times slower", cause.num_workers,
                             node_of(cause.worker), cause.times_slower);
    case diagnose::SlowCause::kLateWorker:
      return absl::StrFormat("the exchanges of rank %d on %s take %.1f times longer",
                             rank_of(cause.worker), node_of(cause.worker), cause.times_slower);
    case diagnose::SlowCause::kSlowMachineLink:
      return absl::StrFormat("the exchanges of %s with other machines take %.1f times longer",
                             node_of(cause.worker), cause.times_slower);
    case diagnose::SlowCause::kSlowLink:
      if (cause.peer < 0) return std::nullopt;
      return absl::StrFormat("the exchanges between %s and %s take %.1f times longer",
                             node_of(cause.worker), node_of(cause.peer), cause.times_slower);
    default:
      return std::nullopt;
  }
}

// Its own spans show that it computes longer than it did, and so it does beside the ranks of the
// other machines without any one of these: no machine's word makes another one a suspect.
bool IsNamed(const diagnose::Suspect& cause) {
  const bool computes = cause.cause == diagnose::SlowCause::kOneWorker ||
                        cause.cause == diagnose::SlowCause::kSlowMachine;
  return computes && cause.step_times > 0 && cause.has_witnesses;
}

}  // namespace

absl::StatusOr<control::Suspicion> FindSlowSuspect(const control::Job& job,
                                                   const std::vector<int>& sample,
                                                   const diagnose::TriggerVerdict& trigger,
                                                   SlowPorts ports) {
  const StepRange range = {.normal = trigger.normal_step, .newest = job.last_step()};
  const int64_t first =
      range.normal > 0 ? range.normal - kStepsBefore + 1 : range.newest - kStepsJudged + 1;
  ASSIGN_OR_RETURN(
      FewRanks ranks,
      FewRanks::Create(job, ports.spans,
                       {.first_step = std::max<int64_t>(0, first), .keeps = [range](int64_t step) {
                          return range.IsBefore(step) || range.IsJudged(step);
                        }}));
  std::vector<int> first_ranks = AllRanks(job);
  if (job.ranks_size() > kRanksOfSmallJob) {
    ASSIGN_OR_RETURN(const std::vector<diagnose::ComputeTime> times,
                     ComputeTimesOf(job, range.normal, std::move(ports)));
    first_ranks = ChooseRanks(job, sample, times, ranks);
  }
  ASSIGN_OR_RETURN(const Measured measured,
                   ReadAwaited(job, range, std::move(first_ranks), &ranks));
  if (measured.num_now() == 0) return absl::UnavailableError("no step is known of all ranks");
  ASSIGN_OR_RETURN(const Judged judged, Judge(job, measured, &ranks));
  const std::optional<std::string> words = WordsOf(job, judged);
  if (!words.has_value()) {
    return absl::NotFoundError(absl::StrCat("no machine explains why the steps are slow; cause ",
                                            static_cast<int>(judged.verdict.cause.cause), " of ",
                                            ranks.num_asked(), " ranks that were read, in ",
                                            measured.num_now(), " steps and ", measured.num_before,
                                            " older ones"));
  }
  const diagnose::Suspect& cause = judged.verdict.cause;
  control::Suspicion suspicion;
  suspicion.set_kind(control::Suspicion::KIND_SLOW);
  suspicion.set_attempt(job.attempt());
  suspicion.set_rank(-1);
  if (IsNamed(cause)) {
    suspicion.set_rank(judged.workers[static_cast<size_t>(cause.worker)].rank);
    suspicion.set_node_id(job.ranks(suspicion.rank()).node_id());
  }
  suspicion.set_verdict(absl::StrCat(*words, cause.step_times > 0 ? " than before" : ""));
  suspicion.add_evidence(absl::StrFormat("%s: a step takes %.3g s, usually %.3g s",
                                         diagnose::Name(trigger.reason), trigger.step_seconds,
                                         trigger.usual_step_seconds));
  suspicion.add_evidence(absl::StrFormat("without it %.0f %% of the lost time would come back",
                                         100 * std::clamp(cause.share, 0.0, 1.0)));
  suspicion.add_evidence(absl::StrCat("from ", measured.num_now(), " steps, compared with ",
                                      measured.num_before, " older ones, of ", ranks.num_asked(),
                                      " of ", job.ranks_size(), " ranks"));
  return suspicion;
}

}  // namespace megascale::driver
