#include "runtime/job/job_spec.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "runtime/job/deadlines.h"
#include "runtime/job/evaluation.h"

namespace megascale::job {
namespace {

using google::protobuf::util::MessageDifferencer;

v1::JobSpec SmallSpec() {
  v1::JobSpec spec;
  spec.set_name("small");
  spec.mutable_model()->set_hidden_size(64);
  spec.mutable_model()->set_num_hidden_layers(2);
  spec.mutable_model()->set_num_attention_heads(4);
  spec.mutable_data()->add_files("/usr/share/games/fortunes");
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->set_seq_length(32);
  spec.mutable_train()->set_global_batch_size(8);
  spec.mutable_train()->set_micro_batch_size(2);
  return spec;
}

TEST(JobSpecTest, TellsAllBrokenRules) {
  v1::JobSpec spec = SmallSpec();
  EXPECT_TRUE(BrokenRules(spec).empty());
  spec.mutable_train()->set_steps(-1);
  spec.mutable_fault()->set_max_restarts_without_progress(-1);
  spec.mutable_train()->set_global_batch_size(9);
  const std::vector<std::string> fields = {
      "train.steps: -1 is out of range; expected 1 to 1099511627776",
      "fault.max_restarts_without_progress: -1 is out of range; expected 1 to 1048576"};
  EXPECT_EQ(BrokenRules(spec), fields);
  EXPECT_EQ(BrokenFieldRules(spec), fields);
  EXPECT_EQ(std::string(ResolveJobSpec(spec).status().message()), fields[0]);
  spec.mutable_train()->set_steps(10);
  spec.mutable_fault()->clear_max_restarts_without_progress();
  EXPECT_EQ(BrokenRules(spec).size(), 1u) << "the batch size";
  EXPECT_TRUE(BrokenFieldRules(spec).empty());
}

TEST(JobSpecTest, FillsEveryDocumentedDefault) {
  const auto resolved = ResolveJobSpec(SmallSpec());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->device(), v1::DEVICE_CPU);
  const v1::ModelSpec& model = resolved->model();
  EXPECT_EQ(model.vocab_size(), 256);
  EXPECT_EQ(model.num_key_value_heads(), 4);
  EXPECT_EQ(model.intermediate_size(), 256);
  EXPECT_EQ(model.max_position_embeddings(), 32);
  EXPECT_EQ(model.position_embedding(), v1::POSITION_EMBEDDING_LEARNED);
  EXPECT_EQ(model.norm(), v1::NORM_LAYERNORM);
  EXPECT_EQ(model.norm_eps(), 1e-5);
  EXPECT_EQ(model.hidden_act(), v1::ACTIVATION_GELU_TANH);
  EXPECT_EQ(model.initializer_range(), 0.02);
  EXPECT_EQ(model.rope_theta(), 10000);
  EXPECT_EQ(resolved->data().held_out_fraction(), 0.1);
  EXPECT_EQ(resolved->data().attention(), v1::ATTENTION_ACROSS_DOCUMENTS);
  EXPECT_EQ(resolved->train().precision(), v1::PRECISION_FP32);
  EXPECT_EQ(resolved->optimizer().lr(), 3e-4);
  EXPECT_EQ(resolved->optimizer().min_lr(), 3e-4 / 10);
  EXPECT_EQ(resolved->optimizer().type(), v1::OPTIMIZER_TYPE_ADAMW);
  EXPECT_EQ(resolved->optimizer().beta1(), 0.9);
  EXPECT_EQ(resolved->optimizer().beta2(), 0.95);
  EXPECT_EQ(resolved->optimizer().eps(), 1e-8);
  EXPECT_EQ(resolved->parallel().data_parallel_size(), 1);
  EXPECT_EQ(resolved->parallel().pipeline_model_parallel_size(), 1);
  EXPECT_EQ(resolved->parallel().tensor_model_parallel_size(), 1);
  EXPECT_EQ(resolved->parallel().threads_per_rank(), 1);
  EXPECT_EQ(resolved->checkpoint().keep(), 2);
  EXPECT_EQ(resolved->checkpoint().directory(), "");
  EXPECT_EQ(resolved->fault().heartbeat_interval().seconds(), 1);
  EXPECT_EQ(resolved->fault().heartbeat_timeout().seconds(), 5);
  EXPECT_EQ(resolved->fault().progress_timeout().seconds(), 60);
  EXPECT_EQ(resolved->fault().start_timeout().seconds(), 120);
  EXPECT_EQ(resolved->fault().max_restarts_without_progress(), 3);
  EXPECT_EQ(resolved->fault().restart_backoff().seconds(), 1);
  EXPECT_EQ(resolved->fault().checkpoint_timeout().seconds(), 3600);
}

TEST(JobSpecTest, LambHasTheDefaultsOfItsPaper) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_optimizer()->set_type(v1::OPTIMIZER_TYPE_LAMB);
  const auto resolved = ResolveJobSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->optimizer().beta1(), 0.9);
  EXPECT_EQ(resolved->optimizer().beta2(), 0.999);
  EXPECT_EQ(resolved->optimizer().eps(), 1e-6);
  EXPECT_EQ(resolved->optimizer().weight_decay(), 0);
}

TEST(JobSpecTest, ResolvingTwiceChangesNothing) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_optimizer()->set_warmup_steps(3);
  spec.mutable_parallel()->set_data_parallel_size(2);
  const auto once = ResolveJobSpec(spec);
  ASSERT_TRUE(once.ok()) << once.status();
  const auto twice = ResolveJobSpec(*once);
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_TRUE(MessageDifferencer::Equals(*once, *twice));
}

// The driver writes every job as JSON, which allows one form of a duration only.
TEST(JobSpecTest, DurationsOfEveryFormBecomeTheOneThatJsonAllows) {
  v1::JobSpec spec = SmallSpec();
  const auto* type = v1::FaultSpec::descriptor();
  int num_durations = 0;
  for (int i = 0; i < type->field_count(); ++i) {
    if (type->field(i)->message_type() == nullptr) continue;
    v1::FaultSpec& fault = *spec.mutable_fault();
    auto* duration = static_cast<google::protobuf::Duration*>(
        fault.GetReflection()->MutableMessage(&fault, type->field(i)));
    const bool is_interval = type->field(i)->name() == "heartbeat_interval";
    const bool is_start = type->field(i)->name() == "start_timeout";
    duration->set_seconds(is_interval ? 1 : is_start ? 100 : 10);
    duration->set_nanos(is_interval ? -500'000'000 : 2'000'000'001);
    ++num_durations;
  }
  EXPECT_GE(num_durations, 6);
  const auto resolved = ResolveJobSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->fault().heartbeat_interval().nanos(), 500'000'000);
  EXPECT_EQ(resolved->fault().heartbeat_timeout().seconds(), 12);
  std::string json;
  EXPECT_TRUE(google::protobuf::util::MessageToJsonString(*resolved, &json).ok());
}

TEST(JobSpecTest, FieldsThatThisVersionDoesNotKnowAreRefused) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_train()
      ->GetReflection()
      ->MutableUnknownFields(spec.mutable_train())
      ->AddVarint(1000, 1);
  EXPECT_EQ(ResolveJobSpec(spec).status().message(),
            "job: has fields that this version does not know; use one version of megascale");
}

TEST(JobSpecTest, KeepsWhatIsGiven) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_model()->set_num_key_value_heads(2);
  spec.mutable_model()->set_intermediate_size(100);
  spec.mutable_model()->set_position_embedding(v1::POSITION_EMBEDDING_ROTARY);
  spec.mutable_fault()->mutable_heartbeat_interval()->set_nanos(100'000'000);
  const auto resolved = ResolveJobSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->model().num_key_value_heads(), 2);
  EXPECT_EQ(resolved->model().intermediate_size(), 100);
  EXPECT_EQ(resolved->model().position_embedding(), v1::POSITION_EMBEDDING_ROTARY);
  EXPECT_EQ(resolved->fault().heartbeat_interval().seconds(), 0);
}

TEST(JobSpecTest, TiedEmbeddingsMayBeOnAnyNumberOfStages) {
  for (const int stages : {1, 2}) {
    v1::JobSpec spec = SmallSpec();
    spec.mutable_model()->set_tie_word_embeddings(true);
    spec.mutable_parallel()->set_pipeline_model_parallel_size(stages);
    EXPECT_EQ(ResolveJobSpec(spec).status(), absl::OkStatus()) << stages;
  }
}

TEST(JobSpecTest, CountsRanksAndMicrobatches) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_parallel()->set_data_parallel_size(2);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
  const auto resolved = ResolveJobSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(WorldSize(*resolved), 4);
  EXPECT_EQ(NeededSlots(*resolved), "needs data × tensor × pipeline = 2 × 1 × 2 = 4 slots");
  EXPECT_EQ(NumMicrobatches(*resolved), 2);
}

struct Mistake {
  std::function<void(v1::JobSpec&)> make;
  std::string message;
};

void ExpectRefused(const std::vector<Mistake>& mistakes) {
  for (const Mistake& mistake : mistakes) {
    v1::JobSpec spec = SmallSpec();
    mistake.make(spec);
    const auto resolved = ResolveJobSpec(spec);
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument) << mistake.message;
    EXPECT_EQ(std::string(resolved.status().message()), mistake.message);
  }
}

TEST(JobSpecTest, RefusesBadNames) {
  ExpectRefused({
      {[](auto& spec) { spec.clear_name(); },
       "name: is missing; expected a short name such as fortunes"},
      {[](auto& spec) { spec.set_name("a b"); },
       "name: ' ' is not allowed; expected letters, digits, '-', '_', '.'"},
      {[](auto& spec) { spec.set_name("../up"); },
       "name: '/' is not allowed; expected letters, digits, '-', '_', '.'"},
      {[](auto& spec) { spec.set_name("\xc3\xa4"); },
       "name: byte 195 is not allowed; expected letters, digits, '-', '_', '.'"},
      {[](auto& spec) { spec.set_name(".."); },
       "name: '..' begins with '.'; expected a letter, a digit or '_' first"},
      {[](auto& spec) { spec.set_name(std::string(64, 'a')); },
       "name: has 64 characters; expected at most 63"},
  });
}

TEST(JobSpecTest, RefusesWhatADeviceCannotCompute) {
  v1::JobSpec spec = SmallSpec();
  spec.set_device(v1::DEVICE_CPU);
  EXPECT_TRUE(ResolveJobSpec(spec).ok());
  spec.set_device(v1::DEVICE_CUDA);
  EXPECT_TRUE(ResolveJobSpec(spec).ok());
  spec.mutable_train()->set_precision(v1::PRECISION_FP64);
  EXPECT_EQ(ResolveJobSpec(spec).status(),
            absl::InvalidArgumentError("train.precision: fp64 does not go with device = cuda; "
                                       "expected fp32 or bf16"));
  spec = SmallSpec();
  spec.set_device(v1::DEVICE_CUDA);
  spec.mutable_model()->set_head_dim(320);
  EXPECT_EQ(ResolveJobSpec(spec).status(),
            absl::InvalidArgumentError("model.head_dim: 320 with device = cuda; expected at most "
                                       "256"));
  spec.mutable_model()->set_hidden_size(20480);
  EXPECT_EQ(ResolveJobSpec(spec).status(),
            absl::InvalidArgumentError("model.hidden_size: 20480 with device = cuda; expected at "
                                       "most 16384"));
  spec = SmallSpec();
  spec.set_device_sharing(true);
  EXPECT_EQ(ResolveJobSpec(spec).status(),
            absl::InvalidArgumentError("device_sharing: is for GPUs; expected device = cuda, or "
                                       "false"));
  spec = SmallSpec();
  spec.set_enable_cuda_graph(false);
  EXPECT_EQ(ResolveJobSpec(spec).status(),
            absl::InvalidArgumentError("enable_cuda_graph: is for GPUs; expected device = cuda, or "
                                       "no value"));
  spec.set_device(v1::DEVICE_CUDA);
  EXPECT_FALSE(UsesCudaGraphs(*ResolveJobSpec(spec)));
  spec.clear_enable_cuda_graph();
  EXPECT_TRUE(UsesCudaGraphs(*ResolveJobSpec(spec)));
  spec = SmallSpec();
  spec.mutable_train()->set_allow_tf32(true);
  EXPECT_EQ(ResolveJobSpec(spec).status(),
            absl::InvalidArgumentError("train.allow_tf32: is for GPUs; expected device = cuda, or "
                                       "false"));
  spec.set_device(static_cast<v1::Device>(7));
  EXPECT_EQ(ResolveJobSpec(spec).status(),
            absl::InvalidArgumentError("device: unknown value 7; expected cpu or cuda"));
}

TEST(JobSpecTest, NcclsTimeoutAndRetriesAreInTheRangesOfTheAdaptersAndForGpusOnly) {
  const auto check = [](v1::Device device, int timeout, int retries) {
    v1::JobSpec spec = SmallSpec();
    spec.set_device(device);
    spec.mutable_fault()->set_nccl_ib_timeout(timeout);
    spec.mutable_fault()->set_nccl_ib_retry_count(retries);
    return std::string(ResolveJobSpec(spec).status().message());
  };
  EXPECT_EQ(check(v1::DEVICE_CUDA, 1, 0), "");
  EXPECT_EQ(check(v1::DEVICE_CUDA, 31, 7), "");
  EXPECT_EQ(check(v1::DEVICE_CUDA, 0, 7),
            "fault.nccl_ib_timeout: 0 is out of range; expected 1 to 31");
  EXPECT_EQ(check(v1::DEVICE_CUDA, 32, 7),
            "fault.nccl_ib_timeout: 32 is out of range; expected 1 to 31");
  EXPECT_EQ(check(v1::DEVICE_CUDA, 20, 8),
            "fault.nccl_ib_retry_count: 8 is out of range; expected 0 to 7");
  EXPECT_EQ(check(v1::DEVICE_CUDA, 20, -1),
            "fault.nccl_ib_retry_count: -1 is out of range; expected 0 to 7");
  EXPECT_EQ(check(v1::DEVICE_CPU, 20, 7),
            "fault.nccl_ib_timeout: is for GPUs; expected device = cuda, or no value");
  v1::JobSpec spec = SmallSpec();
  spec.set_device(v1::DEVICE_CUDA);
  EXPECT_FALSE(ResolveJobSpec(spec)->fault().has_nccl_ib_timeout()) << "the default is NCCL's";
}

TEST(JobSpecTest, RefusesBadModels) {
  ExpectRefused({
      {[](auto& spec) { spec.clear_model(); },
       "model.hidden_size: is missing or 0; expected 1 to 65536"},
      {[](auto& spec) { spec.mutable_model()->set_hidden_size(std::numeric_limits<int>::max()); },
       "model.hidden_size: 2147483647 is out of range; expected 1 to 65536"},
      {[](auto& spec) { spec.mutable_model()->set_num_hidden_layers(-1); },
       "model.num_hidden_layers: -1 is out of range; expected 1 to 1024"},
      {[](auto& spec) { spec.mutable_model()->set_vocab_size(100); },
       "model.vocab_size: 100 is out of range; expected 256 to 16777216"},
      {[](auto& spec) { spec.mutable_model()->set_num_attention_heads(5); },
       "model.hidden_size: 64 is not a multiple of model.num_attention_heads = 5 (64 = 12 × 5 + "
       "4)"},
      {[](auto& spec) { spec.mutable_model()->set_num_key_value_heads(3); },
       "model.num_attention_heads: 4 is not a multiple of model.num_key_value_heads = 3 (4 = 1 × 3 "
       "+ "
       "1)"},
      {[](auto& spec) {
         spec.mutable_model()->set_hidden_size(60);
         spec.mutable_model()->set_position_embedding(v1::POSITION_EMBEDDING_ROTARY);
       },
       "model.position_embedding: rotary turns pairs of elements; model.head_dim × "
       "model.partial_rotary_factor = 15 × 1 = 15; expected an even number"},
      {[](auto& spec) { spec.mutable_model()->set_partial_rotary_factor(1.5); },
       "model.partial_rotary_factor: 1.5 is out of range; expected more than 0, at most 1"},
      {[](auto& spec) { spec.mutable_model()->set_num_ln_in_parallel_attn(3); },
       "model.num_ln_in_parallel_attn: 3 is out of range; expected 1 to 2"},
      {[](auto& spec) { spec.mutable_model()->set_head_dim(-2); },
       "model.head_dim: -2 is out of range; expected 1 to 65536"},
      {[](auto& spec) { spec.mutable_model()->set_norm(static_cast<v1::Norm>(9)); },
       "model.norm: is unknown; expected layernorm or rmsnorm"},
      {[](auto& spec) { spec.mutable_model()->set_norm_eps(-1); },
       "model.norm_eps: -1 is out of range; expected more than 0 and less than 1"},
      {[](auto& spec) { spec.mutable_model()->set_sliding_window(-4); },
       "model.sliding_window: -4 is out of range; expected 0 to 1048576"},
      {[](auto& spec) { spec.mutable_model()->add_layer_types("full_attention"); },
       "model.layer_types: has 1 words; expected one for each of model.num_hidden_layers = 2 "
       "layers"},
      {[](auto& spec) {
         spec.mutable_model()->add_layer_types("full_attention");
         spec.mutable_model()->add_layer_types("chunked_attention");
       },
       "model.layer_types: has chunked_attention; expected full_attention or "
       "sliding_attention"},
      {[](auto& spec) {
         spec.mutable_model()->add_layer_types("full_attention");
         spec.mutable_model()->add_layer_types("sliding_attention");
       },
       "model.layer_types: has a layer with a window; expected model.sliding_window beside it, "
       "more than 0"},
      {[](auto& spec) { spec.mutable_model()->set_max_position_embeddings(16); },
       "train.seq_length: 32 is more than model.max_position_embeddings = 16"},
  });
}

TEST(JobSpecTest, RopeScalingHasTheDefaultsOfItsType) {
  v1::JobSpec spec = SmallSpec();
  v1::RopeScaling* scaling = spec.mutable_model()->mutable_rope_scaling();
  scaling->set_rope_type(v1::ROPE_TYPE_YARN);
  scaling->set_factor(4);
  scaling->set_original_max_position_embeddings(1024);
  const auto yarn = ResolveJobSpec(spec);
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  EXPECT_EQ(yarn->model().rope_scaling().beta_fast(), 32);
  EXPECT_EQ(yarn->model().rope_scaling().beta_slow(), 1);
  EXPECT_NEAR(yarn->model().rope_scaling().attention_factor(), 1.1386294, 1e-7);
  scaling->set_rope_type(v1::ROPE_TYPE_LLAMA3);
  EXPECT_EQ(ResolveJobSpec(spec)->model().rope_scaling().high_freq_factor(), 4);
}

TEST(JobSpecTest, RefusesBadRopeScaling) {
  const auto set = [](auto& spec, v1::RopeType type) {
    spec.mutable_model()->mutable_rope_scaling()->set_rope_type(type);
    spec.mutable_model()->mutable_rope_scaling()->set_factor(2);
    return spec.mutable_model()->mutable_rope_scaling();
  };
  ExpectRefused({
      {[](auto& spec) { spec.mutable_model()->mutable_rope_scaling(); },
       "model.rope_scaling.rope_type: is missing; expected linear, llama3 or yarn"},
      {[&](auto& spec) { set(spec, v1::ROPE_TYPE_LINEAR)->set_factor(0.5); },
       "model.rope_scaling.factor: 0.5 is out of range; expected at least 1 and less than 1e+06"},
      {[&](auto& spec) { set(spec, v1::ROPE_TYPE_YARN); },
       "model.rope_scaling.original_max_position_embeddings: is missing or 0; expected 1 to "
       "1048576"},
      {[&](auto& spec) {
         set(spec, v1::ROPE_TYPE_LLAMA3)->set_original_max_position_embeddings(8);
         spec.mutable_model()->mutable_rope_scaling()->set_low_freq_factor(5);
       },
       "model.rope_scaling.high_freq_factor: 4 must be more than "
       "model.rope_scaling.low_freq_factor = 5"},
  });
}

TEST(JobSpecTest, TensorRanksNeedNotDivideTheVocabulary) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_model()->set_vocab_size(257);
  spec.mutable_parallel()->set_tensor_model_parallel_size(4);
  EXPECT_EQ(ResolveJobSpec(spec).status(), absl::OkStatus());
}

TEST(JobSpecTest, RefusesBadDataAndTraining) {
  ExpectRefused({
      {[](auto& spec) { spec.clear_data(); },
       "data.files: is missing; expected at least one text file or directory"},
      {[](auto& spec) { spec.mutable_data()->add_files("text"); },
       "data.files: 'text' is not an absolute path"},
      {[](auto& spec) { spec.mutable_data()->set_held_out_fraction(1); },
       "data.held_out_fraction: 1 is out of range; expected more than 0 and less than 1"},
      {[](auto& spec) { spec.mutable_train()->set_eval_interval(-1); },
       "train.eval_interval: -1 is out of range; expected 0 to 1099511627776"},
      {[](auto& spec) {
         spec.mutable_train()->set_eval_interval(0);
         spec.mutable_checkpoint()->set_keep_best(true);
       },
       "checkpoint.keep_best: needs evaluations, but train.eval_interval is 0; expected false, or "
       "an interval"},
      {[](auto& spec) { spec.mutable_optimizer()->set_decay_steps(3); },
       "optimizer.decay_steps: is for optimizer.schedule = wsd; expected that, or no value"},
      {[](auto& spec) {
         spec.mutable_data()->add_weights("1"), spec.mutable_data()->add_weights("2");
       },
       "data.weights: has 2 entries, data.files has 1; expected one weight for each"},
      {[](auto& spec) { spec.mutable_data()->add_weights("-1"); },
       "data.weights: found '-1', expected numbers of 1e-06 to 1e+06"},
      {[](auto& spec) { spec.mutable_data()->set_json_field("text"); },
       "data.json_field: needs a tokenizer, and without one every byte of a file is a token; name "
       "one in data.tokenizer, or let one be learnt by data.tokenizer_vocab_size"},
      {[](auto& spec) { spec.mutable_data()->set_attention(v1::ATTENTION_WITHIN_DOCUMENTS); },
       "data.attention: within_documents: needs a tokenizer, and without one every byte of a file "
       "is a token; name one in data.tokenizer, or let one be learnt by "
       "data.tokenizer_vocab_size"},
      {[](auto& spec) { spec.mutable_data()->set_attention(static_cast<v1::Attention>(7)); },
       "data.attention: 7 is unknown to this version; expected across_documents or "
       "within_documents"},
      {[](auto& spec) { spec.mutable_data()->set_tokenizer_vocab_size(256); },
       "data.tokenizer_vocab_size: 256 is out of range; expected 257 to 1048576"},
      {[](auto& spec) {
         spec.mutable_data()->set_tokenizer_vocab_size(300);
         spec.mutable_data()->set_tokenizer("/t");
       },
       "data.tokenizer_vocab_size: learns a tokenizer, but data.tokenizer names one; expected one "
       "of the two"},
      {[](auto& spec) { spec.mutable_data()->set_tokenizer("t"); },
       "data.tokenizer: 't' is not an absolute path"},
      {[](auto& spec) { spec.mutable_train()->clear_steps(); },
       "train.steps: is missing or 0; expected 1 to 1099511627776"},
      {[](auto& spec) { spec.mutable_train()->set_global_batch_size(9); },
       "train.global_batch_size: 9 is not a multiple of data_parallel_size × micro_batch_size = 1 "
       "× "
       "2 = 2"},
      {[](auto& spec) {
         spec.mutable_train()->set_seq_length(1 << 20);
         spec.mutable_train()->set_micro_batch_size(32);
       },
       "train.micro_batch_size: micro_batch_size × seq_length = 32 × 1048576 = 33554432 tokens is "
       "absurd; expected at most 16777216"},
      {[](auto& spec) { spec.mutable_train()->set_eval_interval(-1); },
       "train.eval_interval: -1 is out of range; expected 0 to 1099511627776"},
      {[](auto& spec) { spec.mutable_train()->set_eval_batches((1 << 20) + 1); },
       "train.eval_batches: 1048577 is out of range; expected 0 to 1048576"},
      {[](auto& spec) {
         spec.mutable_optimizer()->set_lr(std::numeric_limits<double>::quiet_NaN());
       },
       "optimizer.lr: nan is out of range; expected more than 0 and less than 100"},
      {[](auto& spec) { spec.mutable_optimizer()->set_type(static_cast<v1::OptimizerType>(9)); },
       "optimizer.type: is unknown; expected adamw or lamb"},
      {[](auto& spec) { spec.mutable_optimizer()->set_min_lr(1); },
       "optimizer.min_lr: 1 is more than optimizer.lr = 0.0003"},
      {[](auto& spec) { spec.mutable_optimizer()->set_warmup_steps(11); },
       "optimizer.warmup_steps: 11 is more than train.steps = 10"},
      {[](auto& spec) { spec.mutable_optimizer()->set_clip_grad(-1); },
       "optimizer.clip_grad: -1 is out of range; expected at least 0 and less than 1e+12"},
  });
}

TEST(JobSpecTest, EvaluatesTenTimesOrWhereItAsksForItAndAfterTheLastStep) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_train()->set_steps(2000);
  EXPECT_FALSE(ResolveJobSpec(spec)->train().has_eval_interval())
      << "agents of the release before do not know the field";
  EXPECT_EQ(EvaluationInterval(spec), 200);
  EXPECT_EQ(EvaluationBatches(spec), 20);
  EXPECT_TRUE(IsEvaluated(spec, 400));
  EXPECT_FALSE(IsEvaluated(spec, 401));
  spec.mutable_train()->set_steps(7);
  EXPECT_EQ(EvaluationInterval(spec), 1);
  for (const auto& [size, batches] : std::map<int, int>{{1, 64}, {5, 13}, {64, 1}, {1000, 1}}) {
    spec.mutable_train()->set_global_batch_size(size);
    EXPECT_EQ(EvaluationBatches(spec), batches) << "at least 64 windows in batches of " << size;
  }
  spec.mutable_train()->set_steps(29);
  EXPECT_EQ(EvaluationInterval(spec), 2);
  EXPECT_TRUE(IsEvaluated(spec, 29)) << "the last step";
  spec.mutable_train()->set_steps(1'000'000);
  EXPECT_EQ(EvaluationBatches(spec), kEvaluationBatchesMax);
  spec.mutable_train()->set_eval_interval(300);
  spec.mutable_train()->set_eval_batches(7);
  EXPECT_EQ(EvaluationBatches(spec), 7);
  EXPECT_TRUE(IsEvaluated(spec, 600));
  EXPECT_TRUE(IsEvaluated(spec, 1'000'000)) << "the last step";
  EXPECT_EQ(LastEvaluated(spec, 299), 0);
  EXPECT_EQ(LastEvaluated(spec, 300), 300);
  EXPECT_EQ(LastEvaluated(spec, 899), 600);
  EXPECT_EQ(LastEvaluated(spec, 1'000'000), 1'000'000);
  spec.mutable_train()->set_eval_interval(0);
  EXPECT_EQ(EvaluationInterval(spec), 0);
  for (const int64_t step : {300, 1'000'000}) EXPECT_FALSE(IsEvaluated(spec, step));
}

TEST(JobSpecTest, TensorRanksCountInTheWorldAndNotInMicroBatches) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_parallel()->set_data_parallel_size(2);
  spec.mutable_parallel()->set_tensor_model_parallel_size(4);
  const auto resolved = ResolveJobSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(WorldSize(*resolved), 8);
  EXPECT_EQ(NeededSlots(*resolved), "needs data × tensor × pipeline = 2 × 4 × 1 = 8 slots");
  EXPECT_EQ(NeededSlots({}), "needs 1 slot");
  spec.mutable_parallel()->clear_tensor_model_parallel_size();
  EXPECT_EQ(NumMicrobatches(*resolved), NumMicrobatches(ResolveJobSpec(spec).value()));
}

TEST(JobSpecTest, AnOlderVersionsSpecificationIsUpgradedToWhatThatVersionDid) {
  v1::JobSpec now = ResolveJobSpec(SmallSpec()).value();
  now.mutable_parallel()->set_tp_comm_overlap(true);  // was the default
  v1::JobSpec older = now;
  older.clear_device();
  older.mutable_train()->clear_recompute_granularity();
  older.mutable_optimizer()->clear_type();
  older.mutable_parallel()->clear_virtual_pipeline_model_parallel_size();
  older.mutable_parallel()->clear_pipeline_schedule();
  older.mutable_parallel()->clear_overlap_grad_reduce();
  older.mutable_parallel()->clear_overlap_param_gather();
  older.mutable_parallel()->clear_overlap_p2p_communication();
  older.mutable_parallel()->clear_tp_comm_overlap();
  older.mutable_parallel()->clear_zero_stage();
  older.mutable_parallel()->clear_ddp_bucket_size();
  UpgradeJobSpec(&older);
  EXPECT_EQ(older.SerializeAsString(), now.SerializeAsString());
  UpgradeJobSpec(&older);
  EXPECT_EQ(older.SerializeAsString(), now.SerializeAsString());
}

TEST(JobSpecTest, CommunicationOverlapsByDefaultWhereThatIsFasterOnProcessors) {
  v1::JobSpec spec = SmallSpec();
  const v1::ParallelSpec by_default = ResolveJobSpec(spec)->parallel();
  EXPECT_TRUE(by_default.overlap_grad_reduce());
  EXPECT_TRUE(by_default.overlap_param_gather());
  EXPECT_TRUE(by_default.overlap_p2p_communication());
  EXPECT_FALSE(by_default.tp_comm_overlap());
  spec.mutable_parallel()->set_overlap_param_gather(false);
  spec.mutable_parallel()->set_tp_comm_overlap(true);
  const v1::ParallelSpec chosen = ResolveJobSpec(spec)->parallel();
  EXPECT_TRUE(chosen.overlap_grad_reduce());
  EXPECT_FALSE(chosen.overlap_param_gather());
  EXPECT_TRUE(chosen.tp_comm_overlap());
  EXPECT_TRUE(chosen.overlap_p2p_communication());
}

TEST(JobSpecTest, GradientsAreShardedWhereThereAreDataParallelRanks) {
  v1::JobSpec spec = SmallSpec();
  EXPECT_EQ(ResolveJobSpec(spec).value().parallel().zero_stage(), 1);
  spec.mutable_parallel()->set_zero_stage(2);
  spec.mutable_parallel()->set_data_parallel_size(2);
  EXPECT_EQ(ResolveJobSpec(spec).value().parallel().zero_stage(), 2);
  spec.mutable_parallel()->set_data_parallel_size(1);
  EXPECT_EQ(ResolveJobSpec(spec).value().parallel().zero_stage(), 1);
}

TEST(JobSpecTest, BucketsAreMegatronsWhereThereIsSomethingToReduce) {
  v1::JobSpec spec = SmallSpec();
  const auto resolved = [&] {
    const v1::JobSpec once = ResolveJobSpec(spec).value();
    EXPECT_EQ(ResolveJobSpec(once).value().SerializeAsString(), once.SerializeAsString());
    return once.parallel().ddp_bucket_size();
  };
  EXPECT_EQ(resolved(), 0);
  spec.mutable_parallel()->set_data_parallel_size(2);
  EXPECT_EQ(resolved(), 40'000'000);
  spec.mutable_parallel()->set_ddp_bucket_size(1000);
  EXPECT_EQ(resolved(), 1000);
  // Older versions reduced a chunk as a whole.
  spec.mutable_parallel()->clear_ddp_bucket_size();
  v1::JobSpec older = ResolveJobSpec(spec).value();
  older.mutable_parallel()->clear_ddp_bucket_size();
  UpgradeJobSpec(&older);
  EXPECT_EQ(older.parallel().ddp_bucket_size(), int64_t{1} << 40);
}

TEST(JobSpecTest, RefusesBadLayouts) {
  ExpectRefused({
      {[](auto& spec) { spec.mutable_parallel()->set_ddp_bucket_size(-1); },
       "parallel.ddp_bucket_size: -1 is out of range; expected 1 to 1099511627776"},
      {[](auto& spec) { spec.mutable_parallel()->set_zero_stage(3); },
       "parallel.zero_stage: 3 is out of range; expected 1 to 2"},
      {[](auto& spec) { spec.mutable_parallel()->set_zero_stage(-1); },
       "parallel.zero_stage: -1 is out of range; expected 1 to 2"},
      {[](auto& spec) { spec.mutable_parallel()->set_tensor_model_parallel_size(-1); },
       "parallel.tensor_model_parallel_size: -1 is out of range; expected 1 to 65536"},
      {[](auto& spec) { spec.mutable_parallel()->set_tensor_model_parallel_size(3); },
       "model.num_attention_heads: 4 is not a multiple of parallel.tensor_model_parallel_size = 3 "
       "(4 = 1 × 3 + 1)"},
      {[](auto& spec) {
         spec.mutable_parallel()->set_tensor_model_parallel_size(4);
         spec.mutable_model()->set_num_attention_heads(12);
         spec.mutable_model()->set_head_dim(4);
         spec.mutable_model()->set_num_key_value_heads(6);
       },
       "model.num_key_value_heads: 6 is not a multiple of parallel.tensor_model_parallel_size = 4 "
       "(6 = 1 × 4 + 2)"},
      {[](auto& spec) {
         spec.mutable_parallel()->set_tensor_model_parallel_size(4);
         spec.mutable_model()->set_intermediate_size(190);
       },
       "model.intermediate_size: 190 is not a multiple of parallel.tensor_model_parallel_size = 4 "
       "(190 = 47 × 4 + 2)"},
      {[](auto& spec) {
         spec.mutable_parallel()->set_tensor_model_parallel_size(4);
         spec.mutable_train()->set_seq_length(18);
       },
       "train.seq_length: 18 is not a multiple of parallel.tensor_model_parallel_size = 4 "
       "(18 = 4 × 4 + 2)"},
      {[](auto& spec) {
         spec.mutable_parallel()->set_data_parallel_size(1 << 14);
         spec.mutable_parallel()->set_tensor_model_parallel_size(4);
         spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
       },
       "parallel: data_parallel_size × tensor_model_parallel_size × pipeline_model_parallel_size = "
       "16384 × 4 × 2 = 131072 ranks; expected at most 65536"},
      {[](auto& spec) { spec.mutable_parallel()->set_pipeline_model_parallel_size(3); },
       "parallel.pipeline_model_parallel_size: 3 is more than model.num_hidden_layers = 2; every "
       "stage "
       "needs a layer"},
      {[](auto& spec) { spec.mutable_parallel()->set_data_parallel_size(-2); },
       "parallel.data_parallel_size: -2 is out of range; expected 1 to 65536"},
      {[](auto& spec) {
         spec.mutable_parallel()->set_data_parallel_size(1 << 16);
         spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
       },
       "parallel: data_parallel_size × tensor_model_parallel_size × pipeline_model_parallel_size = "
       "65536 × 1 × 2 = 131072 ranks; expected at most 65536"},
      {[](auto& spec) {
         spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
         spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(2);
       },
       "parallel.virtual_pipeline_model_parallel_size: pipeline × virtual stages = 2 × 2 = 4 is "
       "more than model.num_hidden_layers = 2; every chunk needs a layer"},
      {[](auto& spec) {
         spec.mutable_model()->set_num_hidden_layers(4);
         spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
         spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(2);
         spec.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZB_H1);
       },
       "parallel.pipeline_schedule: zb_h1 has 1 chunk per stage, not 2; expected "
       "interleaved_1f1b, or 1 chunk (pipeline × virtual stages = 2 × 2)"},
      {[](auto& spec) { spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(2); },
       "parallel.virtual_pipeline_model_parallel_size: 2 chunks per stage need 2 or more stages, "
       "not 1; expected 1, or more stages (pipeline × virtual stages = 1 × 2)"},
      {[](auto& spec) {
         spec.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B);
       },
       "parallel.pipeline_schedule: interleaved_1f1b needs 2 or more chunks per stage, not 1; "
       "expected 1f1b, or more of them (pipeline × virtual stages = 1 × 1)"},
      {[](auto& spec) {
         spec.mutable_model()->set_num_hidden_layers(4);
         spec.mutable_train()->set_global_batch_size(3);
         spec.mutable_train()->set_micro_batch_size(1);
         spec.mutable_parallel()->set_pipeline_model_parallel_size(2);
         spec.mutable_parallel()->set_virtual_pipeline_model_parallel_size(2);
       },
       "train.global_batch_size: interleaved_1f1b needs a number of micro-batches that the number "
       "of stages divides; 3 / 2 leaves 1 (global_batch_size / (data × micro_batch_size) = 3 / (1 "
       "× 1) = 3)"},
      {[](auto& spec) {
         spec.mutable_train()->set_recompute_granularity(v1::RECOMPUTE_GRANULARITY_FULL);
         spec.mutable_parallel()->set_pipeline_schedule(v1::PIPELINE_SCHEDULE_ZB_H1);
       },
       "train.recompute_granularity: does not go with parallel.pipeline_schedule = zb_h1, whose "
       "late weight gradients read what recomputation drops; expected none, or another schedule"},
      {[](auto& spec) {
         spec.mutable_train()->set_precision(v1::PRECISION_FP64);
         spec.mutable_parallel()->set_threads_per_rank(2);
       },
       "parallel.threads_per_rank: 2 does not go with train.precision = fp64, which runs on 1"},
  });
}

TEST(JobSpecTest, AStoreIsResolvedToItsWholeAddress) {
  v1::JobSpec spec = SmallSpec();
  spec.set_store("redis://trainer@cache/2");
  EXPECT_EQ(ResolveJobSpec(spec)->store(), "redis://trainer@cache:6379/2");
  EXPECT_EQ(ResolveJobSpec(*ResolveJobSpec(spec))->store(), "redis://trainer@cache:6379/2");
  ExpectRefused({
      {[](auto& bad) { bad.set_store("cache:6379"); },
       "store: 'cache:6379' is no address of a store; expected redis://[USER@]HOST[:PORT]"
       "[/DATABASE], the same with rediss:// for TLS, or unix:/PATH"},
      {[](auto& bad) { bad.set_store("redis://:s3cret@cache"); },
       "store: holds a password, which status and every checkpoint would show; expected "
       "redis://[USER@]HOST[:PORT][/DATABASE]: put the password into a file and start agents with "
       "--store-passwords FILE"},
  });
}

TEST(JobSpecTest, RefusesBadCheckpointsAndFaults) {
  ExpectRefused({
      {[](auto& spec) { spec.mutable_checkpoint()->set_directory("here"); },
       "checkpoint.directory: 'here' is not an absolute path"},
      {[](auto& spec) { spec.mutable_checkpoint()->set_keep(-1); },
       "checkpoint.keep: -1 is out of range; expected 1 to 1048576"},
      {[](auto& spec) { spec.mutable_fault()->mutable_heartbeat_interval(); },
       "fault.heartbeat_interval: 0 is out of range; expected 100ms to 168h"},
      {[](auto& spec) { spec.mutable_fault()->mutable_heartbeat_interval()->set_seconds(5); },
       "fault.heartbeat_timeout: 5s must be longer than fault.heartbeat_interval = 5s"},
      {[](auto& spec) { spec.mutable_fault()->mutable_progress_timeout()->set_nanos(1000); },
       "fault.progress_timeout: 1us is out of range; expected 1s to 168h"},
      {[](auto& spec) { spec.mutable_fault()->mutable_progress_timeout()->set_seconds(1); },
       "fault.progress_timeout: 1s must be longer than fault.heartbeat_interval = 1s"},
      {[](auto& spec) { spec.mutable_fault()->set_max_restarts_without_progress(-3); },
       "fault.max_restarts_without_progress: -3 is out of range; expected 1 to 1048576"},
  });
}

TEST(JobSpecTest, TheDeadlinesOfAStartAreInOrder) {
  const auto seconds = [](int64_t count) { return FromDuration(absl::Seconds(count)); };
  for (const int64_t progress : {0, 2, 5, 60, 96, 97, 600, 100'000}) {
    for (const int64_t start : {0, 3, 6, 20, 75, 120, 750, 500'000}) {
      v1::JobSpec spec = SmallSpec();
      if (progress > 0) *spec.mutable_fault()->mutable_progress_timeout() = seconds(progress);
      if (start > 0) *spec.mutable_fault()->mutable_start_timeout() = seconds(start);
      const absl::StatusOr<v1::JobSpec> resolved = ResolveJobSpec(spec);
      const bool contradicts = progress > 0 && start > 0 && 5 * progress > 4 * start;
      ASSERT_EQ(!resolved.ok(), contradicts) << progress << " " << start << resolved.status();
      // A job of an older driver may contradict.
      const Deadlines found = DeadlinesOf(resolved.ok() ? resolved->fault() : spec.fault());
      constexpr double kMost = 0.8 + 1e-9;
      EXPECT_GT(found.connect, absl::ZeroDuration());
      EXPECT_LE(found.connect, kMost * found.join) << progress << " " << start;
      EXPECT_LE(found.join, kMost * found.progress) << progress << " " << start;
      EXPECT_LE(found.progress, kMost * found.start) << progress << " " << start;
      EXPECT_LE(found.start, kMost * found.wait) << progress << " " << start;
      if (!resolved.ok()) continue;
      EXPECT_EQ(found.progress, ToDuration(resolved->fault().progress_timeout()));
      EXPECT_EQ(found.start, ToDuration(resolved->fault().start_timeout()));
    }
  }
}

TEST(JobSpecTest, DeadlinesThatContradictAreRefusedWithTheLeastThatFits) {
  ExpectRefused({{[](auto& spec) {
                    spec.mutable_fault()->mutable_progress_timeout()->set_seconds(100);
                    spec.mutable_fault()->mutable_start_timeout()->set_seconds(120);
                  },
                  "fault.start_timeout: 2m must be at least 2m5s, 1.25 times "
                  "fault.progress_timeout = 1m40s"}});
}

// Durations that no sound job asks for are refused, whoever submits it: the driver resolves every
// job.
TEST(JobSpecTest, DurationsThatWouldDestroyAreRefused) {
  struct Limit {
    const char* field;
    const char* least;
  };
  for (const Limit& limit :
       {Limit{"heartbeat_interval", "100ms"}, Limit{"heartbeat_timeout", "500ms"},
        Limit{"progress_timeout", "1s"}, Limit{"start_timeout", "1s"},
        Limit{"restart_backoff", "10ms"}, Limit{"checkpoint_timeout", "1s"}}) {
    for (const auto& [seconds, nanos] : {std::pair<int64_t, int>{0, 2},
                                         {0, 0},
                                         {-1, 0},
                                         {0, -1},
                                         {168 * 3600, 1},
                                         {3'600'000'000'000, 0},
                                         {INT64_MAX, INT32_MAX},
                                         {INT64_MIN, INT32_MIN}}) {
      v1::JobSpec spec = SmallSpec();
      v1::FaultSpec& fault = *spec.mutable_fault();
      const auto* field = v1::FaultSpec::descriptor()->FindFieldByName(limit.field);
      auto* duration = static_cast<google::protobuf::Duration*>(
          fault.GetReflection()->MutableMessage(&fault, field));
      duration->set_seconds(seconds);
      duration->set_nanos(nanos);
      const absl::Status status = ResolveJobSpec(spec).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat("fault.", limit.field, ": ")) &&
                  absl::EndsWith(status.message(), absl::StrCat(" is out of range; expected ",
                                                                limit.least, " to 168h")))
          << limit.field << " " << seconds << " s " << nanos << " ns: " << status;
    }
  }
}

}  // namespace
}  // namespace megascale::job
