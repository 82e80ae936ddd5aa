#include "runtime/minder/distance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace megascale::minder {
namespace {

// Keeps a covariance invertible where machines hardly differ.
constexpr double kRidge = 1e-6;

// Returns a lower triangle L with L L' = the covariance of the columns.
std::vector<double> Factor(const Embedded& e, size_t num_machines,
                           const std::vector<double>& mean) {
  const size_t dims = e.num_rows;
  std::vector<double> factor(dims * dims);
  for (size_t i = 0; i < dims; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (size_t m = 0; m < num_machines; ++m) {
        sum += (e.rows[i * e.stride + m] - mean[i]) * (e.rows[j * e.stride + m] - mean[j]);
      }
      sum /= static_cast<double>(num_machines);
      if (i == j) sum += kRidge;
      for (size_t k = 0; k < j; ++k) sum -= factor[i * dims + k] * factor[j * dims + k];
      factor[i * dims + j] = i == j ? std::sqrt(std::max(sum, kRidge)) : sum / factor[j * dims + j];
    }
  }
  return factor;
}

}  // namespace

std::vector<double> MeanDistances(const Embedded& embedded, size_t num_machines) {
  std::vector<size_t> references(std::min(num_machines, kReferencesMax));
  for (size_t r = 0; r < references.size(); ++r) {
    references[r] = r * num_machines / references.size();
  }
  std::vector<float> sums(embedded.stride);
  SumDistances(embedded, references, sums.data());
  // A machine has no distance from itself. It would make the references nearer than the others.
  const double scale = 1 / std::sqrt(static_cast<double>(embedded.num_rows));
  std::vector<double> distances(num_machines);
  const auto num_others = static_cast<double>(std::max<size_t>(1, references.size() - 1));
  for (size_t m = 0; m < num_machines; ++m) {
    distances[m] = sums[m] * scale / static_cast<double>(std::max<size_t>(1, references.size()));
  }
  for (const size_t reference : references) {
    distances[reference] = sums[reference] * scale / num_others;
  }
  return distances;
}

std::vector<double> MahalanobisDistances(const Embedded& embedded, size_t num_machines) {
  const size_t dims = embedded.num_rows;
  std::vector<double> mean(dims);
  for (size_t d = 0; d < dims; ++d) {
    const float* row = embedded.rows + d * embedded.stride;
    mean[d] = std::accumulate(row, row + num_machines, 0.0) / static_cast<double>(num_machines);
  }
  const std::vector<double> factor = Factor(embedded, num_machines, mean);
  std::vector<double> distances(num_machines);
  std::vector<double> solved(dims);
  for (size_t m = 0; m < num_machines; ++m) {
    double square = 0;
    for (size_t i = 0; i < dims; ++i) {
      double sum = embedded.rows[i * embedded.stride + m] - mean[i];
      for (size_t k = 0; k < i; ++k) sum -= factor[i * dims + k] * solved[k];
      solved[i] = sum / factor[i * dims + i];
      square += solved[i] * solved[i];
    }
    distances[m] = std::sqrt(square);
  }
  return distances;
}

std::vector<double> NormalScores(absl::Span<const double> distances) {
  const auto n = static_cast<double>(distances.size());
  std::vector<double> scores(distances.size());
  if (distances.empty()) return scores;
  const double mean = std::accumulate(distances.begin(), distances.end(), 0.0) / n;
  double square = 0;
  for (const double distance : distances) square += (distance - mean) * (distance - mean);
  const double deviation = std::sqrt(square / n);
  if (deviation <= 0 || !std::isfinite(deviation)) return scores;
  std::transform(distances.begin(), distances.end(), scores.begin(),
                 [&](double distance) { return (distance - mean) / deviation; });
  return scores;
}

}  // namespace megascale::minder
