// How a job looks while it runs: a block that is redrawn on a terminal, plain lines elsewhere. What
// is shown is made by pure functions of a Job; LiveView puts it on the screen.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/terminal.h"
#include "proto/control.pb.h"

namespace megascale::cli {

// "RUNNING".
std::string StateName(control::v1::JobState state);
// SUCCEEDED, FAILED or CANCELLED.
bool IsTerminal(control::v1::JobState state);

// The state with its reason and message in one line: "PENDING (WaitingForSlots): needs 1 slot, …".
std::string StateLine(const control::v1::Job& job);

// "31,204 tokens/s, MFU 41.2 % of 430 GFLOP/s"; "" before there is a rate.
std::string RateText(const control::v1::Job& job);

// Until the last step, at the present rate; negative where it is unknown.
absl::Duration TimeLeft(const control::v1::Job& job);

// The block: job and state, progress bar, loss and rates, checkpoint and culprit, a line for each
// worker; of more than `workers_max` so many, those without progress first among them, and how many
// more there are. No line is wider than the terminal.
std::vector<std::string> RenderJob(const control::v1::Job& job, const Terminal& terminal,
                                   int workers_max);

// What is known of the last failure beyond its line in RenderJob: the rest of its evidence, with
// the last lines of the first failing rank's log, and the failures that followed from it. Whole
// lines.
std::vector<std::string> RenderFailure(const control::v1::Job& job);

// The same as plain lines, told as it happens: every change of state or attempt, every new
// checkpoint, and progress every 10 % of the steps or 2 s, whichever is first.
class PlainLog {
 public:
  // The lines that `job`, seen at `now`, adds. `now` does not go back.
  std::vector<std::string> Update(const control::v1::Job& job, absl::Duration now);

 private:
  bool started_ = false;
  control::v1::JobState state_ = control::v1::JOB_STATE_UNSPECIFIED;
  std::string message_;
  int64_t attempt_ = 0;
  int64_t step_ = -1;
  int64_t checkpoint_step_ = 0;
  absl::Duration progress_at_;
};

// Shows jobs on `out`. Threads: one at a time.
class LiveView {
 public:
  LiveView(const Terminal& terminal, std::FILE* out) : terminal_(terminal), out_(out) {}

  // Redraws the block, at most ten times a second unless the state changed, or adds plain lines.
  void Show(const control::v1::Job& job, absl::Duration now);
  // A line of its own; the block goes on below it.
  void Say(const std::string& line);

 private:
  void Erase();

  const Terminal terminal_;
  std::FILE* out_;
  PlainLog plain_;
  int lines_drawn_ = 0;
  bool drawn_ = false;
  absl::Duration drawn_at_;
  control::v1::JobState drawn_state_ = control::v1::JOB_STATE_UNSPECIFIED;
};

}  // namespace megascale::cli
