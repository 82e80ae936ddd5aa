#include "gpu/device/testing/add_ops.h"

#include "gpu/cuda/cuda_status.h"
#include "gpu/kernels/vocabulary.h"
#include "runtime/base/check.h"

namespace {

struct AddScaledParams {
  const void* x;
  void* out;
  int64_t size;
  float factor;
};

constexpr int kThreads = 128;

}  // namespace

MEGASCALE_KERNEL(TestAddScaled, AddScaledParams, kThreads) {
  using namespace megascale::kernels;
  const Global<const float> x(params.x);
  const Global<float> out(params.out);
  const int64_t i = int64_t{BlockIndex()} * NumThreads() + ThreadIndex();
  if (i < params.size) out[i] += params.factor * x[i];
}

namespace megascale::gpu {
namespace {

using ops::Matrix;
using ops::Vector;

class AddOps final : public ops::Ops {
 public:
  explicit AddOps(const CudaOpsRequest& request) : request_(request) {}

  tensor::DType compute() const override { return request_.compute; }

  void AddScaled(double factor, const Vector& x, const Vector& out) override {
    MEGASCALE_CHECK(x.dtype == tensor::DType::kF32 && out.dtype == tensor::DType::kF32);
    const auto blocks = static_cast<unsigned>((x.size + kThreads - 1) / kThreads);
    request_.stream->Issued(request_.kernels->Launch(
        request_.stream->handle(), "TestAddScaled", {.grid = dim3(blocks), .threads = kThreads},
        AddScaledParams{x.data, out.data, x.size, static_cast<float>(factor)}));
  }
  void FillZero(const Vector& x) override {
    request_.stream->Issued(MEGASCALE_CUDA_CALL(
        *request_.cuda,
        cudaMemsetAsync(x.data, 0, static_cast<size_t>(x.bytes()), request_.stream->handle())));
  }

  void MatMul(const ops::MatMulArgs&) override { Refuse(); }
  void Norm(const ops::NormArgs&) override { Refuse(); }
  void NormBackward(const ops::NormBackwardArgs&) override { Refuse(); }
  void Attention(const ops::AttentionArgs&) override { Refuse(); }
  void AttentionBackward(const ops::AttentionBackwardArgs&) override { Refuse(); }
  void Rotary(const ops::RotaryArgs&) override { Refuse(); }
  void Activation(const ops::ActivationArgs&) override { Refuse(); }
  void ActivationBackward(const ops::ActivationBackwardArgs&) override { Refuse(); }
  void Embedding(const ops::EmbeddingArgs&) override { Refuse(); }
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs&) override { Refuse(); }
  void LogitStatistics(const ops::LogitStatisticsArgs&) override { Refuse(); }
  void CrossEntropy(const ops::CrossEntropyArgs&) override { Refuse(); }
  void AdamW(absl::Span<const ops::AdamWArgs>) override { Refuse(); }
  void TrustStep(absl::Span<const ops::TrustStepArgs>) override { Refuse(); }
  void CombineNorms(const ops::CombineNormsArgs&) override { Refuse(); }
  void AddColumnSums(const Matrix&, const Vector&) override { Refuse(); }
  void Add(const Matrix&, const Matrix&, const Matrix&) override { Refuse(); }
  void AddSumOfSquares(const Vector&, const Vector&) override { Refuse(); }
  void AddTotal(const Vector&, const Vector&) override { Refuse(); }
  void FirstNotFinite(const Matrix&, const Vector&) override { Refuse(); }
  void Cast(const Vector&, const Vector&) override { Refuse(); }

 private:
  static void Refuse() { MEGASCALE_CHECK_MSG(false, "tests of the device use no other operator"); }

  const CudaOpsRequest request_;
};

}  // namespace

std::unique_ptr<ops::Ops> MakeAddOps(const CudaOpsRequest& request) {
  return std::make_unique<AddOps>(request);
}

}  // namespace megascale::gpu
