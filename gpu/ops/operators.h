// The operators that launch our own kernels, one function each. They choose kernels, grids and
// workspace. Contracts, shapes and dtypes are those of ops::Ops (runtime/ops/ops.h), with bf16 or
// fp32 as the compute type. Grids that decide the order of a sum follow from shapes alone, never
// from the device, so that the bits are the same on every device.
//
// Private to gpu/ops and gpu/assembly.cc, which also uses Cast; others use kernel_ops.h.
#pragma once

#include "absl/types/span.h"
#include "gpu/ops/launcher.h"
#include "runtime/ops/ops.h"

namespace megascale::gpu {

// elementwise.cc
void Rotary(Launcher& launcher, const ops::RotaryArgs& args);
void Activation(Launcher& launcher, const ops::ActivationArgs& args);
void ActivationBackward(Launcher& launcher, const ops::ActivationBackwardArgs& args);
void Add(Launcher& launcher, const ops::Matrix& a, const ops::Matrix& b, const ops::Matrix& out);
void AddScaled(Launcher& launcher, double factor, const ops::Vector& x, const ops::Vector& out);
void Cast(Launcher& launcher, const ops::Vector& from, const ops::Vector& to);

// norm.cc
void Norm(Launcher& launcher, const ops::NormArgs& args);
void NormBackward(Launcher& launcher, const ops::NormBackwardArgs& args);
void AddColumnSums(Launcher& launcher, const ops::Matrix& x, const ops::Vector& out);

// embedding.cc
void Embedding(Launcher& launcher, const ops::EmbeddingArgs& args);
void EmbeddingBackward(Launcher& launcher, const ops::EmbeddingBackwardArgs& args);

// cross_entropy.cc
void LogitStatistics(Launcher& launcher, const ops::LogitStatisticsArgs& args);
void CrossEntropy(Launcher& launcher, const ops::CrossEntropyArgs& args);

// optimizer.cc: each list in as few launches as the size of a kernel's argument allows
void AdamW(Launcher& launcher, absl::Span<const ops::AdamWArgs> list);
void TrustStep(Launcher& launcher, absl::Span<const ops::TrustStepArgs> list);
void CombineNorms(Launcher& launcher, const ops::CombineNormsArgs& args);

// numbers.cc
void AddSumOfSquares(Launcher& launcher, const ops::Vector& x, const ops::Vector& out);
void AddTotal(Launcher& launcher, const ops::Vector& x, const ops::Vector& out);
void FirstNotFinite(Launcher& launcher, const ops::Matrix& x, const ops::Vector& out);

// attention.cc
void Attention(Launcher& launcher, const ops::AttentionArgs& args);
void AttentionBackward(Launcher& launcher, const ops::AttentionBackwardArgs& args);

}  // namespace megascale::gpu
