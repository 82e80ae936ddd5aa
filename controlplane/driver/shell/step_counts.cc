#include "controlplane/driver/shell/step_counts.h"

#include <algorithm>
#include <utility>

namespace megascale::driver {
namespace {

// An agent's number: a sum of them must not overflow.
int64_t Nanos(double seconds) {
  constexpr double kSecondsMax = 24 * 3600;
  return absl::ToInt64Nanoseconds(absl::Seconds(std::min(std::max(0.0, seconds), kSecondsMax)));
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
  }
  for (const auto& step : actual.steps()) {
    const int64_t known = std::max(taken.step(), job.time_book().kept_step());
    if (step.attempt() != job.attempt() || step.step() <= known || step.step() > newest) continue;
    taken.set_step(step.step());
    taken.set_num_steps(taken.num_steps() + 1);
    taken.set_step_nanos(taken.step_nanos() + Nanos(step.seconds()));
    taken.set_checkpoint_nanos(taken.checkpoint_nanos() + Nanos(step.checkpoint_seconds()));
    taken.set_taken_unix_nanos(absl::ToUnixNanos(now.wall));
    counted.taken_at = now.awake;
  }
}

void StepCounts::Take(Counted* counted, absl::Duration now, std::vector<Event>* events) {
  if (counted->taken.num_steps() == 0) return;
  Event event;
  *event.mutable_steps_taken() = counted->taken;
  events->push_back(std::move(event));
  counted->taken.set_num_steps(0);
  counted->taken.set_step_nanos(0);
  counted->taken.set_checkpoint_nanos(0);
  counted->logged = now;
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
