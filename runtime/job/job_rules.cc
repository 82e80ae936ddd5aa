#include "runtime/job/job_rules.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/comm/store/redis/address.h"
#include "runtime/job/evaluation.h"
#include "runtime/job/field_checks.h"
#include "runtime/job/job_spec.h"
#include "runtime/job/names.h"
#include "runtime/job/pipeline_schedule.h"

namespace megascale::job {
namespace {

using v1::JobSpec;

constexpr int64_t kProjectionSizeMax = 4 * kHiddenSizeMax;
constexpr int kGpuHiddenSizeMax = 16384;
constexpr int kGpuHeadDimMax = 256;
constexpr int64_t kLayersMax = 1 << 10;
constexpr int64_t kRanksMax = 1 << 16;
constexpr int64_t kThreadsMax = 1 << 10;
constexpr int64_t kStepsMax = int64_t{1} << 40;
// The number of batches of all evaluations of a job must not overflow.
constexpr int64_t kEvaluationBatchesLimit = int64_t{1} << 20;
constexpr int64_t kMicrobatchTokensMax = int64_t{1} << 24;
constexpr int kFilesMax = 10'000;
// A job is sent whole in messages to agents, processes and everyone who watches it.
constexpr size_t kFilesBytesMax = 256 << 10;
constexpr size_t kNameLengthMax = 63;
constexpr size_t kWordBytesMax = 80;  // of a word in a message

absl::Status CheckName(const std::string& name) {
  if (name.empty()) return Refuse("name", "is missing; expected a short name such as fortunes");
  if (name.size() > kNameLengthMax) {
    return Refuse("name", absl::StrCat("has ", name.size(), " characters; expected at most ",
                                       kNameLengthMax));
  }
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.') {
      const std::string shown = absl::ascii_isprint(c)
                                    ? absl::StrCat("'", std::string(1, c), "'")
                                    : absl::StrCat("byte ", static_cast<unsigned char>(c));
      return Refuse(
          "name", absl::StrCat(shown, " is not allowed; expected letters, digits, '-', '_', '.'"));
    }
  }
  if (name[0] == '.' || name[0] == '-') {
    return Refuse("name", absl::StrCat("'", name, "' begins with '", std::string(1, name[0]),
                                       "'; expected a letter, a digit or '_' first"));
  }
  return absl::OkStatus();
}

// What no program could run. Whether this program, or a machine, has a device is found where the
// device is made: a job can be planned anywhere.
absl::Status CheckDevice(const v1::JobSpec& spec) {
  const v1::Device device = spec.device();
  if (device == v1::DEVICE_CPU) {
    if (spec.device_sharing()) {
      return Refuse("device_sharing", "is for GPUs; expected device = cuda, or false");
    }
    if (spec.has_enable_cuda_graph()) {
      return Refuse("enable_cuda_graph", "is for GPUs; expected device = cuda, or no value");
    }
    if (spec.train().allow_tf32()) {
      return Refuse("train.allow_tf32", "is for GPUs; expected device = cuda, or false");
    }
    return absl::OkStatus();
  }
  if (device != v1::DEVICE_CUDA) {
    return Refuse("device", absl::StrCat("unknown value ", static_cast<int>(device),
                                         "; expected cpu or cuda"));
  }
  if (spec.train().precision() == v1::PRECISION_FP64) {
    return Refuse("train.precision", "fp64 does not go with device = cuda; expected fp32 or bf16");
  }
  // Limits of the kernels (gpu/kernels).
  const v1::ModelSpec& model = spec.model();
  if (model.hidden_size() > kGpuHiddenSizeMax) {
    return Refuse("model.hidden_size",
                  absl::StrCat(model.hidden_size(), " with device = cuda; expected at most ",
                               kGpuHiddenSizeMax));
  }
  const int head_dim = model.head_dim() > 0 || model.num_attention_heads() == 0
                           ? model.head_dim()
                           : model.hidden_size() / model.num_attention_heads();
  if (head_dim > kGpuHeadDimMax) {
    return Refuse("model.head_dim",
                  absl::StrCat(head_dim, " with device = cuda; expected at most ", kGpuHeadDimMax));
  }
  return absl::OkStatus();
}

absl::Status CheckPartialRotaryFactor(double factor) {
  if (factor > 0 && factor <= 1) return absl::OkStatus();
  return Refuse("model.partial_rotary_factor",
                absl::StrCat(factor, " is out of range; expected more than 0, at most 1"));
}

absl::Status CheckRopeScalingFields(const v1::RopeScaling& scaling) {
  const auto check = [](absl::string_view field, double value, double below) {
    return CheckNumber(field, value, {0, below, true});
  };
  return All({check("model.rope_scaling.factor", scaling.factor(), 1e6),
              check("model.rope_scaling.low_freq_factor", scaling.low_freq_factor(), 1e6),
              check("model.rope_scaling.high_freq_factor", scaling.high_freq_factor(), 1e6),
              CheckInteger("model.rope_scaling.original_max_position_embeddings",
                           scaling.original_max_position_embeddings(), {0, kSizeMax}),
              check("model.rope_scaling.beta_fast", scaling.beta_fast(), 1e6),
              check("model.rope_scaling.beta_slow", scaling.beta_slow(), 1e6),
              check("model.rope_scaling.attention_factor", scaling.attention_factor(), 100)});
}

absl::Status CheckRopeScaling(const v1::ModelSpec& model) {
  if (!model.has_rope_scaling()) return absl::OkStatus();
  const v1::RopeScaling& scaling = model.rope_scaling();
  if (!v1::RopeType_IsValid(scaling.rope_type()) ||
      scaling.rope_type() == v1::ROPE_TYPE_UNSPECIFIED) {
    return Refuse("model.rope_scaling.rope_type", "is missing; expected linear, llama3 or yarn");
  }
  RETURN_IF_ERROR(CheckNumber("model.rope_scaling.factor", scaling.factor(), {1, 1e6, true}));
  if (scaling.rope_type() == v1::ROPE_TYPE_LINEAR) return absl::OkStatus();
  RETURN_IF_ERROR(CheckInteger("model.rope_scaling.original_max_position_embeddings",
                               scaling.original_max_position_embeddings(), {1, kSizeMax}));
  if (scaling.rope_type() == v1::ROPE_TYPE_YARN) return absl::OkStatus();
  if (scaling.high_freq_factor() > scaling.low_freq_factor()) return absl::OkStatus();
  return Refuse("model.rope_scaling.high_freq_factor",
                absl::StrCat(scaling.high_freq_factor(),
                             " must be more than model.rope_scaling.low_freq_factor = ",
                             scaling.low_freq_factor()));
}

absl::Status CheckModelFields(const v1::ModelSpec& model) {
  return All(
      {CheckInteger("model.vocab_size", model.vocab_size(), {256, 1 << 24}),
       CheckInteger("model.hidden_size", model.hidden_size(), {1, kHiddenSizeMax}),
       CheckInteger("model.num_hidden_layers", model.num_hidden_layers(), {1, kLayersMax}),
       CheckInteger("model.num_attention_heads", model.num_attention_heads(), {1, kHiddenSizeMax}),
       CheckInteger("model.num_key_value_heads", model.num_key_value_heads(), {1, kHiddenSizeMax}),
       CheckInteger("model.intermediate_size", model.intermediate_size(), {1, kProjectionSizeMax}),
       CheckInteger("model.sliding_window", model.sliding_window(), {0, kSizeMax}),
       CheckPartialRotaryFactor(model.partial_rotary_factor()),
       CheckInteger("model.num_ln_in_parallel_attn", model.num_ln_in_parallel_attn(), {1, 2}),
       CheckNumber("model.norm_eps", model.norm_eps(), {0, 1}),
       CheckNumber("model.initializer_range", model.initializer_range(), {0, 10}),
       CheckNumber("model.rope_theta", model.rope_theta(), {1, 1e12}),
       model.has_rope_scaling() ? CheckRopeScalingFields(model.rope_scaling()) : absl::OkStatus(),
       model.from().empty() ? absl::OkStatus() : CheckPath("model.from", model.from())});
}

absl::Status CheckRotary(const v1::ModelSpec& model) {
  const double factor = model.partial_rotary_factor();
  const auto turned = static_cast<int>(model.head_dim() * factor);
  if (model.position_embedding() != v1::POSITION_EMBEDDING_ROTARY ||
      (turned % 2 == 0 && turned != 0)) {
    return absl::OkStatus();
  }
  return Refuse(
      "model.position_embedding",
      absl::StrCat("rotary turns pairs of elements; model.head_dim × "
                   "model.partial_rotary_factor = ",
                   model.head_dim(), " × ", factor, " = ", turned, "; expected an even number"));
}

absl::Status CheckLayerTypes(const v1::ModelSpec& model) {
  constexpr char kField[] = "model.layer_types";
  if (model.layer_types().empty()) return absl::OkStatus();
  if (model.layer_types_size() != model.num_hidden_layers()) {
    return Refuse(kField, absl::StrCat("has ", model.layer_types_size(),
                                       " words; expected one for "
                                       "each of model.num_hidden_layers = ",
                                       model.num_hidden_layers(), " layers"));
  }
  for (const std::string& type : model.layer_types()) {
    if (type != "full_attention" && type != "sliding_attention") {
      return Refuse(kField, absl::StrCat("has ", base::Printable(type, kWordBytesMax),
                                         "; expected full_attention or sliding_attention"));
    }
    if (type == "sliding_attention" && model.sliding_window() == 0) {
      return Refuse(kField,
                    "has a layer with a window; expected model.sliding_window beside it, more "
                    "than 0");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const v1::ModelSpec& model) {
  RETURN_IF_ERROR(CheckRopeScaling(model));
  RETURN_IF_ERROR(CheckLayerTypes(model));
  if (model.head_dim() == 0) {
    RETURN_IF_ERROR(CheckDivides({"model.hidden_size", model.hidden_size()},
                                 {"model.num_attention_heads", model.num_attention_heads()}));
  }
  RETURN_IF_ERROR(CheckInteger("model.head_dim", model.head_dim(), {1, kHiddenSizeMax}));
  const int64_t projection = int64_t{model.num_attention_heads()} * model.head_dim();
  if (projection > kProjectionSizeMax) {
    return Refuse("model.head_dim",
                  absl::StrCat("num_attention_heads × head_dim = ", model.num_attention_heads(),
                               " × ", model.head_dim(), " = ", projection,
                               " is absurd; expected at most ", kProjectionSizeMax));
  }
  RETURN_IF_ERROR(CheckDivides({"model.num_attention_heads", model.num_attention_heads()},
                               {"model.num_key_value_heads", model.num_key_value_heads()}));
  return CheckRotary(model);
}

absl::Status CheckEnums(const JobSpec& spec) {
  if (!v1::PositionEmbedding_IsValid(spec.model().position_embedding())) {
    return Refuse("model.position_embedding", "is unknown; expected learned or rotary");
  }
  if (!v1::Norm_IsValid(spec.model().norm())) {
    return Refuse("model.norm", "is unknown; expected layernorm or rmsnorm");
  }
  if (!v1::Activation_IsValid(spec.model().hidden_act())) {
    return Refuse("model.hidden_act", "is unknown; expected gelu, gelu_tanh or swiglu");
  }
  if (!v1::Precision_IsValid(spec.train().precision())) {
    return Refuse("train.precision", "is unknown; expected fp32, bf16 or fp64");
  }
  if (!v1::OptimizerType_IsValid(spec.optimizer().type())) {
    return Refuse("optimizer.type", "is unknown; expected adamw or lamb");
  }
  if (!v1::Schedule_IsValid(spec.optimizer().schedule())) {
    return Refuse("optimizer.schedule", "is unknown; expected cosine, constant, linear or wsd");
  }
  if (!v1::Decay_IsValid(spec.optimizer().decay())) {
    return Refuse("optimizer.decay", "is unknown; expected linear, cosine or one_minus_sqrt");
  }
  if (!v1::RecomputeGranularity_IsValid(spec.train().recompute_granularity())) {
    return Refuse("train.recompute_granularity", "is unknown; expected none, selective or full");
  }
  if (!v1::PipelineSchedule_IsValid(spec.parallel().pipeline_schedule())) {
    return Refuse("parallel.pipeline_schedule",
                  "is unknown; expected 1f1b, gpipe, interleaved_1f1b or zb_h1");
  }
  if (!v1::OnSuspect_IsValid(spec.fault().on_suspect())) {
    return Refuse("fault.on_suspect", "is unknown; expected tell or evict");
  }
  return absl::OkStatus();
}

absl::Status CheckData(const v1::DataSpec& data) {
  if (data.files().empty()) {
    return Refuse("data.files", "is missing; expected at least one text file or directory");
  }
  if (data.files_size() > kFilesMax) {
    return Refuse("data.files",
                  absl::StrCat("has ", data.files_size(), " entries; expected at most ", kFilesMax,
                               ", name a directory of them"));
  }
  size_t bytes = 0;
  for (const std::string& file : data.files()) {
    RETURN_IF_ERROR(CheckPath("data.files", file));
    bytes += file.size();
  }
  if (bytes > kFilesBytesMax) {
    return Refuse("data.files", absl::StrCat("has ", bytes, " bytes of names; expected at most ",
                                             kFilesBytesMax, ", name a directory of them"));
  }
  return All(
      {CheckNumber("data.held_out_fraction", data.held_out_fraction(), {0, 1}), CheckTokens(data)});
}

absl::Status CheckTrainFields(const JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  return All(
      {CheckInteger("train.steps", train.steps(), {1, kStepsMax}),
       CheckInteger("train.seq_length", train.seq_length(), {1, kSizeMax}),
       CheckInteger("train.global_batch_size", train.global_batch_size(), {1, kSizeMax}),
       CheckInteger("train.eval_interval", train.eval_interval(), {0, kStepsMax}),
       CheckInteger("train.eval_batches", train.eval_batches(), {0, kEvaluationBatchesLimit}),
       CheckInteger("train.micro_batch_size", train.micro_batch_size(), {1, kSizeMax}),
       // Its default is seq_length.
       CheckInteger("model.max_position_embeddings", spec.model().max_position_embeddings(),
                    {1, kSizeMax})});
}

absl::Status CheckTrain(const JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  const int64_t tokens = int64_t{train.micro_batch_size()} * train.seq_length();
  if (tokens > kMicrobatchTokensMax) {
    return Refuse("train.micro_batch_size",
                  absl::StrCat("micro_batch_size × seq_length = ", train.micro_batch_size(), " × ",
                               train.seq_length(), " = ", tokens,
                               " tokens is absurd; expected at most ", kMicrobatchTokensMax));
  }
  const int64_t positions = spec.model().max_position_embeddings();
  if (train.seq_length() > positions) {
    return Refuse("train.seq_length",
                  absl::StrCat(train.seq_length(),
                               " is more than model.max_position_embeddings = ", positions));
  }
  return absl::OkStatus();
}

absl::Status CheckOptimizerFields(const v1::OptimizerSpec& optimizer) {
  return All({CheckNumber("optimizer.lr", optimizer.lr(), {0, 100}),
              CheckNumber("optimizer.min_lr", optimizer.min_lr(), {0, 100}),
              CheckInteger("optimizer.decay_steps", optimizer.decay_steps(), {0, kStepsMax}),
              CheckInteger("optimizer.warmup_steps", optimizer.warmup_steps(), {0, kStepsMax}),
              CheckNumber("optimizer.beta1", optimizer.beta1(), {0, 1}),
              CheckNumber("optimizer.beta2", optimizer.beta2(), {0, 1}),
              CheckNumber("optimizer.eps", optimizer.eps(), {0, 1}),
              CheckNumber("optimizer.weight_decay", optimizer.weight_decay(), {0, 100, true}),
              CheckNumber("optimizer.clip_grad", optimizer.clip_grad(), {0, 1e12, true})});
}

absl::Status CheckLearningRates(const v1::OptimizerSpec& optimizer) {
  if (optimizer.min_lr() <= optimizer.lr()) return absl::OkStatus();
  return Refuse("optimizer.min_lr",
                absl::StrCat(optimizer.min_lr(), " is more than optimizer.lr = ", optimizer.lr()));
}

absl::Status CheckWarmup(const JobSpec& spec) {
  const int64_t warmup = spec.optimizer().warmup_steps();
  if (warmup <= spec.train().steps()) return absl::OkStatus();
  return Refuse("optimizer.warmup_steps",
                absl::StrCat(warmup, " is more than train.steps = ", spec.train().steps()));
}

// Checks what only WSD uses, and that its decay has room behind the warm-up.
absl::Status CheckSchedules(const JobSpec& spec) {
  const v1::OptimizerSpec& optimizer = spec.optimizer();
  if (optimizer.schedule() != v1::SCHEDULE_WSD) {
    for (const auto& [field, is_set] :
         {std::pair("optimizer.decay_steps", optimizer.decay_steps() > 0),
          std::pair("optimizer.decay", optimizer.decay() != v1::DECAY_UNSPECIFIED)}) {
      if (is_set)
        return Refuse(field, "is for optimizer.schedule = wsd; expected that, or no value");
    }
    return absl::OkStatus();
  }
  const int64_t room = spec.train().steps() - optimizer.warmup_steps();
  if (optimizer.decay_steps() <= room) return absl::OkStatus();
  return Refuse("optimizer.decay_steps",
                absl::StrCat(optimizer.decay_steps(),
                             " is more than the steps behind the warm-up, train.steps - "
                             "optimizer.warmup_steps = ",
                             room));
}

// Checks what evaluations need.
absl::Status CheckEvaluations(const JobSpec& spec) {
  const bool never = EvaluationInterval(spec) == 0;
  if (never && spec.checkpoint().keep_best()) {
    return Refuse(
        "checkpoint.keep_best",
        "needs evaluations, but train.eval_interval is 0; expected false, or an interval");
  }
  if (never && spec.train().eval_batches() > 0) {
    return Refuse("train.eval_batches",
                  "is set, but train.eval_interval is 0; expected no value, or an interval");
  }
  return absl::OkStatus();
}

// Checks the sizes that tensor parallelism cuts: heads, the MLP's inner width, sequences. The
// vocabulary is padded to a multiple.
absl::Status CheckTensorDivides(const JobSpec& spec) {
  const v1::ModelSpec& model = spec.model();
  for (const Named& whole : {Named{"model.num_attention_heads", model.num_attention_heads()},
                             Named{"model.intermediate_size", model.intermediate_size()},
                             Named{"train.seq_length", spec.train().seq_length()}}) {
    RETURN_IF_ERROR(CheckDivides(whole, {"parallel.tensor_model_parallel_size",
                                         spec.parallel().tensor_model_parallel_size()}));
  }
  const int64_t ranks = spec.parallel().tensor_model_parallel_size();
  // Ranks share a key/value head where there are more ranks than heads.
  if (const int32_t kv_heads = model.num_key_value_heads(); ranks % kv_heads != 0) {
    RETURN_IF_ERROR(CheckDivides({"model.num_key_value_heads", kv_heads},
                                 {"parallel.tensor_model_parallel_size", ranks}));
  }
  const int64_t rows = (int64_t{model.vocab_size()} + ranks - 1) / ranks;
  if ((ranks - 1) * rows < model.vocab_size()) return absl::OkStatus();
  return Refuse("model.vocab_size",
                absl::StrCat(model.vocab_size(),
                             " gives no row to the last of "
                             "parallel.tensor_model_parallel_size = ",
                             ranks, " ranks, of ", rows, " rows each; use fewer ranks"));
}

absl::Status CheckParallel(const v1::ParallelSpec& parallel) {
  const auto check = [](absl::string_view field, int64_t value, int64_t most) {
    return CheckInteger(field, value, {1, most});
  };
  return All({check("parallel.data_parallel_size", parallel.data_parallel_size(), kRanksMax),
              check("parallel.pipeline_model_parallel_size",
                    parallel.pipeline_model_parallel_size(), kLayersMax),
              check("parallel.tensor_model_parallel_size", parallel.tensor_model_parallel_size(),
                    kRanksMax),
              check("parallel.threads_per_rank", parallel.threads_per_rank(), kThreadsMax),
              check("parallel.virtual_pipeline_model_parallel_size",
                    parallel.virtual_pipeline_model_parallel_size(), kLayersMax),
              check("parallel.zero_stage", parallel.zero_stage(), 2),
              check("parallel.ddp_bucket_size", parallel.ddp_bucket_size(), kBucketSizeMax)});
}

absl::Status CheckLayout(const JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  const int64_t data = parallel.data_parallel_size();
  const int64_t tensor = parallel.tensor_model_parallel_size();
  const int64_t pipeline = parallel.pipeline_model_parallel_size();
  if (data * tensor * pipeline > kRanksMax) {
    return Refuse("parallel",
                  absl::StrCat("data_parallel_size × tensor_model_parallel_size × "
                               "pipeline_model_parallel_size = ",
                               data, " × ", tensor, " × ", pipeline, " = ",
                               data * tensor * pipeline, " ranks; expected at most ", kRanksMax));
  }
  RETURN_IF_ERROR(CheckTensorDivides(spec));
  const int64_t chunks = parallel.virtual_pipeline_model_parallel_size();
  const int64_t layers = spec.model().num_hidden_layers();
  if (layers < pipeline) {
    return Refuse("parallel.pipeline_model_parallel_size",
                  absl::StrCat(pipeline, " is more than model.num_hidden_layers = ", layers,
                               "; every stage needs a layer"));
  }
  if (layers < pipeline * chunks) {
    return Refuse("parallel.virtual_pipeline_model_parallel_size",
                  absl::StrCat("pipeline × virtual stages = ", pipeline, " × ", chunks, " = ",
                               pipeline * chunks, " is more than model.num_hidden_layers = ",
                               layers, "; every chunk needs a layer"));
  }
  return absl::OkStatus();
}

absl::Status CheckCombinations(const JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  const v1::TrainSpec& train = spec.train();
  const int64_t samples = int64_t{parallel.data_parallel_size()} * train.micro_batch_size();
  if (train.global_batch_size() % samples != 0) {
    return Refuse("train.global_batch_size",
                  absl::StrCat(train.global_batch_size(),
                               " is not a multiple of data_parallel_size × micro_batch_size = ",
                               parallel.data_parallel_size(), " × ", train.micro_batch_size(),
                               " = ", samples));
  }
  RETURN_IF_ERROR(CheckSchedule(spec));
  const plan::Schedule schedule = ScheduleOf(spec).schedule;
  if (plan::SplitsBackward(schedule) &&
      train.recompute_granularity() != v1::RECOMPUTE_GRANULARITY_NONE) {
    return Refuse(
        "train.recompute_granularity",
        absl::StrCat("does not go with parallel.pipeline_schedule = ", plan::Name(schedule),
                     ", whose late weight gradients read what recomputation drops; "
                     "expected none, or another schedule"));
  }
  if (train.precision() == v1::PRECISION_FP64 && parallel.threads_per_rank() != 1) {
    return Refuse("parallel.threads_per_rank",
                  absl::StrCat(parallel.threads_per_rank(),
                               " does not go with train.precision = fp64, which runs on 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const v1::CheckpointSpec& checkpoint) {
  const std::string& directory = checkpoint.directory();
  return All({directory.empty() ? absl::OkStatus() : CheckPath("checkpoint.directory", directory),
              CheckInteger("checkpoint.interval", checkpoint.interval(), {0, kStepsMax}),
              CheckInteger("checkpoint.keep", checkpoint.keep(), {1, kSizeMax})});
}

absl::Status CheckStore(const std::string& store) {
  if (store.empty()) return absl::OkStatus();
  const absl::Status parsed = comm::ParseRedisAddress(store).status();
  return parsed.ok() ? parsed : Refuse("store", parsed.message());
}

absl::Status CheckPriority(int64_t priority) {
  if (priority >= -1000 && priority <= 1000) return absl::OkStatus();
  return Refuse("priority", absl::StrCat(priority, " is out of range; expected -1000 to 1000"));
}

}  // namespace

absl::Status CheckFields(const JobSpec& spec) {
  return All({CheckName(spec.name()), CheckDevice(spec), CheckEnums(spec),
              CheckModelFields(spec.model()), CheckData(spec.data()), CheckTrainFields(spec),
              CheckOptimizerFields(spec.optimizer()), CheckParallel(spec.parallel()),
              CheckCheckpoint(spec.checkpoint()), CheckFaultFields(spec.fault(), spec.device()),
              CheckStore(spec.store()), CheckPriority(spec.priority())});
}

absl::Status CheckTogether(const JobSpec& spec) {
  RETURN_IF_ERROR(
      All({CheckModel(spec.model()), CheckTrain(spec), CheckLearningRates(spec.optimizer()),
           CheckWarmup(spec), CheckSchedules(spec), CheckEvaluations(spec), CheckLayout(spec),
           CheckFault(spec.fault())}));
  return CheckCombinations(spec);
}

}  // namespace megascale::job
