#include "runtime/minder/detector.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/minder/denoiser.h"
#include "runtime/minder/distance.h"

namespace megascale::minder {
namespace {

// Windows that are scored before continuity is looked at: enough for every thread.
constexpr int kWindowsAtOnce = 64;

// The metrics that are compared together: one, or all of them concatenated.
struct Compared {
  std::vector<SecondsGrid> grids;
  std::vector<const Denoiser*> denoisers;  // null: the window itself
  size_t num_machines() const { return grids[0].num_machines(); }
  int num_windows() const { return static_cast<int>(grids[0].num_seconds()) - kWindow + 1; }
};

struct Scores {
  std::vector<double> scores;
  std::vector<double> distances;
};

Scores ScoresOf(const Compared& compared, int window, const DetectorOptions& options,
                std::vector<float>* rows) {
  const size_t stride = compared.grids[0].stride();
  rows->resize(compared.grids.size() * kWindow * stride);
  for (size_t i = 0; i < compared.grids.size(); ++i) {
    float* out = rows->data() + i * kWindow * stride;
    const auto second = static_cast<size_t>(window);
    if (compared.denoisers[i] != nullptr) {
      compared.denoisers[i]->Reconstruct(compared.grids[i], second, out);
    } else {
      std::copy_n(compared.grids[i].second(second), kWindow * stride, out);
    }
  }
  const Embedded embedded = {rows->data(), rows->size() / stride, stride};
  Scores scores;
  scores.distances = options.distance == Distance::kEuclidean
                         ? MeanDistances(embedded, compared.num_machines())
                         : MahalanobisDistances(embedded, compared.num_machines());
  scores.scores = NormalScores(scores.distances);
  return scores;
}

// How long each machine has been a candidate.
class Continuity {
 public:
  Continuity(const DetectorOptions& options, size_t num_machines)
      : options_(options), threshold_(ScoreThreshold(options, num_machines)), runs_(num_machines) {}

  // Takes the next window.
  void Take(int window, const Scores& scores) {
    const auto highest = std::max_element(scores.scores.begin(), scores.scores.end());
    for (size_t m = 0; m < runs_.size(); ++m) {
      const bool is_chosen =
          !options_.has_one_candidate || static_cast<size_t>(highest - scores.scores.begin()) == m;
      Extend(is_chosen && IsCandidate(scores, m), window, {scores.scores[m], scores.distances[m]},
             &runs_[m]);
    }
    if (suspect_ >= 0 && runs_[static_cast<size_t>(suspect_)].length == 0) {
      const Run& run = runs_[static_cast<size_t>(suspect_)];
      if (!over_.has_value()) {
        over_ = SuspectWith(run.last_length, run.last_score, run.last_distance);
        over_->end = over_->begin + run.last_length;
      }
      suspect_ = -1;
    }
    if (suspect_ < 0) Choose();
  }

  // Returns the suspect that lasts; without one, the first that is over.
  std::optional<Suspect> suspect(int metric, int num_windows) const {
    std::optional<Suspect> suspect = over_;
    if (suspect_ >= 0) {
      const Run& run = runs_[static_cast<size_t>(suspect_)];
      suspect = SuspectWith(run.length, run.score, run.distance);
      suspect->lasts = true;
      suspect->end = num_windows + kWindow - 1;
    }
    if (suspect.has_value()) suspect->metric = metric;
    return suspect;
  }

 private:
  struct Run {
    int begin = 0;
    int length = 0;
    double score = 0;  // sums
    double distance = 0;
    int last_length = 0;  // of the run that ended last
    double last_score = 0;
    double last_distance = 0;
  };

  // `score` and `distance` are sums over the run.
  Suspect SuspectWith(int length, double score, double distance) const {
    Suspect suspect = found_;
    suspect.machine = suspect_;
    suspect.score = score / std::max(1, length);
    suspect.distance = distance / std::max(1, length);
    return suspect;
  }

  bool IsCandidate(const Scores& scores, size_t machine) const {
    const bool is_far = options_.distance == Distance::kMahalanobis ||
                        scores.distances[machine] >= options_.distance_min;
    return scores.scores[machine] >= threshold_ && is_far;
  }

  static void Extend(bool is_candidate, int window, std::pair<double, double> score_and_distance,
                     Run* run) {
    if (!is_candidate) {
      if (run->length > 0) {
        run->last_length = run->length;
        run->last_score = run->score;
        run->last_distance = run->distance;
      }
      run->length = 0;
      return;
    }
    if (run->length == 0) {
      run->begin = window;
      run->score = 0;
      run->distance = 0;
    }
    ++run->length;
    run->score += score_and_distance.first;
    run->distance += score_and_distance.second;
  }

  void Choose() {
    const int needed = options_.needs_continuity ? options_.continuity_windows : 1;
    for (size_t m = 0; m < runs_.size(); ++m) {
      const Run& run = runs_[m];
      if (run.length < needed) continue;
      if (suspect_ >= 0 && run.score <= runs_[static_cast<size_t>(suspect_)].score) continue;
      suspect_ = static_cast<int>(m);
      found_.begin = run.begin;
      found_.found = run.begin + run.length - 1 + kWindow;
    }
  }

  const DetectorOptions& options_;
  const double threshold_;
  std::vector<Run> runs_;
  int suspect_ = -1;  // the machine whose run is long enough and lasts
  Suspect found_;
  std::optional<Suspect> over_;  // the first whose run has ended
};

std::optional<Suspect> FindIn(const Compared& compared, const DetectorOptions& options,
                              int first_metric) {
  const int num_windows = compared.num_windows();
  Continuity continuity(options, compared.num_machines());
  std::vector<Scores> scores(kWindowsAtOnce);
  for (int begin = 0; begin < num_windows; begin += kWindowsAtOnce) {
    const int count = std::min(kWindowsAtOnce, num_windows - begin);
#pragma omp parallel num_threads(options.num_threads)
    {
      std::vector<float> rows;
#pragma omp for schedule(dynamic, 4)
      for (int i = 0; i < count; ++i) {
        scores[static_cast<size_t>(i)] = ScoresOf(compared, begin + i, options, &rows);
      }
    }
    for (int i = 0; i < count; ++i) {
      continuity.Take(begin + i, scores[static_cast<size_t>(i)]);
    }
  }
  return continuity.suspect(first_metric, num_windows);
}

bool IsComparable(absl::Span<const MetricSeries> metrics) {
  return !metrics.empty() && metrics[0].machines.size() >= 3 &&
         metrics[0].machines[0].size() >= kWindow;
}

}  // namespace

double ScoreThreshold(const DetectorOptions& options, size_t n) {
  return std::min(options.score_min, options.score_share_min * HighestScore(n));
}

std::optional<Suspect> FindSuspect(absl::Span<const MetricSeries> metrics,
                                   absl::Span<const LstmVae> models,
                                   const DetectorOptions& options) {
  if (!IsComparable(metrics)) return std::nullopt;
  const bool is_raw =
      options.embedding == Embedding::kRaw || options.distance == Distance::kMahalanobis;
  std::vector<Denoiser> denoisers;
  for (size_t m = 0; m < metrics.size() && !is_raw; ++m) {
    denoisers.emplace_back(models[options.embedding == Embedding::kOneModel ? 0 : m]);
  }
  const bool is_together = options.embedding == Embedding::kAllConcatenated;
  Compared compared;
  std::optional<Suspect> over;
  for (size_t m = 0; m < metrics.size(); ++m) {
    compared.grids.emplace_back(metrics[m].machines);
    compared.denoisers.push_back(is_raw ? nullptr : &denoisers[m]);
    if (is_together) continue;
    const auto suspect = FindIn(compared, options, static_cast<int>(m));
    if (suspect.has_value() && suspect->lasts) return suspect;
    if (!over.has_value()) over = suspect;
    compared = Compared();
  }
  return is_together ? FindIn(compared, options, 0) : over;
}

}  // namespace megascale::minder
