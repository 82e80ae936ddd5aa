#include "controlplane/driver/relay/ended_job.h"

#include "absl/strings/str_cat.h"

namespace megascale::driver {

absl::Status CheckRuns(const megascale::control::v1::Job& job, bool asks_ended,
                       absl::string_view what) {
  if (job.has_ended_at() && !asks_ended) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.job_id(), ": has ended (",
                                                      job.reason(), "); ", what,
                                                      " is kept only while it runs"));
  }
  if (job.attempt() == 0 || job.ranks_size() == 0) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.job_id(),
                                                      ": none of its ranks has begun (",
                                                      job.reason(), "); repeat this once it runs"));
  }
  return absl::OkStatus();
}

}  // namespace megascale::driver
