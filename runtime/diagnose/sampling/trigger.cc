#include "runtime/diagnose/sampling/trigger.h"

#include <algorithm>
#include <map>

#include "runtime/base/check.h"
#include "runtime/base/median.h"

namespace megascale::diagnose {

std::vector<int> SampleRanks(const plan::Mesh& mesh, absl::Span<const int> machine_of) {
  MEGASCALE_CHECK(machine_of.size() == static_cast<size_t>(mesh.world_size()));
  std::vector<int> first;  // rank of each data group
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    if (mesh.IndexInGroup(plan::GroupKind::kData, rank) == 0) first.push_back(rank);
  }
  const size_t count = std::min(first.size(), static_cast<size_t>(kSampledRanksMax));
  std::map<int, int> used;  // by machine: sampled ranks
  std::vector<int> sample;
  for (size_t i = 0; i < count; ++i) {
    const int group = first[i * first.size() / count];
    const std::vector<int> ranks = mesh.GroupOf(plan::GroupKind::kData, group).ranks;
    const auto use_of = [&](int rank) { return used[machine_of[static_cast<size_t>(rank)]]; };
    // Starts at another member in each group, so that a machine that is known to none counts too.
    int chosen = ranks[i % ranks.size()];
    for (size_t k = 1; k < ranks.size(); ++k) {
      const int rank = ranks[(i + k) % ranks.size()];
      if (use_of(rank) < use_of(chosen)) chosen = rank;
    }
    ++used[machine_of[static_cast<size_t>(chosen)]];
    sample.push_back(chosen);
  }
  std::sort(sample.begin(), sample.end());
  return sample;
}

const char* Name(TriggerReason reason) {
  switch (reason) {
    case TriggerReason::kNone:
      return "none";
    case TriggerReason::kStuck:
      return "stuck";
    case TriggerReason::kHalfThroughput:
      return "half throughput";
    case TriggerReason::kDoubledInterval:
      return "doubled interval";
  }
  return "unknown";
}

namespace {

bool Save(absl::Span<const SampledReport> reports) {
  size_t num_saving = 0;
  for (const SampledReport& report : reports) {
    if (report.saves && report.save_is_due) return true;
    num_saving += report.saves ? 1 : 0;
  }
  return num_saving > 1 && 2 * num_saving > reports.size();
}

}  // namespace

TriggerVerdict Trigger::Look(double now_seconds, absl::Span<const SampledReport> reports,
                             double mean_step_seconds, const EvaluationState& evaluation) {
  const SampledReport* slowest = nullptr;
  for (const SampledReport& report : reports) {
    if (report.trains && (slowest == nullptr || report.step < slowest->step)) slowest = &report;
  }
  if (slowest == nullptr) {
    has_window_ = false;
    last_ = {};
    return {};
  }
  const bool stepped = !has_window_ || slowest->step != step_;
  if (stepped) {
    step_ = slowest->step;
    stepped_at_ = began_at_ = now_seconds;
  }
  const bool may_save = now_seconds - stepped_at_ < kSaveSecondsMax &&
                        now_seconds - excused_at_.value_or(now_seconds) < kSaveSecondsMax;
  const bool is_excused = may_save && (evaluation.runs || Save(reports));
  if (is_excused && !excused_at_.has_value()) excused_at_ = now_seconds;
  // What excused the look before may have ended just now.
  const bool begins = is_excused || (was_excused_ && may_save) || !has_window_;
  if (begins) {
    last_ = {};
    began_at_ = now_seconds;
    BeginWindow(now_seconds, slowest->step, evaluation.seconds);
  }
  was_excused_ = is_excused;
  if (is_excused) return {};
  TriggerVerdict verdict = Stuck(now_seconds, reports, mean_step_seconds);
  if (verdict.reason == TriggerReason::kNone && !begins) {
    verdict = Slow(now_seconds, *slowest, evaluation.seconds);
  }
  return verdict;
}

// A rank may run a step of many minutes, in which it begins and ends instructions. One that does
// neither is stuck; so is a job that goes on within a step and never ends it.
TriggerVerdict Trigger::Stuck(double now_seconds, absl::Span<const SampledReport> reports,
                              double mean_step_seconds) const {
  TriggerVerdict verdict = {.usual_step_seconds = UsualSeconds(),
                            .step_seconds = now_seconds - began_at_,
                            .normal_step = normal_step_};
  const double usual = std::max(verdict.usual_step_seconds, mean_step_seconds);
  const double limit = std::max(kStuckSecondsMin, kStuckSteps * usual);
  // How long a step takes must be known before its absence says anything.
  const bool has_no_step = usual > 0 && verdict.step_seconds >= limit;
  double quiet = 0;
  for (const SampledReport& report : reports) {
    if (!report.trains) continue;
    if (report.quiet_seconds < limit && !(has_no_step && report.step == step_)) continue;
    const bool is_first = verdict.reason == TriggerReason::kNone;
    verdict.reason = TriggerReason::kStuck;
    if (!is_first && report.quiet_seconds <= quiet) continue;
    quiet = report.quiet_seconds;
    verdict.rank = report.rank;
  }
  return verdict.reason == TriggerReason::kNone ? TriggerVerdict() : verdict;
}

TriggerVerdict Trigger::Slow(double now_seconds, const SampledReport& slowest,
                             double evaluation_seconds) {
  const double passed = now_seconds - window_begin_;
  // Evaluations cannot have taken all of the time: ranks that say so would hide slow steps.
  const double evaluated = evaluation_seconds - window_evaluation_seconds_;
  const double elapsed = evaluated > 0 && evaluated < passed ? passed - evaluated : passed;
  const int64_t num_steps = slowest.step - window_step_;
  const double usual = UsualSeconds();
  TriggerVerdict verdict = {
      .rank = slowest.rank, .usual_step_seconds = usual, .normal_step = normal_step_};
  if (elapsed >= window_seconds_min_ && num_steps >= kWindowStepsMin) {
    verdict.step_seconds = elapsed / static_cast<double>(num_steps);
    const bool is_slow = usual > 0 && verdict.step_seconds >= kTimesSlower * usual;
    if (is_slow) verdict.reason = TriggerReason::kHalfThroughput;
    if (!is_slow) AddUsual(verdict.step_seconds, slowest.step);
    excused_at_.reset();
    BeginWindow(now_seconds, slowest.step, evaluation_seconds);
    last_ = is_slow ? verdict : TriggerVerdict();
    return last_;
  }
  // The window is still open: even if the next step ended now, it would have been slow.
  const double interval = elapsed / static_cast<double>(num_steps + 1);
  if (usual > 0 && elapsed >= window_seconds_min_ && interval >= kTimesSlower * usual) {
    verdict.reason = TriggerReason::kDoubledInterval;
    verdict.step_seconds = interval;
    return verdict;
  }
  return last_;
}

void Trigger::BeginWindow(double now_seconds, int64_t step, double evaluation_seconds) {
  has_window_ = true;
  window_begin_ = now_seconds;
  window_step_ = step;
  window_evaluation_seconds_ = evaluation_seconds;
}

void Trigger::AddUsual(double interval, int64_t step) {
  usual_.push_back(interval);
  normal_step_ = step;
  if (usual_.size() <= kWindowsKept) return;
  std::vector<double> half;
  for (size_t i = 0; i < usual_.size(); i += 2) half.push_back(usual_[i]);
  usual_ = std::move(half);
}

double Trigger::UsualSeconds() const {
  return usual_.size() < kWindowsMin ? 0 : base::UpperMedian(usual_);
}

}  // namespace megascale::diagnose
