// The part of job_core.h that reports the actual state.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/job_core.h"
#include "runtime/base/version.h"
#include "runtime/job/data_digest.h"
#include "runtime/job/job_spec.h"

namespace megascale::agent {

bool JobCore::applied() const {
  if (abandoned_) return false;  // until the new epoch's job has begun
  if (!wanted_ || InPhase(v1::DesiredJob::PHASE_HOLD)) return processes_.empty();
  if (desired_.attempt() != attempt_) return false;
  return std::none_of(processes_.begin(), processes_.end(),
                      [](const auto& item) { return item.second.killed; });
}

std::vector<int64_t> JobCore::HungHosts(const Heartbeats& heartbeats) const {
  std::vector<int64_t> hung;
  const double limit =
      absl::ToDoubleSeconds(job::ToDuration(desired_.spec().fault().heartbeat_timeout()));
  for (const auto& [id, process] : processes_) {
    const auto found = heartbeats.find(id);
    if (process.rank != kHostRank || process.killed || found == heartbeats.end()) continue;
    if (limit > 0 && found->second.alive_age_seconds() > limit) hung.push_back(id);
  }
  return hung;
}

// Once no rank runs, no more records come. The reports that tell this bring all of them, whoever
// has reported before: after it nobody asks for them any more.
bool JobCore::ReportsSteps() const {
  const bool keeps = desired_.step_duty() == v1::STEP_DUTY_KEEP;
  return !keeps || std::none_of(processes_.begin(), processes_.end(),
                                [](const auto& item) { return item.second.rank != kHostRank; });
}

void JobCore::ReportSaved(v1::ActualJob* report) const {
  for (const checkpoint::SealedSnapshot& held : held_) {
    v1::SealedSnapshot* snapshot = report->add_snapshots();
    snapshot->set_rank(held.rank);
    snapshot->set_attempt(held.attempt);
    snapshot->set_step(held.step);
  }
  for (const auto& [attempt, step, rank] : shards_) {
    v1::StoredShard* shard = report->add_shards();
    shard->set_attempt(attempt);
    shard->set_step(step);
    shard->set_rank(rank);
  }
  for (const auto& [key, manifest] : manifests_) *report->add_manifests() = manifest;
}

v1::ActualJob JobCore::Report(const Heartbeats& heartbeats, const ReportOptions& options) const {
  v1::ActualJob report;
  report.set_job_id(desired_.job_id());
  if (abandoned_) {  // nothing else of an older epoch counts
    report.set_num_processes(static_cast<int>(processes_.size()));
    return report;
  }
  report.set_attempt(attempt_ > 0 ? attempt_ : desired_.attempt());
  if (preflight_.has_value()) *report.mutable_preflight() = *preflight_;
  if (options.as_list && report.preflight().has_data()) {
    *report.mutable_preflight()->mutable_data() = job::ListOf(preflight_->data());
    *report.mutable_preflight()->mutable_data()->mutable_file_sha256() = files_;
  }
  if (report.preflight().state() == v1::Preflight::STATE_PASSED && store_check_sent_ &&
      !store_checked_) {
    report.mutable_preflight()->set_state(v1::Preflight::STATE_RUNNING);
  }
  for (const auto& [rank, outcome] : outcomes_) {
    v1::ActualRank* actual = report.add_ranks();
    actual->set_state(outcome.state);
    actual->mutable_status()->set_rank(rank);
    actual->mutable_status()->set_step(outcome.step);
    actual->mutable_status()->set_phase(outcome.state == v1::ActualRank::STATE_FAILED
                                            ? telemetry::v1::PHASE_UNSPECIFIED
                                            : telemetry::v1::PHASE_FINISHED);
    if (outcome.state != v1::ActualRank::STATE_FAILED) continue;
    *actual->mutable_failure() = outcome.failure;
    actual->mutable_failure()->set_age_seconds(absl::ToDoubleSeconds(now_ - outcome.noticed_at));
  }
  if (host_starts_ > 0) report.mutable_host()->set_num_restarts(host_starts_ - 1);
  if (host_failure_.has_value()) {
    *report.mutable_host()->mutable_failure() = *host_failure_;
    report.mutable_host()->mutable_failure()->set_age_seconds(
        absl::ToDoubleSeconds(now_ - host_failed_at_));
  }
  for (const auto& [id, process] : processes_) {
    const auto found = heartbeats.find(id);
    const telemetry::v1::RankStatus status =
        found == heartbeats.end() ? telemetry::v1::RankStatus() : found->second;
    if (process.rank == kHostRank) {
      report.mutable_host()->set_pid(process.pid);
      report.mutable_host()->set_alive_age_seconds(status.alive_age_seconds());
      continue;
    }
    v1::ActualRank* actual = report.add_ranks();
    actual->set_state(v1::ActualRank::STATE_RUNNING);
    *actual->mutable_status() = status;
    actual->mutable_status()->set_rank(process.rank);
    actual->mutable_status()->set_pid(process.pid);
  }
  // A host that is about to be restarted counts, because the job is not gone from this agent.
  report.set_num_processes(static_cast<int>(processes_.size()) + (HostIsDue() ? 1 : 0));
  ReportSaved(&report);
  for (const auto& [step, record] : steps_) {
    if (!ReportsSteps() || report.steps_size() >= options.steps_max) break;
    *report.add_steps() = record;
  }
  *report.mutable_warnings() = {warnings_.begin(), warnings_.end()};
  if (!unknown_.empty()) {
    report.add_warnings(absl::StrCat("the driver wants ", unknown_, ", which megascale ",
                                     base::kVersion, " does not know; attempt ", report.attempt(),
                                     " goes on as before; upgrade this agent"));
  }
  report.set_storage_error(storage_error_);
  if (retained_.has_value()) *report.mutable_retained() = *retained_;
  return report;
}

}  // namespace megascale::agent
