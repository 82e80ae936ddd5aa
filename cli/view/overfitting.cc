#include "cli/view/overfitting.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/view/terminal.h"

namespace megascale::cli {
namespace {

// A loss on held-out text that has risen by less than this share of the lowest one may be noise.
constexpr double kRiseOfOverfitting = 0.01;

// Returns the mean training loss of the steps since the evaluation before the last, which covers
// the noise of single batches.
double TrainingLossAtEnd(const std::vector<CurvePoint>& training,
                         const std::vector<CurvePoint>& held_out) {
  const size_t count = held_out.size();
  const int64_t after = count > 1 ? held_out[count - 2].step : 0;
  double sum = 0;
  int64_t num_steps = 0;
  for (const CurvePoint& point : training) {
    if (point.step <= after || point.step > held_out.back().step) continue;
    sum += point.value;
    ++num_steps;
  }
  return sum / static_cast<double>(std::max<int64_t>(1, num_steps));
}

}  // namespace

std::string OverfittingText(const std::vector<CurvePoint>& training,
                            const std::vector<CurvePoint>& held_out, absl::string_view unit) {
  if (held_out.empty()) return "";
  const CurvePoint& newest = held_out.back();
  const CurvePoint lowest =
      *std::min_element(held_out.begin(), held_out.end(),
                        [](const auto& a, const auto& b) { return a.value < b.value; });
  const double at_end = TrainingLossAtEnd(training, held_out);
  const double gap = newest.value - at_end;
  std::string text = absl::StrFormat(
      "loss on held-out text %.3f nats per %s after step %s, %.3f %s than on training text (%.3f)",
      newest.value, unit, WithCommas(newest.step), std::abs(gap), gap < 0 ? "less" : "more",
      at_end);
  if (lowest.step == newest.step) return absl::StrCat(text, "; it still falls");
  const double rise = newest.value - lowest.value;
  if (rise < kRiseOfOverfitting * lowest.value) {
    return absl::StrCat(text, "; it has not fallen since step ", WithCommas(lowest.step));
  }
  return absl::StrCat(text, "; it overfits: the lowest was ",
                      absl::StrFormat("%.3f after step %s, and it has risen by %.3f since",
                                      lowest.value, WithCommas(lowest.step), rise));
}

}  // namespace megascale::cli
