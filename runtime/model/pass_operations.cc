#include "runtime/model/pass_operations.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/epilogues.h"
#include "runtime/ops/work.h"
#include "runtime/tensor/arena.h"

namespace megascale::model {
namespace {

using ops::Work;
using ops::WorkOf;

const char* Address(const void* data) { return static_cast<const char*>(data); }

// Returns "attn.qkv" for "model.layers.3.attn.qkv.weight".
std::string ModuleOf(absl::string_view parameter) {
  absl::ConsumePrefix(&parameter, "model.");
  if (absl::ConsumePrefix(&parameter, "layers.")) {
    parameter.remove_prefix(parameter.find('.') + 1);
  }
  parameter.remove_suffix(parameter.size() - parameter.rfind('.'));
  return std::string(parameter);
}

// Finds the parameter that begins at an address, among weights or gradients.
class ParameterNames {
 public:
  void Add(const ChunkLayout& layout, const Vector& space) {
    for (const Parameter& parameter : layout.parameters()) {
      const int64_t offset = parameter.offset * static_cast<int64_t>(SizeOf(space.dtype));
      Add(parameter.name, Address(space.data) + offset);
    }
  }
  void Add(absl::string_view parameter, const void* address) {
    names_[Address(address)] = ModuleOf(parameter);
  }
  // Returns null if no parameter begins there.
  const std::string* Find(const void* data) const {
    const auto it = names_.find(Address(data));
    return it == names_.end() ? nullptr : &it->second;
  }

 private:
  std::map<const char*, std::string> names_;
};

// Finds the operation that last wrote the memory at an address.
class Producers {
 public:
  void Set(const void* data, int64_t bytes, const std::string& name) {
    ranges_[Address(data)] = {Address(data) + bytes, name};
  }
  void Set(const Matrix& written, const std::string& name) {
    const int64_t elements = written.rows * written.stride;
    Set(written.data, elements * static_cast<int64_t>(SizeOf(written.dtype)), name);
  }
  void Set(const Vector& written, const std::string& name) {
    Set(written.data, written.size * static_cast<int64_t>(SizeOf(written.dtype)), name);
  }
  // Returns `otherwise` if nothing was written there, because it is an input of the pass.
  std::string Find(const void* data, const std::string& otherwise) const {
    auto it = ranges_.upper_bound(Address(data));
    if (it == ranges_.begin()) return otherwise;
    --it;
    return Address(data) < it->second.end ? it->second.name : otherwise;
  }

 private:
  struct Written {
    const char* end = nullptr;
    std::string name;
  };
  std::map<const char*, Written> ranges_;  // by begin
};

// The calls since the last Take.
class Log {
 public:
  void Add(OperationKind kind, std::string name, int64_t flops, int64_t bytes) {
    const int waited = std::max(0, static_cast<int>(num_waited_ - taken_));
    pass_.push_back({kind, std::move(name), flops, bytes, waited});
    if (IsExchange(kind)) ++num_begun_;
  }
  void Wait(int64_t exchange) {
    MEGASCALE_CHECK(exchange <= num_begun_);
    num_waited_ = std::max(num_waited_, exchange);
  }
  int64_t num_begun() const { return num_begun_; }

  PassOperations Take() {
    MEGASCALE_CHECK(num_waited_ == num_begun_);
    taken_ = num_begun_;
    return std::exchange(pass_, {});
  }

 private:
  PassOperations pass_;
  int64_t num_begun_ = 0;  // exchanges, since the start
  int64_t num_waited_ = 0;
  int64_t taken_ = 0;  // exchanges of passes that were taken
};

// The data that RecordingOps and RecordingGroup record.
struct Recording {
  Log log;
  ParameterNames weights;
  ParameterNames gradients;
  Producers producers;
  ops::KernelShapes kernels;
};

class RecordingOps final : public ops::Ops {
 public:
  RecordingOps(ops::DType compute, Recording* recording)
      : compute_(compute), recording_(*recording) {}

  ops::DType compute() const override { return compute_; }

  void MatMul(const ops::MatMulArgs& args) override {
    const std::string name = NameOf(args);
    Add(OperationKind::kProduct, WorkOf(args), name);
    recording_.producers.Set(args.c, name);
    recording_.kernels.products.push_back(ops::WithoutEpilogues(args));
    ops::RunEpilogues(args, this);
  }
  void Norm(const ops::NormArgs& args) override {
    const std::string name = NormName(args.weight);
    Add(OperationKind::kElementwise, WorkOf(args), name);
    recording_.producers.Set(args.out, name);
  }
  void NormBackward(const ops::NormBackwardArgs& args) override {
    const std::string name = absl::StrCat(NormName(args.weight), ", backward");
    Add(OperationKind::kElementwise, WorkOf(args), name);
    recording_.producers.Set(args.d_x, name);
  }
  void Attention(const ops::AttentionArgs& args) override {
    Add(OperationKind::kAttention, WorkOf(args));
    recording_.kernels.attention = args;
  }
  void AttentionBackward(const ops::AttentionBackwardArgs& args) override {
    Add(OperationKind::kAttention, WorkOf(args));
  }
  void Rotary(const ops::RotaryArgs& args) override { AddElementwise(WorkOf(args)); }
  void Activation(const ops::ActivationArgs& args) override { AddElementwise(WorkOf(args)); }
  void ActivationBackward(const ops::ActivationBackwardArgs& args) override {
    AddElementwise(WorkOf(args));
  }
  void Embedding(const ops::EmbeddingArgs& args) override {
    AddElementwise(WorkOf(args));
    recording_.producers.Set(args.out, WorkOf(args).name);
  }
  void EmbeddingBackward(const ops::EmbeddingBackwardArgs& args) override {
    AddElementwise(WorkOf(args));
  }
  void LogitStatistics(const ops::LogitStatisticsArgs& args) override {
    AddElementwise(WorkOf(args));
    recording_.producers.Set(args.statistics, WorkOf(args).name);
  }
  void CrossEntropy(const ops::CrossEntropyArgs& args) override {
    AddElementwise(WorkOf(args));
    recording_.kernels.logits_cols = args.logits.cols;
  }
  // The optimizer is no part of a pass.
  void AdamW(absl::Span<const ops::AdamWArgs> list) override { AddElementwise(WorkOf(list)); }
  void TrustStep(absl::Span<const ops::TrustStepArgs> list) override {
    AddElementwise(WorkOf(list));
  }
  void CombineNorms(const ops::CombineNormsArgs& args) override { AddElementwise(WorkOf(args)); }
  void AddColumnSums(const Matrix& x, const Vector&) override {
    AddElementwise(ops::WorkOfAddColumnSums(x));
  }
  void Add(const Matrix& a, const Matrix& b, const Matrix& out) override {
    const Producers& producers = recording_.producers;
    const std::string name =
        absl::StrCat(producers.Find(a.data, "input"), " + ", producers.Find(b.data, "input"));
    AddElementwise(ops::WorkOfAdd(out));
    recording_.producers.Set(out, name);
  }
  void AddScaled(double, const Vector& x, const Vector&) override {
    AddElementwise(ops::WorkOfAddScaled(x));
  }
  void AddSumOfSquares(const Vector& x, const Vector&) override {
    AddElementwise(ops::WorkOfSumOfSquares(x));
  }
  void AddTotal(const Vector& x, const Vector&) override {
    AddElementwise(ops::WorkOfSumOfSquares(x));
  }
  void FirstNotFinite(const Matrix& x, const Vector&) override {
    AddElementwise(ops::WorkOfAddColumnSums(x));
  }
  void Cast(const Vector& from, const Vector& to) override {
    AddElementwise(ops::WorkOfCast(from, to));
    recording_.producers.Set(to, recording_.producers.Find(from.data, kGradient));
  }
  void FillZero(const Vector& x) override { AddElementwise(ops::WorkOfFillZero(x)); }

  // The gradient of the pass's output, which the chunk receives.
  static constexpr char kGradient[] = "output's gradient";

 private:
  void Add(OperationKind kind, const Work& work) { Add(kind, work, work.name); }
  void Add(OperationKind kind, const Work& work, const std::string& name) {
    recording_.log.Add(kind, name, work.flops, work.bytes);
  }
  void AddElementwise(const Work& work) { Add(OperationKind::kElementwise, work); }

  std::string NameOf(const ops::MatMulArgs& args) const {
    if (const std::string* of = recording_.gradients.Find(args.c.data)) {
      return absl::StrCat(*of, " weights");
    }
    const std::string* of = recording_.weights.Find(args.b.data);
    MEGASCALE_CHECK(of != nullptr);
    return args.transpose_b == ops::Transpose::kYes ? *of : absl::StrCat(*of, " input");
  }
  std::string NormName(const Vector& weight) const {
    const std::string* of = recording_.weights.Find(weight.data);
    MEGASCALE_CHECK(of != nullptr);
    return *of;
  }

  const ops::DType compute_;
  Recording& recording_;
};

class RecordingGroup final : public TensorGroup {
 public:
  RecordingGroup(TensorPlace place, Recording* recording) : place_(place), recording_(*recording) {}

  TensorPlace place() const override { return place_; }
  Exchange Broadcast(int, const Vector& in, const Vector&) override {
    return Begin(OperationKind::kGather, in, in);
  }
  Exchange Reduce(int, const Vector& in, const Vector&) override {
    return Begin(OperationKind::kScatter, in, in);
  }
  Exchange AllGather(const Vector& in, const Vector& out) override {
    return Begin(OperationKind::kGather, in, out);
  }
  Exchange ReduceScatter(const Vector& in, const Vector&) override {
    return Begin(OperationKind::kScatter, in, in);
  }
  void Wait(Exchange last) override { recording_.log.Wait(last); }
  absl::Status status() const override { return absl::OkStatus(); }

 private:
  // `moved`: what all ranks together have of it.
  Exchange Begin(OperationKind kind, const Vector& in, const Vector& moved) {
    recording_.log.Add(kind, recording_.producers.Find(in.data, RecordingOps::kGradient), 0,
                       moved.size * static_cast<int64_t>(SizeOf(moved.dtype)));
    return recording_.log.num_begun();
  }

  const TensorPlace place_;
  Recording& recording_;
};

// The slots of a recorded chunk: one whose backward runs whole, one whose backward runs in pieces.
enum Slot { kWhole, kInPieces, kNumSlots };

// A chunk that computes nothing, and the record of its calls.
class RecordedChunk {
 public:
  static absl::StatusOr<std::unique_ptr<RecordedChunk>> Create(const ChunkOptions& options) {
    auto recorded = std::unique_ptr<RecordedChunk>(new RecordedChunk(options));
    RETURN_IF_ERROR(recorded->Init(options));
    return recorded;
  }

  PassOperations Forward(int slot) {
    double loss = 0;
    chunk_->Forward(slot, {.gradient_scale = 1, .sum = {&loss, ops::DType::kF64, 1}});
    return recording_.log.Take();
  }
  PassOperations BackwardInput(int slot) {
    chunk_->BackwardInput(slot);
    return recording_.log.Take();
  }
  // Records the pass that makes the weight gradients, down to a layer of the chunk.
  PassOperations BackwardTo(int slot, int down_to) {
    if (splits_backward_) {
      chunk_->BackwardWeights(slot, down_to);
    } else {
      chunk_->Backward(slot, down_to);
    }
    return recording_.log.Take();
  }
  const ops::KernelShapes& kernels() const { return recording_.kernels; }

 private:
  explicit RecordedChunk(const ChunkOptions& options)
      : splits_backward_(options.split_backward),
        ops_(options.compute, &recording_),
        group_(options.tensor, &recording_) {}

  absl::Status Init(ChunkOptions options) {
    options.num_slots = kNumSlots;
    const ops::DType accumulation = AccumulationType(options.compute);
    const ChunkLayout layout(options.config, options.range, options.tensor);
    const int64_t elements = layout.num_elements();
    const int64_t borrowed = BorrowsEmbedding(options.config, options.range)
                                 ? EmbeddingElements(options.config, options.tensor.size)
                                 : 0;
    const auto bytes_for = [&](int64_t count) {
      return tensor::Arena::BytesFor(options.compute, count) +
             tensor::Arena::BytesFor(accumulation, count);
    };
    ASSIGN_OR_RETURN(parameters_,
                     tensor::Arena::Reserve(bytes_for(elements) + bytes_for(borrowed)));
    ChunkParameters parameters = {.weights = parameters_.Allocate(options.compute, elements),
                                  .gradients = parameters_.Allocate(accumulation, elements)};
    recording_.weights.Add(layout, parameters.weights);
    recording_.gradients.Add(layout, parameters.gradients);
    if (borrowed > 0) {
      parameters.head_weight = parameters_.Allocate(options.compute, borrowed);
      parameters.head_gradient = parameters_.Allocate(accumulation, borrowed);
      recording_.weights.Add("model.embed_tokens.weight", parameters.head_weight.data);
      recording_.gradients.Add("model.embed_tokens.weight", parameters.head_gradient.data);
    }
    ASSIGN_OR_RETURN(tensor::Arena activations, tensor::Arena::Reserve(ChunkMemoryBytes(options)));
    ASSIGN_OR_RETURN(chunk_,
                     TransformerChunk::CreateIn(std::move(activations), options, &ops_, parameters,
                                                options.tensor.size > 1 ? &group_ : nullptr));
    return absl::OkStatus();
  }

  const bool splits_backward_;
  Recording recording_;
  RecordingOps ops_;
  RecordingGroup group_;
  tensor::Arena parameters_;
  std::unique_ptr<TransformerChunk> chunk_;
};

}  // namespace

bool IsExchange(OperationKind kind) {
  return kind == OperationKind::kGather || kind == OperationKind::kScatter;
}

std::string Describe(const PassOperation& operation) {
  switch (operation.kind) {
    case OperationKind::kGather:
      return absl::StrCat("gather: ", operation.name);
    case OperationKind::kScatter:
      return absl::StrCat("sum: ", operation.name);
    case OperationKind::kProduct:
    case OperationKind::kAttention:
    case OperationKind::kElementwise:
      break;
  }
  return operation.name;
}

int64_t FlopsOf(const PassOperations& pass) {
  int64_t flops = 0;
  for (const PassOperation& one : pass) flops += one.flops;
  return flops;
}

int64_t ExchangedBytesOf(const PassOperations& pass) {
  int64_t bytes = 0;
  for (const PassOperation& one : pass) bytes += IsExchange(one.kind) ? one.bytes : 0;
  return bytes;
}

double SecondsOf(const PassOperations& pass, const PassRates& rates, bool overlap) {
  double computed = 0;
  double exchanged = 0;
  std::vector<double> ends = {0};  // end of each exchange
  for (const PassOperation& one : pass) {
    computed = std::max(computed, ends[static_cast<size_t>(one.after)]);
    const auto bytes = static_cast<double>(one.bytes);
    if (!IsExchange(one.kind)) {
      computed += std::max(static_cast<double>(one.flops) / rates.flops_per_second,
                           bytes / rates.memory_bytes_per_second);
      continue;
    }
    exchanged = std::max(exchanged, computed) + bytes / rates.exchanged_bytes_per_second;
    ends.push_back(exchanged);
    if (!overlap) computed = exchanged;
  }
  return std::max(computed, exchanged);
}

absl::StatusOr<ChunkPasses> RecordChunk(const ChunkOptions& options,
                                        absl::Span<const int> first_layers) {
  MEGASCALE_CHECK(!first_layers.empty() && first_layers.back() == 0);
  ASSIGN_OR_RETURN(const auto recorded, RecordedChunk::Create(options));
  ChunkPasses passes;
  passes.forward = recorded->Forward(kWhole);
  if (options.split_backward) {
    passes.backward = recorded->BackwardInput(kWhole);
    passes.weights = recorded->BackwardTo(kWhole, 0);
  } else {
    passes.backward = recorded->BackwardTo(kWhole, 0);
  }
  passes.kernels = recorded->kernels();
  recorded->Forward(kInPieces);
  if (options.split_backward) recorded->BackwardInput(kInPieces);
  for (const int first : first_layers) {
    passes.pieces.push_back(recorded->BackwardTo(kInPieces, first));
  }
  return passes;
}

}  // namespace megascale::model
