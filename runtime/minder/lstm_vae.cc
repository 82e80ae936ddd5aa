#include "runtime/minder/lstm_vae.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/minder/weight_layout.h"

namespace megascale::minder {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// One step of an LSTM, with what its backward needs.
struct Cell {
  std::array<double, kGates> gate = {};  // after their functions
  std::array<double, kHidden> c_before = {};
  std::array<double, kHidden> h_before = {};
  std::array<double, kHidden> c = {};
  std::array<double, kHidden> h = {};
};

// Sets the cell from the sums before the gates' functions.
void Step(const std::array<double, kGates>& sums, Cell* cell) {
  for (int j = 0; j < kHidden; ++j) {
    const double input = Sigmoid(sums[j]);
    const double forget = Sigmoid(sums[kHidden + j]);
    const double candidate = std::tanh(sums[2 * kHidden + j]);
    const double output = Sigmoid(sums[3 * kHidden + j]);
    cell->c[j] = forget * cell->c_before[j] + input * candidate;
    cell->h[j] = output * std::tanh(cell->c[j]);
    cell->gate[j] = input;
    cell->gate[kHidden + j] = forget;
    cell->gate[2 * kHidden + j] = candidate;
    cell->gate[3 * kHidden + j] = output;
  }
}

// Returns the gradient of the sums. `d_h`, `d_c`: of this step's results; overwritten: `d_c`
// becomes that of the state before.
std::array<double, kGates> StepBackward(const Cell& cell, const std::array<double, kHidden>& d_h,
                                        std::array<double, kHidden>* d_c) {
  std::array<double, kGates> d_sums = {};
  for (int j = 0; j < kHidden; ++j) {
    const double input = cell.gate[j];
    const double forget = cell.gate[kHidden + j];
    const double candidate = cell.gate[2 * kHidden + j];
    const double output = cell.gate[3 * kHidden + j];
    const double tanh_c = std::tanh(cell.c[j]);
    const double d = (*d_c)[j] + d_h[j] * output * (1 - tanh_c * tanh_c);
    d_sums[j] = d * candidate * input * (1 - input);
    d_sums[kHidden + j] = d * cell.c_before[j] * forget * (1 - forget);
    d_sums[2 * kHidden + j] = d * input * (1 - candidate * candidate);
    d_sums[3 * kHidden + j] = d_h[j] * tanh_c * output * (1 - output);
    (*d_c)[j] = d * forget;
  }
  return d_sums;
}

// What one pass computed.
struct Trace {
  std::array<Cell, kWindow> encoder;
  std::array<double, kLatent> mean = {};
  std::array<double, kLatent> log_variance = {};
  std::array<double, kLatent> latent = {};
  std::array<double, kHidden> begin = {};  // the decoder's first state
  std::array<Cell, kWindow> decoder;
  std::array<double, kWindow> out = {};
};

void Encode(const double* w, const Window& window, Trace* trace) {
  for (int t = 0; t < kWindow; ++t) {
    Cell& cell = trace->encoder[t];
    if (t > 0) {
      cell.h_before = trace->encoder[t - 1].h;
      cell.c_before = trace->encoder[t - 1].c;
    }
    std::array<double, kGates> sums;
    for (int g = 0; g < kGates; ++g) {
      sums[g] = w[WeightLayout::kEncoderBias + g] + w[WeightLayout::kEncoderInput + g] * window[t];
      for (int j = 0; j < kHidden; ++j) {
        sums[g] += w[WeightLayout::kEncoderState + g * kHidden + j] * cell.h_before[j];
      }
    }
    Step(sums, &cell);
  }
}

void DrawLatent(const double* w, absl::Span<const double> noise_L, Trace* trace) {
  const std::array<double, kHidden>& h = trace->encoder.back().h;
  for (int l = 0; l < kLatent; ++l) {
    trace->mean[l] = w[WeightLayout::kMeanBias + l];
    trace->log_variance[l] = w[WeightLayout::kSpreadBias + l];
    for (int j = 0; j < kHidden; ++j) {
      trace->mean[l] += w[WeightLayout::kMean + l * kHidden + j] * h[j];
      trace->log_variance[l] += w[WeightLayout::kSpread + l * kHidden + j] * h[j];
    }
    trace->latent[l] = trace->mean[l] + noise_L[l] * std::exp(0.5 * trace->log_variance[l]);
  }
}

void Decode(const double* w, Trace* trace) {
  for (int j = 0; j < kHidden; ++j) {
    double sum = w[WeightLayout::kBeginBias + j];
    for (int l = 0; l < kLatent; ++l) {
      sum += w[WeightLayout::kBegin + j * kLatent + l] * trace->latent[l];
    }
    trace->begin[j] = std::tanh(sum);
  }
  for (int t = 0; t < kWindow; ++t) {
    Cell& cell = trace->decoder[t];
    cell.h_before = t == 0 ? trace->begin : trace->decoder[t - 1].h;
    if (t > 0) cell.c_before = trace->decoder[t - 1].c;
    std::array<double, kGates> sums;
    for (int g = 0; g < kGates; ++g) {
      sums[g] = w[WeightLayout::kDecoderBias + g];
      for (int l = 0; l < kLatent; ++l) {
        sums[g] += w[WeightLayout::kDecoderInput + g * kLatent + l] * trace->latent[l];
      }
      for (int j = 0; j < kHidden; ++j) {
        sums[g] += w[WeightLayout::kDecoderState + g * kHidden + j] * cell.h_before[j];
      }
    }
    Step(sums, &cell);
    trace->out[t] = w[WeightLayout::kOutBias];
    for (int j = 0; j < kHidden; ++j) trace->out[t] += w[WeightLayout::kOut + j] * cell.h[j];
  }
}

// Adds the decoder's gradients; returns those of the latent.
std::array<double, kLatent> DecodeBackward(const double* w, const Trace& trace,
                                           const std::array<double, kWindow>& d_out, double* g) {
  std::array<double, kLatent> d_latent = {};
  std::array<double, kHidden> d_h = {};
  std::array<double, kHidden> d_c = {};
  for (int t = kWindow - 1; t >= 0; --t) {
    const Cell& cell = trace.decoder[t];
    g[WeightLayout::kOutBias] += d_out[t];
    for (int j = 0; j < kHidden; ++j) {
      g[WeightLayout::kOut + j] += d_out[t] * cell.h[j];
      d_h[j] += d_out[t] * w[WeightLayout::kOut + j];
    }
    const std::array<double, kGates> d_sums = StepBackward(cell, d_h, &d_c);
    d_h = {};
    for (int k = 0; k < kGates; ++k) {
      g[WeightLayout::kDecoderBias + k] += d_sums[k];
      for (int l = 0; l < kLatent; ++l) {
        g[WeightLayout::kDecoderInput + k * kLatent + l] += d_sums[k] * trace.latent[l];
        d_latent[l] += d_sums[k] * w[WeightLayout::kDecoderInput + k * kLatent + l];
      }
      for (int j = 0; j < kHidden; ++j) {
        g[WeightLayout::kDecoderState + k * kHidden + j] += d_sums[k] * cell.h_before[j];
        d_h[j] += d_sums[k] * w[WeightLayout::kDecoderState + k * kHidden + j];
      }
    }
  }
  for (int j = 0; j < kHidden; ++j) {
    const double d_sum = d_h[j] * (1 - trace.begin[j] * trace.begin[j]);
    g[WeightLayout::kBeginBias + j] += d_sum;
    for (int l = 0; l < kLatent; ++l) {
      g[WeightLayout::kBegin + j * kLatent + l] += d_sum * trace.latent[l];
      d_latent[l] += d_sum * w[WeightLayout::kBegin + j * kLatent + l];
    }
  }
  return d_latent;
}

void EncodeBackward(const double* w, const Window& window, const Trace& trace,
                    std::array<double, kHidden> d_h, double* g) {
  std::array<double, kHidden> d_c = {};
  for (int t = kWindow - 1; t >= 0; --t) {
    const Cell& cell = trace.encoder[t];
    const std::array<double, kGates> d_sums = StepBackward(cell, d_h, &d_c);
    d_h = {};
    for (int k = 0; k < kGates; ++k) {
      g[WeightLayout::kEncoderBias + k] += d_sums[k];
      g[WeightLayout::kEncoderInput + k] += d_sums[k] * window[t];
      for (int j = 0; j < kHidden; ++j) {
        g[WeightLayout::kEncoderState + k * kHidden + j] += d_sums[k] * cell.h_before[j];
        d_h[j] += d_sums[k] * w[WeightLayout::kEncoderState + k * kHidden + j];
      }
    }
  }
}

}  // namespace

LstmVae LstmVae::Create(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> weights(kNumWeights);
  // Uniform numbers of a fixed recipe: the library's distributions differ between versions.
  for (double& weight : weights) {
    weight = (static_cast<double>(random() >> 11) * 0x1.0p-53 - 0.5) * 0.8;
  }
  return LstmVae(std::move(weights));
}

absl::StatusOr<LstmVae> LstmVae::FromWeights(std::vector<double> weights) {
  if (weights.size() != kNumWeights) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has ", weights.size(), " weights; expected ", kNumWeights));
  }
  if (!std::all_of(weights.begin(), weights.end(), [](double w) { return std::isfinite(w); })) {
    return absl::InvalidArgumentError("the model has a weight that is not finite; train it again");
  }
  return LstmVae(std::move(weights));
}

double LstmVae::Loss(const Window& window, absl::Span<const double> noise_L, double kl_weight,
                     absl::Span<double> gradient_N) const {
  const double* w = weights_.data();
  Trace trace;
  Encode(w, window, &trace);
  DrawLatent(w, noise_L, &trace);
  Decode(w, &trace);
  double loss = 0;
  std::array<double, kWindow> d_out;
  for (int t = 0; t < kWindow; ++t) {
    const double error = trace.out[t] - window[t];
    loss += error * error / kWindow;
    d_out[t] = 2 * error / kWindow;
  }
  for (int l = 0; l < kLatent; ++l) {
    loss += kl_weight * 0.5 *
            (std::exp(trace.log_variance[l]) + trace.mean[l] * trace.mean[l] - 1 -
             trace.log_variance[l]);
  }
  if (gradient_N.empty()) return loss;
  double* g = gradient_N.data();
  const std::array<double, kLatent> d_latent = DecodeBackward(w, trace, d_out, g);
  std::array<double, kHidden> d_h = {};
  const std::array<double, kHidden>& h = trace.encoder.back().h;
  for (int l = 0; l < kLatent; ++l) {
    const double deviation = std::exp(0.5 * trace.log_variance[l]);
    const double d_mean = d_latent[l] + kl_weight * trace.mean[l];
    const double d_spread =
        d_latent[l] * noise_L[l] * 0.5 * deviation + kl_weight * 0.5 * (deviation * deviation - 1);
    g[WeightLayout::kMeanBias + l] += d_mean;
    g[WeightLayout::kSpreadBias + l] += d_spread;
    for (int j = 0; j < kHidden; ++j) {
      g[WeightLayout::kMean + l * kHidden + j] += d_mean * h[j];
      g[WeightLayout::kSpread + l * kHidden + j] += d_spread * h[j];
      d_h[j] += d_mean * w[WeightLayout::kMean + l * kHidden + j] +
                d_spread * w[WeightLayout::kSpread + l * kHidden + j];
    }
  }
  EncodeBackward(w, window, trace, d_h, g);
  return loss;
}

double LstmVae::Train(absl::Span<const Window> windows, const TrainOptions& options) {
  std::mt19937_64 random(options.seed);
  // Sums of uniform numbers are normal enough for a draw, and the same everywhere.
  const auto normal = [&] {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random() >> 11) * 0x1.0p-53;
    return sum;
  };
  std::vector<size_t> order(windows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<double> first(kNumWeights);
  std::vector<double> second(kNumWeights);
  int64_t step = 0;
  double mean = 0;
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    const double lr = options.lr * (1 - 0.9 * epoch / std::max(1, options.epochs - 1));
    double sum = 0;
    for (size_t begin = 0; begin < order.size(); begin += static_cast<size_t>(options.batch)) {
      const size_t end = std::min(order.size(), begin + static_cast<size_t>(options.batch));
      std::vector<double> gradient(kNumWeights);
      for (size_t i = begin; i < end; ++i) {
        std::array<double, kLatent> noise;
        for (double& value : noise) value = normal();
        sum += Loss(windows[order[i]], noise, options.kl_weight, absl::MakeSpan(gradient));
      }
      ++step;
      for (size_t k = 0; k < kNumWeights; ++k) {
        const double g = gradient[k] / static_cast<double>(end - begin);
        first[k] = 0.9 * first[k] + 0.1 * g;
        second[k] = 0.999 * second[k] + 0.001 * g * g;
        const double m = first[k] / (1 - std::pow(0.9, step));
        const double v = second[k] / (1 - std::pow(0.999, step));
        weights_[k] -= lr * m / (std::sqrt(v) + 1e-8);
      }
    }
    mean = sum / static_cast<double>(order.size());
  }
  return mean;
}

}  // namespace megascale::minder
