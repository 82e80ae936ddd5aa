// Checks the requirements that every implementation of Ops has on its arguments. A violation is a
// bug and fails a CHECK.
#pragma once

#include "runtime/ops/ops.h"

namespace megascale::ops {

void CheckArguments(const MatMulArgs& args, DType compute);
void CheckArguments(const NormArgs& args, DType compute);
void CheckArguments(const NormBackwardArgs& args, DType compute);
void CheckArguments(const AttentionArgs& args, DType compute);
void CheckArguments(const AttentionBackwardArgs& args, DType compute);
// Checks the values of `places`, too, so use it only where the host may read them.
void CheckArguments(const CachedAttentionArgs& args, DType compute);
void CheckArguments(const RotaryArgs& args, DType compute);
void CheckArguments(const ActivationArgs& args, DType compute);
void CheckArguments(const ActivationBackwardArgs& args, DType compute);
void CheckArguments(const EmbeddingArgs& args, DType compute);
void CheckArguments(const EmbeddingBackwardArgs& args, DType compute);
void CheckArguments(const LogitStatisticsArgs& args, DType compute);
void CheckArguments(const CrossEntropyArgs& args, DType compute);
void CheckArguments(const AdamWArgs& args, DType compute);
void CheckArguments(const TrustStepArgs& args, DType compute);
void CheckArguments(const CombineNormsArgs& args);
void CheckFirstNotFinite(const Matrix& x, const Vector& out, DType compute);
// Checks that `numbers` is F64 [size].
void CheckNumbers(const char* name, const Vector& numbers, int64_t size);
void CheckColumnSums(const Matrix& x, const Vector& out, DType compute);
void CheckAddScaled(const Vector& x, const Vector& out, DType compute);
void CheckAdd(const Matrix& a, const Matrix& b, const Matrix& out, DType compute);

}  // namespace megascale::ops
