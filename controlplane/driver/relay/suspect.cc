#include "controlplane/driver/relay/suspect.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "controlplane/driver/relay/few_ranks.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/stall.h"
#include "runtime/job/evaluation.h"
#include "runtime/plan/operation.h"
#include "runtime/telemetry/doing.h"
#include "runtime/timeline/measured_step.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

constexpr int kStepsOfWalk = 3;
constexpr size_t kWaitingShown = 8;
// A job stands still once no step has ended for 5 s and for three times the usual step
// (step_counts.h): the rank that stopped it has been quiet for at least this long.
constexpr double kQuietSecondsMin = 3;

// At most this many of the ranks that are awaited are read before the next walk.
constexpr size_t kAwaitedOfRound = 64;
constexpr size_t kSilentRead = 10;

class StallWalk {
 public:
  StallWalk(const control::Job& job, FewRanks* ranks) : job_(job), ranks_(*ranks) {}

  absl::StatusOr<diagnose::StallVerdict> Run(std::vector<int> next) {
    AddSilent(&next);
    diagnose::StallVerdict verdict;
    for (;;) {
      ASSIGN_OR_RETURN(const bool any, ranks_.Read(next));
      if (!any) return verdict;
      ASSIGN_OR_RETURN(verdict, Walk());
      next = Untraced(verdict);
      if (next.empty()) next = GroupsOf(verdict.root.rank);
    }
  }

 private:
  const telemetry::RankStatus& ReportOf(int rank) const { return job_.ranks(rank).status(); }
  bool IsSilent(int rank) const {
    return ReportOf(rank).alive_age_seconds() >= diagnose::kSilentSecondsMin;
  }

  void AddSilent(std::vector<int>* ranks) const {
    const size_t count = ranks->size() + kSilentRead;
    for (int rank = 0; rank < job_.ranks_size() && ranks->size() < count; ++rank) {
      if (IsSilent(rank)) ranks->push_back(rank);
    }
  }

  absl::StatusOr<diagnose::StallVerdict> Walk() {
    const trace::JobSpans& spans = ranks_.spans();
    std::vector<diagnose::RankPosition> positions =
        diagnose::PositionsOf(spans.plans(), spans.ranks(), spans.stages()->EvaluationPlans());
    const auto is_known = [](const diagnose::RankPosition& position) { return position.known; };
    if (std::none_of(positions.begin(), positions.end(), is_known)) {
      return absl::NotFoundError("no rank has begun a step");
    }
    const size_t count = std::min(positions.size(), static_cast<size_t>(job_.ranks_size()));
    AddTwins(&positions);
    for (size_t rank = 0; rank < count; ++rank) {
      positions[rank].silent_seconds = ReportOf(static_cast<int>(rank)).alive_age_seconds();
    }
    return diagnose::ExplainStall(ranks_.spans().plans(), positions);
  }

  void AddTwins(std::vector<diagnose::RankPosition>* positions) {
    std::map<FewRanks::Standing, int> read;
    for (int rank = 0; rank < job_.ranks_size() && !passed_over_.empty(); ++rank) {
      if ((*positions)[static_cast<size_t>(rank)].known)
        read.emplace(ranks_.StandingOf(rank), rank);
    }
    for (const int rank : passed_over_) {
      const auto twin = read.find(ranks_.StandingOf(rank));
      if (twin == read.end() || ranks_.WasAsked(rank) || IsSilent(rank)) continue;
      ranks_.spans().Plan(rank);
      (*positions)[static_cast<size_t>(rank)] = (*positions)[static_cast<size_t>(twin->second)];
    }
  }

  // Returns ranks whose spans the walk needs. Of many, those whose reports are rare come first.
  std::vector<int> Untraced(const diagnose::StallVerdict& verdict) {
    std::vector<const diagnose::StallRoot*> roots = {&verdict.root};
    for (const diagnose::StallRoot& root : verdict.other_roots) roots.push_back(&root);
    std::set<int> ranks;
    for (const diagnose::StallRoot* root : roots) {
      const bool is_rank = root->rank >= 0 && root->rank < job_.ranks_size();
      if (root->cause != diagnose::StallCause::kNoTrace || !is_rank) continue;
      if (!ranks_.WasAsked(root->rank)) ranks.insert(root->rank);
    }
    std::vector<int> sorted = ranks_.RarestFirst({ranks.begin(), ranks.end()});
    if (sorted.size() <= kAwaitedOfRound) return sorted;
    passed_over_.insert(sorted.begin() + kAwaitedOfRound, sorted.end());
    sorted.resize(kAwaitedOfRound);
    return sorted;
  }

  // Returns members of the groups of a rank, which may wait for it; the first time that it is
  // named.
  std::vector<int> GroupsOf(int rank) {
    if (rank < 0 || !named_.insert(rank).second) return {};
    return ranks_.RanksOfGroups(rank);
  }

  const control::Job& job_;
  FewRanks& ranks_;
  std::set<int> passed_over_;
  std::set<int> named_;
};

// Returns the number of each rank's machine; -1: it has none, or it is no witness against `root`:
// the rank's spans were not read, and it merely counts as standing where another one stands.
std::vector<int> MachineOfWitnesses(const control::Job& job, int root,
                                    const std::vector<bool>& known) {
  std::vector<int> machines = trace::MachineOfRanks(job);
  const int own = machines[static_cast<size_t>(root)];
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    const bool is_read = rank < known.size() && known[rank];
    if (machines[rank] != own && !is_read) machines[rank] = -1;
  }
  return machines;
}

// Returns whether the rank is to be believed that it saves a checkpoint or evaluates: that is due,
// or most ranks say the same.
bool IsSaving(const control::Job& job, int rank) {
  const auto saves = [](const control::RankView& view) {
    return megascale::telemetry::Saves(view.status()) ||
           megascale::telemetry::Evaluates(view.status());
  };
  const control::RankView& view = job.ranks(rank);
  if (!saves(view)) return false;
  if (megascale::telemetry::Evaluates(view.status()) &&
      job::IsEvaluated(job.spec(), view.status().step())) {
    return true;
  }
  if (megascale::telemetry::SaveIsDue(job.spec(), view.status().step())) return true;
  return 2 * std::count_if(job.ranks().begin(), job.ranks().end(), saves) > job.ranks_size();
}

const char* WordsOf(diagnose::StallCause cause) {
  switch (cause) {
    case diagnose::StallCause::kRuns:
      return "runs and does not end";
    case diagnose::StallCause::kNotBegun:
      return "does not begin";
    case diagnose::StallCause::kExchange:
      return "does not do its part of";
    default:
      return "shows nothing; the others wait in";
  }
}

// What the driver's own reading left out is no evidence against a machine, and neither is the word
// of one other machine. A rank that goes on, if slowly, is not stuck.
absl::Status CheckRoot(const diagnose::StallVerdict& verdict, const trace::JobSpans& spans,
                       absl::Span<const int> machine_of) {
  const diagnose::StallRoot& root = verdict.root;
  if (verdict.is_silent) return absl::OkStatus();
  if (root.cause == diagnose::StallCause::kNoTrace) {
    return absl::NotFoundError("nothing is known of the rank that the others wait for");
  }
  if (root.num_waiting == 0) return absl::NotFoundError("no other rank waits for it");
  if (plan::OperationOf(root.instruction.operation()).op_class == plan::OpClass::kLoad) {
    return absl::NotFoundError("it waits for data");
  }
  const auto witnesses = diagnose::Witnesses(verdict, machine_of);
  if (witnesses.has_value() && witnesses->size() < diagnose::kWitnessesMin) {
    return absl::NotFoundError("one machine alone says that the others have left the exchange");
  }
  if (timeline::QuietSeconds(spans.ranks()[static_cast<size_t>(root.rank)]) < kQuietSecondsMin) {
    return absl::NotFoundError("it began or ended an instruction just now");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<control::Suspicion> FindSuspect(const control::Job& job,
                                               const std::vector<int>& sample,
                                               SpanStreamPorts ports) {
  const int64_t first_step = std::max<int64_t>(0, job.last_step() - kStepsOfWalk + 1);
  ASSIGN_OR_RETURN(FewRanks ranks, FewRanks::Create(job, std::move(ports),
                                                    {.first_step = first_step, .keeps = {}}));
  ASSIGN_OR_RETURN(const diagnose::StallVerdict verdict, StallWalk(job, &ranks).Run(sample));
  const diagnose::StallRoot& root = verdict.root;
  if (root.rank < 0 || root.rank >= job.ranks_size()) {
    return absl::NotFoundError("nothing tells one rank from the others");
  }
  RETURN_IF_ERROR(
      CheckRoot(verdict, ranks.spans(), MachineOfWitnesses(job, root.rank, ranks.Known())));
  const control::RankView& view = job.ranks(root.rank);
  if (IsSaving(job, root.rank)) return absl::NotFoundError("it saves a checkpoint");
  control::Suspicion suspicion;
  suspicion.set_kind(control::Suspicion::KIND_STALL);
  suspicion.set_attempt(job.attempt());
  suspicion.set_rank(root.rank);
  suspicion.set_node_id(view.node_id());
  suspicion.set_verdict(absl::StrFormat(
      "rank %d on %s %s %s of %s; %d ranks wait for it", root.rank, base::Printable(view.node_id()),
      WordsOf(root.cause), root.instruction.ToString(),
      diagnose::StepText(root.instruction, root.step), root.num_waiting));
  if (verdict.is_silent) suspicion.add_evidence("its process shows no life");
  if (!view.status().doing().empty()) {
    suspicion.add_evidence(absl::StrCat("it reports: ", base::Printable(view.status().doing())));
  }
  for (size_t i = 0; i < std::min(verdict.waiting.size(), kWaitingShown); ++i) {
    const diagnose::WaitingRank& rank = verdict.waiting[i];
    std::vector<std::string> names;
    for (const int other : rank.waits_for) names.push_back(absl::StrCat(other));
    suspicion.add_evidence(absl::StrCat("rank ", rank.rank, " waits in ",
                                        rank.instruction.ToString(), " for ",
                                        base::Shortlist(names)));
  }
  if (static_cast<int>(ranks.num_asked()) < job.ranks_size()) {
    suspicion.add_evidence(
        absl::StrCat("from the spans of ", ranks.num_asked(), " of ", job.ranks_size(), " ranks"));
  }
  return suspicion;
}

}  // namespace megascale::driver
