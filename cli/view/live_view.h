// Shows a running job: on a terminal as a block that is redrawn, elsewhere as plain lines. Pure
// functions of a Job make the text, and LiveView writes it.
#pragma once

#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "cli/view/terminal.h"
#include "proto/control.pb.h"

namespace megascale::cli {

// Returns the state's name without its prefix, "RUNNING".
std::string StateName(control::v1::JobState state);
// True for SUCCEEDED, FAILED and CANCELLED.
bool IsTerminal(control::v1::JobState state);

// Returns state, reason and message in one line: "PENDING (WaitingForSlots): needs 1 slot, …".
std::string StateLine(const control::v1::Job& job);

// Returns "31,204 tokens/s, MFU 41.2 % of 430 GFLOP/s (measured 3h05m ago)"; "": the tokens/s
// are not known yet. Without an age the FLOP/s are those of the devices' data sheets.
std::string RateText(const control::v1::Job& job);

// Returns what is wrong, since when the machine differs (if that is known), and what the driver
// did: "machine n3 differs: compute share 0.97, where 0.41 is usual, since 2026-11-26 11:20:05
// (told)".
std::string SuspicionText(const control::v1::Suspicion& suspicion);

// Returns the time until the last step, at the rate of the newest steps; negative: too few steps
// have completed to tell.
absl::Duration TimeLeft(const control::v1::Job& job);

// Returns the job's time account in one line: the share of its time that became steps that were
// kept, and the lost parts of at least 0.1 %, the largest first. "": the job has no account.
std::string GoodputLine(const control::v1::Job& job);

// Returns the lines of the block: job and state, progress bar, loss and rates, checkpoint and
// culprit, and a line for each of at most `workers_max` workers, first the workers without
// progress, then the number of workers left out. No line is wider than the terminal, and there are
// no more lines than its height. A low terminal shows fewer workers, and the last line says what is
// left out.
std::vector<std::string> RenderJob(const control::v1::Job& job, const Terminal& terminal,
                                   int workers_max);

// Returns the details that RenderJob's line about the last failure leaves out: the rest of the
// failure's evidence, with the last lines of the first failing rank's log, and its consequences.
// Lines are not cut.
std::vector<std::string> RenderFailure(const control::v1::Job& job);

// As RenderJob, with RenderFailure's lines below the line about the last failure.
std::vector<std::string> RenderWholeJob(const control::v1::Job& job, const Terminal& terminal,
                                        int workers_max);

// Returns a line for each of the job's warnings. RenderJob leaves them out once the job has ended.
std::vector<std::string> WarningLines(const control::v1::Job& job);

// Reports the events of a job as plain lines: every change of state or attempt, every new
// checkpoint and warning until the job has ended, and progress at the first step, every 10 s, and
// at the last step.
class PlainLog {
 public:
  // Returns the lines that `job`, seen at `now`, adds. Requires: `now` never decreases.
  std::vector<std::string> Update(const control::v1::Job& job, absl::Duration now);

 private:
  bool started_ = false;
  control::v1::JobState state_ = control::v1::JOB_STATE_UNSPECIFIED;
  std::string message_;
  int64_t attempt_ = 0;
  int64_t step_ = -1;
  int64_t checkpoint_step_ = 0;
  std::set<std::string> warnings_;
  absl::Duration progress_at_;
};

// Shows jobs on `out`. Threads: one at a time.
class LiveView {
 public:
  static constexpr int kWorkersMax = 16;  // lines of a job

  // `look` returns the terminal to which `out` is connected now.
  LiveView(std::function<Terminal()> look, std::FILE* out)
      : look_(std::move(look)), terminal_(look_()), out_(out) {}

  // On a terminal redraws the block, at most ten times a second unless the state changed; elsewhere
  // adds plain lines. The block of a job that has ended stays.
  void Show(const control::v1::Job& job, absl::Duration now);
  // Redraws the block if the terminal's size has changed.
  void FollowSize();
  // Prints a line above the block.
  void Say(const std::string& line);

 private:
  void Erase();
  void Draw();

  const std::function<Terminal()> look_;
  Terminal terminal_;
  std::FILE* out_;
  PlainLog plain_;
  control::v1::Job job_;           // the job that is shown
  std::vector<int> widths_drawn_;  // widths of the block's lines, while it may be redrawn
  bool in_one_row_ = false;        // whether the cursor is in the block, not below it
  bool drawn_ = false;
  absl::Duration drawn_at_;
};

}  // namespace megascale::cli
