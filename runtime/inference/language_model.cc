#include "runtime/inference/language_model.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/device/cpu_device.h"
#include "runtime/device/host_window.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/inference/read_weights.h"
#include "runtime/inference/threads.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"

namespace megascale::inference {
namespace {

using tensor::Arena;
using tensor::DType;
using tensor::HostVector;
using tensor::Vector;

// Tokens of a prompt that one pass reads: enough for fast products.
constexpr int64_t kRowsOfPass = 256;

double ElementAt(const HostVector& vector, int64_t index) {
  switch (vector.dtype()) {
    case DType::kF64:
      return vector.as<double>()[index];
    case DType::kBF16:
      return tensor::ToFloat(vector.as<tensor::BFloat16>()[index]);
    default:
      return vector.as<float>()[index];
  }
}

absl::Status CheckOptions(const LanguageModelOptions& options, const model::ModelConfig& config) {
  MEGASCALE_CHECK(options.num_sequences >= 1 && options.num_sequences <= ops::kFewRows);
  MEGASCALE_CHECK(options.capacity >= 1);
  if (config.position == model::PositionKind::kLearned && options.capacity > config.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequences of ", options.capacity, " tokens: the model has learned ",
                     config.max_positions, " positions; expected no more"));
  }
  if (options.capacity > std::numeric_limits<int32_t>::max() / options.num_sequences) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.num_sequences, " sequences of ", options.capacity,
        " tokens: expected fewer than 2^31 tokens together; ask for fewer tokens or sequences"));
  }
  return absl::OkStatus();
}

}  // namespace

struct LanguageModel::Impl {
  std::unique_ptr<device::Device> device;
  std::vector<std::unique_ptr<device::Memory>> memory;
  std::unique_ptr<stream::Stream> stream;
  std::unique_ptr<ops::Ops> ops;
  std::unique_ptr<model::TransformerChunk> chunk;
  model::ModelConfig config;
  model::KeyValueCache cache;
  Vector tokens, places;       // [rows of a pass] I32
  std::vector<int64_t> sizes;  // tokens of each sequence
  int64_t step_bytes = 0;

  absl::StatusOr<Arena> Allocate(absl::string_view what, size_t bytes) {
    ASSIGN_OR_RETURN(memory.emplace_back(), device->Allocate(what, bytes));
    return Arena::Over(memory.back()->data(), bytes);
  }
  absl::Status MakeCache(int64_t num_sequences, DType compute);
  absl::Status WriteNumbers(const std::vector<int32_t>& numbers, Vector to);
  // Runs one pass; `logits` receives those after the last `num_logits` tokens.
  absl::Status Run(const std::vector<int32_t>& ids, const std::vector<int32_t>& at,
                   int64_t num_logits, std::vector<double>* logits);
};

absl::Status LanguageModel::Impl::MakeCache(int64_t num_sequences, DType compute) {
  const int64_t rows = num_sequences * cache.capacity;
  const int64_t cols = config.num_kv_heads * config.head_dim;
  ASSIGN_OR_RETURN(Arena arena,
                   Allocate("the cache of keys and values",
                            2 * config.num_layers * Arena::BytesFor(compute, rows * cols)));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    cache.keys.push_back(arena.AllocateMatrix(compute, rows, cols));
    cache.values.push_back(arena.AllocateMatrix(compute, rows, cols));
  }
  return absl::OkStatus();
}

absl::Status LanguageModel::Impl::WriteNumbers(const std::vector<int32_t>& numbers, Vector to) {
  to.size = static_cast<int64_t>(numbers.size());
  return device::HostWindow(device.get(), stream.get())
      .Write(to, [&](int64_t first, const HostVector& piece) {
        std::copy_n(numbers.begin() + first, piece.size(), piece.as<int32_t>());
        return absl::OkStatus();
      });
}

absl::Status LanguageModel::Impl::Run(const std::vector<int32_t>& ids,
                                      const std::vector<int32_t>& at, int64_t num_logits,
                                      std::vector<double>* logits) {
  for (const int32_t id : ids) MEGASCALE_CHECK(id >= 0 && id < config.vocab_size);
  RETURN_IF_ERROR(WriteNumbers(ids, tokens));
  RETURN_IF_ERROR(WriteNumbers(at, places));
  const auto count = static_cast<int64_t>(ids.size());
  tensor::Matrix logits_NV;
  stream->RunAndWait([&] {
    logits_NV = chunk->Continue({tokens.data, tokens.dtype, count},
                                {places.data, places.dtype, count}, cache, num_logits);
  });
  if (num_logits == 0) return absl::OkStatus();
  MEGASCALE_CHECK(logits_NV.stride == logits_NV.cols);
  const Vector flat = {logits_NV.data, logits_NV.dtype, logits_NV.rows * logits_NV.cols};
  logits->resize(flat.size);
  return device::HostWindow(device.get(), stream.get())
      .Read(flat, [&](int64_t first, const HostVector& piece) {
        for (int64_t i = 0; i < piece.size(); ++i) (*logits)[first + i] = ElementAt(piece, i);
        return absl::OkStatus();
      });
}

LanguageModel::LanguageModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LanguageModel::~LanguageModel() = default;

const model::ModelConfig& LanguageModel::config() const { return impl_->config; }
int64_t LanguageModel::capacity() const { return impl_->cache.capacity; }
int64_t LanguageModel::num_sequences() const { return static_cast<int64_t>(impl_->sizes.size()); }
int64_t LanguageModel::SizeOf(int64_t sequence) const { return impl_->sizes[sequence]; }
int64_t LanguageModel::step_bytes() const { return impl_->step_bytes; }
void LanguageModel::Clear(int64_t sequence) { impl_->sizes[sequence] = 0; }

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Load(LanguageModelOptions options) {
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->config, model::MakeModelConfig(options.model));
  RETURN_IF_ERROR(CheckOptions(options, impl->config));
  ASSIGN_OR_RETURN(const auto source, hugging_face::InitialWeights::Open(options.model));
  const DType compute = options.compute;
  impl->device = options.device != nullptr ? std::move(options.device) : device::MakeCpuDevice();
  ASSIGN_OR_RETURN(impl->stream, impl->device->MakeStream("inference"));
  impl->ops = impl->device->MakeOps(impl->stream.get(), compute, ThreadsOrAll(options.num_threads));
  impl->sizes.resize(options.num_sequences);
  impl->cache.capacity = options.capacity;

  model::ChunkOptions chunk;
  chunk.config = impl->config;
  ASSIGN_OR_RETURN(chunk.range, model::MakeChunkRange(chunk.config, 1, 0));
  // A sequence is read in passes; a step has a row for each sequence.
  chunk.micro_batch = std::max(options.num_sequences, std::min(kRowsOfPass, options.capacity));
  chunk.seq = 1;
  chunk.compute = compute;
  chunk.generates = true;
  const model::ChunkLayout layout(chunk.config, chunk.range);
  ASSIGN_OR_RETURN(
      Arena arena,
      impl->Allocate("the weights", Arena::BytesFor(compute, layout.num_elements()) +
                                        2 * Arena::BytesFor(DType::kI32, chunk.micro_batch)));
  const Vector weights = arena.Allocate(compute, layout.num_elements());
  impl->tokens = arena.Allocate(DType::kI32, chunk.micro_batch);
  impl->places = arena.Allocate(DType::kI32, chunk.micro_batch);
  for (const model::Parameter& parameter : layout.parameters()) {
    const bool looked_up = absl::StartsWith(parameter.name, "model.embed_positions") ||
                           (!chunk.config.tied && parameter.name == "model.embed_tokens.weight");
    if (!looked_up)
      impl->step_bytes += parameter.size * static_cast<int64_t>(tensor::SizeOf(compute));
  }
  RETURN_IF_ERROR(impl->MakeCache(options.num_sequences, compute));
  RETURN_IF_ERROR(
      ReadWeights(source.get(), layout, {impl->device.get(), impl->stream.get(), weights}));
  ASSIGN_OR_RETURN(impl->chunk,
                   model::TransformerChunk::Create(
                       chunk, impl->ops.get(), {weights, Vector()}, nullptr,
                       [&](size_t bytes) { return impl->Allocate("the activations", bytes); }));
  return std::unique_ptr<LanguageModel>(new LanguageModel(std::move(impl)));
}

absl::Status LanguageModel::Read(int64_t sequence, absl::Span<const int32_t> tokens,
                                 std::vector<double>* logits) {
  Impl& impl = *impl_;
  int64_t& size = impl.sizes[sequence];
  const auto count = static_cast<int64_t>(tokens.size());
  MEGASCALE_CHECK(count >= 1 && size + count <= capacity());
  for (int64_t begin = 0; begin < count; begin += kRowsOfPass) {
    const int64_t rows = std::min(kRowsOfPass, count - begin);
    const std::vector<int32_t> ids(tokens.begin() + begin, tokens.begin() + begin + rows);
    std::vector<int32_t> places(rows);
    for (int64_t i = 0; i < rows; ++i) {
      places[i] = static_cast<int32_t>(sequence * capacity() + size + i);
    }
    RETURN_IF_ERROR(impl.Run(ids, places, begin + rows == count ? 1 : 0, logits));
    size += rows;
  }
  return absl::OkStatus();
}

absl::Status LanguageModel::Step(absl::Span<const NextToken> tokens, std::vector<double>* logits) {
  std::vector<int32_t> ids, places;
  for (const NextToken& next : tokens) {
    int64_t& size = impl_->sizes[next.sequence];
    MEGASCALE_CHECK(size < capacity());
    ids.push_back(next.token);
    places.push_back(static_cast<int32_t>(next.sequence * capacity() + size));
    ++size;
  }
  return impl_->Run(ids, places, static_cast<int64_t>(ids.size()), logits);
}

}  // namespace megascale::inference
