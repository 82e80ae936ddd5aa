#include "controlplane/driver/shell/job_evidence.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "controlplane/driver/shell/job_view.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;

constexpr size_t kWarningsMax = 64;
constexpr size_t kWarningBytesMax = 500;
constexpr size_t kRanksMax = 64;
constexpr size_t kNodesMax = 64;
constexpr size_t kFileBytesMax = size_t{1} << 20;
// A driver that ends in the middle of a round leaves at most that round's jobs without a file.
constexpr int64_t kEventsOfLastRound = 1000;

std::string PathOf(const JobRecord& job) {
  return absl::StrCat(job.submitted().directory(), "/evidence.json");
}

// Keeps the ranks that failed, then those that have stood still for longest, in rank order.
std::vector<control::RankView> RanksOfInterest(const JobRecord& job,
                                               std::vector<control::RankView> ranks) {
  if (ranks.size() <= kRanksMax) return ranks;
  std::set<int> failed = {job.culprit().rank()};
  for (const auto& failure : job.failures()) failed.insert(failure.culprit().rank());
  const auto rank_of = [](const control::RankView& rank) { return rank.status().rank(); };
  std::stable_sort(ranks.begin(), ranks.end(), [&](const auto& a, const auto& b) {
    const bool a_failed = failed.count(rank_of(a)) > 0;
    const bool b_failed = failed.count(rank_of(b)) > 0;
    if (a_failed != b_failed) return a_failed;
    return a.status().progress_age_seconds() > b.status().progress_age_seconds();
  });
  ranks.resize(kRanksMax);
  std::sort(ranks.begin(), ranks.end(),
            [&](const auto& a, const auto& b) { return rank_of(a) < rank_of(b); });
  return ranks;
}

// Returns the nodes of failures, and those of the last attempt.
std::set<std::string> NodesConcerned(const JobRecord& job) {
  std::set<std::string> nodes;
  if (job.has_culprit()) nodes.insert(job.culprit().node_id());
  for (const auto& failure : job.failures()) nodes.insert(failure.culprit().node_id());
  for (const auto& cause : job.causes()) nodes.insert(cause.node_id());
  nodes.erase("");
  for (const std::string& node_id : NodesOf(job)) {
    if (nodes.size() >= kNodesMax) break;
    nodes.insert(node_id);
  }
  return nodes;
}

void TellExchanges(const v1::NodeExchanges& exchanges, control::NodeEvidence* told) {
  const control::ExchangeResult* worst = WorstExchange(exchanges.results());
  if (worst != nullptr) *told->mutable_worst_exchange() = *worst;
  if (exchanges.has_round()) *told->mutable_exchange_round() = exchanges.round();
}

void TellNodes(const DriverState& state, const JobRecord& job, control::JobEvidence* evidence) {
  evidence->clear_nodes();
  for (const std::string& node_id : NodesConcerned(job)) {
    control::NodeEvidence* told = evidence->add_nodes();
    told->set_node_id(node_id);
    const NodeRecord* node = FindNode(state, node_id);
    if (node == nullptr) continue;
    told->set_alive(node->alive());
    told->set_hostname(node->hello().hostname());
    told->set_quarantine_evidence(node->quarantine().evidence());
    TellExchanges(node->exchanges(), told);
    if (!node->has_test()) continue;
    *told->mutable_machine_test() = node->test().test();
    if (node->test().ended_unix_nanos() != 0) {
      SetTime(node->test().ended_unix_nanos(), told->mutable_machine_tested_at());
    }
  }
}

absl::Status WriteEvidence(const JobRecord& job, const control::JobEvidence& evidence,
                           JobFiles* files) {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  const auto status = google::protobuf::util::MessageToJsonString(evidence, &text, options);
  if (!status.ok()) {  // a log line that is not UTF-8
    return absl::InternalError(absl::StrCat(PathOf(job), ": ", status.ToString()));
  }
  return files->WriteSoon(PathOf(job), text);
}

std::vector<control::RankView> RanksOf(const JobRecord& job, const AgentMonitor& monitor) {
  return ViewRanks(job, [&](const std::string& node_id) {
    return monitor.reports().LastReport(node_id, JobId(job));
  });
}

}  // namespace

absl::StatusOr<control::JobEvidence> ReadEvidence(const JobRecord& job, JobFiles* files) {
  const std::string path = PathOf(job);
  if (!files->Exists(path)) return absl::NotFoundError(absl::StrCat(path, ": does not exist"));
  ASSIGN_OR_RETURN(const size_t size_bytes, files->Size(path));
  if (size_bytes > kFileBytesMax) {
    return absl::DataLossError(absl::StrCat(path, ": has ", size_bytes, " bytes, expected at most ",
                                            kFileBytesMax, "; ignored it"));
  }
  ASSIGN_OR_RETURN(const std::string text, files->ReadAt(path, 0, size_bytes));
  control::JobEvidence evidence;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // a newer version wrote it
  const auto status = google::protobuf::util::JsonStringToMessage(text, &evidence, options);
  if (!status.ok()) {
    return absl::DataLossError(absl::StrCat(path, ": ", status.ToString(), "; ignored it"));
  }
  return evidence;
}

control::JobEvidence EvidenceOf(const DriverState& state, const JobRecord& job, int64_t last_step,
                                const std::vector<control::RankView>& ranks) {
  control::JobEvidence evidence;
  evidence.set_job_id(JobId(job));
  evidence.set_state(job.state());
  evidence.set_reason(job.reason());
  evidence.set_message(job.message());
  SetTime(job.ended_unix_nanos(), evidence.mutable_ended_at());
  evidence.set_attempt(job.attempt());
  evidence.set_last_step(last_step);
  if (job.has_culprit()) *evidence.mutable_culprit() = job.culprit();
  for (int i = 1; i < job.failures_size(); ++i) {
    *evidence.add_consequences() = job.failures(i).culprit();
  }
  *evidence.mutable_causes() = job.causes();
  const std::vector<control::RankView> kept = RanksOfInterest(job, ranks);
  *evidence.mutable_ranks() = {kept.begin(), kept.end()};
  TellNodes(state, job, &evidence);
  return evidence;
}

void JobEvidences::OnEvent(const Event& event, const IndexedState& state,
                           const AgentMonitor& monitor) {
  JobIndex::Places places;
  if (event.has_node_lost()) places = state.index().On(event.node_lost().node_id());
  if (event.has_rank_failed()) places = {state.index().PlaceOf(event.rank_failed().job_id())};
  // These end an attempt by themselves sometimes, and at other times a failure may still follow.
  if (event.has_suspect_found()) places = {state.index().PlaceOf(event.suspect_found().job_id())};
  if (event.has_stage_timed_out()) {
    places = {state.index().PlaceOf(event.stage_timed_out().job_id())};
  }
  const bool is_failure = event.has_node_lost() || event.has_rank_failed();
  for (const int place : places) {
    if (place < 0) continue;
    const JobRecord& job = state.state().jobs(place);
    if (!HoldsSlots(job) || IsHold(job.stage())) continue;
    LastRanks& last = last_ranks_[JobId(job)];
    // What follows a failure is a consequence.
    if (last.attempt == job.attempt() && last.is_at_failure) continue;
    last = {job.attempt(), is_failure, RanksOf(job, monitor)};
  }
}

void JobEvidences::OnReport(const std::string& node_id, const agent::ActualState& report,
                            const IndexedState& state) {
  for (const agent::ActualJob& actual : report.jobs()) {
    if (actual.warnings().empty()) continue;
    const int place = state.index().PlaceOf(actual.job_id());
    if (place < 0 || state.state().jobs(place).attempt() != actual.attempt()) continue;
    if (IsTerminal(state.state().jobs(place))) continue;
    if (state.index().On(node_id).count(place) == 0) continue;
    NodesOfWarnings& nodes_of = warnings_[actual.job_id()];
    for (const std::string& told : actual.warnings()) {
      const std::string warning = base::Printable(told, kWarningBytesMax);
      const bool is_new = nodes_of.count(warning) == 0;
      if (!is_new || nodes_of.size() < kWarningsMax) nodes_of[warning].insert(node_id);
    }
  }
}

void JobEvidences::Keep(const DriverState& state, const JobRecord& job, int64_t last_step,
                        const std::string& log_warning, const AgentMonitor& monitor) {
  const auto last = last_ranks_.find(JobId(job));
  const int64_t attempt = job.has_culprit() ? job.culprit().attempt() : job.attempt();
  const bool is_known = last != last_ranks_.end() && last->second.attempt == attempt;
  Evidence evidence =
      EvidenceOf(state, job, last_step, is_known ? last->second.ranks : RanksOf(job, monitor));
  const std::vector<std::string> warnings = WarningLines(warnings_[JobId(job)]);
  *evidence.mutable_warnings() = {warnings.begin(), warnings.end()};
  if (!log_warning.empty()) evidence.add_warnings(log_warning);
  Write(job, evidence);
  Forget(JobId(job));
}

void JobEvidences::Write(const JobRecord& job, const Evidence& evidence) {
  const absl::Status written = WriteEvidence(job, evidence, files_);
  if (!written.ok()) base::LogWarning(written.message());
}

void JobEvidences::Refresh(const DriverState& state) {
  std::map<std::string, int64_t> due;
  for (const NodeRecord& node : state.nodes()) {
    if (IsTestDue(node)) due[node.hello().node_id()] = node.test().test().id();
  }
  for (const auto& [node_id, test] : due_) {
    const auto still = due.find(node_id);
    if (still != due.end() && still->second == test) continue;
    for (const JobRecord& job : state.jobs()) {
      // The id of a test is the number of the event that asked for it.
      if (!IsTerminal(job) || job.stage_event() < test) continue;
      if (NodesConcerned(job).count(node_id) == 0) continue;
      absl::StatusOr<Evidence> evidence = ReadEvidence(job, files_);
      if (!evidence.ok()) {
        if (!absl::IsNotFound(evidence.status())) base::LogWarning(evidence.status().message());
        continue;
      }
      TellNodes(state, job, &*evidence);
      Write(job, *evidence);
    }
  }
  due_ = std::move(due);
}

bool JobEvidences::MayBeMissing(const DriverState& state, const JobRecord& job) const {
  return IsTerminal(job) && job.attempt() > 0 &&
         job.stage_event() + kEventsOfLastRound > state.num_events() &&
         !files_->Exists(PathOf(job));
}

}  // namespace megascale::driver
