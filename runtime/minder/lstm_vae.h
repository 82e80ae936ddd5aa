// A small variational autoencoder of windows of a metric: an LSTM reads 8 values, a latent of 8
// numbers is drawn, and another LSTM reconstructs the values from it. Trained on normal data, it
// reconstructs the shape of a curve without the noise, so that machines can be compared. Pure; one
// model for each metric. This file trains; denoiser.h runs the model fast. Source: Deng et al.,
// NSDI '25 (Minder), section 4.2; window 8, hidden 4, latent 8. Threads: a const model may be used
// by several.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace megascale::minder {

inline constexpr int kWindow = 8;
inline constexpr int kHidden = 4;
inline constexpr int kLatent = 8;

using Window = std::array<float, kWindow>;

struct TrainOptions {
  int epochs = 30;
  double lr = 5e-3;         // of Adam; falls to a tenth of this
  double kl_weight = 1e-5;  // weight of the latent's divergence in the loss; the error's is 1
  int batch = 32;
  uint64_t seed = 1;
};

class LstmVae {
 public:
  // Number of weights.
  static constexpr size_t kNumWeights = 425;

  // Random weights.
  static LstmVae Create(uint64_t seed);
  // Errors: InvalidArgument - another number of weights, or one that is not finite.
  static absl::StatusOr<LstmVae> FromWeights(std::vector<double> weights);

  // Trains on windows with values of about 0 to 1; returns the mean squared error of the last
  // epoch. Requires: there are windows. Determinism: the same arguments give the same weights.
  double Train(absl::Span<const Window> windows, const TrainOptions& options = {});

  // Returns the loss of a window with this draw of the latent, and adds the loss's gradient to
  // `gradient_N` unless `gradient_N` is empty. For tests and for Train.
  double Loss(const Window& window, absl::Span<const double> noise_L, double kl_weight,
              absl::Span<double> gradient_N) const;

  const std::vector<double>& weights() const { return weights_; }
  std::vector<double>& weights() { return weights_; }

 private:
  explicit LstmVae(std::vector<double> weights) : weights_(std::move(weights)) {}
  std::vector<double> weights_;
};

}  // namespace megascale::minder
