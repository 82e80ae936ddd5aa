// The part of driver_core.h that judges requests before they become events.
#include <google/protobuf/util/message_differencer.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/driver_core.h"

namespace megascale::driver {

namespace control = megascale::control::v1;
namespace pb = megascale::driver::v1;
using google::protobuf::util::MessageDifferencer;

absl::StatusOr<bool> IsNewSubmit(const DriverState& state, const pb::JobSubmitted& submit) {
  const JobRecord* job = FindJob(state, submit.job_id());
  if (job == nullptr) return true;
  const auto& known = job->submitted();
  const auto as_set = [](const auto& names) {
    return std::set<std::string>(names.begin(), names.end());
  };
  if (MessageDifferencer::Equals(known.spec(), submit.spec()) &&
      known.from_checkpoint() == submit.from_checkpoint() &&
      as_set(known.allow_changed()) == as_set(submit.allow_changed())) {
    return false;
  }
  return absl::AlreadyExistsError(
      absl::StrCat("job id ", submit.job_id(),
                   ": is taken by a job with another specification; give another id, or none"));
}

absl::StatusOr<bool> IsNewCancel(const DriverState& state, absl::string_view job_id) {
  const JobRecord* job = FindJob(state, job_id);
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("job ", job_id, ": no such job"));
  if (!IsTerminal(*job)) return !job->has_cancel();
  if (job->state() == control::JOB_STATE_CANCELLED) return false;
  return absl::FailedPreconditionError(absl::StrCat("job ", job_id, ": has ended already (",
                                                    job->reason(), ": ", job->message(),
                                                    "); there is nothing to cancel"));
}

}  // namespace megascale::driver
