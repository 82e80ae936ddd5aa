// Looks at sampled ranks of all jobs that train and says which of them deserve a diagnosis
// (runtime/diagnose/sampling/trigger.h). Reads views of the driver, so it never enters the driver's
// loop. Threads: one owner.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/shell/driver_view.h"
#include "runtime/diagnose/sampling/slow_looks.h"
#include "runtime/diagnose/sampling/trigger.h"

namespace megascale::driver {

class JobTriggers {
 public:
  // How often to look by default. Source: Mycroft, 4.2.
  static constexpr absl::Duration kInterval = absl::Seconds(10);

  // `interval`: how often the caller looks; steps are compared over at least this time.
  explicit JobTriggers(absl::Duration interval = kInterval) : interval_(interval) {}

  struct Triggered {
    std::string job_id;
    std::vector<int> sample;  // the ranks that were looked at
    diagnose::TriggerVerdict verdict;
  };
  // Returns the jobs that stand still or are slow, except for jobs that already have the suspect of
  // a stall. Calls slow_looks->PassOver for jobs that stand still, with or without a suspect.
  // `now`: monotonic. Cost: a few ranks of each job.
  std::vector<Triggered> Look(const DriverView& view, absl::Duration now,
                              diagnose::SlowLooks* slow_looks);

 private:
  struct Watched {
    int64_t attempt = 0;
    std::vector<int> sample;  // empty: the job's mesh is not known
    diagnose::Trigger trigger;
  };

  const absl::Duration interval_;
  std::map<std::string, Watched> watched_;  // by job
};

}  // namespace megascale::driver
