#include "gpu/ops/kernel_ops.h"

#include <utility>

#include "gpu/ops/operators.h"
#include "runtime/base/check.h"
#include "runtime/ops/check_arguments.h"
#include "runtime/ops/epilogues.h"

namespace megascale::gpu {
namespace {

using tensor::Matrix;
using tensor::Vector;

class KernelOps final : public ops::Ops {
 public:
  KernelOps(tensor::DType compute, std::unique_ptr<Launcher> launcher, ProductMaker products)
      : compute_(compute), launcher_(std::move(launcher)), products_(std::move(products)) {
    MEGASCALE_CHECK(compute == tensor::DType::kF32 || compute == tensor::DType::kBF16);
  }

  tensor::DType compute() const override { return compute_; }

  void MatMul(const ops::MatMulArgs& args) override {
    CheckArguments(args, compute_);
    MEGASCALE_CHECK_MSG(!args.few_rows, "generation has no kernels here");
    if (products_.fuses != nullptr && products_.fuses(args)) return products_.multiply(args);
    products_.multiply(ops::WithoutEpilogues(args));
    ops::RunEpilogues(args, this);
  }
  void Norm(const ops::NormArgs& args) override { gpu::Norm(*launcher_, args); }
  void NormBackward(const ops::NormBackwardArgs& args) override {
    gpu::NormBackward(*launcher_, args);
  }
  void Attention(const ops::AttentionArgs& args) override { gpu::Attention(*launcher_, args); }
  void AttentionBackward(const ops::AttentionBackwardArgs& args) override {
    gpu::AttentionBackward(*launcher_, args);
  }
  void Rotary(const ops::RotaryArgs& args) override { gpu::Rotary(*launcher_, args); }
  void Activation(const ops::ActivationArgs& args) override { gpu::Activation(*launcher_, args); }
  void ActivationBackward(const ops::ActivationBackwardArgs& args) override {
    gpu::ActivationBackward(*launcher_, args);
  }
  void Embedding(const ops::EmbeddingArgs& args) override { gpu::Embedding(*launcher_, args); }
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) override {
    gpu::EmbeddingBackward(*launcher_, args);
  }
  void LogitStatistics(const ops::LogitStatisticsArgs& args) override {
    gpu::LogitStatistics(*launcher_, args);
  }
  void CrossEntropy(const ops::CrossEntropyArgs& args) override {
    gpu::CrossEntropy(*launcher_, args);
  }
  void AdamW(absl::Span<const ops::AdamWArgs> list) override { gpu::AdamW(*launcher_, list); }
  void TrustStep(absl::Span<const ops::TrustStepArgs> list) override {
    gpu::TrustStep(*launcher_, list);
  }
  void CombineNorms(const ops::CombineNormsArgs& args) override {
    gpu::CombineNorms(*launcher_, args);
  }
  void AddColumnSums(const Matrix& x, const Vector& out) override {
    gpu::AddColumnSums(*launcher_, x, out);
  }
  void Add(const Matrix& a, const Matrix& b, const Matrix& out) override {
    gpu::Add(*launcher_, a, b, out);
  }
  void AddScaled(double factor, const Vector& x, const Vector& out) override {
    gpu::AddScaled(*launcher_, factor, x, out);
  }
  void AddSumOfSquares(const Vector& x, const Vector& out) override {
    gpu::AddSumOfSquares(*launcher_, x, out);
  }
  void AddTotal(const Vector& x, const Vector& out) override { gpu::AddTotal(*launcher_, x, out); }
  void FirstNotFinite(const Matrix& x, const Vector& out) override {
    gpu::FirstNotFinite(*launcher_, x, out);
  }
  void Cast(const Vector& from, const Vector& to) override { gpu::Cast(*launcher_, from, to); }
  void FillZero(const Vector& x) override {
    launcher_->FillZero(x.data, static_cast<size_t>(x.bytes()));
  }

 private:
  const tensor::DType compute_;
  const std::unique_ptr<Launcher> launcher_;
  const ProductMaker products_;
};

}  // namespace

std::unique_ptr<ops::Ops> MakeKernelOps(tensor::DType compute, std::unique_ptr<Launcher> launcher,
                                        ProductMaker products) {
  return std::make_unique<KernelOps>(compute, std::move(launcher), std::move(products));
}

}  // namespace megascale::gpu
