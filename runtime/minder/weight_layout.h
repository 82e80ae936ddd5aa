// Where each matrix lies among the weights of an LstmVae. For lstm_vae.cc and denoiser.cc.
#pragma once

#include "runtime/minder/lstm_vae.h"

namespace megascale::minder {

inline constexpr int kGates = 4 * kHidden;  // input, forget, candidate, output

// Where each matrix begins among the weights. Rows are outputs.
struct WeightLayout {
  static constexpr int kEncoderInput = 0;                                 // [kGates]
  static constexpr int kEncoderState = kEncoderInput + kGates;            // [kGates][kHidden]
  static constexpr int kEncoderBias = kEncoderState + kGates * kHidden;   // [kGates]
  static constexpr int kMean = kEncoderBias + kGates;                     // [kLatent][kHidden]
  static constexpr int kMeanBias = kMean + kLatent * kHidden;             // [kLatent]
  static constexpr int kSpread = kMeanBias + kLatent;                     // [kLatent][kHidden]
  static constexpr int kSpreadBias = kSpread + kLatent * kHidden;         // [kLatent]
  static constexpr int kBegin = kSpreadBias + kLatent;                    // [kHidden][kLatent]
  static constexpr int kBeginBias = kBegin + kHidden * kLatent;           // [kHidden]
  static constexpr int kDecoderInput = kBeginBias + kHidden;              // [kGates][kLatent]
  static constexpr int kDecoderState = kDecoderInput + kGates * kLatent;  // [kGates][kHidden]
  static constexpr int kDecoderBias = kDecoderState + kGates * kHidden;   // [kGates]
  static constexpr int kOut = kDecoderBias + kGates;                      // [kHidden]
  static constexpr int kOutBias = kOut + kHidden;                         // [1]
  static constexpr int kEnd = kOutBias + 1;
};
static_assert(WeightLayout::kEnd == LstmVae::kNumWeights);

}  // namespace megascale::minder
