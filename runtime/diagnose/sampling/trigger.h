// When a job deserves a diagnosis: looks at what a few sampled ranks report about every ten
// seconds. It says that something is wrong, and never who is the cause; the walk of stall.h or
// slow_path.h finds that out. Pure: time and reports come from the caller.
//
//   const std::vector<int> sample = SampleRanks(mesh, machine_of);
//   Trigger trigger;
//   const TriggerVerdict verdict = trigger.Look(seconds, ReportsOf(sample));  // every 10 s
//
// Source: Deng et al., SOSP '25 (Mycroft), algorithm 1: at least one rank of each data group, at
// most ten ranks; stuck, throughput halved, or interval doubled.
// Threads: one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "runtime/plan/mesh.h"

namespace megascale::diagnose {

inline constexpr int kSampledRanksMax = 10;

// Returns the ranks to look at, ascending: one of each data group, on as many machines as possible.
// With more groups than `kSampledRanksMax` it leaves out groups evenly. `machine_of`: by rank; -1:
// not known. Requires: it has an element for each rank of the mesh.
std::vector<int> SampleRanks(const plan::Mesh& mesh, absl::Span<const int> machine_of);

// What a sampled rank reported last.
struct SampledReport {
  int rank = 0;
  bool trains = false;       // it has begun its second step, and has not finished
  bool saves = false;        // it says that it copies a checkpoint or waits for storage
  bool save_is_due = false;  // the job does so after its newest step
  int64_t step = 0;          // its newest completed step
  double quiet_seconds = 0;  // since it began or ended an instruction
};

// What is known of the job's evaluations of held-out text. Their time is no time of a step.
struct EvaluationState {
  bool runs = false;   // one is running, or has ended and is not part of `seconds` yet
  double seconds = 0;  // that the evaluations took so far; does not decrease within an attempt
};

enum class TriggerReason {
  kNone,
  kStuck,            // a rank makes no progress
  kHalfThroughput,   // the ranks complete at most half as many steps in a second as usual
  kDoubledInterval,  // the next step has taken twice the usual time, and has not ended
};

// Returns "stuck", "half throughput" …
const char* Name(TriggerReason reason);

struct TriggerVerdict {
  TriggerReason reason = TriggerReason::kNone;
  int rank = -1;                  // a sampled one that shows it; it need not be the cause
  double usual_step_seconds = 0;  // 0: not known yet
  double step_seconds = 0;        // now; kStuck: since the last completed step was seen
  int64_t normal_step = 0;        // the last step before it became slow; 0: none is known
};

class Trigger {
 public:
  // A rank is stuck only after this time, and after as long as this many usual steps.
  static constexpr double kStuckSecondsMin = 5;
  static constexpr double kStuckSteps = 3;
  // Throughput is measured over at least this time (by default) and at least this many steps.
  static constexpr double kWindowSecondsMin = 10;
  static constexpr int64_t kWindowStepsMin = 4;
  // The usual interval is known after this many windows. If there are more than kWindowsKept, every
  // other window is dropped.
  static constexpr size_t kWindowsMin = 3;
  static constexpr size_t kWindowsKept = 64;
  // A job is slow if its steps take this many times as long as usual. The authors tried 1.25, which
  // overlapped communication exceeded.
  static constexpr double kTimesSlower = 2;

  // Saving a checkpoint or evaluating excuses a job for at most this time after its last step. A
  // job that does so again and again is excused for at most this time without a whole window.
  static constexpr double kSaveSecondsMax = 600;

  // `window_seconds_min`: in place of kWindowSecondsMin; positive.
  explicit Trigger(double window_seconds_min = kWindowSecondsMin)
      : window_seconds_min_(window_seconds_min) {}

  // Takes the newest reports of the sampled ranks. If the ranks save a checkpoint or evaluate, this
  // look does not count, and a new window begins with the first look after the save or the
  // evaluation. Where a save is due, one rank's word is enough. Otherwise most of the ranks must
  // say so, because one rank that always says so would hide that the job is slow. Evaluations that
  // began and ended between two looks are subtracted from the time of the window. Slow windows
  // never count as usual, because an attempt does the same work in each step.
  // `mean_step_seconds`: of earlier steps, as the driver counted them; 0: not known. Requires:
  // `now_seconds` does not decrease.
  TriggerVerdict Look(double now_seconds, absl::Span<const SampledReport> reports,
                      double mean_step_seconds = 0, const EvaluationState& evaluation = {});

 private:
  TriggerVerdict Stuck(double now_seconds, absl::Span<const SampledReport> reports,
                       double mean_step_seconds) const;
  TriggerVerdict Slow(double now_seconds, const SampledReport& slowest, double evaluation_seconds);
  void BeginWindow(double now_seconds, int64_t step, double evaluation_seconds);
  void AddUsual(double interval, int64_t step);
  double UsualSeconds() const;

  double window_seconds_min_;
  std::vector<double> usual_;  // seconds of a step, by window, oldest first
  int64_t normal_step_ = 0;    // at the end of the newest of these windows
  bool has_window_ = false;
  double window_begin_ = 0;
  int64_t window_step_ = 0;               // the newest step when the window began
  double window_evaluation_seconds_ = 0;  // EvaluationState::seconds when the window began
  double stepped_at_ = 0;                 // when a later step was seen first
  bool was_excused_ = false;              // the look before did not count
  // When steps could go on: a later step was seen first, or the first look after looks that did not
  // count.
  double began_at_ = 0;
  // When ranks were first seen to save since the last whole window.
  std::optional<double> excused_at_;
  int64_t step_ = 0;     // the newest step of the slowest rank
  TriggerVerdict last_;  // of the last whole window
};

}  // namespace megascale::diagnose
