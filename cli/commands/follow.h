// Follows a job until it ends, across restarts of its driver.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/connection/connection.h"
#include "cli/view/interrupt.h"
#include "cli/view/loss_curve.h"
#include "controlplane/client/job_client.h"
#include "proto/control.pb.h"

namespace megascale::cli {

enum class FollowStyle { kLive, kJson, kQuiet };

struct FollowOptions {
  FollowStyle style = FollowStyle::kLive;  // form of standard output
  // FollowJob returns once it has counted more signals than `signals_before`; may be null.
  Interrupt* interrupt = nullptr;
  int signals_before = 0;
  bool needs_output = false;  // FollowJob returns when standard output cannot be written
  bool needs_ranks = false;   // the result has all ranks, not only a few; kJson implies it
  // FollowJob returns once it says true; called every 50 ms; may be empty.
  std::function<bool()> should_stop;
  // Returns new lines to show with the job; called before each display; may be empty.
  std::function<std::vector<std::string>()> take_notes;
  absl::Duration timeout = absl::InfiniteDuration();
  // How the driver is reached, for the commands in messages, and how long to wait for the driver's
  // first answer.
  ConnectionFlags connection;
  // How long the driver may be unreachable after it has answered once. A longer absence is an
  // error.
  absl::Duration absence_max = absl::Seconds(60);
};

struct FollowResult {
  enum class End { kJobEnded, kInterrupted, kTimedOut, kOutputLost, kStopped };
  End end = End::kJobEnded;
  control::v1::Job job;              // newest state of the job
  std::vector<CurvePoint> losses;    // of the steps seen, each once
  std::vector<CurvePoint> held_out;  // of those that were evaluated
};

// Shows the job until it ends or an option says to return. Errors: NotFound; Unavailable - the
// driver cannot be reached.
absl::StatusOr<FollowResult> FollowJob(client::JobClient* client, const std::string& job_id,
                                       const FollowOptions& options);

}  // namespace megascale::cli
