#include "runtime/device/testing/strict_ops.h"

#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/ops/testing/visit_tensors.h"

namespace megascale::device {
namespace {

using ops::Matrix;
using ops::Vector;

class StrictOps final : public ops::Ops {
 public:
  StrictOps(StrictDevice* device, StrictStream* stream, std::unique_ptr<ops::Ops> cpu)
      : device_(*device), stream_(*stream), cpu_(std::move(cpu)) {}

  tensor::DType compute() const override { return cpu_->compute(); }

  void MatMul(const ops::MatMulArgs& args) override { Issue(&Ops::MatMul, "MatMul", args); }
  void Norm(const ops::NormArgs& args) override { Issue(&Ops::Norm, "Norm", args); }
  void NormBackward(const ops::NormBackwardArgs& args) override {
    Issue(&Ops::NormBackward, "NormBackward", args);
  }
  void Attention(const ops::AttentionArgs& args) override {
    Issue(&Ops::Attention, "Attention", args);
  }
  void AttentionBackward(const ops::AttentionBackwardArgs& args) override {
    Issue(&Ops::AttentionBackward, "AttentionBackward", args);
  }
  void CachedAttention(const ops::CachedAttentionArgs& args) override {
    Issue(&Ops::CachedAttention, "CachedAttention", args);
  }
  void Rotary(const ops::RotaryArgs& args) override { Issue(&Ops::Rotary, "Rotary", args); }
  void Activation(const ops::ActivationArgs& args) override {
    Issue(&Ops::Activation, "Activation", args);
  }
  void ActivationBackward(const ops::ActivationBackwardArgs& args) override {
    Issue(&Ops::ActivationBackward, "ActivationBackward", args);
  }
  void Embedding(const ops::EmbeddingArgs& args) override {
    Issue(&Ops::Embedding, "Embedding", args);
  }
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) override {
    Issue(&Ops::EmbeddingBackward, "EmbeddingBackward", args);
  }
  void LogitStatistics(const ops::LogitStatisticsArgs& args) override {
    Issue(&Ops::LogitStatistics, "LogitStatistics", args);
  }
  void CrossEntropy(const ops::CrossEntropyArgs& args) override {
    Issue(&Ops::CrossEntropy, "CrossEntropy", args);
  }
  void AdamW(absl::Span<const ops::AdamWArgs> list) override {
    IssueList(&Ops::AdamW, "AdamW", list, &adam_list_);
  }
  void TrustStep(absl::Span<const ops::TrustStepArgs> list) override {
    IssueList(&Ops::TrustStep, "TrustStep", list, &trust_list_);
  }
  void CombineNorms(const ops::CombineNormsArgs& args) override {
    Issue(&Ops::CombineNorms, "CombineNorms", args);
  }
  void AddColumnSums(const Matrix& x, const Vector& out) override {
    IssueOn(&Ops::AddColumnSums, "AddColumnSums", x, out);
  }
  void Add(const Matrix& a, const Matrix& b, const Matrix& out) override {
    IssueOn(&Ops::Add, "Add", a, b, out);
  }
  void AddScaled(double factor, const Vector& x, const Vector& out) override {
    Vector from = x, to = out;
    Translator{device_, "AddScaled"}(from, to);
    Ops* const cpu = cpu_.get();
    stream_.Issue(StrictWork([cpu, factor, from, to] { cpu->AddScaled(factor, from, to); }));
  }
  void AddSumOfSquares(const Vector& x, const Vector& out) override {
    IssueOn(&Ops::AddSumOfSquares, "AddSumOfSquares", x, out);
  }
  void AddTotal(const Vector& x, const Vector& out) override {
    IssueOn(&Ops::AddTotal, "AddTotal", x, out);
  }
  void FirstNotFinite(const Matrix& x, const Vector& out) override {
    IssueOn(&Ops::FirstNotFinite, "FirstNotFinite", x, out);
  }
  void Cast(const Vector& from, const Vector& to) override {
    IssueOn(&Ops::Cast, "Cast", from, to);
  }
  void FillZero(const Vector& x) override { IssueOn(&Ops::FillZero, "FillZero", x); }

 private:
  // Replaces the addresses of tensors by those that the device works at.
  struct Translator {
    const StrictDevice& device;
    const char* what;  // names the operator in errors

    template <typename... Views>
    void operator()(Views&... views) const {
      ((views.data = device.Translate(views.data, static_cast<size_t>(views.bytes()), what)), ...);
    }
  };

  // Queues a call of `method` with translated arguments.
  template <typename Args>
  void Issue(void (Ops::*method)(const Args&), const char* what, Args args) {
    ops::VisitTensors(args, Translator{device_, what});
    Ops* const cpu = cpu_.get();
    stream_.Issue(StrictWork([cpu, method, args] { (cpu->*method)(args); }));
  }
  // The same for a list, which is read when the work runs; `translated` is the device's copy of it.
  template <typename Args>
  void IssueList(void (Ops::*method)(absl::Span<const Args>), const char* what,
                 absl::Span<const Args> list, std::vector<Args>* translated) {
    Ops* const cpu = cpu_.get();
    const Translator translator = {device_, what};
    stream_.Issue(StrictWork([cpu, method, translator, list, translated] {
      translated->assign(list.begin(), list.end());
      for (Args& args : *translated) ops::VisitTensors(args, translator);
      (cpu->*method)(*translated);
    }));
  }
  // The same for the operators that take tensors only.
  template <typename... Views>
  void IssueOn(void (Ops::*method)(const Views&...), const char* what, Views... views) {
    Translator{device_, what}(views...);
    Ops* const cpu = cpu_.get();
    stream_.Issue(StrictWork([cpu, method, views...] { (cpu->*method)(views...); }));
  }

  StrictDevice& device_;
  StrictStream& stream_;
  const std::unique_ptr<ops::Ops> cpu_;
  // Used by the device's thread.
  std::vector<ops::AdamWArgs> adam_list_;
  std::vector<ops::TrustStepArgs> trust_list_;
};

}  // namespace

std::unique_ptr<ops::Ops> MakeStrictOps(StrictDevice* device, StrictStream* stream,
                                        tensor::DType compute, int num_threads) {
  auto cpu = compute == tensor::DType::kF64 ? ops::MakeReferenceOps()
                                            : ops::MakeCpuOps(compute, num_threads);
  return std::make_unique<StrictOps>(device, stream, std::move(cpu));
}

}  // namespace megascale::device
