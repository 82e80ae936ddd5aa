#include "runtime/device/testing/strict_ops.h"

#include <utility>

#include "runtime/base/check.h"

namespace megascale::device {
namespace {

using ops::Matrix;
using ops::Vector;

size_t BytesOf(const Matrix& matrix) {
  if (matrix.rows == 0 || matrix.cols == 0) return 0;
  return static_cast<size_t>((matrix.rows - 1) * matrix.stride + matrix.cols) *
         tensor::SizeOf(matrix.dtype);
}
size_t BytesOf(const Vector& vector) { return static_cast<size_t>(vector.bytes()); }

class StrictOps final : public ops::Ops {
 public:
  StrictOps(StrictDevice* device, StrictStream* stream, std::unique_ptr<ops::Ops> cpu)
      : device_(*device), stream_(*stream), cpu_(std::move(cpu)) {}

  tensor::DType compute() const override { return cpu_->compute(); }

  void MatMul(const ops::MatMulArgs& args) override {
    Issue(&Ops::MatMul, "MatMul", args, [](auto& on, auto& a) { on(a.a, a.b, a.c, a.bias); });
  }
  void Norm(const ops::NormArgs& args) override {
    Issue(&Ops::Norm, "Norm", args, [](auto& on, auto& a) {
      on(a.x, a.delta, a.sum, a.weight, a.bias, a.out, a.mean, a.rstd);
    });
  }
  void NormBackward(const ops::NormBackwardArgs& args) override {
    Issue(&Ops::NormBackward, "NormBackward", args, [](auto& on, auto& a) {
      on(a.x, a.weight, a.mean, a.rstd, a.d_out, a.d_x, a.d_weight, a.d_bias);
    });
  }
  void Attention(const ops::AttentionArgs& args) override {
    Issue(&Ops::Attention, "Attention", args,
          [](auto& on, auto& a) { on(a.q, a.k, a.v, a.out, a.log_sum_exp); });
  }
  void AttentionBackward(const ops::AttentionBackwardArgs& args) override {
    Issue(&Ops::AttentionBackward, "AttentionBackward", args, [](auto& on, auto& a) {
      on(a.forward.q, a.forward.k, a.forward.v, a.forward.out, a.forward.log_sum_exp, a.d_out,
         a.d_q, a.d_k, a.d_v);
    });
  }
  void Rotary(const ops::RotaryArgs& args) override {
    Issue(&Ops::Rotary, "Rotary", args, [](auto& on, auto& a) { on(a.x); });
  }
  void Activation(const ops::ActivationArgs& args) override {
    Issue(&Ops::Activation, "Activation", args, [](auto& on, auto& a) { on(a.in, a.out); });
  }
  void ActivationBackward(const ops::ActivationBackwardArgs& args) override {
    Issue(&Ops::ActivationBackward, "ActivationBackward", args,
          [](auto& on, auto& a) { on(a.in, a.d_out, a.d_in); });
  }
  void Embedding(const ops::EmbeddingArgs& args) override {
    Issue(&Ops::Embedding, "Embedding", args,
          [](auto& on, auto& a) { on(a.tokens, a.token_weight, a.position_weight, a.out); });
  }
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) override {
    Issue(&Ops::EmbeddingBackward, "EmbeddingBackward", args, [](auto& on, auto& a) {
      on(a.tokens, a.d_out, a.d_token_weight, a.d_position_weight);
    });
  }
  void LogitStatistics(const ops::LogitStatisticsArgs& args) override {
    Issue(&Ops::LogitStatistics, "LogitStatistics", args,
          [](auto& on, auto& a) { on(a.logits, a.targets, a.statistics); });
  }

 private:
  // Replaces the addresses of tensors by those that the device works at.
  struct Translator {
    const StrictDevice& device;
    const char* what;

    template <typename... Views>
    void operator()(Views&... views) const {
      ((views.data = device.Translate(views.data, BytesOf(views), what)), ...);
    }
  };

  // Queues a call of `method` with translated arguments. `visit` passes each tensor of the arguments
  // to the translator.
  template <typename Args, typename Visit>
  void Issue(void (Ops::*method)(const Args&), const char* what, Args args, const Visit& visit) {
    const Translator translator = {device_, what};
    visit(translator, args);
    Ops* const cpu = cpu_.get();
    stream_.Issue(StrictWork([cpu, method, args] { (cpu->*method)(args); }));
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
};

}  // namespace

std::unique_ptr<ops::Ops> MakeStrictOps(StrictDevice* device, StrictStream* stream,
                                        tensor::DType compute, int num_threads) {
  auto cpu = compute == tensor::DType::kF64 ? ops::MakeReferenceOps()
                                            : ops::MakeCpuOps(compute, num_threads);
  return std::make_unique<StrictOps>(device, stream, std::move(cpu));
}

}  // namespace megascale::device
