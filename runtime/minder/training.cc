#include "runtime/minder/training.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "runtime/minder/denoiser.h"

namespace megascale::minder {
namespace {

double Uniform(std::mt19937_64* random) {
  return static_cast<double>((*random)() >> 11) * 0x1.0p-53;
}

// Returns the window's shape, weaker or stronger, around another level.
Window AtLevel(const Window& window, double level, double factor) {
  double mean = 0;
  for (const float value : window) mean += value / kWindow;
  Window copy;
  for (int t = 0; t < kWindow; ++t) {
    copy[t] = static_cast<float>(std::clamp(level + factor * (window[t] - mean), 0.0, 1.0));
  }
  return copy;
}

// The newest seconds of a recording that are read.
constexpr int kSecondsMax = 24 * 60 * 60;

double LargestOf(absl::Span<const Recording> recordings, const std::string& metric) {
  Limits limits = {0, 0};
  for (const Recording& recording : recordings) {
    for (size_t m = 0; m < recording.metrics.size(); ++m) {
      if (recording.metrics[m] != metric) continue;
      for (const RecordedMachine& machine : recording.machines) {
        limits = Raised(limits, absl::MakeConstSpan(&machine.metrics[m], 1));
      }
    }
  }
  return limits.upper;
}

bool Has(const Recording& recording, const std::string& metric) {
  return std::find(recording.metrics.begin(), recording.metrics.end(), metric) !=
         recording.metrics.end();
}

std::vector<MetricKind> KindsIn(absl::Span<const Recording> recordings,
                                absl::Span<const MetricKind> kinds) {
  std::vector<MetricKind> found;
  for (const MetricKind& kind : kinds) {
    const bool is_known =
        std::any_of(recordings.begin(), recordings.end(),
                    [&](const Recording& recording) { return Has(recording, kind.name); });
    if (is_known) found.push_back(kind);
  }
  for (const Recording& recording : recordings) {
    for (const std::string& metric : recording.metrics) {
      const bool is_known = std::any_of(
          found.begin(), found.end(), [&](const MetricKind& kind) { return kind.name == metric; });
      if (is_known) continue;
      const double largest = LargestOf(recordings, metric);
      found.push_back({metric, {0, largest > 0 ? largest : 1}, true});
    }
  }
  return found;
}

// Appends the metric's aligned series of all machines of a recording.
void AddSeries(const Recording& recording, const MetricKind& kind,
               std::vector<MetricSeries>* series) {
  const CommonTime common = CommonTimeOf(recording, {.seconds_max = kSecondsMax});
  const auto at = std::find(recording.metrics.begin(), recording.metrics.end(), kind.name);
  if (at == recording.metrics.end() || common.num_seconds < kWindow) return;
  const auto index = static_cast<size_t>(at - recording.metrics.begin());
  Limits limits = kind.limits;
  MetricSeries aligned = {kind.name, {}};
  for (const RecordedMachine& machine : recording.machines) {
    if (kind.has_open_limit) {
      limits = Raised(limits, absl::MakeConstSpan(&machine.metrics[index], 1));
    }
  }
  for (const RecordedMachine& machine : recording.machines) {
    if (machine.metrics[index].empty()) continue;
    aligned.machines.push_back(
        Align(machine.metrics[index], limits, common.begin, common.num_seconds));
  }
  series->push_back(std::move(aligned));
}

}  // namespace

std::vector<Window> TrainingWindows(absl::Span<const MetricSeries> recordings,
                                    const TrainingSetOptions& options) {
  std::vector<const std::vector<float>*> series;
  for (const MetricSeries& recording : recordings) {
    for (const std::vector<float>& machine : recording.machines) {
      if (machine.size() >= kWindow) series.push_back(&machine);
    }
  }
  std::vector<Window> windows;
  if (series.empty()) return windows;
  std::mt19937_64 random(options.seed);
  for (int i = 0; i < options.num_windows; ++i) {
    const std::vector<float>& chosen = *series[static_cast<size_t>(i) % series.size()];
    const size_t begin = random() % (chosen.size() - kWindow + 1);
    Window window;
    std::copy_n(chosen.begin() + static_cast<std::ptrdiff_t>(begin), kWindow, window.begin());
    windows.push_back(window);
  }
  const size_t num_own = windows.size();
  const auto copies = static_cast<size_t>(options.level_copies * static_cast<double>(num_own));
  for (size_t i = 0; i < copies; ++i) {
    const double level = Uniform(&random);
    windows.push_back(AtLevel(windows[i % num_own], level, 2 * Uniform(&random)));
  }
  return windows;
}

double ReconstructionError(const LstmVae& model, absl::Span<const Window> windows) {
  if (windows.empty()) return 0;
  std::vector<std::vector<float>> machines;
  for (const Window& window : windows) machines.emplace_back(window.begin(), window.end());
  const SecondsGrid grid(machines);
  std::vector<float> out(kWindow * grid.stride());
  Denoiser(model).Reconstruct(grid, 0, out.data());
  double sum = 0;
  for (size_t m = 0; m < machines.size(); ++m) {
    for (size_t t = 0; t < kWindow; ++t) {
      const double error = out[t * grid.stride() + m] - machines[m][t];
      sum += error * error;
    }
  }
  return sum / static_cast<double>(machines.size() * kWindow);
}

absl::StatusOr<MinderModels> TrainModels(absl::Span<const Recording> recordings,
                                         absl::Span<const MetricKind> kinds,
                                         const TrainingOptions& options) {
  const std::vector<MetricKind> wanted = KindsIn(recordings, kinds);
  std::vector<std::vector<Window>> windows;
  for (const MetricKind& kind : wanted) {
    std::vector<MetricSeries> series;
    for (const Recording& recording : recordings) AddSeries(recording, kind, &series);
    windows.push_back(TrainingWindows(series, options.set));
  }
  if (std::all_of(windows.begin(), windows.end(), [](const auto& of) { return of.empty(); })) {
    return absl::InvalidArgumentError(
        "the recordings have no eight seconds that all their machines have in common; record a job "
        "for some minutes (`megascale minder record`)");
  }
  std::vector<LstmVae> trained(wanted.size(), LstmVae::Create(options.model.seed));
  const auto count = static_cast<int>(wanted.size());
#pragma omp parallel for schedule(dynamic, 1) num_threads(options.num_threads)
  for (int m = 0; m < count; ++m) {
    const auto index = static_cast<size_t>(m);
    if (!windows[index].empty()) trained[index].Train(windows[index], options.model);
  }
  MinderModels models;
  for (size_t m = 0; m < wanted.size(); ++m) {
    if (windows[m].empty()) continue;
    models.metrics.push_back(
        {wanted[m].name, wanted[m].limits, wanted[m].has_open_limit, std::move(trained[m])});
  }
  return models;
}

}  // namespace megascale::minder
