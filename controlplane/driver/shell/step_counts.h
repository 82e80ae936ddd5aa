// The steps that jobs completed and that their time accounts do not know yet. They become
// StepsTaken events once a minute, and before an event that may end an attempt. If the driver
// crashes, it loses these counts; the next steps then also account for the time of the lost ones.
// Threads: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"
#include "runtime/diagnose/sampling/trigger.h"

namespace megascale::driver {

// Returns the usual time of a step: that of the job's account, or the mean of the steps that are
// counted and not logged, whichever is longer. `counted` may be null.
absl::Duration UsualStep(const JobRecord& job, const v1::StepsTaken* counted);

class StepCounts {
 public:
  static constexpr absl::Duration kInterval = absl::Minutes(1);
  // A job stands still if it has completed no step for longer than kStallMin, and for longer than
  // kStallSteps times its usual step.
  static constexpr absl::Duration kStallMin =
      absl::Seconds(static_cast<int64_t>(diagnose::Trigger::kStuckSecondsMin));
  static constexpr double kStallSteps = diagnose::Trigger::kStuckSteps;

  struct Now {
    absl::Duration monotonic;
    absl::Time wall;
    absl::Duration awake;  // AgentReports::awake: does not count while the driver stands still
  };

  // Counts the steps of the job's attempt in a report, up to `newest`, that are not counted yet.
  void Count(const JobRecord& job, const megascale::agent::v1::ActualJob& actual, int64_t newest,
             const Now& now);

  // Return the events that are due: before `event`, and at this time. They count as logged.
  std::vector<Event> EventsBefore(const Event& event, absl::Duration now);
  std::vector<Event> EventsDue(absl::Duration now);

  // Returns what is counted and not logged; null: nothing.
  const v1::StepsTaken* Find(const std::string& job_id) const;
  // Returns whether a job that trains stands still. `awake`: as Now::awake. False if the attempt
  // has not completed a step.
  bool StandsStill(const JobRecord& job, absl::Duration awake) const;

  void Forget(const std::string& job_id) { counts_.erase(job_id); }

 private:
  struct Counted {
    v1::StepsTaken taken;
    absl::Duration logged;    // monotonic time of the last event
    absl::Duration taken_at;  // of the newest step, as Now::awake
    // When the newest step was counted, and the newest one that is logged; monotonic. Empty: no
    // step of the attempt is logged.
    absl::Duration counted_at;
    std::optional<absl::Duration> logged_at;
  };
  static void Take(Counted* counted, absl::Duration now, std::vector<Event>* events);
  void TakeOf(const std::string& job_id, absl::Duration now, std::vector<Event>* events);

  std::map<std::string, Counted> counts_;  // by job
};

}  // namespace megascale::driver
