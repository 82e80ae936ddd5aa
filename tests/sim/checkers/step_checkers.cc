#include "tests/sim/checkers/step_checkers.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/driver/storage/loss_line.h"

namespace megascale::sim {

// --- TwoAgentsKeepSteps -------------------------------------------------------------------------

void KeepersChecker::OnState(const DriverState& before, const DriverState& after) {
  if (!world_.old_driver) return;
  for (const JobRecord& job : after.jobs()) {
    of_old_driver_.insert({driver::JobId(job), job.attempt()});
  }
}

void KeepersChecker::OnReport(const std::string& node_id, const agent::ActualState& report) {
  if (world_.old_agents.count(node_id) > 0) return;
  for (const auto& job : report.jobs()) {
    for (const auto& record : job.steps()) {
      if (of_old_driver_.count({job.job_id(), record.attempt()}) > 0) continue;
      std::set<std::string>& nodes = nodes_[{job.job_id(), record.attempt()}];
      nodes.insert(node_id);
      if (nodes.size() <= 2) continue;
      return world_.Violate("TwoAgentsKeepSteps",
                            absl::StrCat("job ", job.job_id(), ": ", nodes.size(),
                                         " agents have reported steps of attempt ",
                                         record.attempt(), ", the last one of them ", node_id));
    }
  }
}

// --- StepsGoOn ----------------------------------------------------------------------------------

namespace {

constexpr absl::Duration kPromptness = absl::Seconds(2);
constexpr absl::Duration kInterval = absl::Milliseconds(100);

// Returns the newest step in a loss log; 0: it is empty.
int64_t NewestStep(const std::string& text) {
  int64_t newest = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const auto record = driver::FromLossLine(line);
    if (record.ok()) newest = record->step();
  }
  return newest;
}

}  // namespace

PromptnessChecker::PromptnessChecker(World* world, DriverNode* driver)
    : world_(*world), driver_(*driver) {
  world_.timeline.After(kInterval, [this] { Check(); });
}

void PromptnessChecker::OnStepCompleted(const ProcessName& process, int64_t step) {
  completed_[{process.job_id, process.attempt}].try_emplace(step, world_.timeline.now());
}

void PromptnessChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    attempts_[driver::JobId(job)] = job.attempt();
    // A job on one machine has no deputy.
    if (job.state() == control::JOB_STATE_RUNNING && driver::NodesOf(job).size() > 1) {
      running_.insert(driver::JobId(job));
    } else {
      running_.erase(driver::JobId(job));
    }
  }
}

void PromptnessChecker::Check() {
  world_.timeline.After(kInterval, [this] { Check(); });
  for (const std::string& job_id : running_) {
    const auto& steps = completed_[{job_id, attempts_[job_id]}];
    const int64_t newest = NewestStep(driver_.LossLogOf(job_id));
    const auto next = steps.find(newest + 1);
    ++num_checked_;
    if (next == steps.end() || world_.timeline.now() - next->second <= kPromptness) continue;
    world_.Violate("StepsGoOn",
                   absl::StrCat("job ", job_id, ": step ", next->first, " was completed ",
                                absl::FormatDuration(world_.timeline.now() - next->second),
                                " ago and is not in its loss log"));
  }
}

}  // namespace megascale::sim
