#include "runtime/device/testing/hosted_ops.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/ops/testing/visit_tensors.h"

namespace megascale::device {
namespace {

using ops::Matrix;
using ops::Vector;

// Device memory begins this far apart from a multiple of it, as the host's does.
constexpr size_t kAlignment = 64;

// `Tensor`: a Matrix or a Vector.
template <typename Tensor>
size_t BytesOf(const Tensor& tensor) {
  return static_cast<size_t>(tensor.bytes());
}

// Host memory of one call's tensors, and its copy on the device. Tensors that overlap, as columns
// of one matrix do, share a copy.
class Copies {
 public:
  template <typename... Views>
  void Add(const Views&... views) {
    (AddRange(static_cast<std::byte*>(views.data), BytesOf(views)), ...);
  }

  void Allocate(Device* device) {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<Range> merged;
    for (const Range& range : ranges_) {
      if (!merged.empty() && range.begin < merged.back().end) {
        merged.back().end = std::max(merged.back().end, range.end);
      } else {
        merged.push_back(range);
      }
    }
    ranges_ = std::move(merged);
    for (Range& range : ranges_) {
      auto memory = device->Allocate("test", range.bytes() + kAlignment);
      MEGASCALE_CHECK_MSG(memory.ok(), std::string(memory.status().message()));
      range.copy = static_cast<std::byte*>((*memory)->data()) +
                   reinterpret_cast<uintptr_t>(range.begin) % kAlignment;
      memory_.push_back(*std::move(memory));
    }
  }

  template <typename... Views>
  void Translate(Views&... views) const {
    ((views.data = CopyOf(static_cast<std::byte*>(views.data), BytesOf(views))), ...);
  }

  void ToDevice(stream::Stream* stream) const {
    for (const Range& range : ranges_) stream->Copy(range.copy, range.begin, range.bytes());
  }
  void ToHost(stream::Stream* stream) const {
    for (const Range& range : ranges_) stream->Copy(range.begin, range.copy, range.bytes());
  }

 private:
  struct Range {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    std::byte* copy = nullptr;
    size_t bytes() const { return static_cast<size_t>(end - begin); }
  };

  void AddRange(std::byte* begin, size_t bytes) {
    if (begin != nullptr && bytes > 0) ranges_.push_back({begin, begin + bytes, nullptr});
  }
  std::byte* CopyOf(std::byte* at, size_t bytes) const {
    if (at == nullptr || bytes == 0) return at;  // not used, but may count as given
    for (const Range& range : ranges_) {
      if (at >= range.begin && at < range.end) return range.copy + (at - range.begin);
    }
    MEGASCALE_CHECK_MSG(false, "a tensor that was not added");
    return nullptr;
  }

  std::vector<Range> ranges_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

class HostedOps final : public ops::Ops {
 public:
  HostedOps(std::unique_ptr<Device> device, tensor::DType compute, int num_threads)
      : device_(std::move(device)),
        stream_(device_->MakeStream("test").value()),
        ops_(device_->MakeOps(stream_.get(), compute, num_threads)) {}

  tensor::DType compute() const override { return ops_->compute(); }

  void MatMul(const ops::MatMulArgs& args) override { Call(&Ops::MatMul, args); }
  void Norm(const ops::NormArgs& args) override { Call(&Ops::Norm, args); }
  void NormBackward(const ops::NormBackwardArgs& args) override { Call(&Ops::NormBackward, args); }
  void Attention(const ops::AttentionArgs& args) override { Call(&Ops::Attention, args); }
  void AttentionBackward(const ops::AttentionBackwardArgs& args) override {
    Call(&Ops::AttentionBackward, args);
  }
  void Rotary(const ops::RotaryArgs& args) override { Call(&Ops::Rotary, args); }
  void Activation(const ops::ActivationArgs& args) override { Call(&Ops::Activation, args); }
  void ActivationBackward(const ops::ActivationBackwardArgs& args) override {
    Call(&Ops::ActivationBackward, args);
  }
  void Embedding(const ops::EmbeddingArgs& args) override { Call(&Ops::Embedding, args); }
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) override {
    Call(&Ops::EmbeddingBackward, args);
  }
  void LogitStatistics(const ops::LogitStatisticsArgs& args) override {
    Call(&Ops::LogitStatistics, args);
  }
  void CrossEntropy(const ops::CrossEntropyArgs& args) override { Call(&Ops::CrossEntropy, args); }
  void AdamW(absl::Span<const ops::AdamWArgs> list) override { CallList(&Ops::AdamW, list); }
  void TrustStep(absl::Span<const ops::TrustStepArgs> list) override {
    CallList(&Ops::TrustStep, list);
  }
  void CombineNorms(const ops::CombineNormsArgs& args) override { Call(&Ops::CombineNorms, args); }
  void AddColumnSums(const Matrix& x, const Vector& out) override {
    CallOn(&Ops::AddColumnSums, x, out);
  }
  void Add(const Matrix& a, const Matrix& b, const Matrix& out) override {
    CallOn(&Ops::Add, a, b, out);
  }
  void AddScaled(double factor, const Vector& x, const Vector& out) override {
    Vector from = x, to = out;
    Copies copies;
    copies.Add(from, to);
    copies.Allocate(device_.get());
    copies.Translate(from, to);
    Run(copies, [&] { ops_->AddScaled(factor, from, to); });
  }
  void AddSumOfSquares(const Vector& x, const Vector& out) override {
    CallOn(&Ops::AddSumOfSquares, x, out);
  }
  void AddTotal(const Vector& x, const Vector& out) override { CallOn(&Ops::AddTotal, x, out); }
  void FirstNotFinite(const Matrix& x, const Vector& out) override {
    CallOn(&Ops::FirstNotFinite, x, out);
  }
  void Cast(const Vector& from, const Vector& to) override { CallOn(&Ops::Cast, from, to); }
  void FillZero(const Vector& x) override { CallOn(&Ops::FillZero, x); }

 private:
  template <typename Args>
  void Call(void (Ops::*method)(const Args&), Args args) {
    Copies copies;
    ops::VisitTensors(args, [&](auto&... views) { copies.Add(views...); });
    copies.Allocate(device_.get());
    ops::VisitTensors(args, [&](auto&... views) { copies.Translate(views...); });
    Run(copies, [&] { ((*ops_).*method)(args); });
  }
  template <typename Args>
  void CallList(void (Ops::*method)(absl::Span<const Args>), absl::Span<const Args> given) {
    std::vector<Args> list(given.begin(), given.end());
    Copies copies;
    for (Args& args : list) {
      ops::VisitTensors(args, [&](auto&... views) { copies.Add(views...); });
    }
    copies.Allocate(device_.get());
    for (Args& args : list) {
      ops::VisitTensors(args, [&](auto&... views) { copies.Translate(views...); });
    }
    Run(copies, [&] { ((*ops_).*method)(list); });
  }
  template <typename... Views>
  void CallOn(void (Ops::*method)(const Views&...), Views... views) {
    Copies copies;
    copies.Add(views...);
    copies.Allocate(device_.get());
    copies.Translate(views...);
    Run(copies, [&] { ((*ops_).*method)(views...); });
  }

  void Run(const Copies& copies, absl::FunctionRef<void()> call) {
    stream_->RunAndWait([&] {
      copies.ToDevice(stream_.get());
      call();
      copies.ToHost(stream_.get());
    });
    const absl::Status ended = stream_->Synchronize();
    MEGASCALE_CHECK_MSG(ended.ok(), std::string(ended.message()));
  }

  const std::unique_ptr<Device> device_;
  const std::unique_ptr<stream::Stream> stream_;
  const std::unique_ptr<ops::Ops> ops_;
};

}  // namespace

std::unique_ptr<ops::Ops> MakeHostedOps(std::unique_ptr<Device> device, tensor::DType compute,
                                        int num_threads) {
  return std::make_unique<HostedOps>(std::move(device), compute, num_threads);
}

}  // namespace megascale::device
