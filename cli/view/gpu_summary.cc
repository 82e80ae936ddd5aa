#include "cli/view/gpu_summary.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/text/printable.h"

namespace megascale::cli {
namespace {

constexpr size_t kReasonBytesMax = 40;
constexpr size_t kReasonsMax = 8;

// Numbers come from other machines. What is greater, or negative, is no GPU's; sums of what is left
// fit into 64 bits for millions of GPUs.
constexpr int64_t kBytesMax = int64_t{1} << 42;
constexpr int64_t kErrorsMax = int64_t{1} << 42;
constexpr double kWattsMax = 1e5;
constexpr double kCelsiusMax = 1e3;

// No NaN is plausible.
template <typename Number>
bool IsPlausible(bool is_known, Number value, Number max) {
  return is_known && value >= 0 && value <= max;
}

template <typename Number>
void AddTo(bool is_known, Number value, Number max, std::optional<Number>* sum) {
  if (IsPlausible(is_known, value, max)) *sum = sum->value_or(0) + value;
}

double GibiBytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

std::string MemoryText(const GpuSummary& summary) {
  if (!summary.memory_used_bytes.has_value()) return "";
  const std::string used = absl::StrFormat("%.1f", GibiBytes(*summary.memory_used_bytes));
  if (!summary.memory_bytes.has_value()) return used + " GiB";
  return absl::StrFormat("%s of %.1f GiB", used, GibiBytes(*summary.memory_bytes));
}

std::string NotesText(const GpuSummary& summary) {
  std::vector<std::string> notes;
  if (summary.num_throttled > 0) {
    notes.push_back(absl::StrCat(summary.num_throttled, " throttled (",
                                 absl::StrJoin(summary.throttled_by, ", "), ")"));
  }
  if (summary.uncorrected_errors.value_or(0) > 0) {
    notes.push_back(absl::StrCat(*summary.uncorrected_errors, " uncorrected memory errors"));
  }
  if (summary.corrected_errors.value_or(0) > 0) {
    notes.push_back(absl::StrCat(*summary.corrected_errors, " corrected memory errors"));
  }
  return absl::StrJoin(notes, "; ");
}

std::optional<double> Double(std::optional<int64_t> value) {
  return value.has_value() ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
}

}  // namespace

GpuSummary SummaryOf(absl::Span<const telemetry::v1::GpuSample* const> gpus) {
  GpuSummary summary;
  std::optional<double> busy;
  int num_busy = 0;
  std::set<std::string> reasons;
  for (const telemetry::v1::GpuSample* gpu : gpus) {
    ++summary.count;
    num_busy += IsPlausible(gpu->has_busy_share(), gpu->busy_share(), 1.0) ? 1 : 0;
    AddTo(gpu->has_busy_share(), gpu->busy_share(), 1.0, &busy);
    AddTo(gpu->has_memory_used_bytes(), gpu->memory_used_bytes(), kBytesMax,
          &summary.memory_used_bytes);
    AddTo(gpu->has_memory_bytes(), gpu->memory_bytes(), kBytesMax, &summary.memory_bytes);
    AddTo(gpu->has_power_watts(), gpu->power_watts(), kWattsMax, &summary.power_watts);
    AddTo(gpu->has_corrected_errors(), gpu->corrected_errors(), kErrorsMax,
          &summary.corrected_errors);
    AddTo(gpu->has_uncorrected_errors(), gpu->uncorrected_errors(), kErrorsMax,
          &summary.uncorrected_errors);
    if (IsPlausible(gpu->has_temperature_celsius(), gpu->temperature_celsius(), kCelsiusMax)) {
      summary.temperature_celsius =
          std::max(summary.temperature_celsius.value_or(gpu->temperature_celsius()),
                   gpu->temperature_celsius());
    }
    summary.num_throttled += gpu->throttled_by().empty() ? 0 : 1;
    for (const std::string& reason : gpu->throttled_by()) {
      if (reasons.size() < kReasonsMax) reasons.insert(base::Printable(reason, kReasonBytesMax));
    }
  }
  if (busy.has_value()) summary.busy_share = *busy / num_busy;
  summary.throttled_by.assign(reasons.begin(), reasons.end());
  return summary;
}

std::vector<std::string> GpuColumns() {
  return {"GPUS", "BUSY", "GPU MEMORY", "HOTTEST", "POWER", "GPU NOTES"};
}

std::vector<std::string> GpuCells(const GpuSummary& summary) {
  if (summary.count == 0) return std::vector<std::string>(GpuColumns().size());
  const auto text = [](const std::optional<double>& value, double factor, const char* unit) {
    return value.has_value() ? absl::StrFormat("%.0f %s", factor * *value, unit) : std::string();
  };
  return {absl::StrCat(summary.count),
          text(summary.busy_share, 100, "%"),
          MemoryText(summary),
          text(summary.temperature_celsius, 1, "C"),
          text(summary.power_watts, 1, "W"),
          NotesText(summary)};
}

std::vector<GpuValue> GpuValues(const GpuSummary& summary) {
  const bool any = summary.count > 0;
  const std::optional<double> throttled = summary.num_throttled;
  return {{"gpu_busy_share", summary.busy_share},
          {"gpu_memory_used_bytes", Double(summary.memory_used_bytes)},
          {"gpu_memory_bytes", Double(summary.memory_bytes)},
          {"gpu_temperature_celsius", summary.temperature_celsius},
          {"gpu_power_watts", summary.power_watts},
          {"gpus_throttled", any ? throttled : std::nullopt},
          {"gpu_corrected_errors", Double(summary.corrected_errors)},
          {"gpu_uncorrected_errors", Double(summary.uncorrected_errors)}};
}

}  // namespace megascale::cli
