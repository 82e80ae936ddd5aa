#include "controlplane/driver/relay/suspect.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/diagnose/measured_job.h"
#include "runtime/diagnose/stall.h"
#include "runtime/timeline/measured_step.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

constexpr int kSteps = 3;
constexpr size_t kWaitingShown = 8;
// A job stands still once no step has ended for 5 s and for three times the usual step
// (suspect_watch.h): the rank that stopped it has been quiet for at least this long.
constexpr double kQuietSecondsMin = 3;

absl::StatusOr<diagnose::StallVerdict> Walk(const control::Job& job, const trace::JobSpans& spans) {
  std::vector<diagnose::RankPosition> positions =
      diagnose::PositionsOf(spans.plans(), spans.ranks());
  const auto is_known = [](const diagnose::RankPosition& position) { return position.known; };
  if (std::none_of(positions.begin(), positions.end(), is_known)) {
    return absl::NotFoundError("no rank has begun a step");
  }
  const size_t count = std::min(positions.size(), static_cast<size_t>(job.ranks_size()));
  for (size_t rank = 0; rank < count; ++rank) {
    positions[rank].silent_seconds = job.ranks(static_cast<int>(rank)).status().alive_age_seconds();
  }
  return diagnose::ExplainStall(spans.plans(), positions);
}

// Returns a number for each rank's machine; -1: it has none.
std::vector<int> MachineOfRanks(const control::Job& job) {
  std::map<std::string, int> numbers = {{"", -1}};
  std::vector<int> machines;
  for (const control::RankView& rank : job.ranks()) {
    const auto number = static_cast<int>(numbers.size());
    machines.push_back(numbers.try_emplace(rank.node_id(), number).first->second);
  }
  return machines;
}

bool Saves(const telemetry::RankStatus& status) {
  return status.phase() == telemetry::PHASE_CHECKPOINT ||
         status.activity() == telemetry::ACTIVITY_WAIT_FOR_STORAGE;
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
  if (root.instruction.operation() == plan::OpKind::kLoadBatch) {
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

absl::StatusOr<control::Suspicion> FindSuspect(const control::Job& job, SpanStreamPorts ports) {
  if (job.ranks_size() > kSuspectRanksMax) return absl::NotFoundError("the job is too large");
  ASSIGN_OR_RETURN(trace::JobSpans spans, trace::JobSpans::Create(job.spec()));
  ports.emit = [&, go_on = ports.emit](const control::StreamSpansResponse& response) {
    spans.Add(response);
    return go_on == nullptr || go_on(response);
  };
  control::StreamSpansRequest request;
  request.set_job_id(job.job_id());
  request.set_first_step(std::max<int64_t>(0, job.last_step() - kSteps + 1));
  RETURN_IF_ERROR(StreamSpans(request, ports));
  ASSIGN_OR_RETURN(const diagnose::StallVerdict verdict, Walk(job, spans));
  const diagnose::StallRoot& root = verdict.root;
  if (root.rank < 0 || root.rank >= job.ranks_size()) {
    return absl::NotFoundError("nothing tells one rank from the others");
  }
  RETURN_IF_ERROR(CheckRoot(verdict, spans, MachineOfRanks(job)));
  const control::RankView& view = job.ranks(root.rank);
  if (Saves(view.status())) return absl::NotFoundError("it saves a checkpoint");
  control::Suspicion suspicion;
  suspicion.set_attempt(job.attempt());
  suspicion.set_rank(root.rank);
  suspicion.set_node_id(view.node_id());
  suspicion.set_verdict(absl::StrFormat("rank %d on %s %s %s of step %d; %d ranks wait for it",
                                        root.rank, base::Printable(view.node_id()),
                                        WordsOf(root.cause), root.instruction.ToString(), root.step,
                                        root.num_waiting));
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
  return suspicion;
}

}  // namespace megascale::driver
