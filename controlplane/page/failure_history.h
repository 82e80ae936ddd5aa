// Which failures the jobs had, seen from outside. A job is looked at again and again; from what
// changed, this class derives when an attempt failed and when the next attempt trained. Pure.
// Threads: one at a time.
// It begins when the driver begins. Of an earlier failure, only the cause is known. Times are as
// exact as the time between two looks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace megascale::page {

struct ObservedFailure {
  control::v1::Culprit culprit;
  int64_t num_consequences = 0;
  int64_t noticed_unix_seconds = 0;  // 0: before the first look
  int64_t last_step = 0;             // newest completed step when the driver noticed
  // From that step's completion, or from the first look, until the driver noticed the failure. So
  // it includes the part of the next step that was computed before the failure. -1: unknown.
  double detection_seconds = -1;
  double recovery_seconds = -1;  // until the next attempt completed a step; -1: not yet, or unknown
};

class FailureHistory {
 public:
  // The newest failures of a job are kept, at most this many.
  static constexpr size_t kFailuresMax = 50;

  // `now`: monotonic. `wall`: the time of day, for people.
  void Observe(const control::v1::Job& job, absl::Duration now, absl::Time wall);
  // Drops the jobs that are not among these.
  void Keep(const std::vector<control::v1::Job>& jobs);

  // Oldest first.
  std::vector<ObservedFailure> Of(const std::string& job_id) const;
  // By failure class: how many failures of the job happened since the first look.
  std::map<int, int64_t> CountsOf(const std::string& job_id) const;

 private:
  struct Entry {
    std::vector<ObservedFailure> failures;
    std::map<int, int64_t> counts;
    int64_t step = -1;  // newest one, and when it came
    absl::Duration step_at;
    absl::Duration noticed_at;
    int64_t failed_attempt = 0;  // of the newest failure
  };
  std::map<std::string, Entry> jobs_;
};

}  // namespace megascale::page
