#include "runtime/job/job_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/status.h"
#include "runtime/comm/store/redis/address.h"
#include "runtime/job/deadlines.h"
#include "runtime/job/job_rules.h"
#include "runtime/job/pipeline_schedule.h"

namespace megascale::job {
namespace {

using v1::JobSpec;

constexpr int64_t kBucketSize = 40'000'000;  // as in Megatron-LM

template <typename T>
T OrDefault(T value, T fallback) {
  return value == T{} ? fallback : value;
}

void FillRopeDefaults(v1::RopeScaling& scaling) {
  if (scaling.rope_type() == v1::ROPE_TYPE_LLAMA3) {
    scaling.set_low_freq_factor(OrDefault(scaling.low_freq_factor(), 1.0));
    scaling.set_high_freq_factor(OrDefault(scaling.high_freq_factor(), 4.0));
  }
  if (scaling.rope_type() == v1::ROPE_TYPE_YARN && scaling.factor() >= 1) {
    scaling.set_beta_fast(OrDefault(scaling.beta_fast(), 32.0));
    scaling.set_beta_slow(OrDefault(scaling.beta_slow(), 1.0));
    scaling.set_attention_factor(
        OrDefault(scaling.attention_factor(), 0.1 * std::log(scaling.factor()) + 1));
  }
}

void FillTrainingDefaults(JobSpec& spec) {
  v1::ParallelSpec& parallel = *spec.mutable_parallel();
  parallel.set_ddp_bucket_size(OrDefault(parallel.ddp_bucket_size(), kBucketSize));
  // On a processor an exchange beside products takes the core that computes them: measured slower
  // (docs/results/2026-11-23-one-engine.md). Older versions took true, as UpgradeJobSpec knows.
  if (!parallel.has_tp_comm_overlap()) parallel.set_tp_comm_overlap(false);
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
  FillDeadlines(&fault);
  if (!fault.has_restart_backoff()) fault.mutable_restart_backoff()->set_seconds(1);
  if (!fault.has_checkpoint_timeout()) fault.mutable_checkpoint_timeout()->set_seconds(3600);
  for (google::protobuf::Duration* duration :
       {fault.mutable_heartbeat_interval(), fault.mutable_heartbeat_timeout(),
        fault.mutable_progress_timeout(), fault.mutable_start_timeout(),
        fault.mutable_restart_backoff(), fault.mutable_checkpoint_timeout()}) {
    Normalize(duration);
  }
  fault.set_on_suspect(OrDefault(fault.on_suspect(), v1::ON_SUSPECT_TELL));
  fault.set_max_restarts_without_progress(OrDefault(fault.max_restarts_without_progress(), 3));
}
}  // namespace

absl::Duration ToDuration(const google::protobuf::Duration& duration) {
  return absl::Seconds(duration.seconds()) + absl::Nanoseconds(duration.nanos());
}

google::protobuf::Duration FromDuration(absl::Duration duration) {
  google::protobuf::Duration proto;
  proto.set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &duration));
  proto.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(duration)));
  return proto;
}

void FillModelDefaults(JobSpec* spec) {
  v1::ModelSpec& model = *spec->mutable_model();
  const int learnt = spec->data().tokenizer_vocab_size();
  // If no tokenizer can have this size, the checks report that.
  const bool is_size = learnt >= kLearntVocabularyMin && learnt <= kLearntVocabularyMax;
  model.set_vocab_size(OrDefault(model.vocab_size(), is_size ? learnt : 256));
  model.set_num_key_value_heads(
      OrDefault(model.num_key_value_heads(), model.num_attention_heads()));
  if (model.hidden_size() > 0 && model.hidden_size() <= kHiddenSizeMax) {
    model.set_intermediate_size(OrDefault(model.intermediate_size(), 4 * model.hidden_size()));
  }
  model.set_max_position_embeddings(
      OrDefault(model.max_position_embeddings(), spec->train().seq_length()));
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
  // qkv_bias stays as it is: a job that leaves it out has the fingerprint of older versions.
  if (model.has_rope_scaling()) FillRopeDefaults(*model.mutable_rope_scaling());
  const int heads = model.num_attention_heads();
  // If the heads do not divide the width, the checks report that.
  if (model.head_dim() == 0 && heads > 0 && model.hidden_size() % heads == 0) {
    model.set_head_dim(model.hidden_size() / heads);
  }
}

void UpgradeJobSpec(JobSpec* spec) {
  spec->set_device(OrDefault(spec->device(), v1::DEVICE_CPU));
  v1::DataSpec& data = *spec->mutable_data();
  data.set_attention(OrDefault(data.attention(), v1::ATTENTION_ACROSS_DOCUMENTS));
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

namespace {

JobSpec WithDefaults(const JobSpec& spec) {
  JobSpec filled = spec;
  FillModelDefaults(&filled);
  FillTrainingDefaults(filled);
  FillFaultDefaults(*filled.mutable_fault());
  return filled;
}

std::vector<std::string> LinesOf(const absl::Status& status) {
  return absl::StrSplit(status.message(), '\n', absl::SkipEmpty());
}

}  // namespace

absl::StatusOr<JobSpec> ResolveJobSpec(const JobSpec& spec) {
  JobSpec known = spec;
  known.DiscardUnknownFields();
  if (known.ByteSizeLong() != spec.ByteSizeLong()) {
    return absl::InvalidArgumentError(
        "job: has fields that this version does not know; use one version of megascale");
  }
  const std::vector<std::string> broken = BrokenRules(spec);
  if (!broken.empty()) return absl::InvalidArgumentError(broken.front());
  JobSpec resolved = WithDefaults(spec);
  v1::ParallelSpec& parallel = *resolved.mutable_parallel();
  if (parallel.data_parallel_size() == 1) {  // a single replica shares nothing
    parallel.set_zero_stage(1);
    parallel.set_ddp_bucket_size(0);
  }
  if (!resolved.store().empty()) {
    ASSIGN_OR_RETURN(const comm::RedisAddress store, comm::ParseRedisAddress(resolved.store()));
    resolved.set_store(comm::ToText(store));
  }
  return resolved;
}

std::vector<std::string> BrokenRules(const JobSpec& spec) {
  const JobSpec filled = WithDefaults(spec);
  const absl::Status fields = CheckFields(filled);
  return LinesOf(fields.ok() ? CheckTogether(filled) : fields);
}

std::vector<std::string> BrokenFieldRules(const JobSpec& spec) {
  return LinesOf(CheckFields(WithDefaults(spec)));
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

bool AttendsWithinDocuments(const JobSpec& spec) {
  return spec.data().attention() == v1::ATTENTION_WITHIN_DOCUMENTS;
}

bool UsesCudaGraphs(const JobSpec& spec) {
  return !spec.has_enable_cuda_graph() || spec.enable_cuda_graph();
}

bool ExchangesThroughNccl(const v1::JobSpec& spec) {
  return spec.device() == v1::DEVICE_CUDA && !spec.device_sharing();
}

bool HasWholeTensorExchanges(const v1::JobSpec& spec) {
  return ExchangesThroughNccl(spec) && spec.parallel().tensor_model_parallel_size() > 1 &&
         !spec.parallel().tp_comm_overlap();
}

int NumMicrobatches(const JobSpec& spec) {
  return spec.train().global_batch_size() /
         (spec.parallel().data_parallel_size() * spec.train().micro_batch_size());
}

}  // namespace megascale::job
