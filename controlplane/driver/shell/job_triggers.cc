#include "controlplane/driver/shell/job_triggers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/job/evaluation.h"
#include "runtime/layout/groups.h"
#include "runtime/telemetry/doing.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

std::vector<int> SampleOf(const JobRecord& job) {
  const auto mesh = layout::MeshOf(job.submitted().spec());
  if (!mesh.ok() || mesh->world_size() != job.placements_size()) return {};
  std::map<std::string, int> numbers;
  std::vector<int> machine_of;
  for (const auto& placement : job.placements()) {
    const auto number = static_cast<int>(numbers.size());
    machine_of.push_back(numbers.try_emplace(placement.node_id(), number).first->second);
  }
  return diagnose::SampleRanks(*mesh, machine_of);
}

// A rank's first step of an attempt may take long: it counts from the second one.
diagnose::SampledReport ReportOf(const JobRecord& job, const telemetry::RankStatus& status) {
  const auto& spec = job.submitted().spec();
  const bool saves = megascale::telemetry::Saves(status);
  return {.rank = status.rank(),
          .trains = status.phase() == telemetry::PHASE_TRAINING || saves,
          .saves = saves,
          .save_is_due = saves && megascale::telemetry::SaveIsDue(spec, status.step()),
          .step = status.step(),
          .quiet_seconds = status.progress_age_seconds()};
}

// The record of a step that is evaluated comes after its evaluation. All ranks evaluate together,
// so the one that is furthest behind tells, and no rank can claim an evaluation for the others.
diagnose::EvaluationState EvaluationOf(const JobRecord& job, const RecentSteps& steps,
                                       const std::vector<diagnose::SampledReport>& reports) {
  if (!job.evaluates()) return {};
  int64_t slowest = -1;
  for (const diagnose::SampledReport& report : reports) {
    if (report.trains && (slowest < 0 || report.step < slowest)) slowest = report.step;
  }
  const int64_t last = job::LastEvaluated(job.submitted().spec(), slowest);
  const int64_t recorded = std::max(job.restore().step(), steps.empty() ? 0 : steps.back().step());
  return {.runs = last > recorded, .seconds = steps.evaluation_seconds()};
}

}  // namespace

std::vector<JobTriggers::Triggered> JobTriggers::Look(const DriverView& view, absl::Duration now,
                                                      diagnose::SlowLooks* slow_looks) {
  std::vector<Triggered> triggered;
  std::set<std::string> training;
  for (const JobRecord* job : view.TrainingJobs()) {
    training.insert(JobId(*job));
    Watched& watched = watched_[JobId(*job)];
    if (watched.attempt != job->attempt()) {
      watched = {.attempt = job->attempt(),
                 .sample = SampleOf(*job),
                 .trigger = diagnose::Trigger(absl::ToDoubleSeconds(interval_))};
    }
    std::vector<diagnose::SampledReport> reports;
    for (const control::RankView& rank : view.Ranks(*job, watched.sample)) {
      reports.push_back(ReportOf(*job, rank.status()));
    }
    const diagnose::TriggerVerdict verdict = watched.trigger.Look(
        absl::ToDoubleSeconds(now), reports, absl::ToDoubleSeconds(view.StepTime(*job)),
        EvaluationOf(*job, view.Steps(*job), reports));
    const bool has_suspect = HasStallSuspicion(*job);
    if (has_suspect || verdict.reason == diagnose::TriggerReason::kStuck) {
      slow_looks->PassOver(JobId(*job));
    }
    if (has_suspect || verdict.reason == diagnose::TriggerReason::kNone) continue;
    triggered.push_back({JobId(*job), watched.sample, verdict});
  }
  std::erase_if(watched_, [&](const auto& entry) { return training.count(entry.first) == 0; });
  return triggered;
}

}  // namespace megascale::driver
