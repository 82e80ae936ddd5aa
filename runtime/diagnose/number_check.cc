#include "runtime/diagnose/number_check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "runtime/base/median.h"

namespace megascale::diagnose {
namespace {

// A usual value needs this many steps.
constexpr size_t kUsualStepsMin = 8;

using ValueOf = std::function<double(const LoggedStep&)>;

// Returns the median of the finite values; nothing if there are too few.
std::optional<double> MedianOf(absl::Span<const LoggedStep> steps, const ValueOf& value_of) {
  std::vector<double> values;
  for (const LoggedStep& step : steps) {
    if (std::isfinite(value_of(step))) values.push_back(value_of(step));
  }
  if (values.size() < kUsualStepsMin) return std::nullopt;
  return base::UpperMedian(std::move(values));
}

std::optional<NumberFinding> FindJump(absl::Span<const LoggedStep> steps, OffRoad kind,
                                      const ValueOf& value_of) {
  const size_t first = steps.size() - std::min(steps.size(), kUsualWindow);
  for (size_t i = steps.size(); i > first;) {
    --i;
    const size_t begin = i - std::min(i, kUsualWindow);
    const std::optional<double> usual = MedianOf(steps.subspan(begin, i - begin), value_of);
    const double value = value_of(steps[i]);
    if (!usual.has_value() || *usual <= 0 || !std::isfinite(value)) continue;
    if (value < kJumpFactor * *usual) continue;
    return NumberFinding{kind, steps[i].step, value, *usual};
  }
  return std::nullopt;
}

std::optional<NumberFinding> FindNotFinite(absl::Span<const LoggedStep> steps) {
  for (size_t i = steps.size(); i > 0; --i) {
    const LoggedStep& step = steps[i - 1];
    if (std::isfinite(step.loss) && std::isfinite(step.grad_norm)) continue;
    return NumberFinding{OffRoad::kNotFinite, step.step,
                         std::isfinite(step.loss) ? step.grad_norm : step.loss, 0};
  }
  return std::nullopt;
}

double RateOf(const LoggedStep& step) {
  return step.seconds > 0 ? static_cast<double>(step.tokens) / step.seconds : NAN;
}

// The steps of the newest attempt: another one may have other machines.
std::optional<NumberFinding> FindSlower(absl::Span<const LoggedStep> steps) {
  size_t begin = steps.size();
  while (begin > 0 && steps[begin - 1].attempt == steps.back().attempt) --begin;
  const absl::Span<const LoggedStep> attempt = steps.subspan(begin);
  if (attempt.size() < 2 * kRateWindow) return std::nullopt;
  const absl::Span<const LoggedStep> newest = attempt.subspan(attempt.size() - kRateWindow);
  const absl::Span<const LoggedStep> before = attempt.first(attempt.size() - kRateWindow);
  const std::optional<double> usual = MedianOf(before, RateOf);
  const std::optional<double> now = MedianOf(newest, RateOf);
  // The second half tells a decline that lasts from one that is over.
  const std::optional<double> last = MedianOf(newest.subspan(kRateWindow / 2), RateOf);
  if (!usual.has_value() || !now.has_value() || !last.has_value()) return std::nullopt;
  if (*now >= kSlowerShare * *usual || *last >= kSlowerShare * *usual) return std::nullopt;
  return NumberFinding{OffRoad::kSlower, newest.front().step, *last, *usual};
}

}  // namespace

std::vector<NumberFinding> CheckNumbers(absl::Span<const LoggedStep> steps) {
  std::vector<NumberFinding> findings;
  const auto add = [&](const std::optional<NumberFinding>& found) {
    if (found.has_value()) findings.push_back(*found);
  };
  if (steps.empty()) return findings;
  add(FindJump(steps, OffRoad::kLossJump, [](const LoggedStep& step) { return step.loss; }));
  add(FindJump(steps, OffRoad::kGradientJump,
               [](const LoggedStep& step) { return step.grad_norm; }));
  add(FindNotFinite(steps));
  add(FindSlower(steps));
  return findings;
}

}  // namespace megascale::diagnose
