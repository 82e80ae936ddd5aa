#include "runtime/job/deadlines.h"

#include <algorithm>

#include "runtime/job/job_spec.h"

namespace megascale::job {
namespace {

constexpr absl::Duration kProgressTimeout = absl::Seconds(60);
constexpr absl::Duration kStartTimeout = absl::Seconds(120);

}  // namespace

void FillDeadlines(v1::FaultSpec* fault) {
  // A given value may be out of range, which the checks report.
  if (!fault->has_progress_timeout() && fault->has_start_timeout()) {
    *fault->mutable_progress_timeout() = FromDuration(std::clamp(
        ToDuration(fault->start_timeout()) * kNextDeadline, absl::Seconds(1), kProgressTimeout));
  }
  if (!fault->has_progress_timeout()) {
    *fault->mutable_progress_timeout() = FromDuration(kProgressTimeout);
  }
  if (!fault->has_start_timeout()) {
    *fault->mutable_start_timeout() = FromDuration(std::clamp(
        ToDuration(fault->progress_timeout()) / kNextDeadline, kStartTimeout, absl::Hours(24 * 7)));
  }
}

bool AreInOrder(const v1::FaultSpec& fault) {
  // Durations of jobs end at nanoseconds.
  return ToDuration(fault.progress_timeout()) <=
         ToDuration(fault.start_timeout()) * kNextDeadline + absl::Nanoseconds(1);
}

Deadlines DeadlinesOf(const v1::FaultSpec& fault) {
  Deadlines deadlines;
  deadlines.progress = ToDuration(fault.progress_timeout());
  deadlines.join = deadlines.progress * kNextDeadline;
  deadlines.connect = deadlines.join * kNextDeadline;
  deadlines.start = std::max(ToDuration(fault.start_timeout()), deadlines.progress / kNextDeadline);
  deadlines.wait = deadlines.start / kNextDeadline;
  return deadlines;
}

}  // namespace megascale::job
