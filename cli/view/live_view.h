// Shows a running job: as a block that is redrawn on a terminal, as plain lines elsewhere. Pure
// functions of a Job make the text; LiveView puts it on the screen.
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

// Returns "31,204 tokens/s, MFU 41.2 % of 430 GFLOP/s"; "": the rate is not known yet.
std::string RateText(const control::v1::Job& job);

// Returns what is wrong, since when the machine differs if that is known, and what the driver did:
// "machine n3 differs: compute share 0.97, where 0.41 is usual, since 2026-11-26 11:20:05 (told)".
std::string SuspicionText(const control::v1::Suspicion& suspicion);

// Returns the time until the last step, at the present rate; negative: unknown.
absl::Duration TimeLeft(const control::v1::Job& job);

// Returns an estimate for people, computed as the job's model FLOPs at half the rate at which its
// machines multiply matrices:
//   about 2m20s of training (estimate: half of 447 GFLOP/s; measured steps tell better)
// "" while that rate is unknown, and once steps are measured or the job has ended. Small models
// take longer, because their matrix products are small.
std::string TrainingTimeEstimate(const control::v1::Job& job);

// Returns the job's time account in one line: the share of its time that became steps that count,
// and the parts of at least 0.1 % that were lost, the largest first. "": it has no account.
std::string GoodputLine(const control::v1::Job& job);

// Returns the lines of the block: job and state, progress bar, loss and rates, checkpoint and
// culprit, and a line for each of at most `workers_max` workers, those without progress first, then
// the number of workers left out. No line is wider than the terminal, and there are no more lines
// than its height: a low terminal shows fewer workers, and the last line says what has no room.
std::vector<std::string> RenderJob(const control::v1::Job& job, const Terminal& terminal,
                                   int workers_max);

// Returns details of the last failure that its line in RenderJob leaves out: the rest of its
// evidence, with the last lines of the first failing rank's log, and the failures that followed
// from it. Lines are not cut.
std::vector<std::string> RenderFailure(const control::v1::Job& job);

// As RenderJob, with these details below the line of the last failure.
std::vector<std::string> RenderWholeJob(const control::v1::Job& job, const Terminal& terminal,
                                        int workers_max);

// Returns a line for each of the job's warnings. RenderJob leaves them out once the job has ended.
std::vector<std::string> WarningLines(const control::v1::Job& job);

// Reports a job as plain lines as things happen: every change of state or attempt, every new
// checkpoint and warning of a job that has not ended, and progress at the first step, every 10 s,
// and at the last step.
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

  // Redraws the block, at most ten times a second unless the state changed, or adds plain lines.
  // The block of a job that has ended stays.
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
  bool in_one_row_ = false;        // the cursor is in the block, not below it
  bool drawn_ = false;
  absl::Duration drawn_at_;
};

}  // namespace megascale::cli
