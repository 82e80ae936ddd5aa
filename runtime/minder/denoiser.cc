#include "runtime/minder/denoiser.h"

#include <cstring>

#include "runtime/minder/weight_layout.h"

// The body of a kernel is compiled once for each kind of processor that a caller of it names.
#define MEGASCALE_BODY static inline __attribute__((always_inline))

namespace megascale::minder {
namespace {

// A vector of the compiler: it is split where the processor's are shorter.
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

MEGASCALE_BODY Lanes Load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

MEGASCALE_BODY void Store(const Lanes& lanes, float* to) { std::memcpy(to, &lanes, sizeof(lanes)); }

MEGASCALE_BODY Lanes All(float value) { return Lanes{} + value; }

// A rational approximation of tanh; its error is below 1e-6.
MEGASCALE_BODY Lanes FastTanh(Lanes x) {
  const Lanes limit = All(7.9f);
  x = x > limit ? limit : x;
  x = x < -limit ? -limit : x;
  const Lanes s = x * x;
  const Lanes p =
      x * (4.89352455891786e-3f +
           s * (6.37261928875436e-4f +
                s * (1.48572235717979e-5f +
                     s * (5.12229709037114e-8f +
                          s * (-8.60467152213735e-11f +
                               s * (2.00018790482477e-13f + s * -2.76076847742355e-16f))))));
  const Lanes q =
      4.89352518554385e-3f +
      s * (2.26843463243900e-3f + s * (1.18534705686654e-4f + s * 1.19825839466702e-6f));
  return p / q;
}

MEGASCALE_BODY Lanes FastSigmoid(const Lanes& x) { return 0.5f + 0.5f * FastTanh(0.5f * x); }

// The state of an LSTM in each lane.
struct State {
  Lanes h[kHidden] = {};
  Lanes c[kHidden] = {};
};

MEGASCALE_BODY void Step(const Lanes* sums, State* state) {
  for (int j = 0; j < kHidden; ++j) {
    const Lanes forget = FastSigmoid(sums[kHidden + j]);
    state->c[j] = forget * state->c[j] + FastSigmoid(sums[j]) * FastTanh(sums[2 * kHidden + j]);
    state->h[j] = FastSigmoid(sums[3 * kHidden + j]) * FastTanh(state->c[j]);
  }
}

MEGASCALE_BODY void AddStates(const float* matrix, const State& state, Lanes* sums) {
  for (int g = 0; g < kGates; ++g) {
    for (int j = 0; j < kHidden; ++j) sums[g] += matrix[g * kHidden + j] * state.h[j];
  }
}

MEGASCALE_BODY void EncodeLanes(const float* w, const float* x, size_t stride, State* state) {
  Lanes sums[kGates];
  for (size_t t = 0; t < kWindow; ++t) {
    const Lanes value = Load(x + t * stride);
    for (int g = 0; g < kGates; ++g) {
      sums[g] = w[WeightLayout::kEncoderBias + g] + w[WeightLayout::kEncoderInput + g] * value;
    }
    AddStates(w + WeightLayout::kEncoderState, *state, sums);
    Step(sums, state);
  }
}

MEGASCALE_BODY void DecodeLanes(const float* w, const Lanes* latent, float* out, size_t stride) {
  State state;
  for (int j = 0; j < kHidden; ++j) {
    Lanes sum = All(w[WeightLayout::kBeginBias + j]);
    for (int l = 0; l < kLatent; ++l) sum += w[WeightLayout::kBegin + j * kLatent + l] * latent[l];
    state.h[j] = FastTanh(sum);
  }
  // The latent's part of the sums is the same in every step.
  Lanes from_latent[kGates];
  for (int g = 0; g < kGates; ++g) {
    from_latent[g] = All(w[WeightLayout::kDecoderBias + g]);
    for (int l = 0; l < kLatent; ++l) {
      from_latent[g] += w[WeightLayout::kDecoderInput + g * kLatent + l] * latent[l];
    }
  }
  for (size_t t = 0; t < kWindow; ++t) {
    Lanes sums[kGates];
    for (int g = 0; g < kGates; ++g) sums[g] = from_latent[g];
    AddStates(w + WeightLayout::kDecoderState, state, sums);
    Step(sums, &state);
    Lanes value = All(w[WeightLayout::kOutBias]);
    for (int j = 0; j < kHidden; ++j) value += w[WeightLayout::kOut + j] * state.h[j];
    Store(value, out + t * stride);
  }
}

struct ReconstructArgs {
  const float* weights;
  const float* in;  // [kWindow][stride]
  float* out;       // [kWindow][stride]
  size_t stride;
};

MEGASCALE_BODY void ReconstructBody(const ReconstructArgs& args) {
  const float* w = args.weights;
  for (size_t begin = 0; begin < args.stride; begin += kLanes) {
    State state;
    EncodeLanes(w, args.in + begin, args.stride, &state);
    Lanes latent[kLatent];
    for (int l = 0; l < kLatent; ++l) {
      latent[l] = All(w[WeightLayout::kMeanBias + l]);
      for (int j = 0; j < kHidden; ++j) {
        latent[l] += w[WeightLayout::kMean + l * kHidden + j] * state.h[j];
      }
    }
    DecodeLanes(w, latent, args.out + begin, args.stride);
  }
}

struct DistanceArgs {
  const Embedded& embedded;
  const float* references;  // [num_references][num_rows]
  size_t num_references;
  float* sums;
};

MEGASCALE_BODY void DistanceBody(const DistanceArgs& args) {
  const Embedded& e = args.embedded;
  for (size_t begin = 0; begin < e.stride; begin += kLanes) {
    Lanes sums = {};
    for (size_t r = 0; r < args.num_references; ++r) {
      const float* reference = args.references + r * e.num_rows;
      Lanes squares = {};
      for (size_t row = 0; row < e.num_rows; ++row) {
        const Lanes difference = Load(e.rows + row * e.stride + begin) - reference[row];
        squares += difference * difference;
      }
      for (size_t i = 0; i < kLanes; ++i) sums[i] += __builtin_sqrtf(squares[i]);
    }
    Store(sums, args.sums + begin);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void Reconstruct256(const ReconstructArgs& args) {
  ReconstructBody(args);
}
__attribute__((target("avx2,fma"))) void Distance256(const DistanceArgs& args) {
  DistanceBody(args);
}
#endif

enum class Vectors { kBaseline, k256 };

Vectors WidestVectors() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Vectors::k256;
#endif
  return Vectors::kBaseline;
}

const Vectors kVectors = WidestVectors();

}  // namespace

SecondsGrid::SecondsGrid(absl::Span<const std::vector<float>> machines)
    : num_machines_(machines.size()),
      num_seconds_(machines.empty() ? 0 : machines[0].size()),
      stride_(PaddedTo(machines.size(), kLanes)),
      values_(num_seconds_ * stride_) {
  for (size_t machine = 0; machine < num_machines_; ++machine) {
    for (size_t second = 0; second < num_seconds_; ++second) {
      values_[second * stride_ + machine] = machines[machine][second];
    }
  }
}

Denoiser::Denoiser(const LstmVae& model) {
  for (const double weight : model.weights()) weights_.push_back(static_cast<float>(weight));
}

void Denoiser::Reconstruct(const SecondsGrid& grid, size_t second, float* out) const {
  const ReconstructArgs args = {weights_.data(), grid.second(second), out, grid.stride()};
#if defined(__x86_64__)
  if (kVectors == Vectors::k256) return Reconstruct256(args);
#endif
  ReconstructBody(args);
}

void SumDistances(const Embedded& embedded, absl::Span<const size_t> references, float* sums) {
  std::vector<float> columns;
  columns.reserve(references.size() * embedded.num_rows);
  for (const size_t reference : references) {
    for (size_t row = 0; row < embedded.num_rows; ++row) {
      columns.push_back(embedded.rows[row * embedded.stride + reference]);
    }
  }
  const DistanceArgs args = {embedded, columns.data(), references.size(), sums};
#if defined(__x86_64__)
  if (kVectors == Vectors::k256) return Distance256(args);
#endif
  DistanceBody(args);
}

}  // namespace megascale::minder
