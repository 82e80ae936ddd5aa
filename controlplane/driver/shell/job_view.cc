#include "controlplane/driver/shell/job_view.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "controlplane/driver/account/time_account.h"
#include "controlplane/driver/core/restore_order.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/diagnose/number_check.h"
#include "runtime/model/config.h"
#include "runtime/telemetry/doing.h"
#include "runtime/telemetry/shown_ranks.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

constexpr size_t kRateSteps = 20;

// Returns the rate over the newest steps of this attempt. The first step takes longer, so it counts
// only while it is alone.
double TokensPerSecond(const JobRecord& job, const RecentSteps& steps) {
  double tokens = 0;
  double seconds = 0;
  const auto is_of_attempt = [&](size_t count) {
    return count < steps.size() && steps[steps.size() - 1 - count].attempt() == job.attempt();
  };
  for (size_t count = 0; count < kRateSteps && is_of_attempt(count); ++count) {
    const auto& step = steps[steps.size() - 1 - count];
    if (count > 0 && !is_of_attempt(count + 1)) break;
    tokens += static_cast<double>(step.tokens());
    seconds += step.seconds();
  }
  return seconds > 0 ? tokens / seconds : 0;
}

double FlopsPerToken(const JobRecord& job) {
  const auto& spec = job.submitted().spec();
  const auto config = model::MakeModelConfig(spec.model());
  return config.ok() ? model::TrainFlopsPerToken(*config, spec.train().seq_length()) : 0;
}

struct FlopsCeiling {
  double flops_per_second = 0;
  int64_t measured_unix_seconds = 0;  // 0: it is the peak of devices
};

// Returns the sum over the job's machines, and the time of the oldest measurement; 0: one of them
// is not measured. A machine's measured rate counts once even if it has several agents; the peak of
// devices is that of each agent's own.
FlopsCeiling CeilingOf(const JobRecord& job, const std::vector<std::string>& nodes,
                       const NodeLookup& lookup) {
  std::set<std::string> machines;
  for (const std::string& node_id : nodes) {
    const NodeRecord* node = lookup(node_id);
    if (node == nullptr) return {};
    machines.insert(node->hello().machine_id());
  }
  std::map<std::string, FlopsCeiling> by_machine;
  for (const auto& preflight : job.preflights()) {
    const NodeRecord* node = lookup(preflight.node_id());
    if (node == nullptr) continue;
    const auto& passed = preflight.preflight();
    FlopsCeiling& ceiling = by_machine[node->hello().machine_id()];
    if (!passed.has_ceiling_measured_at()) {
      const bool is_used = std::binary_search(nodes.begin(), nodes.end(), preflight.node_id());
      if (is_used) ceiling.flops_per_second += passed.flops_ceiling();
    } else if (passed.flops_ceiling() > ceiling.flops_per_second) {
      ceiling = {passed.flops_ceiling(), passed.ceiling_measured_at().seconds()};
    }
  }
  FlopsCeiling sum;
  for (const std::string& machine : machines) {
    const auto found = by_machine.find(machine);
    if (found == by_machine.end() || found->second.flops_per_second <= 0) return {};
    const FlopsCeiling& ceiling = found->second;
    const int64_t oldest =
        sum.flops_per_second > 0 ? sum.measured_unix_seconds : std::numeric_limits<int64_t>::max();
    sum.flops_per_second += ceiling.flops_per_second;
    sum.measured_unix_seconds = std::min(oldest, ceiling.measured_unix_seconds);
  }
  return sum;
}

void AddCeiling(const JobRecord& job, const std::vector<std::string>& nodes,
                const JobSources& sources, control::Job* view) {
  const FlopsCeiling ceiling = CeilingOf(job, nodes, sources.node);
  view->set_flops_ceiling(ceiling.flops_per_second);
  if (ceiling.measured_unix_seconds == 0) return;
  const absl::Time wall = sources.now + sources.clock_ahead;
  const absl::Duration age = wall - absl::FromUnixSeconds(ceiling.measured_unix_seconds);
  view->set_flops_ceiling_age_seconds(std::max(1.0, absl::ToDoubleSeconds(age)));
}

// A preflight that encodes text may take long, and people must see how far it is.
void AddPreflight(const JobRecord& job, const std::vector<std::string>& nodes,
                  const ReportLookup& report, control::Job* view) {
  for (const std::string& node_id : nodes) {
    const auto* actual = report(node_id);
    if (actual == nullptr || actual->attempt() != job.attempt()) continue;
    const auto& preflight = actual->preflight();
    if (preflight.state() != megascale::agent::v1::Preflight::STATE_RUNNING) continue;
    if (preflight.message().empty()) continue;
    view->set_message(absl::StrCat(preflight.message(), " on ", node_id));
    return;
  }
}

// Checkpoints that cannot be written do not stop a job, but people must see it.
void AddStorageError(const std::vector<std::string>& nodes, const JobSources& sources,
                     control::Job* view) {
  for (const std::string& node_id : nodes) {
    const auto* actual = sources.report(node_id);
    if (actual == nullptr || actual->storage_error().empty()) continue;
    const std::string before = view->message().empty() ? "" : absl::StrCat(view->message(), "; ");
    view->set_message(absl::StrCat(before, "cannot write checkpoints on ", node_id, ": ",
                                   actual->storage_error()));
    control::StorageFailure* failure = view->mutable_storage_failure();
    failure->set_node_id(node_id);
    failure->set_message(actual->storage_error());
    failure->set_seconds(absl::ToDoubleSeconds(sources.storage_fails_for));
    return;
  }
}

// Training goes on, but what ends there is not noticed.
void AddSilentKeeper(const JobRecord& job, const std::vector<std::string>& nodes,
                     const ReportLookup& report, control::Job* view) {
  for (const std::string& node_id : nodes) {
    const auto* actual = report(node_id);
    if (actual == nullptr || actual->attempt() != job.attempt()) continue;
    if (actual->keeper_silent_seconds() <= view->silent_keeper().seconds()) continue;
    view->mutable_silent_keeper()->set_node_id(node_id);
    view->mutable_silent_keeper()->set_seconds(actual->keeper_silent_seconds());
  }
}

// A warning of several nodes appears once. What ranks of a job that has ended had reported is in
// its evidence.
void AddWarnings(const JobRecord& job, const std::vector<std::string>& nodes,
                 const ReportLookup& report, control::Job* view) {
  NodesOfWarnings nodes_of;
  for (const auto& passed : job.preflights()) {
    for (const std::string& warning : passed.preflight().warnings()) {
      nodes_of[warning].insert(passed.node_id());
    }
  }
  for (const std::string& node_id : nodes) {
    const auto* actual = report(node_id);
    if (actual == nullptr || actual->attempt() != job.attempt() || IsTerminal(job)) continue;
    for (const std::string& warning : actual->warnings()) nodes_of[warning].insert(node_id);
  }
  for (std::string& line : WarningLines(nodes_of)) view->add_warnings(std::move(line));
}

void AddDeviceKinds(control::Job* view) {
  std::vector<megascale::telemetry::DeviceKind> kinds;
  for (const control::RankView& rank : view->ranks()) {
    if (rank.status().has_device()) {
      megascale::telemetry::CountDevice(rank.status().device(), &kinds);
    }
  }
  for (const megascale::telemetry::DeviceKind& kind : kinds) {
    control::DeviceKind* shown = view->add_device_kinds();
    shown->set_name(kind.name);
    shown->set_memory_bytes(kind.memory_bytes);
    shown->set_num_ranks(kind.num_ranks);
  }
}

control::NumberWarning::Kind KindOf(diagnose::OffRoad kind) {
  switch (kind) {
    case diagnose::OffRoad::kLossJump:
      return control::NumberWarning::KIND_LOSS_JUMP;
    case diagnose::OffRoad::kGradientJump:
      return control::NumberWarning::KIND_GRADIENT_JUMP;
    case diagnose::OffRoad::kNotFinite:
      return control::NumberWarning::KIND_NOT_FINITE;
    case diagnose::OffRoad::kSlower:
      return control::NumberWarning::KIND_SLOWER;
  }
  return control::NumberWarning::KIND_UNSPECIFIED;
}

// Returns the warning in words; `why`: for a number that is not finite, what is known of its
// origin.
std::string TextOf(const control::NumberWarning& warning, absl::string_view why = "") {
  const auto jump = [&](const char* what) {
    return absl::StrFormat("%s %.4g in step %d is %.1f times the usual %.4g", what, warning.value(),
                           warning.step(), warning.value() / warning.usual(), warning.usual());
  };
  switch (warning.kind()) {
    case control::NumberWarning::KIND_LOSS_JUMP:
      return jump("loss");
    case control::NumberWarning::KIND_GRADIENT_JUMP:
      return jump("gradient norm");
    case control::NumberWarning::KIND_NOT_FINITE:
      return absl::StrFormat("loss or gradient is not finite in step %d%s%s", warning.step(),
                             why.empty() ? "" : ": ", base::Printable(why, 300));
    case control::NumberWarning::KIND_SLOWER:
      return absl::StrFormat(
          "MFU has declined since step %d: %.0f tokens/s, usually %.0f (%.0f %%)", warning.step(),
          warning.value(), warning.usual(), 100 * warning.value() / warning.usual());
    default:
      return "";
  }
}

// In its first minute a job's speed has not settled yet: files come into memory, and other ranks on
// the machine still start.
bool IsYoung(const JobRecord& job, absl::Time now) {
  const absl::Time began = absl::FromUnixNanos(job.started_unix_nanos());
  return now - began < absl::Minutes(1);
}

// A step whose numbers are not finite ends its attempt before it is logged, and the failure names
// the operator and the tensor.
void AddNumbers(const RecentSteps& recent, bool is_young, control::Job* view) {
  std::vector<diagnose::LoggedStep> steps;
  for (const RecentSteps::StepRecord& record : recent) {
    steps.push_back({.step = record.step(),
                     .loss = record.loss(),
                     .grad_norm = record.grad_norm(),
                     .tokens = record.tokens(),
                     .seconds = record.seconds(),
                     .attempt = record.attempt()});
  }
  for (const diagnose::NumberFinding& finding : diagnose::CheckNumbers(steps)) {
    if (is_young && finding.kind == diagnose::OffRoad::kSlower) continue;
    control::NumberWarning* warning = view->add_number_warnings();
    warning->set_kind(KindOf(finding.kind));
    warning->set_step(finding.step);
    warning->set_value(finding.value);
    warning->set_usual(finding.usual);
    warning->set_message(TextOf(*warning));
  }
}

void AddDivergence(const JobRecord& job, control::Job* view) {
  const control::Culprit& culprit = job.culprit();
  if (culprit.failure_class() != megascale::telemetry::v1::FAILURE_CLASS_DIVERGED) return;
  control::NumberWarning* warning = view->add_number_warnings();
  warning->set_kind(control::NumberWarning::KIND_NOT_FINITE);
  warning->set_step(job.best_step() + 1);
  const absl::string_view evidence = culprit.evidence();
  warning->set_message(TextOf(*warning, evidence.substr(0, evidence.find('\n'))));
}

void AddAccount(const JobRecord& job, const JobSources& sources, control::Job* view) {
  if (!job.has_time_book() || sources.is_summary) return;
  TimeBook book = job.time_book();
  const bool has_steps = sources.new_steps != nullptr && sources.new_steps->num_steps() > 0;
  if (has_steps && sources.new_steps->attempt() == job.attempt()) {
    CountSteps(*sources.new_steps, &book);
  }
  const int64_t now = absl::ToUnixNanos(sources.now);
  *view->mutable_time_account() = AccountAt(book, now);
  *view->mutable_last_hour() = LastHourAt(book, now);
}

void AddTimes(const JobRecord& job, const JobSources& sources, control::Job* view) {
  SetTime(job.submitted_unix_nanos(), view->mutable_submitted_at());
  if (job.started_unix_nanos() != 0) {
    SetTime(job.started_unix_nanos(), view->mutable_started_at());
  }
  if (job.ended_unix_nanos() != 0) SetTime(job.ended_unix_nanos(), view->mutable_ended_at());
  AddAccount(job, sources, view);
  const absl::Duration age = sources.now - absl::FromUnixNanos(job.submitted_unix_nanos());
  view->set_submitted_age_seconds(std::max(0.0, absl::ToDoubleSeconds(age)));
}

void ViewCheckpoint(const megascale::agent::v1::StoredManifest& manifest, absl::Time now,
                    control::StoredCheckpoint* view) {
  view->set_step(manifest.step());
  view->set_attempt(manifest.attempt());
  view->set_directory(manifest.directory());
  const absl::Duration age = now - absl::FromUnixNanos(manifest.committed_unix_nanos());
  view->set_age_seconds(std::max(0.0, absl::ToDoubleSeconds(age)));
}

// Without the loss log: what the attempt's ranks ended at, and what the time account counted. The
// best step of an attempt is logged only once.
int64_t LastKnownStep(const JobRecord& job) {
  int64_t step = job.has_time_book() ? job.time_book().kept_step() : job.best_step();
  for (const auto& ended : job.ended()) step = std::max(step, ended.step());
  return step;
}

}  // namespace

control::RankView ViewRank(const JobRecord& job, int index, const ReportLookup& report) {
  const auto& placement = job.placements(index);
  control::RankView rank;
  rank.set_node_id(placement.node_id());
  rank.mutable_status()->set_rank(placement.rank());
  const auto* actual = report(placement.node_id());
  if (actual == nullptr || actual->attempt() != job.attempt()) return rank;
  for (const auto& reported : actual->ranks()) {
    if (reported.status().rank() == placement.rank()) {
      *rank.mutable_status() = reported.status();
      rank.mutable_status()->set_doing(megascale::telemetry::DescribeDoing(reported.status()));
    }
  }
  return rank;
}

std::vector<control::RankView> ViewRanks(const JobRecord& job, const ReportLookup& report) {
  std::vector<control::RankView> ranks;
  for (int i = 0; i < job.placements_size(); ++i) ranks.push_back(ViewRank(job, i, report));
  return ranks;
}

control::Job ViewJob(const JobRecord& job, const JobSources& sources) {
  const std::vector<std::string> nodes = NodesOf(job);
  control::Job view;
  view.set_job_id(JobId(job));
  *view.mutable_spec() = job.submitted().spec();
  view.set_state(job.state());
  view.set_reason(job.reason());
  view.set_message(job.message());
  view.set_attempt(job.attempt());
  view.set_attempt_reason(job.attempt_reason());
  view.set_restarts(std::max<int64_t>(0, job.attempt() - 1));
  view.set_directory(job.submitted().directory());
  view.set_first_step(job.first_step());
  view.set_last_step(IsTerminal(job) ? LastKnownStep(job) : job.restore().step());
  if (sources.steps != nullptr && !sources.steps->empty()) {
    view.set_last_step(std::max(sources.steps->back().step(), job.restore().step()));
    *view.mutable_last_record() = sources.steps->back();
    if (const auto* evaluated = sources.steps->newest_evaluated(); evaluated != nullptr) {
      view.mutable_held_out()->set_step(evaluated->step());
      view.mutable_held_out()->set_loss(evaluated->held_out_loss());
    }
    view.set_tokens_per_second(TokensPerSecond(job, *sources.steps));
    if (!sources.is_summary) AddNumbers(*sources.steps, IsYoung(job, sources.now), &view);
  }
  if (job.has_suspicion()) *view.mutable_suspicion() = job.suspicion();
  if (job.has_culprit()) *view.mutable_culprit() = job.culprit();
  if (!sources.is_summary) AddDivergence(job, &view);
  for (int i = 1; i < job.failures_size() && !sources.is_summary; ++i) {
    *view.add_consequences() = job.failures(i).culprit();
  }
  view.set_num_consequences(std::max<int64_t>(0, job.num_failures() - 1));
  if (EverCommitted(job)) {
    ViewCheckpoint(NewestCheckpoint(job), sources.now, view.mutable_last_checkpoint());
  }
  if (job.has_lowest_held_out()) *view.mutable_lowest_held_out() = job.lowest_held_out();
  if (job.has_best_checkpoint()) {
    ViewCheckpoint(job.best_checkpoint(), sources.now, view.mutable_best_checkpoint());
  }
  view.set_queue_position(sources.queue_position);
  view.set_num_ranks(job.placements_size());
  AddTimes(job, sources, &view);
  if (!sources.is_summary) AddWarnings(job, nodes, sources.report, &view);
  AddCeiling(job, nodes, sources, &view);
  view.set_model_flops_per_second(view.tokens_per_second() * FlopsPerToken(job));
  if (!sources.is_summary) {
    for (control::RankView& rank : ViewRanks(job, sources.report)) {
      *view.add_ranks() = std::move(rank);
    }
    AddDeviceKinds(&view);
  }
  if (HoldsSlots(job)) {
    AddPreflight(job, nodes, sources.report, &view);
    AddStorageError(nodes, sources, &view);
    AddSilentKeeper(job, nodes, sources.report, &view);
  }
  return view;
}

std::vector<std::string> WarningLines(const NodesOfWarnings& nodes_of) {
  std::vector<std::string> lines;
  for (const auto& [warning, nodes] : nodes_of) {
    lines.push_back(absl::StrCat(nodes.size() == 1 ? "node " : "nodes ",
                                 base::Shortlist({nodes.begin(), nodes.end()}), ": ", warning));
  }
  return lines;
}

void ShortenRanks(int ranks_max, control::Job* job) {
  if (job->ranks_size() <= ranks_max) return;
  const std::vector<int> shown = megascale::telemetry::ChooseShownRanks(
      job->ranks_size(), ranks_max,
      [&](int rank) { return job->ranks(rank).status().progress_age_seconds(); });
  auto* ranks = job->mutable_ranks();
  for (int i = 0; i < ranks_max; ++i) ranks->SwapElements(i, shown[static_cast<size_t>(i)]);
  ranks->DeleteSubrange(ranks_max, ranks->size() - ranks_max);
}

control::Job WithoutAges(control::Job job) {
  job.clear_submitted_age_seconds();
  job.clear_time_account();
  job.clear_last_hour();
  job.clear_flops_ceiling_age_seconds();
  if (job.has_last_checkpoint()) job.mutable_last_checkpoint()->clear_age_seconds();
  if (job.has_best_checkpoint()) job.mutable_best_checkpoint()->clear_age_seconds();
  if (job.has_storage_failure()) job.mutable_storage_failure()->clear_seconds();
  if (job.has_silent_keeper()) job.mutable_silent_keeper()->clear_seconds();
  for (auto& rank : *job.mutable_ranks()) {
    rank.mutable_status()->clear_alive_age_seconds();
    rank.mutable_status()->clear_progress_age_seconds();
  }
  return job;
}

std::map<std::string, NodeUse> UseOfNodes(const std::vector<const JobRecord*>& jobs,
                                          const NodeLookup& node) {
  std::map<std::string, NodeUse> use;
  for (const JobRecord* job : jobs) {
    if (!HoldsSlots(*job)) continue;
    std::map<std::string, int> ranks;
    for (const auto& placement : job->placements()) ++ranks[placement.node_id()];
    for (const auto& [node_id, count] : ranks) {
      const NodeRecord* record = node(node_id);
      if (record == nullptr || HasLeft(*job, *record)) continue;
      use[node_id].slots += count;
      ++use[node_id].jobs;
    }
  }
  return use;
}

control::NodeView ViewNode(const NodeRecord& node, const NodeUse& use, absl::Duration silence) {
  control::NodeView view;
  view.set_node_id(node.hello().node_id());
  view.set_num_slots(node.hello().num_slots());
  view.set_num_slots_used(use.slots);
  view.set_num_jobs(use.jobs);
  view.set_alive(node.alive());
  view.set_machine_id(node.hello().machine_id());
  *view.mutable_resources() = node.hello().resources();
  view.set_heartbeat_age_seconds(absl::ToDoubleSeconds(silence));
  view.set_evicted(node.evicted());
  view.set_evicted_why(node.evicted_why());
  view.set_draining(node.draining());
  view.set_unnamed(node.unnamed());
  view.set_certificate(node.certificate());
  view.set_address(node.address());
  view.set_pool(node.has_quarantine() ? control::POOL_QUARANTINED
                : node.spare()        ? control::POOL_SPARE
                                      : control::POOL_ACTIVE);
  if (node.has_quarantine()) {
    view.set_quarantine_evidence(node.quarantine().evidence());
    SetTime(node.quarantine().since_unix_nanos(), view.mutable_quarantined_at());
  }
  if (node.has_test()) {
    *view.mutable_machine_test() = node.test().test();
    view.set_machine_test_why(node.test().why());
    if (node.test().ended_unix_nanos() != 0) {
      SetTime(node.test().ended_unix_nanos(), view.mutable_machine_tested_at());
    }
  }
  *view.mutable_exchanges() = node.exchanges().results();
  view.set_exchanges_with(node.exchanges().with());
  view.set_exchange_why(node.exchanges().why());
  if (node.exchanges().has_round()) *view.mutable_exchange_round() = node.exchanges().round();
  return view;
}

}  // namespace megascale::driver
