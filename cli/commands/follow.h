// Following a job until it ends, over restarts of its driver.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/interrupt.h"
#include "cli/loss_curve.h"
#include "controlplane/client/job_client.h"
#include "proto/control.pb.h"

namespace megascale::cli {

enum class FollowStyle { kLive, kJson, kQuiet };

struct FollowOptions {
  FollowStyle style = FollowStyle::kLive;  // of what is shown on standard output
  Interrupt* interrupt = nullptr;          // a new signal ends the following; null: none does
  // Lines to show beside the job, taken whenever there is something to show; may be empty.
  std::function<std::vector<std::string>()> take_notes;
  absl::Duration timeout = absl::InfiniteDuration();
  // How long the driver may stay away, once it has answered, before that is an error.
  absl::Duration absence_max = absl::Seconds(60);
};

struct FollowResult {
  enum class End { kJobEnded, kInterrupted, kTimedOut };
  End end = End::kJobEnded;
  control::v1::Job job;            // as seen last
  std::vector<CurvePoint> losses;  // of the steps seen, each once
};

// Errors: NotFound; Unavailable - the driver cannot be reached. Blocking: as the options say.
absl::StatusOr<FollowResult> FollowJob(client::JobClient* client, const std::string& job_id,
                                       const FollowOptions& options);

}  // namespace megascale::cli
