#include "runtime/inference/inference.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/data/batches/document_begins.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"
#include "runtime/device/cpu_device.h"
#include "runtime/device/host_window.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/inference/read_weights.h"
#include "runtime/inference/text_source.h"
#include "runtime/inference/threads.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"

extern char** environ;

namespace megascale::cli {
namespace {

using tensor::DType;
using tensor::HostVector;
using tensor::Vector;

constexpr int64_t kEvaluationBatch = 8;
constexpr int64_t kWindowsMax = 1'000'000'000;
constexpr double kAutoFlops = 2e13;
constexpr double kHeldOutFraction = 0.1;  // as the default of data.held_out_fraction

// Returns data.end_token of weights alone; empty: the tokenizer's usual one.
absl::StatusOr<std::string> FindEndToken(const InferenceOptions& options,
                                         const inference::TextSource& text) {
  const tokenizer::Tokenizer& tokenizer = *text.codec.tokenizer();
  if (!options.end_token.empty()) {
    if (tokenizer.IdOf(options.end_token)) return options.end_token;
    return absl::InvalidArgumentError(
        absl::StrCat("--end-token: '", base::Printable(options.end_token, 60),
                     "' is not in the vocabulary; expected a token as the tokenizer writes it"));
  }
  if (tokenizer.EndOfDocument()) return std::string();
  // In another tokenizer than the weights' own, the id stands for an unrelated token.
  if (options.tokenizer.empty() && !text.end_tokens.empty()) {
    MEGASCALE_CHECK(text.end_tokens[0] < tokenizer.vocabulary_size());
    const std::string& token = tokenizer.TokenOf(text.end_tokens[0]);
    if (!token.empty()) return token;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--end-token: is missing; ", text.tokenizer,
                   " has no <|endoftext|>, <|end_of_text|> or </s>: name the token that ends a "
                   "document"));
}

// Describes weights alone as a job would.
absl::StatusOr<checkpoint::v1::Manifest> DescribeWeights(const InferenceOptions& options) {
  ASSIGN_OR_RETURN(const inference::TextSource text,
                   inference::FindTextSource(options.path, options.tokenizer));
  checkpoint::v1::Manifest manifest;
  manifest.set_kind(checkpoint::v1::CHECKPOINT_KIND_WEIGHTS);
  job::v1::JobSpec& spec = *manifest.mutable_spec();
  *spec.mutable_model() = text.model;
  spec.mutable_train()->set_precision(text.compute == DType::kBF16 ? job::v1::PRECISION_BF16
                                                                   : job::v1::PRECISION_FP32);
  spec.mutable_train()->set_seq_length(
      static_cast<int32_t>(std::min(text.context, kWindowOfWeights)));
  job::v1::DataSpec& data = *spec.mutable_data();
  data.set_held_out_fraction(kHeldOutFraction);
  if (text.codec.tokenizer() == nullptr) {
    if (options.end_token.empty()) return manifest;
    return absl::InvalidArgumentError("--end-token: the model reads bytes, without a tokenizer");
  }
  data.set_tokenizer(text.tokenizer);
  ASSIGN_OR_RETURN(*data.mutable_end_token(), FindEndToken(options, text));
  return manifest;
}

// Describes the job that wrote a checkpoint.
absl::StatusOr<checkpoint::v1::Manifest> DescribeJob(const InferenceOptions& options,
                                                     const std::string& step_directory,
                                                     checkpoint::v1::Manifest manifest) {
  if (!options.tokenizer.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tokenizer: ", step_directory,
        " keeps the tokenizer of its job; the option is for weights that no job wrote"));
  }
  if (!options.end_token.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--end-token: ", step_directory,
        " names the end token of its job; the option is for weights that no job wrote"));
  }
  job::v1::JobSpec& spec = *manifest.mutable_spec();
  if (spec.train().seq_length() <= 0) {
    return absl::DataLossError(
        absl::StrCat(step_directory, ": its manifest has no train.seq_length"));
  }
  spec.mutable_model()->set_from(step_directory);
  if (data::UsesTokenizer(spec.data())) {
    spec.mutable_data()->clear_tokenizer_vocab_size();
    ASSIGN_OR_RETURN(*spec.mutable_data()->mutable_tokenizer(),
                     tokenizer::TokenizerOfCheckpoint(step_directory));
  }
  return manifest;
}

absl::StatusOr<checkpoint::v1::Manifest> Describe(const InferenceOptions& options) {
  ASSIGN_OR_RETURN(const hugging_face::Source source, hugging_face::FindSource(options.path));
  if (!source.is_checkpoint) return DescribeWeights(options);
  ASSIGN_OR_RETURN(checkpoint::v1::Manifest manifest, checkpoint::ReadManifest(source.path));
  if (manifest.kind() == checkpoint::v1::CHECKPOINT_KIND_WEIGHTS) return DescribeWeights(options);
  return DescribeJob(options, source.path, std::move(manifest));
}

absl::Status SetSeqLength(int64_t seq_length, job::v1::JobSpec* spec) {
  if (seq_length == 0) return absl::OkStatus();
  const int64_t positions = spec->model().max_position_embeddings();
  const int64_t most = positions > 0 ? positions : inference::kLongestSequence;
  if (seq_length < 0 || seq_length > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seq-length: ", seq_length, " is out of range; expected 1 to ", most,
                     positions > 0 ? ", the model's longest sequence" : ""));
  }
  spec->mutable_train()->set_seq_length(static_cast<int32_t>(seq_length));
  return absl::OkStatus();
}

// Turns ids into the text that they stand for, counting its bytes.
class TextCount {
 public:
  // `tokenizer`: null for bytes.
  TextCount(const tokenizer::Tokenizer* tokenizer, bool keep) : keep_(keep) {
    if (tokenizer == nullptr) return;
    stream_.emplace(tokenizer, tokenizer::DecodeOptions{.skip_special_tokens = true});
  }
  absl::Status Add(absl::Span<const int32_t> ids) {
    for (const int32_t id : ids) {
      if (!stream_) {
        text_.push_back(static_cast<char>(id));
      } else {
        RETURN_IF_ERROR(stream_->Push(id, &text_));
      }
      if (!keep_) Drop();
    }
    return absl::OkStatus();
  }
  // Completes `loss`. Call it once, last.
  void Finish(HeldOutLoss* loss) {
    if (stream_) stream_->Finish(&text_);
    loss->num_bytes = num_bytes_ + static_cast<int64_t>(text_.size());
    if (keep_) loss->text = std::move(text_);
  }

 private:
  void Drop() {
    num_bytes_ += static_cast<int64_t>(text_.size());
    text_.clear();
  }

  const bool keep_;
  std::optional<tokenizer::DecodeStream> stream_;
  std::string text_;
  int64_t num_bytes_ = 0;
};

}  // namespace

struct Inference::Impl {
  checkpoint::v1::Manifest manifest;
  std::vector<std::string> warnings;
  std::unique_ptr<device::Device> device;
  std::vector<std::unique_ptr<device::Memory>> memory;
  std::unique_ptr<stream::Stream> stream;
  std::unique_ptr<ops::Ops> ops;
  std::unique_ptr<model::TransformerChunk> chunk;
  Vector loss_sum;  // [1] F64
  model::ModelConfig config;
  int64_t seq = 0;
  data::JobTokenizer tokenizer;  // empty: bytes

  absl::StatusOr<tensor::Arena> Allocate(size_t bytes) {
    ASSIGN_OR_RETURN(memory.emplace_back(), device->Allocate("the model", bytes));
    return tensor::Arena::Over(memory.back()->data(), bytes);
  }
  absl::Status WriteTokens(absl::Span<const int32_t> tokens, Vector to);
  int64_t WindowsWithin(const WindowLimit& limit, int64_t num_windows) const;
  absl::Status EvaluateBatch(absl::Span<const int32_t> tokens, int64_t batch);
};

absl::Status Inference::Impl::WriteTokens(absl::Span<const int32_t> tokens, Vector to) {
  to.size = static_cast<int64_t>(tokens.size());
  return device::HostWindow(device.get(), stream.get())
      .Write(to, [tokens](int64_t first, const HostVector& piece) {
        std::copy_n(tokens.begin() + first, piece.size(), piece.as<int32_t>());
        return absl::OkStatus();
      });
}

Inference::Inference(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Inference::~Inference() = default;

const checkpoint::v1::Manifest& Inference::manifest() const { return impl_->manifest; }

const std::vector<std::string>& Inference::warnings() const { return impl_->warnings; }

const tokenizer::Tokenizer* Inference::tokenizer() const {
  return impl_->tokenizer.tokenizer.get();
}

absl::StatusOr<std::unique_ptr<Inference>> Inference::Load(InferenceOptions load) {
  auto impl = std::make_unique<Impl>();
  ASSIGN_OR_RETURN(impl->manifest, Describe(load));
  RETURN_IF_ERROR(SetSeqLength(load.seq_length, impl->manifest.mutable_spec()));
  const job::v1::JobSpec& spec = impl->manifest.spec();
  impl->seq = spec.train().seq_length();
  ASSIGN_OR_RETURN(const auto source, hugging_face::InitialWeights::Open(spec.model()));
  impl->warnings = source->warnings();
  if (data::UsesTokenizer(spec.data())) {
    ASSIGN_OR_RETURN(impl->tokenizer, data::LoadJobTokenizer(spec.data()));
  }
  const DType compute = layout::ComputeType(spec.train().precision());
  impl->device = load.device != nullptr ? std::move(load.device) : device::MakeCpuDevice();
  ASSIGN_OR_RETURN(impl->stream, impl->device->MakeStream("inference"));
  impl->ops =
      impl->device->MakeOps(impl->stream.get(), compute, inference::ThreadsOrAll(load.num_threads));

  model::ChunkOptions options;
  ASSIGN_OR_RETURN(options.config, model::MakeModelConfig(spec.model()));
  impl->config = options.config;
  ASSIGN_OR_RETURN(options.range, model::MakeChunkRange(options.config, 1, 0));
  options.micro_batch = kEvaluationBatch;
  options.seq = impl->seq;
  options.compute = compute;
  options.within_documents = job::AttendsWithinDocuments(spec);
  const model::ChunkLayout layout(options.config, options.range);
  ASSIGN_OR_RETURN(tensor::Arena arena,
                   impl->Allocate(tensor::Arena::BytesFor(compute, layout.num_elements()) +
                                  tensor::Arena::BytesFor(DType::kF64, 1)));
  const Vector weights = arena.Allocate(compute, layout.num_elements());
  impl->loss_sum = arena.Allocate(DType::kF64, 1);
  RETURN_IF_ERROR(inference::ReadWeights(source.get(), layout,
                                         {impl->device.get(), impl->stream.get(), weights}));
  ASSIGN_OR_RETURN(impl->chunk, model::TransformerChunk::Create(
                                    options, impl->ops.get(), {weights, Vector()}, nullptr,
                                    [&](size_t bytes) { return impl->Allocate(bytes); }));
  return std::unique_ptr<Inference>(new Inference(std::move(impl)));
}

// `tokens`: those of the windows, and one more as the last target.
absl::Status Inference::Impl::EvaluateBatch(absl::Span<const int32_t> tokens, int64_t batch) {
  const auto size = static_cast<size_t>(batch * seq);
  RETURN_IF_ERROR(WriteTokens(tokens.first(size), chunk->tokens(0)));
  RETURN_IF_ERROR(WriteTokens(tokens.subspan(1, size), chunk->targets(0)));
  if (job::AttendsWithinDocuments(manifest.spec())) {
    std::vector<int32_t> begins(size);
    const auto window = static_cast<size_t>(seq);
    for (size_t at = 0; at < size; at += window) {
      data::FindDocumentBegins(tokens.subspan(at, window), tokenizer.end_token,
                               absl::MakeSpan(begins).subspan(at, window));
    }
    RETURN_IF_ERROR(WriteTokens(begins, chunk->document_begins(0)));
  }
  stream->RunAndWait([&] { chunk->Evaluate(0, batch, loss_sum); });
  return stream->Synchronize();
}

int64_t Inference::Impl::WindowsWithin(const WindowLimit& limit, int64_t num_windows) const {
  if (limit.num_windows > 0) num_windows = std::min(num_windows, limit.num_windows);
  if (limit.flops <= 0) return num_windows;
  // A forward pass is a third of a training step.
  const double window_flops = model::TrainFlopsPerToken(config, seq) / 3 * static_cast<double>(seq);
  if (static_cast<double>(num_windows) * window_flops <= limit.flops) return num_windows;
  return std::max<int64_t>(1, static_cast<int64_t>(limit.flops / window_flops));
}

absl::StatusOr<WindowLimit> ParseWindowLimit(const std::string& flag, const std::string& words) {
  if (words == "all") return WindowLimit();
  if (words == "auto") return WindowLimit{.flops = kAutoFlops};
  WindowLimit limit;
  if (absl::SimpleAtoi(words, &limit.num_windows) && limit.num_windows > 0 &&
      limit.num_windows <= kWindowsMax) {
    return limit;
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, ": expected all, auto or a number of 1 to ",
                                                 kWindowsMax, ", found '",
                                                 base::Printable(words, 60), "'"));
}

absl::StatusOr<HeldOutLoss> Inference::Evaluate(const data::TokenText& text,
                                                const EvaluateOptions& options) {
  Impl& impl = *impl_;
  const int64_t whole_windows = (text.num_tokens() - 1) / impl.seq;
  if (whole_windows < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the text has ", text.num_tokens(),
                                                   tokenizer() == nullptr ? " bytes" : " tokens",
                                                   "; one window needs ", impl.seq + 1));
  }
  const int64_t num_windows = impl.WindowsWithin(options.limit, whole_windows);
  if (options.on_start) options.on_start(num_windows, whole_windows);
  impl.stream->RunAndWait([&] { impl.ops->FillZero(impl.loss_sum); });
  TextCount count(tokenizer(), options.keep_text);
  std::vector<int32_t> tokens;
  for (int64_t window = 0; window < num_windows; window += kEvaluationBatch) {
    const int64_t batch = std::min(kEvaluationBatch, num_windows - window);
    tokens.resize(static_cast<size_t>(batch * impl.seq) + 1);
    RETURN_IF_ERROR(text.Read(window * impl.seq, absl::MakeSpan(tokens)));
    RETURN_IF_ERROR(impl.EvaluateBatch(tokens, batch));
    RETURN_IF_ERROR(count.Add(absl::MakeConstSpan(tokens).subspan(1)));
    if (options.on_progress) options.on_progress(window + batch, num_windows);
  }
  double nats = 0;
  RETURN_IF_ERROR(device::CopyToHost(impl.device.get(), impl.stream.get(), impl.loss_sum,
                                     HostVector::Of(absl::MakeSpan(&nats, 1))));
  HeldOutLoss loss;
  loss.text_tokens = text.num_tokens();
  loss.num_tokens = num_windows * impl.seq;
  loss.nats_per_token = nats / static_cast<double>(loss.num_tokens);
  count.Finish(&loss);
  loss.bits_per_byte =
      nats / std::log(2.0) / static_cast<double>(std::max<int64_t>(1, loss.num_bytes));
  return loss;
}

absl::StatusOr<std::string> FindCheckpoint(const std::string& directory) {
  const std::string manifest = absl::StrCat(directory, "/", std::string(checkpoint::kManifestFile));
  struct stat info;
  if (stat(manifest.c_str(), &info) == 0) return directory;
  ASSIGN_OR_RETURN(const auto checkpoints, checkpoint::ListCheckpoints(directory));
  if (!checkpoints.empty()) return checkpoints.front().directory();
  return absl::NotFoundError(
      absl::StrCat("no complete checkpoint in ", directory,
                   "; expected a folder with manifest.json, or a folder of such"));
}

absl::StatusOr<bool> IsWrittenByJob(const std::string& path) {
  ASSIGN_OR_RETURN(const hugging_face::Source source, hugging_face::FindSource(path));
  if (!source.is_checkpoint) return false;
  ASSIGN_OR_RETURN(const checkpoint::v1::Manifest manifest, checkpoint::ReadManifest(source.path));
  return manifest.kind() != checkpoint::v1::CHECKPOINT_KIND_WEIGHTS;
}

absl::StatusOr<EvaluationText> OpenEvaluationText(const job::v1::JobSpec& spec,
                                                  const data::DatasetOptions& options) {
  EvaluationText opened;
  ASSIGN_OR_RETURN(opened.dataset, data::Dataset::Open(spec, options));
  return opened;
}

absl::StatusOr<int64_t> XzSize(absl::string_view text) {
  const base::UniqueFd input(memfd_create("xz-input", MFD_CLOEXEC));
  const base::UniqueFd output(memfd_create("xz-output", MFD_CLOEXEC));
  if (!input.valid() || !output.valid()) return base::ErrnoStatus(errno, "memfd_create");
  RETURN_IF_ERROR(base::WriteAll(input.get(), text));
  lseek(input.get(), 0, SEEK_SET);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.get(), STDOUT_FILENO);
  // An xz that cannot do it, such as BusyBox's, would explain itself among our lines.
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  char xz[] = "xz", level[] = "-9", to_stdout[] = "-c";
  char* arguments[] = {xz, level, to_stdout, nullptr};
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, xz, &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return base::ErrnoStatus(error, "xz");
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  struct stat info;
  if (status != 0 || fstat(output.get(), &info) != 0) return absl::InternalError("xz failed");
  return info.st_size;
}

}  // namespace megascale::cli
