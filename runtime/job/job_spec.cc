#include "runtime/job/job_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/comm/store/redis/address.h"
#include "runtime/job/names.h"
#include "runtime/job/pipeline_schedule.h"

namespace megascale::job {
namespace {

using v1::JobSpec;

// Far above any machine, and so low that products of a few sizes fit 64 bits.
constexpr int64_t kSizeMax = 1 << 20;
constexpr int64_t kHiddenSizeMax = 1 << 16;
constexpr int64_t kProjectionSizeMax = 4 * kHiddenSizeMax;
constexpr int64_t kLayersMax = 1 << 10;
constexpr int64_t kRanksMax = 1 << 16;
constexpr int64_t kThreadsMax = 1 << 10;
constexpr int64_t kBucketSize = 40'000'000;           // as in Megatron-LM
constexpr int64_t kBucketSizeMax = int64_t{1} << 40;  // more than any chunk has: a single bucket
constexpr int64_t kStepsMax = int64_t{1} << 40;
constexpr int64_t kMicrobatchTokensMax = int64_t{1} << 24;
constexpr int kFilesMax = 10'000;
// A job is sent whole in messages to agents, processes and everyone who watches it.
constexpr size_t kFilesBytesMax = 256 << 10;
constexpr size_t kNameLengthMax = 63;
constexpr absl::Duration kDurationMax = absl::Hours(24 * 7);
// Lower limits would repeatedly fail healthy jobs on a busy machine, or flood the driver with
// reports.
constexpr absl::Duration kHeartbeatIntervalMin = absl::Milliseconds(100);
constexpr absl::Duration kHeartbeatTimeoutMin = absl::Milliseconds(500);
constexpr absl::Duration kTimeoutMin = absl::Seconds(1);
constexpr absl::Duration kBackoffMin = absl::Milliseconds(10);

absl::Status Refuse(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
}

struct IntegerRange {
  int64_t least;
  int64_t most;
};

absl::Status CheckInteger(absl::string_view field, int64_t value, IntegerRange range) {
  if (value >= range.least && value <= range.most) return absl::OkStatus();
  if (value == 0)
    return Refuse(field, absl::StrCat("is missing; expected ", range.least, " to ", range.most));
  return Refuse(
      field, absl::StrCat(value, " is out of range; expected ", range.least, " to ", range.most));
}

// Accepts least < value < below, and value == least if `least_allowed`.
struct NumberRange {
  double least;
  double below;
  bool least_allowed = false;
};

absl::Status CheckNumber(absl::string_view field, double value, NumberRange range) {
  const bool high_enough = range.least_allowed ? value >= range.least : value > range.least;
  if (std::isfinite(value) && high_enough && value < range.below) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value, " is out of range; expected ",
                                    range.least_allowed ? "at least " : "more than ", range.least,
                                    " and less than ", range.below));
}

struct Named {
  absl::string_view field;
  int64_t value;
};

absl::Status CheckDivides(Named whole, Named part) {
  if (whole.value % part.value == 0) return absl::OkStatus();
  return Refuse(whole.field,
                absl::StrCat(whole.value, " is not a multiple of ", part.field, " = ", part.value,
                             " (", whole.value, " = ", whole.value / part.value, " × ", part.value,
                             " + ", whole.value % part.value, ")"));
}

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

template <typename T>
T OrDefault(T value, T fallback) {
  return value == T{} ? fallback : value;
}

void FillModelDefaults(JobSpec& spec) {
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_vocab_size(OrDefault(model.vocab_size(), 256));
  model.set_num_key_value_heads(
      OrDefault(model.num_key_value_heads(), model.num_attention_heads()));
  if (model.hidden_size() > 0 && model.hidden_size() <= kHiddenSizeMax) {
    model.set_intermediate_size(OrDefault(model.intermediate_size(), 4 * model.hidden_size()));
  }
  model.set_max_position_embeddings(
      OrDefault(model.max_position_embeddings(), spec.train().seq_length()));
  model.set_position_embedding(
      OrDefault(model.position_embedding(), v1::POSITION_EMBEDDING_LEARNED));
  model.set_norm(OrDefault(model.norm(), v1::NORM_LAYERNORM));
  model.set_norm_eps(OrDefault(model.norm_eps(), 1e-5));
  model.set_hidden_act(OrDefault(model.hidden_act(), v1::ACTIVATION_GELU_TANH));
  model.set_initializer_range(OrDefault(model.initializer_range(), 0.02));
  model.set_rope_theta(OrDefault(model.rope_theta(), 10000.0));
  model.set_partial_rotary_factor(OrDefault(model.partial_rotary_factor(), 1.0));
  model.set_num_ln_in_parallel_attn(OrDefault(model.num_ln_in_parallel_attn(), 1));
  const bool has_bias = model.norm() == v1::NORM_LAYERNORM;
  if (!model.has_attention_bias()) model.set_attention_bias(has_bias);
  if (!model.has_mlp_bias()) model.set_mlp_bias(has_bias);
  const int heads = model.num_attention_heads();
  // If the heads do not divide the width, the checks report that.
  if (model.head_dim() == 0 && heads > 0 && model.hidden_size() % heads == 0) {
    model.set_head_dim(model.hidden_size() / heads);
  }
}

void FillTrainingDefaults(JobSpec& spec) {
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_ddp_bucket_size(OrDefault(parallel.ddp_bucket_size(), kBucketSize));
  UpgradeJobSpec(&spec);
  v1::DataSpec& data = *spec.mutable_data();
  data.set_held_out_fraction(OrDefault(data.held_out_fraction(), 0.1));
  spec.mutable_train()->set_precision(OrDefault(spec.train().precision(), v1::PRECISION_FP32));
  v1::OptimizerSpec& optimizer = *spec.mutable_optimizer();
  optimizer.set_lr(OrDefault(optimizer.lr(), 3e-4));
  optimizer.set_min_lr(OrDefault(optimizer.min_lr(), optimizer.lr() / 10));
  optimizer.set_beta1(OrDefault(optimizer.beta1(), 0.9));
  const bool lamb = optimizer.type() == v1::OPTIMIZER_TYPE_LAMB;
  optimizer.set_beta2(OrDefault(optimizer.beta2(), lamb ? 0.999 : 0.95));
  optimizer.set_eps(OrDefault(optimizer.eps(), lamb ? 1e-6 : 1e-8));
  parallel.set_data_parallel_size(OrDefault(parallel.data_parallel_size(), 1));
  parallel.set_pipeline_model_parallel_size(OrDefault(parallel.pipeline_model_parallel_size(), 1));
  parallel.set_tensor_model_parallel_size(OrDefault(parallel.tensor_model_parallel_size(), 1));
  parallel.set_threads_per_rank(OrDefault(parallel.threads_per_rank(), 1));
  v1::CheckpointSpec& checkpoint = *spec.mutable_checkpoint();
  checkpoint.set_keep(OrDefault(checkpoint.keep(), 2));
}

// Normalizes a duration, which has several equal forms (1 s and -1 ns). In a resolved job it has
// the form that its JSON text allows.
void Normalize(google::protobuf::Duration* duration) {
  const int64_t nanos = absl::ToInt64Nanoseconds(ToDuration(*duration));
  duration->set_seconds(nanos / 1'000'000'000);
  duration->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
}

void FillFaultDefaults(v1::FaultSpec& fault) {
  if (!fault.has_heartbeat_interval()) fault.mutable_heartbeat_interval()->set_seconds(1);
  if (!fault.has_heartbeat_timeout()) fault.mutable_heartbeat_timeout()->set_seconds(5);
  if (!fault.has_progress_timeout()) fault.mutable_progress_timeout()->set_seconds(60);
  if (!fault.has_start_timeout()) fault.mutable_start_timeout()->set_seconds(120);
  if (!fault.has_restart_backoff()) fault.mutable_restart_backoff()->set_seconds(1);
  if (!fault.has_checkpoint_timeout()) fault.mutable_checkpoint_timeout()->set_seconds(3600);
  for (google::protobuf::Duration* duration :
       {fault.mutable_heartbeat_interval(), fault.mutable_heartbeat_timeout(),
        fault.mutable_progress_timeout(), fault.mutable_start_timeout(),
        fault.mutable_restart_backoff(), fault.mutable_checkpoint_timeout()}) {
    Normalize(duration);
  }
  fault.set_max_restarts_without_progress(OrDefault(fault.max_restarts_without_progress(), 3));
}

absl::Status CheckModelSizes(const v1::ModelSpec& model) {
  RETURN_IF_ERROR(CheckInteger("model.vocab_size", model.vocab_size(), {256, 1 << 24}));
  RETURN_IF_ERROR(CheckInteger("model.hidden_size", model.hidden_size(), {1, kHiddenSizeMax}));
  RETURN_IF_ERROR(
      CheckInteger("model.num_hidden_layers", model.num_hidden_layers(), {1, kLayersMax}));
  RETURN_IF_ERROR(
      CheckInteger("model.num_attention_heads", model.num_attention_heads(), {1, kHiddenSizeMax}));
  RETURN_IF_ERROR(
      CheckInteger("model.num_key_value_heads", model.num_key_value_heads(), {1, kHiddenSizeMax}));
  RETURN_IF_ERROR(
      CheckInteger("model.intermediate_size", model.intermediate_size(), {1, kProjectionSizeMax}));
  return CheckInteger("model.sliding_window", model.sliding_window(), {0, kSizeMax});
}

absl::Status CheckRotary(const v1::ModelSpec& model) {
  const double factor = model.partial_rotary_factor();
  if (!(factor > 0 && factor <= 1)) {
    return Refuse("model.partial_rotary_factor",
                  absl::StrCat(factor, " is out of range; expected more than 0, at most 1"));
  }
  const auto turned = static_cast<int>(model.head_dim() * factor);
  if (model.position_embedding() == v1::POSITION_EMBEDDING_ROTARY &&
      (turned % 2 != 0 || turned == 0)) {
    return Refuse(
        "model.position_embedding",
        absl::StrCat("rotary turns pairs of elements; model.head_dim × "
                     "model.partial_rotary_factor = ",
                     model.head_dim(), " × ", factor, " = ", turned, "; expected an even number"));
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const v1::ModelSpec& model) {
  RETURN_IF_ERROR(CheckModelSizes(model));
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
  RETURN_IF_ERROR(CheckRotary(model));
  RETURN_IF_ERROR(
      CheckInteger("model.num_ln_in_parallel_attn", model.num_ln_in_parallel_attn(), {1, 2}));
  RETURN_IF_ERROR(CheckNumber("model.norm_eps", model.norm_eps(), {0, 1}));
  RETURN_IF_ERROR(CheckNumber("model.initializer_range", model.initializer_range(), {0, 10}));
  return CheckNumber("model.rope_theta", model.rope_theta(), {1, 1e12});
}

absl::Status CheckEnums(const JobSpec& spec) {
  if (!v1::PositionEmbedding_IsValid(spec.model().position_embedding())) {
    return Refuse("model.position_embedding",
                  "is none that this version knows; expected learned or rotary");
  }
  if (!v1::Norm_IsValid(spec.model().norm())) {
    return Refuse("model.norm", "is none that this version knows; expected layernorm or rmsnorm");
  }
  if (!v1::Activation_IsValid(spec.model().hidden_act())) {
    return Refuse("model.hidden_act",
                  "is none that this version knows; expected gelu, gelu_tanh or swiglu");
  }
  if (!v1::Precision_IsValid(spec.train().precision())) {
    return Refuse("train.precision",
                  "is none that this version knows; expected fp32, bf16 or fp64");
  }
  if (!v1::OptimizerType_IsValid(spec.optimizer().type())) {
    return Refuse("optimizer.type", "is none that this version knows; expected adamw or lamb");
  }
  if (!v1::RecomputeGranularity_IsValid(spec.train().recompute_granularity())) {
    return Refuse("train.recompute_granularity",
                  "is none that this version knows; expected none, selective or full");
  }
  if (!v1::PipelineSchedule_IsValid(spec.parallel().pipeline_schedule())) {
    return Refuse(
        "parallel.pipeline_schedule",
        "is none that this version knows; expected 1f1b, gpipe, interleaved_1f1b or zb_h1");
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
  return CheckNumber("data.held_out_fraction", data.held_out_fraction(), {0, 1});
}

absl::Status CheckTrain(const JobSpec& spec) {
  const v1::TrainSpec& train = spec.train();
  RETURN_IF_ERROR(CheckInteger("train.steps", train.steps(), {1, kStepsMax}));
  RETURN_IF_ERROR(CheckInteger("train.seq_length", train.seq_length(), {1, kSizeMax}));
  RETURN_IF_ERROR(
      CheckInteger("train.global_batch_size", train.global_batch_size(), {1, kSizeMax}));
  RETURN_IF_ERROR(CheckInteger("train.micro_batch_size", train.micro_batch_size(), {1, kSizeMax}));
  const int64_t tokens = int64_t{train.micro_batch_size()} * train.seq_length();
  if (tokens > kMicrobatchTokensMax) {
    return Refuse("train.micro_batch_size",
                  absl::StrCat("micro_batch_size × seq_length = ", train.micro_batch_size(), " × ",
                               train.seq_length(), " = ", tokens,
                               " tokens is absurd; expected at most ", kMicrobatchTokensMax));
  }
  const int64_t positions = spec.model().max_position_embeddings();
  RETURN_IF_ERROR(CheckInteger("model.max_position_embeddings", positions, {1, kSizeMax}));
  if (train.seq_length() > positions) {
    return Refuse("train.seq_length",
                  absl::StrCat(train.seq_length(),
                               " is more than model.max_position_embeddings = ", positions));
  }
  return absl::OkStatus();
}

absl::Status CheckOptimizer(const JobSpec& spec) {
  const v1::OptimizerSpec& optimizer = spec.optimizer();
  RETURN_IF_ERROR(CheckNumber("optimizer.lr", optimizer.lr(), {0, 100}));
  RETURN_IF_ERROR(CheckNumber("optimizer.min_lr", optimizer.min_lr(), {0, 100}));
  if (optimizer.min_lr() > optimizer.lr()) {
    return Refuse(
        "optimizer.min_lr",
        absl::StrCat(optimizer.min_lr(), " is more than optimizer.lr = ", optimizer.lr()));
  }
  RETURN_IF_ERROR(CheckInteger("optimizer.warmup_steps", optimizer.warmup_steps(), {0, kStepsMax}));
  if (optimizer.warmup_steps() > spec.train().steps()) {
    return Refuse("optimizer.warmup_steps",
                  absl::StrCat(optimizer.warmup_steps(),
                               " is more than train.steps = ", spec.train().steps()));
  }
  RETURN_IF_ERROR(CheckNumber("optimizer.beta1", optimizer.beta1(), {0, 1}));
  RETURN_IF_ERROR(CheckNumber("optimizer.beta2", optimizer.beta2(), {0, 1}));
  RETURN_IF_ERROR(CheckNumber("optimizer.eps", optimizer.eps(), {0, 1}));
  RETURN_IF_ERROR(CheckNumber("optimizer.weight_decay", optimizer.weight_decay(), {0, 100, true}));
  return CheckNumber("optimizer.clip_grad", optimizer.clip_grad(), {0, 1e12, true});
}

// Checks the sizes that tensor parallelism cuts: heads, the MLP's inner width, vocabulary,
// sequences.
absl::Status CheckTensorDivides(const JobSpec& spec) {
  const v1::ModelSpec& model = spec.model();
  for (const Named& whole : {Named{"model.num_attention_heads", model.num_attention_heads()},
                             Named{"model.num_key_value_heads", model.num_key_value_heads()},
                             Named{"model.intermediate_size", model.intermediate_size()},
                             Named{"model.vocab_size", model.vocab_size()},
                             Named{"train.seq_length", spec.train().seq_length()}}) {
    RETURN_IF_ERROR(CheckDivides(whole, {"parallel.tensor_model_parallel_size",
                                         spec.parallel().tensor_model_parallel_size()}));
  }
  return absl::OkStatus();
}

absl::Status CheckLayout(const JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  const int64_t data = parallel.data_parallel_size();
  const int64_t tensor = parallel.tensor_model_parallel_size();
  const int64_t pipeline = parallel.pipeline_model_parallel_size();
  RETURN_IF_ERROR(CheckInteger("parallel.data_parallel_size", data, {1, kRanksMax}));
  RETURN_IF_ERROR(CheckInteger("parallel.pipeline_model_parallel_size", pipeline, {1, kLayersMax}));
  RETURN_IF_ERROR(CheckInteger("parallel.tensor_model_parallel_size", tensor, {1, kRanksMax}));
  RETURN_IF_ERROR(
      CheckInteger("parallel.threads_per_rank", parallel.threads_per_rank(), {1, kThreadsMax}));
  if (data * tensor * pipeline > kRanksMax) {
    return Refuse("parallel",
                  absl::StrCat("data_parallel_size × tensor_model_parallel_size × "
                               "pipeline_model_parallel_size = ",
                               data, " × ", tensor, " × ", pipeline, " = ",
                               data * tensor * pipeline, " ranks; expected at most ", kRanksMax));
  }
  RETURN_IF_ERROR(CheckTensorDivides(spec));
  const int64_t chunks = parallel.virtual_pipeline_model_parallel_size();
  RETURN_IF_ERROR(
      CheckInteger("parallel.virtual_pipeline_model_parallel_size", chunks, {1, kLayersMax}));
  RETURN_IF_ERROR(CheckInteger("parallel.zero_stage", parallel.zero_stage(), {1, 2}));
  RETURN_IF_ERROR(
      CheckInteger("parallel.ddp_bucket_size", parallel.ddp_bucket_size(), {1, kBucketSizeMax}));
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
  if (spec.model().tie_word_embeddings() && parallel.pipeline_model_parallel_size() > 1) {
    return Refuse(
        "model.tie_word_embeddings",
        absl::StrCat(
            "true needs both ends of the model on one rank, but pipeline_model_parallel_size = ",
            parallel.pipeline_model_parallel_size(), "; expected false, or one stage"));
  }
  if (train.precision() == v1::PRECISION_FP64 && parallel.threads_per_rank() != 1) {
    return Refuse("parallel.threads_per_rank",
                  absl::StrCat(parallel.threads_per_rank(),
                               " does not go with train.precision = fp64, which runs on 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const v1::CheckpointSpec& checkpoint) {
  if (!checkpoint.directory().empty()) {
    RETURN_IF_ERROR(CheckPath("checkpoint.directory", checkpoint.directory()));
  }
  RETURN_IF_ERROR(CheckInteger("checkpoint.interval", checkpoint.interval(), {0, kStepsMax}));
  return CheckInteger("checkpoint.keep", checkpoint.keep(), {1, kSizeMax});
}

struct NamedDuration {
  absl::string_view field;
  absl::Duration value;
  absl::Duration least = kTimeoutMin;
};

absl::Status CheckDuration(NamedDuration named) {
  if (named.value >= named.least && named.value <= kDurationMax) return absl::OkStatus();
  return Refuse(
      named.field,
      absl::StrCat(absl::FormatDuration(named.value), " is out of range; expected ",
                   absl::FormatDuration(named.least), " to ", absl::FormatDuration(kDurationMax)));
}

absl::Status CheckShorter(NamedDuration shorter, NamedDuration longer) {
  if (shorter.value < longer.value) return absl::OkStatus();
  return Refuse(longer.field,
                absl::StrCat(absl::FormatDuration(longer.value), " must be longer than ",
                             shorter.field, " = ", absl::FormatDuration(shorter.value)));
}

absl::Status CheckFault(const v1::FaultSpec& fault) {
  const NamedDuration interval = {"fault.heartbeat_interval",
                                  ToDuration(fault.heartbeat_interval()), kHeartbeatIntervalMin};
  const NamedDuration heartbeat = {"fault.heartbeat_timeout", ToDuration(fault.heartbeat_timeout()),
                                   kHeartbeatTimeoutMin};
  const NamedDuration progress = {"fault.progress_timeout", ToDuration(fault.progress_timeout())};
  const NamedDuration start = {"fault.start_timeout", ToDuration(fault.start_timeout())};
  const NamedDuration backoff = {"fault.restart_backoff", ToDuration(fault.restart_backoff()),
                                 kBackoffMin};
  const NamedDuration checkpoint = {"fault.checkpoint_timeout",
                                    ToDuration(fault.checkpoint_timeout())};
  for (const NamedDuration& named : {interval, heartbeat, progress, start, backoff, checkpoint}) {
    RETURN_IF_ERROR(CheckDuration(named));
  }
  RETURN_IF_ERROR(CheckShorter(interval, heartbeat));
  RETURN_IF_ERROR(CheckShorter(interval, progress));
  RETURN_IF_ERROR(CheckShorter(interval, start));
  return CheckInteger("fault.max_restarts_without_progress", fault.max_restarts_without_progress(),
                      {1, kSizeMax});
}

absl::StatusOr<comm::RedisAddress> ParseStore(const std::string& store) {
  absl::StatusOr<comm::RedisAddress> address = comm::ParseRedisAddress(store);
  if (!address.ok()) return Refuse("store", address.status().message());
  return address;
}

}  // namespace

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

void UpgradeJobSpec(JobSpec* spec) {
  v1::TrainSpec& train = *spec->mutable_train();
  train.set_recompute_granularity(
      OrDefault(train.recompute_granularity(), v1::RECOMPUTE_GRANULARITY_NONE));
  v1::OptimizerSpec& optimizer = *spec->mutable_optimizer();
  optimizer.set_type(OrDefault(optimizer.type(), v1::OPTIMIZER_TYPE_ADAMW));
  v1::ParallelSpec& parallel = *spec->mutable_parallel();
  const int chunks = OrDefault(parallel.virtual_pipeline_model_parallel_size(), 1);
  parallel.set_virtual_pipeline_model_parallel_size(chunks);
  parallel.set_pipeline_schedule(OrDefault(parallel.pipeline_schedule(), DefaultSchedule(chunks)));
  if (!parallel.has_overlap_grad_reduce()) parallel.set_overlap_grad_reduce(true);
  if (!parallel.has_overlap_param_gather()) parallel.set_overlap_param_gather(true);
  if (!parallel.has_overlap_p2p_communication()) parallel.set_overlap_p2p_communication(true);
  if (!parallel.has_tp_comm_overlap()) parallel.set_tp_comm_overlap(true);
  parallel.set_zero_stage(OrDefault(parallel.zero_stage(), 1));
  if (parallel.data_parallel_size() > 1) {
    parallel.set_ddp_bucket_size(OrDefault(parallel.ddp_bucket_size(), kBucketSizeMax));
  }
}

absl::StatusOr<JobSpec> ResolveJobSpec(const JobSpec& spec) {
  JobSpec resolved = spec;
  resolved.DiscardUnknownFields();
  if (resolved.ByteSizeLong() != spec.ByteSizeLong()) {
    return Refuse("job",
                  "has fields that this version does not know; use one version of megascale");
  }
  FillModelDefaults(resolved);
  FillTrainingDefaults(resolved);
  FillFaultDefaults(*resolved.mutable_fault());
  RETURN_IF_ERROR(CheckName(resolved.name()));
  RETURN_IF_ERROR(CheckEnums(resolved));
  RETURN_IF_ERROR(CheckModel(resolved.model()));
  RETURN_IF_ERROR(CheckData(resolved.data()));
  RETURN_IF_ERROR(CheckTrain(resolved));
  RETURN_IF_ERROR(CheckOptimizer(resolved));
  RETURN_IF_ERROR(CheckLayout(resolved));
  v1::ParallelSpec& parallel = *resolved.mutable_parallel();
  if (parallel.data_parallel_size() == 1) {  // a single replica shares nothing
    parallel.set_zero_stage(1);
    parallel.set_ddp_bucket_size(0);
  }
  RETURN_IF_ERROR(CheckCombinations(resolved));
  RETURN_IF_ERROR(CheckCheckpoint(resolved.checkpoint()));
  RETURN_IF_ERROR(CheckFault(resolved.fault()));
  if (!resolved.store().empty()) {
    ASSIGN_OR_RETURN(const comm::RedisAddress store, ParseStore(resolved.store()));
    resolved.set_store(comm::ToText(store));
  }
  return resolved;
}

namespace {

int DataSize(const JobSpec& spec) { return std::max(1, spec.parallel().data_parallel_size()); }
int PipelineSize(const JobSpec& spec) {
  return std::max(1, spec.parallel().pipeline_model_parallel_size());
}

}  // namespace

int TensorSize(const JobSpec& spec) {
  return std::max(1, spec.parallel().tensor_model_parallel_size());
}

int WorldSize(const JobSpec& spec) {
  return DataSize(spec) * TensorSize(spec) * PipelineSize(spec);
}

std::string NeededSlots(const JobSpec& spec) {
  const int world = WorldSize(spec);
  if (world == 1) return "needs 1 slot";
  return absl::StrCat("needs data × tensor × pipeline = ", DataSize(spec), " × ", TensorSize(spec),
                      " × ", PipelineSize(spec), " = ", world, " slots");
}

int NumMicrobatches(const JobSpec& spec) {
  return spec.train().global_batch_size() /
         (spec.parallel().data_parallel_size() * spec.train().micro_batch_size());
}

}  // namespace megascale::job
