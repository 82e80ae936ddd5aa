#include "controlplane/driver/detection/agent_reports.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/protocol/recent_texts.h"
#include "runtime/job/job_spec.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;

namespace {

constexpr absl::Duration kReportAgeMax = absl::Minutes(1);

// Returns the place of the node in a sorted list, or where it would be.
size_t PlaceOf(const std::vector<std::string>& nodes, const std::string& node_id) {
  return static_cast<size_t>(std::lower_bound(nodes.begin(), nodes.end(), node_id) - nodes.begin());
}

// Agents that report often leave out what stalled ranks did last. Returns the report with what the
// one before told of them; the same report if nothing is left out.
std::shared_ptr<const agent::ActualState> WithKnownTexts(
    const agent::ActualState* before, std::shared_ptr<const agent::ActualState> report) {
  if (before == nullptr || !protocol::LacksRecentTexts(*before, *report)) return report;
  auto changed = std::make_shared<agent::ActualState>(*report);
  protocol::KeepRecentTexts(*before, changed.get());
  return changed;
}

}  // namespace

namespace {

// Returns what is known of an agent that cannot send its report: what it said last, with a warning
// for each of its jobs.
std::shared_ptr<const agent::ActualState> WithWarning(const std::string& node_id,
                                                      const agent::ActualState* before,
                                                      const agent::ActualState& too_large) {
  auto known = std::make_shared<agent::ActualState>();
  if (before != nullptr) *known = *before;
  known->MergeFrom(too_large);
  for (agent::ActualJob& job : *known->mutable_jobs()) {
    job.add_warnings(absl::StrCat("the report of node ", node_id, " is too large to be sent (",
                                  too_large.too_large_bytes(),
                                  " bytes): what runs there now is not known"));
  }
  return known;
}

}  // namespace

void AgentReports::Advance(absl::Duration now) {
  awake_ += std::clamp(now - now_, absl::ZeroDuration(), kStallMax);
  if (now - now_ >= kLongStall) stalled_at_ = awake_;
  now_ = std::max(now_, now);
}

void AgentReports::TakeHello(const agent::Hello& hello) {
  const auto [found, is_new] = agents_.try_emplace(hello.node_id());
  if (is_new) ++agents_version_;
  Agent& taken = found->second;
  if (taken.hello.incarnation() != hello.incarnation()) {
    taken.report.reset();
    taken.gpus.reset();
  }
  taken.hello = hello;
  taken.heard = awake_;
  taken.punctual = false;
}

bool AgentReports::TakeReport(const std::string& node_id,
                              std::shared_ptr<const agent::ActualState> report) {
  const auto found = agents_.find(node_id);
  if (found == agents_.end() || found->second.hello.incarnation() != report->incarnation()) {
    return false;
  }
  Agent& taken = found->second;
  const bool is_too_large = report->too_large_bytes() > 0;
  // What is known of the ranks is old, so they are not judged by it.
  taken.punctual = !is_too_large && awake_ - taken.heard < node_timeout_;
  taken.heard = awake_;
  if (is_too_large) {
    const bool is_known = taken.report != nullptr && taken.report->too_large_bytes() > 0;
    if (!is_known) taken.report = WithWarning(node_id, taken.report.get(), *report);
    return true;
  }
  KeepGpus(*report, &taken);
  taken.report = WithKnownTexts(taken.report.get(), std::move(report));
  return true;
}

// A report shows some GPUs, by turns.
void AgentReports::KeepGpus(const agent::ActualState& report, Agent* taken) const {
  if (report.gpus().empty()) return;
  auto kept = std::make_shared<ReportedGpus>();
  if (taken->gpus != nullptr) *kept = *taken->gpus;
  std::erase_if(*kept, [&](const auto& gpu) { return awake_ - gpu.second->heard > kGpuAgeMax; });
  for (const megascale::telemetry::v1::GpuSample& sample : report.gpus()) {
    if (kept->size() >= kGpusMax && kept->count(sample.index()) == 0) continue;
    (*kept)[sample.index()] = std::make_shared<const ReportedGpu>(ReportedGpu{sample, awake_});
  }
  taken->gpus = std::move(kept);
}

const agent::Hello* AgentReports::FindHello(const std::string& node_id) const {
  const auto found = agents_.find(node_id);
  return found == agents_.end() ? nullptr : &found->second.hello;
}

bool AgentReports::HasReported(const DriverState& state, const std::string& node_id) const {
  const auto found = agents_.find(node_id);
  return found != agents_.end() && found->second.report != nullptr &&
         IsOfThisEpoch(state, *found->second.report);
}

std::shared_ptr<const agent::ActualState> AgentReports::ReportOf(const std::string& node_id) const {
  const auto found = agents_.find(node_id);
  return found == agents_.end() ? nullptr : found->second.report;
}

std::shared_ptr<const ReportedGpus> AgentReports::GpusOf(const std::string& node_id) const {
  const auto found = agents_.find(node_id);
  return found == agents_.end() ? nullptr : found->second.gpus;
}

absl::Duration AgentReports::HeardAt(const std::string& node_id) const {
  const auto found = agents_.find(node_id);
  return found == agents_.end() ? absl::ZeroDuration() : found->second.heard;
}

const google::protobuf::RepeatedPtrField<agent::ActualJob>& AgentReports::JobsOn(
    const std::string& node_id) const {
  const auto found = agents_.find(node_id);
  const bool is_known = found != agents_.end() && found->second.report != nullptr;
  return is_known ? found->second.report->jobs() : agent::ActualState::default_instance().jobs();
}

const agent::ActualJob* AgentReports::LastReport(const std::string& node_id,
                                                 const std::string& job_id) const {
  ++num_looks_;
  for (const auto& job : JobsOn(node_id)) {
    if (job.job_id() == job_id) return &job;
  }
  return nullptr;
}

const agent::ActualJob* AgentReports::ReportOfAttempt(const std::string& node_id,
                                                      const JobRecord& job) const {
  const agent::ActualJob* last = LastReport(node_id, JobId(job));
  return last != nullptr && last->attempt() == job.attempt() ? last : nullptr;
}

AgentReports::JobNodes& AgentReports::NodesOfAttempt(const JobRecord& job) const {
  JobNodes& known = job_nodes_[JobId(job)];
  // Only a new attempt places ranks again; within an attempt the placements may only be cleared.
  if (known.attempt == job.attempt() && known.num_ranks == job.placements_size()) return known;
  known = JobNodes{job.attempt(), job.placements_size(), NodesOf(job), {}, -1, {}};
  known.ranks_on.resize(known.nodes.size());
  for (const auto& placement : job.placements())
    ++known.ranks_on[PlaceOf(known.nodes, placement.node_id())];
  return known;
}

const std::vector<std::string>& AgentReports::Nodes(const JobRecord& job) const {
  return NodesOfAttempt(job).nodes;
}

const std::vector<const AgentReports::Agent*>& AgentReports::AgentsOf(const JobRecord& job) const {
  JobNodes& known = NodesOfAttempt(job);
  if (known.agents_version == agents_version_) return known.agents;
  known.agents_version = agents_version_;
  known.agents.clear();
  for (const std::string& node_id : known.nodes) {
    const auto found = agents_.find(node_id);
    known.agents.push_back(found == agents_.end() ? nullptr : &found->second);
  }
  return known.agents;
}

int AgentReports::NumRanksOn(const JobRecord& job, const std::string& node_id) const {
  const JobNodes& known = NodesOfAttempt(job);
  const size_t place = PlaceOf(known.nodes, node_id);
  const bool is_on = place < known.nodes.size() && known.nodes[place] == node_id;
  return is_on ? known.ranks_on[place] : 0;
}

bool AgentReports::IsOn(const JobRecord& job, const std::string& node_id) const {
  const std::vector<std::string>& nodes = Nodes(job);
  return std::binary_search(nodes.begin(), nodes.end(), node_id);
}

absl::Duration AgentReports::SilenceOf(const std::string& node_id) const {
  const auto found = agents_.find(node_id);
  return found == agents_.end() ? awake_ : awake_ - found->second.heard;
}

bool AgentReports::IsPunctual(const std::string& node_id) const {
  const auto found = agents_.find(node_id);
  return found != agents_.end() && found->second.punctual;
}

Contact AgentReports::ContactWith(const std::string& node_id) const {
  if (agents_.count(node_id) == 0) return Contact::kUnknown;
  return SilenceOf(node_id) < node_timeout_ ? Contact::kHeard : Contact::kGone;
}

absl::Duration AgentReports::AgeOf(const std::string& node_id) const {
  const auto report = ReportOf(node_id);
  if (report == nullptr) return absl::ZeroDuration();
  // An agent repeats no report that is older.
  return std::clamp(absl::Seconds(report->age_seconds()), absl::ZeroDuration(), kReportAgeMax);
}

google::protobuf::Duration AgentReports::NoticedAt(absl::Duration age) const {
  return job::FromDuration(now_ - age);
}

}  // namespace megascale::driver
