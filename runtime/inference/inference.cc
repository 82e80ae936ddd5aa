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
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/data/corpus.h"
#include "runtime/inference/sampling.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/model/config.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"

extern char** environ;

namespace megascale::cli {
namespace {

using tensor::DType;
using tensor::Vector;

constexpr int64_t kEvaluationBatch = 8;
constexpr int kByteTokens = 256;
constexpr int64_t kSampleTokensMax = 1'000'000;
constexpr int64_t kWindowsMax = 1'000'000'000;
constexpr double kAutoFlops = 2e13;

DType ComputeType(job::v1::Precision precision) {
  if (precision == job::v1::PRECISION_FP64) return DType::kF64;
  return precision == job::v1::PRECISION_BF16 ? DType::kBF16 : DType::kF32;
}

std::unique_ptr<ops::Ops> MakeOps(DType compute, int num_threads) {
  if (compute == DType::kF64) return ops::MakeReferenceOps();
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return ops::MakeCpuOps(compute, num_threads > 0 ? num_threads : cores);
}

double ElementAt(const Vector& vector, int64_t index) {
  switch (vector.dtype) {
    case DType::kF64:
      return vector.as<double>()[index];
    case DType::kBF16:
      return tensor::ToFloat(vector.as<tensor::BFloat16>()[index]);
    default:
      return vector.as<float>()[index];
  }
}

Vector Part(const Vector& whole, int64_t begin, int64_t count) {
  char* data = whole.as<char>() + begin * static_cast<int64_t>(tensor::SizeOf(whole.dtype));
  return {data, whole.dtype, count};
}

}  // namespace

struct Inference::Impl {
  checkpoint::v1::Manifest manifest;
  std::unique_ptr<ops::Ops> ops;
  tensor::Arena arena;  // weights
  std::unique_ptr<model::TransformerChunk> chunk;
  model::ModelConfig config;
  int64_t seq = 0;

  int64_t WindowsWithin(const WindowLimit& limit, int64_t num_windows) const;
  absl::Status ReadWeights(checkpoint::CheckpointReader* reader, const model::ChunkLayout& layout,
                           const Vector& weights);
  void EvaluateBatch(absl::string_view text, int64_t first_window, int64_t batch, double* nats);
};

absl::Status Inference::Impl::ReadWeights(checkpoint::CheckpointReader* reader,
                                          const model::ChunkLayout& layout, const Vector& weights) {
  std::vector<float> buffer;
  for (const model::Parameter& parameter : layout.parameters()) {
    const Vector target = Part(weights, parameter.offset, parameter.size);
    if (target.dtype == DType::kF64) {
      RETURN_IF_ERROR(reader->ReadSlice(parameter.name, 0,
                                        absl::MakeSpan(target.as<double>(), parameter.size)));
      continue;
    }
    buffer.resize(parameter.size);
    RETURN_IF_ERROR(reader->ReadSlice(parameter.name, 0, absl::MakeSpan(buffer)));
    if (target.dtype == DType::kF32) {
      std::copy(buffer.begin(), buffer.end(), target.as<float>());
    } else {
      ops->Cast({buffer.data(), DType::kF32, parameter.size}, target);
    }
  }
  return absl::OkStatus();
}

Inference::Inference(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Inference::~Inference() = default;

const checkpoint::v1::Manifest& Inference::manifest() const { return impl_->manifest; }

absl::StatusOr<std::unique_ptr<Inference>> Inference::Load(const std::string& step_directory,
                                                           int num_threads) {
  ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(step_directory));
  auto impl = std::make_unique<Impl>();
  impl->manifest = reader->manifest();
  const job::v1::JobSpec& spec = impl->manifest.spec();
  impl->seq = spec.train().seq_length();
  if (impl->seq <= 0) {
    return absl::DataLossError(
        absl::StrCat(step_directory, ": its manifest has no train.seq_length"));
  }
  const DType compute = ComputeType(spec.train().precision());
  impl->ops = MakeOps(compute, num_threads);

  model::ChunkOptions options;
  ASSIGN_OR_RETURN(options.config, model::MakeModelConfig(spec.model()));
  impl->config = options.config;
  ASSIGN_OR_RETURN(options.range, model::MakeChunkRange(options.config, 1, 0));
  options.micro_batch = kEvaluationBatch;
  options.seq = impl->seq;
  options.compute = compute;
  const model::ChunkLayout layout(options.config, options.range);
  ASSIGN_OR_RETURN(impl->arena,
                   tensor::Arena::Create(tensor::Arena::BytesFor(compute, layout.num_elements())));
  const Vector weights = impl->arena.Allocate(compute, layout.num_elements());
  RETURN_IF_ERROR(impl->ReadWeights(reader.get(), layout, weights));
  ASSIGN_OR_RETURN(impl->chunk,
                   model::TransformerChunk::Create(options, impl->ops.get(), {weights, Vector()}));
  return std::unique_ptr<Inference>(new Inference(std::move(impl)));
}

absl::Status CheckSampleOptions(const SampleOptions& options) {
  if (options.prompt.empty()) {
    return absl::InvalidArgumentError("--prompt: is empty; expected at least one character");
  }
  if (options.num_tokens < 0 || options.num_tokens > kSampleTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tokens: ", options.num_tokens, " is out of range; expected 0 to ", kSampleTokensMax));
  }
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--temperature: ", options.temperature,
                                                   " is out of range; expected 0 or more"));
  }
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--top-k: ", options.top_k, " is out of range; expected 0 (all) or more"));
  }
  return absl::OkStatus();
}

absl::Status Inference::Sample(const SampleOptions& options,
                               const std::function<void(absl::string_view)>& on_text) {
  RETURN_IF_ERROR(CheckSampleOptions(options));
  std::vector<int32_t> tokens;
  for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
  UniformNumbers uniform(options.seed);
  std::vector<double> logits(kByteTokens);
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    const int64_t context = std::min<int64_t>(impl_->seq, static_cast<int64_t>(tokens.size()));
    const Vector logits_V =
        impl_->chunk->Logits({tokens.data() + tokens.size() - context, DType::kI32, context});
    // A model may have a larger vocabulary, but only bytes can be shown.
    for (int token = 0; token < kByteTokens; ++token) logits[token] = ElementAt(logits_V, token);
    const int token = ChooseToken(logits, {options.temperature, options.top_k}, uniform.Next());
    tokens.push_back(token);
    const char text = static_cast<char>(token);
    on_text(absl::string_view(&text, 1));
  }
  return absl::OkStatus();
}

void Inference::Impl::EvaluateBatch(absl::string_view text, int64_t first_window, int64_t batch,
                                    double* nats) {
  const Vector tokens = chunk->tokens(0);
  const Vector targets = chunk->targets(0);
  for (int64_t i = 0; i < batch * seq; ++i) {
    const int64_t at = first_window * seq + i;
    tokens.as<int32_t>()[i] = static_cast<unsigned char>(text[at]);
    targets.as<int32_t>()[i] = static_cast<unsigned char>(text[at + 1]);
  }
  chunk->Evaluate(0, batch, nats);
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

absl::StatusOr<HeldOutLoss> Inference::Evaluate(absl::string_view text,
                                                const EvaluateOptions& options) {
  const int64_t whole_windows = (static_cast<int64_t>(text.size()) - 1) / impl_->seq;
  if (text.empty() || whole_windows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes; one window needs ", impl_->seq + 1));
  }
  const int64_t num_windows = impl_->WindowsWithin(options.limit, whole_windows);
  double nats = 0;
  for (int64_t window = 0; window < num_windows; window += kEvaluationBatch) {
    const int64_t batch = std::min(kEvaluationBatch, num_windows - window);
    impl_->EvaluateBatch(text, window, batch, &nats);
    if (options.on_progress) options.on_progress(window + batch, num_windows);
  }
  HeldOutLoss loss;
  loss.text_bytes = static_cast<int64_t>(text.size());
  loss.num_bytes = num_windows * impl_->seq;
  loss.bits_per_byte = nats / std::log(2.0) / static_cast<double>(loss.num_bytes);
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

absl::StatusOr<std::string> ReadHeldOutText(const job::v1::JobSpec& spec) {
  ASSIGN_OR_RETURN(const auto corpus, data::Corpus::Open(spec.data(), spec.train().seq_length()));
  const data::CorpusPart part = corpus->held_out();
  std::string text(part.size_bytes(), '\0');
  RETURN_IF_ERROR(
      part.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size())));
  return text;
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
