#include "controlplane/driver/shell/step_counts.h"

#include <algorithm>
#include <utility>

#include "runtime/job/evaluation.h"
#include "runtime/telemetry/doing.h"

namespace megascale::driver {
namespace {

// What a rank says of one step is bounded, so that sums do not overflow.
constexpr double kStepSecondsMax = 1e5;

int64_t Nanos(double seconds) {
  return absl::ToInt64Nanoseconds(absl::Seconds(std::min(kStepSecondsMax, std::max(0.0, seconds))));
}

}  // namespace

void StepCounts::Count(const JobRecord& job, const megascale::agent::v1::ActualJob& actual,
                       int64_t newest, const Now& now) {
  Counted& counted = counts_[JobId(job)];
  v1::StepsTaken& taken = counted.taken;
  if (taken.attempt() != job.attempt()) {
    taken.Clear();
    taken.set_job_id(JobId(job));
    taken.set_attempt(job.attempt());
    counted.logged = now.monotonic;
    counted.logged_at.reset();
  }
  for (const auto& step : actual.steps()) {
    const int64_t known = std::max(taken.step(), job.time_book().kept_step());
    if (step.attempt() != job.attempt() || step.step() <= known || step.step() > newest) continue;
    taken.set_step(step.step());
    taken.set_num_steps(taken.num_steps() + 1);
    // A rank that claims a save where none was due must not hide that its steps take long.
    const bool has_saved = megascale::telemetry::SaveIsDue(job.submitted().spec(), step.step() - 1);
    const int64_t saved = Nanos(step.checkpoint_seconds());
    taken.set_step_nanos(taken.step_nanos() + Nanos(step.seconds()) + (has_saved ? 0 : saved));
    taken.set_checkpoint_nanos(taken.checkpoint_nanos() + (has_saved ? saved : 0));
    const bool has_evaluated =
        job.evaluates() && job::IsEvaluated(job.submitted().spec(), step.step());
    const int64_t evaluated = has_evaluated ? Nanos(step.evaluation_seconds()) : 0;
    taken.set_evaluation_nanos(taken.evaluation_nanos() + evaluated);
    taken.set_taken_unix_nanos(absl::ToUnixNanos(now.wall));
    counted.taken_at = now.awake;
    counted.counted_at = now.monotonic;
  }
  // Steps that are said to have taken longer than the time that passed would hide a stall.
  if (!counted.logged_at.has_value()) return;
  const absl::Duration passed = counted.counted_at - *counted.logged_at + kStallMin;
  taken.set_step_nanos(std::min(taken.step_nanos(), absl::ToInt64Nanoseconds(passed)));
}

void StepCounts::Take(Counted* counted, absl::Duration now, std::vector<Event>* events) {
  if (counted->taken.num_steps() == 0) return;
  Event event;
  *event.mutable_steps_taken() = counted->taken;
  events->push_back(std::move(event));
  counted->taken.set_num_steps(0);
  counted->taken.set_step_nanos(0);
  counted->taken.set_checkpoint_nanos(0);
  counted->taken.set_evaluation_nanos(0);
  counted->logged = now;
  counted->logged_at = counted->counted_at;
}

void StepCounts::TakeOf(const std::string& job_id, absl::Duration now, std::vector<Event>* events) {
  const auto found = counts_.find(job_id);
  if (found != counts_.end()) Take(&found->second, now, events);
}

std::vector<Event> StepCounts::EventsBefore(const Event& event, absl::Duration now) {
  std::vector<Event> events;
  switch (event.event_case()) {
    case Event::kRankFailed:
      TakeOf(event.rank_failed().job_id(), now, &events);
      break;
    case Event::kRankEnded:
      TakeOf(event.rank_ended().job_id(), now, &events);
      break;
    case Event::kStageTimedOut:
      TakeOf(event.stage_timed_out().job_id(), now, &events);
      break;
    case Event::kSuspectFound:
      TakeOf(event.suspect_found().job_id(), now, &events);
      break;
    case Event::kNodeLost:
    case Event::kNodeJoined:
      for (auto& [job_id, counted] : counts_) Take(&counted, now, &events);
      break;
    default:
      break;
  }
  return events;
}

std::vector<Event> StepCounts::EventsDue(absl::Duration now) {
  std::vector<Event> events;
  for (auto& [job_id, counted] : counts_) {
    if (now - counted.logged >= kInterval) Take(&counted, now, &events);
  }
  return events;
}

absl::Duration UsualStep(const JobRecord& job, const v1::StepsTaken* counted) {
  const bool has_new = counted != nullptr && counted->num_steps() > 0;
  const int64_t mean = has_new ? counted->step_nanos() / counted->num_steps() : 0;
  return absl::Nanoseconds(std::max(job.time_book().usual_step_nanos(), mean));
}

const v1::StepsTaken* StepCounts::Find(const std::string& job_id) const {
  const auto found = counts_.find(job_id);
  const bool has_steps = found != counts_.end() && found->second.taken.num_steps() > 0;
  return has_steps ? &found->second.taken : nullptr;
}

bool StepCounts::StandsStill(const JobRecord& job, absl::Duration awake) const {
  const auto found = counts_.find(JobId(job));
  if (!Trains(job) || found == counts_.end()) return false;
  const v1::StepsTaken& taken = found->second.taken;
  if (taken.attempt() != job.attempt() || taken.taken_unix_nanos() == 0) return false;
  const absl::Duration limit = std::max(kStallMin, kStallSteps * UsualStep(job, &taken));
  return awake - found->second.taken_at > limit;
}

}  // namespace megascale::driver
