#include "runtime/minder/examine.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/median.h"
#include "runtime/base/text/shortlist.h"

namespace megascale::minder {
namespace {

// What is compared: machines by their index in the recording, metrics by the models'.
struct MachineGroup {
  std::vector<size_t> machines;
};

// A metric that both the recording and the models have.
struct ComparedMetric {
  size_t column = 0;
  const MetricModel* model = nullptr;
  Limits limits;
};

std::vector<ComparedMetric> ComparedMetrics(const Recording& recording,
                                            const MinderModels& models) {
  std::vector<ComparedMetric> compared;
  for (const MetricModel& model : models.metrics) {
    const auto at = std::find(recording.metrics.begin(), recording.metrics.end(), model.name);
    if (at == recording.metrics.end()) continue;
    compared.push_back({static_cast<size_t>(at - recording.metrics.begin()), &model, model.limits});
  }
  return compared;
}

// Returns the columns that no model is for, in words; "": there are none.
std::string WithoutModel(const Recording& recording, const MinderModels& models) {
  std::vector<std::string> names;
  for (const std::string& metric : recording.metrics) {
    const bool has_model =
        std::any_of(models.metrics.begin(), models.metrics.end(),
                    [&](const MetricModel& model) { return model.name == metric; });
    if (!has_model) names.push_back(metric);
  }
  if (names.empty()) return "";
  return absl::StrCat("no model for ", base::Shortlist(names),
                      ": not compared; `megascale minder train` makes models");
}

// Returns the longest time without a sample from `begin` to `end`.
double LongestGap(const std::vector<Sample>& samples, double begin, double end) {
  std::vector<double> times = {begin, end};
  for (const Sample& sample : samples) {
    const bool is_inside = sample.seconds > begin && sample.seconds < end;
    if (is_inside && std::isfinite(sample.value)) times.push_back(sample.seconds);
  }
  std::sort(times.begin(), times.end());
  double longest = 0;
  for (size_t i = 1; i < times.size(); ++i) longest = std::max(longest, times[i] - times[i - 1]);
  return longest;
}

// Returns whether the machine measured the metrics often enough; else adds why not.
bool IsMeasured(const RecordedMachine& machine, const std::vector<ComparedMetric>& metrics,
                const CommonTime& time, std::vector<std::string>* notes) {
  for (const ComparedMetric& metric : metrics) {
    const double gap =
        LongestGap(machine.metrics[metric.column], time.begin, time.begin + time.num_seconds - 1);
    if (gap <= kGapSecondsMax) continue;
    notes->push_back(absl::StrCat("machine ", machine.name, ": has no ", metric.model->name,
                                  " for ", static_cast<int>(gap), " s; it is not compared"));
    return false;
  }
  return true;
}

std::vector<MetricSeries> SeriesOf(const Recording& recording, const MachineGroup& group,
                                   const CommonTime& time, std::vector<ComparedMetric>* metrics) {
  std::vector<MetricSeries> all;
  for (ComparedMetric& metric : *metrics) {
    metric.limits = metric.model->limits;
    MetricSeries series = {metric.model->name, {}};
    for (const size_t machine : group.machines) {
      if (!metric.model->has_open_limit) break;
      const auto& samples = recording.machines[machine].metrics[metric.column];
      metric.limits = Raised(metric.limits, absl::MakeConstSpan(&samples, 1));
    }
    for (const size_t machine : group.machines) {
      series.machines.push_back(Align(recording.machines[machine].metrics[metric.column],
                                      metric.limits, time.begin, time.num_seconds));
    }
    all.push_back(std::move(series));
  }
  return all;
}

// Returns the mean of seconds [begin, end) in the metric's unit.
double MeanOf(const std::vector<float>& values, size_t begin, size_t end, const Limits& limits) {
  double sum = 0;
  for (size_t i = begin; i < end; ++i) sum += values[i];
  const double share = end > begin ? sum / static_cast<double>(end - begin) : 0;
  return limits.lower + share * (limits.upper - limits.lower);
}

double MedianMean(const MetricSeries& series, size_t begin, size_t end, const Limits& limits) {
  std::vector<double> means;
  for (const auto& machine : series.machines) means.push_back(MeanOf(machine, begin, end, limits));
  return base::UpperMedian(std::move(means));
}

Verdict VerdictOf(const Suspect& suspect, const MetricSeries& series, const Limits& limits,
                  const CommonTime& time) {
  const auto machine = static_cast<size_t>(suspect.machine);
  const auto begin = static_cast<size_t>(suspect.begin);
  const auto end = std::min(static_cast<size_t>(suspect.end), series.machines[machine].size());
  Verdict verdict;
  verdict.metric = series.name;
  verdict.begin = time.begin + suspect.begin;
  verdict.seconds = suspect.end - suspect.begin;
  verdict.lasts = suspect.lasts;
  verdict.score = suspect.score;
  verdict.num_compared = series.machines.size();
  verdict.score_max = std::sqrt(static_cast<double>(verdict.num_compared - 1));
  verdict.distance = suspect.distance;
  verdict.value = MeanOf(series.machines[machine], begin, end, limits);
  verdict.usual = MedianMean(series, begin, end, limits);
  verdict.curve_begin = time.begin;
  const size_t length = series.machines[machine].size();
  for (size_t i = 0; i < kCurvePoints; ++i) {
    const size_t from = i * length / kCurvePoints;
    const size_t to = (i + 1) * length / kCurvePoints;
    verdict.curve.push_back(MeanOf(series.machines[machine], from, to, limits));
    verdict.usual_curve.push_back(MedianMean(series, from, to, limits));
  }
  return verdict;
}

// Returns the machines that can be compared, by group; adds notes about the others.
std::vector<MachineGroup> GroupsOf(const Recording& recording, const std::vector<int>& numbers,
                                   const std::vector<ComparedMetric>& metrics,
                                   const CommonTime& time, std::vector<std::string>* notes) {
  std::map<int, MachineGroup> by_number;
  std::set<size_t> left_out;
  for (const LeftOut& out : time.left_out) {
    left_out.insert(out.machine);
    notes->push_back(absl::StrCat("machine ", recording.machines[out.machine].name, ": ", out.why,
                                  "; it is not compared"));
  }
  for (size_t machine = 0; machine < recording.machines.size(); ++machine) {
    if (left_out.contains(machine)) continue;
    if (!IsMeasured(recording.machines[machine], metrics, time, notes)) continue;
    by_number[numbers.empty() ? 0 : numbers[machine]].machines.push_back(machine);
  }
  std::vector<MachineGroup> groups;
  for (auto& [number, group] : by_number) {
    if (group.machines.size() >= 3) {
      groups.push_back(std::move(group));
      continue;
    }
    for (const size_t machine : group.machines) {
      notes->push_back(absl::StrCat(
          "machine ", recording.machines[machine].name, ": only ", group.machines.size() - 1,
          " others should behave like it, and two are needed to tell who differs"));
    }
  }
  return groups;
}

}  // namespace

Examination Examine(const Recording& recording, const std::vector<int>& groups,
                    const MinderModels& models, const DetectorOptions& options) {
  Examination examination;
  const int needed = (options.needs_continuity ? options.continuity_windows : 1) + kWindow - 1;
  const CommonTime time = CommonTimeOf(
      recording,
      {.seconds_max = kExaminedSeconds, .seconds_needed = needed, .gap_seconds = kGapSecondsMax});
  examination.num_seconds = time.num_seconds;
  std::vector<ComparedMetric> metrics = ComparedMetrics(recording, models);
  if (std::string without = WithoutModel(recording, models); !without.empty()) {
    examination.notes.push_back(std::move(without));
  }
  if (time.num_seconds < needed) {
    examination.notes.push_back(absl::StrCat(
        "all machines were measured together for ", time.num_seconds, " s, and ", needed,
        " s are needed: the job ended too early, has just begun, or was interrupted"));
  }
  if (metrics.empty() || time.num_seconds < needed) return examination;
  std::vector<LstmVae> vaes;
  for (const ComparedMetric& metric : metrics) vaes.push_back(metric.model->model);
  for (const MachineGroup& group : GroupsOf(recording, groups, metrics, time, &examination.notes)) {
    examination.num_compared += group.machines.size();
    const std::vector<MetricSeries> series = SeriesOf(recording, group, time, &metrics);
    const std::optional<Suspect> suspect = FindSuspect(series, vaes, options);
    if (!suspect.has_value()) continue;
    const auto metric = static_cast<size_t>(suspect->metric);
    Verdict verdict = VerdictOf(*suspect, series[metric], metrics[metric].limits, time);
    verdict.machine =
        recording.machines[group.machines[static_cast<size_t>(suspect->machine)]].name;
    const bool is_better =
        !examination.verdict.has_value() || (verdict.lasts && !examination.verdict->lasts);
    if (is_better) examination.verdict = std::move(verdict);
  }
  return examination;
}

}  // namespace megascale::minder
