#include "cli/job_file/job_file.h"

#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/job_file/testing/test_job_text.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"
#include "runtime/hugging_face/testing/test_folder.h"
#include "runtime/job/job_spec.h"

namespace megascale::cli {
namespace {

using google::protobuf::util::MessageDifferencer;
using job::v1::JobSpec;

constexpr char kSmall[] = R"(name: small
model:
  hidden_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
data:
  files: [/usr/share/games/fortunes]
train:
  steps: 10
  seq_length: 32
  global_batch_size: 8
  micro_batch_size: 2
)";

std::string ErrorOf(const std::string& text) {
  const auto spec = ReadText(text);
  if (spec.ok()) return "no error";
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

std::string OverrideErrorOf(const std::string& assignment) {
  JobSpec spec;
  const absl::Status status = Apply(assignment, &spec);
  if (status.ok()) return "no error";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(JobFileTest, ReadsEveryKindOfField) {
  const auto spec = ReadText(R"(
name: "all kinds"
device: cpu
model:
  hidden_size: 64
  position_embedding: rotary
  hidden_act: gelu_tanh
  norm: rmsnorm
  norm_eps: 1e-6
  parallel_block: true
data:
  files:
    - /a
    - "/b c"
train:
  steps: 5000000000
  seed: 18446744073709551615
  precision: bf16
optimizer: {type: lamb, lr: 2e-3, clip_grad: 1}
fault:
  heartbeat_interval: 500ms
  progress_timeout: 1m30s
checkpoint:
)");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name(), "all kinds");
  EXPECT_EQ(spec->device(), job::v1::DEVICE_CPU);
  EXPECT_EQ(spec->model().hidden_size(), 64);
  EXPECT_EQ(spec->model().position_embedding(), job::v1::POSITION_EMBEDDING_ROTARY);
  EXPECT_EQ(spec->model().hidden_act(), job::v1::ACTIVATION_GELU_TANH);
  EXPECT_EQ(spec->model().norm(), job::v1::NORM_RMSNORM);
  EXPECT_EQ(spec->model().norm_eps(), 1e-6);
  EXPECT_TRUE(spec->model().parallel_block());
  ASSERT_EQ(spec->data().files_size(), 2);
  EXPECT_EQ(spec->data().files(1), "/b c");
  EXPECT_EQ(spec->train().steps(), 5000000000);
  EXPECT_EQ(spec->train().seed(), 18446744073709551615u);
  EXPECT_EQ(spec->train().precision(), job::v1::PRECISION_BF16);
  EXPECT_EQ(spec->optimizer().type(), job::v1::OPTIMIZER_TYPE_LAMB);
  EXPECT_EQ(spec->optimizer().lr(), 2e-3);
  EXPECT_EQ(spec->optimizer().clip_grad(), 1);
  EXPECT_EQ(spec->fault().heartbeat_interval().nanos(), 500'000'000);
  EXPECT_EQ(spec->fault().progress_timeout().seconds(), 90);
  EXPECT_EQ(spec->checkpoint().interval(), 0);
}

TEST(JobFileTest, NamesUnknownFieldsWithTheNearest) {
  EXPECT_EQ(ErrorOf("name: x\nmodel:\n  hiden_size: 64\n"),
            "job.yaml:3:3: `model.hiden_size` is not a field; did you mean `hidden_size`?");
  EXPECT_EQ(ErrorOf("nmae: x\n"), "job.yaml:1:1: `nmae` is not a field; did you mean `name`?");
  EXPECT_EQ(ErrorOf("hidden_size: 64\n"),
            "job.yaml:1:1: `hidden_size` is not a field; did you mean `model.hidden_size`?");
  EXPECT_EQ(ErrorOf("model:\n  steps: 64\n"),
            "job.yaml:2:3: `model.steps` is not a field; did you mean `train.steps`?");
  EXPECT_EQ(
      ErrorOf("zzzzzzzz: 1\n"),
      "job.yaml:1:1: `zzzzzzzz` is not a field; expected one of name, device, device_sharing, "
      "enable_cuda_graph, model, data, "
      "train, optimizer, parallel, checkpoint, fault, store, tensorboard, priority");
}

TEST(JobFileTest, SaysWhatWasFoundAndExpected) {
  EXPECT_EQ(ErrorOf("train:\n  steps: many\n"),
            "job.yaml:2:10: `train.steps` expects a whole number such as 40, found `many`");
  EXPECT_EQ(ErrorOf("train:\n  steps: 40.5\n"),
            "job.yaml:2:10: `train.steps` expects a whole number such as 40, found `40.5`");
  EXPECT_EQ(ErrorOf("model:\n  hidden_size: 1.5\n"),
            "job.yaml:2:16: `model.hidden_size` expects a whole number such as 40, found `1.5`");
  EXPECT_EQ(ErrorOf("model:\n  hidden_size: 99999999999\n"),
            "job.yaml:2:16: `model.hidden_size` expects a whole number of at most 2147483647, "
            "found `99999999999`");
  EXPECT_EQ(ErrorOf("train:\n  seed: -1\n"),
            "job.yaml:2:9: `train.seed` expects a whole number of at least 0, found `-1`");
  EXPECT_EQ(
      ErrorOf("optimizer:\n  lr: fast\n"),
      "job.yaml:2:7: `optimizer.lr` expects a number between 1e-300 and 1e300, or 0, found `fast`");
  EXPECT_EQ(
      ErrorOf("optimizer:\n  lr: nan\n"),
      "job.yaml:2:7: `optimizer.lr` expects a number between 1e-300 and 1e300, or 0, found `nan`");
  EXPECT_EQ(ErrorOf("model:\n  parallel_block: yes\n"),
            "job.yaml:2:19: `model.parallel_block` expects true or false, found `yes`");
  EXPECT_EQ(ErrorOf("model: big\n"),
            "job.yaml:1:8: `model` expects fields, one `name: value` a line, found `big`");
  EXPECT_EQ(ErrorOf("name: [a, b]\n"), "job.yaml:1:7: `name` expects one value, found a list");
  EXPECT_EQ(ErrorOf("name:\n"), "job.yaml:1:1: `name` has no value");
  EXPECT_EQ(ErrorOf("data:\n  files: {a: b}\n"),
            "job.yaml:2:10: `data.files` expects a list of texts, found a section of fields");
  EXPECT_EQ(ErrorOf("data:\n  files:\n    - /a\n    - [/b]\n"),
            "job.yaml:4:7: `data.files` expects a list of texts, found a list");
  EXPECT_EQ(ErrorOf("- a\n- b\n"),
            "job.yaml:1:1: a job file expects fields, one `name: value` a line, found a list");
}

TEST(JobFileTest, ExplainsEnumsAndDurations) {
  EXPECT_EQ(
      ErrorOf("model:\n  norm: layernrm\n"),
      "job.yaml:2:9: `model.norm` expects layernorm or rmsnorm, found `layernrm`; did you mean "
      "`layernorm`?");
  EXPECT_EQ(ErrorOf("train:\n  precision: int8\n"),
            "job.yaml:2:14: `train.precision` expects fp32 or bf16 or fp64, found `int8`");
  EXPECT_EQ(
      ErrorOf("train:\n  precision: BF16\n"),
      "job.yaml:2:14: `train.precision` expects fp32 or bf16 or fp64, found `BF16`; did you mean "
      "`bf16`?");
  EXPECT_EQ(ErrorOf("name: x\ndevice: tpu\n"),
            "job.yaml:2:9: `device` expects cpu or cuda, found `tpu`; did you mean `cpu`?");
  EXPECT_EQ(
      ErrorOf("fault:\n  heartbeat_timeout: 5\n"),
      "job.yaml:2:22: `fault.heartbeat_timeout` expects a duration such as 5s, 1m30s or 500ms, "
      "found `5`");
  EXPECT_EQ(
      ErrorOf("fault:\n  heartbeat_timeout: -5s\n"),
      "job.yaml:2:22: `fault.heartbeat_timeout` expects a duration such as 5s, 1m30s or 500ms, "
      "found `-5s`");
  EXPECT_EQ(
      ErrorOf("fault:\n  heartbeat_timeout: inf\n"),
      "job.yaml:2:22: `fault.heartbeat_timeout` expects a duration such as 5s, 1m30s or 500ms, "
      "found `inf`");
}

TEST(JobFileTest, RefusesDuplicatesAndBrokenYaml) {
  EXPECT_EQ(ErrorOf("name: a\nname: b\n"), "job.yaml:2:1: `name` is given twice");
  EXPECT_EQ(ErrorOf("model:\n  norm: rmsnorm\n  norm: rmsnorm\n"),
            "job.yaml:3:3: `model.norm` is given twice");
  EXPECT_EQ(ErrorOf("model:\n  norm: rmsnorm\nmodel:\n  norm: rmsnorm\n"),
            "job.yaml:3:1: `model` is given twice");
  EXPECT_EQ(ErrorOf("name: a\n---\nname: b\n"),
            "job.yaml:2:1: a second YAML document begins; expected one job a file");
  EXPECT_EQ(ErrorOf(""), "job.yaml: is empty; examples/ has job files to start from");
  EXPECT_EQ(ErrorOf("# nothing\n"), "job.yaml: is empty; examples/ has job files to start from");
  EXPECT_EQ(ErrorOf("name: [a\n").substr(0, 10), "job.yaml:2");
  EXPECT_EQ(ErrorOf("name: *missing\n").substr(0, 26), "job.yaml:1:7: is not YAML:");
}

TEST(JobFileTest, MistakesInYamlSayWhatToWriteInstead) {
  for (const std::string file : {"train:\n\tsteps: 40\n", "train:\n\tsteps: 40\n  seed: 3\n"}) {
    EXPECT_EQ(ErrorOf(file),
              "job.yaml:2:1: a tab indents this line; YAML indents with spaces: replace the tab by "
              "spaces");
  }
  EXPECT_EQ(ErrorOf("name: a\ntrain:\n  steps: 40\n  \tseed: 3\n").substr(0, 20),
            "job.yaml:4:3: a tab ");
  EXPECT_EQ(
      ErrorOf("train: steps: 4\n"),
      "job.yaml:1:13: found a `:` where none can be; write each `name: value` on its own line, "
      "and put a text that has `: ` in it into quotes");
  EXPECT_EQ(ErrorOf("name: @x\n"),
            "job.yaml:1:7: found a character that no value begins with; put the text into quotes");
  EXPECT_TRUE(ReadText("train:\n  steps:\t40\n").ok()) << "a tab elsewhere";
}

TEST(JobFileTest, OverridesAreCheckedLikeTheFile) {
  JobSpec spec = *ReadText(kSmall);
  EXPECT_TRUE(Apply("model.hidden_size=128", &spec).ok());
  EXPECT_TRUE(Apply("name=other", &spec).ok());
  EXPECT_TRUE(Apply("data.files=[/x, /y]", &spec).ok());
  EXPECT_TRUE(Apply("train.precision=bf16", &spec).ok());
  EXPECT_TRUE(Apply("optimizer={lr: 0.5}", &spec).ok());
  EXPECT_EQ(spec.model().hidden_size(), 128);
  EXPECT_EQ(spec.model().num_hidden_layers(), 2);
  EXPECT_EQ(spec.name(), "other");
  ASSERT_EQ(spec.data().files_size(), 2);
  EXPECT_EQ(spec.data().files(0), "/x");
  EXPECT_EQ(spec.optimizer().lr(), 0.5);
  EXPECT_TRUE(Apply("data.files=/z", &spec).ok());
  ASSERT_EQ(spec.data().files_size(), 1);
}

TEST(JobFileTest, BadOverridesAreNamed) {
  EXPECT_EQ(OverrideErrorOf("train.stps=1"),
            "--set train.stps=1: `train.stps` is not a field; did you mean `steps`?");
  EXPECT_EQ(OverrideErrorOf("steps=1"),
            "--set steps=1: `steps` is not a field; did you mean `train.steps`?");
  EXPECT_EQ(OverrideErrorOf("train.steps=x"),
            "--set train.steps=x: `train.steps` expects a whole number such as 40, found `x`");
  EXPECT_EQ(OverrideErrorOf("train.steps"),
            "--set train.steps: expected FIELD=VALUE, such as --set train.steps=100");
  EXPECT_EQ(OverrideErrorOf("name.x=1"),
            "--set name.x=1: `name` has no fields; expected name=VALUE");
  EXPECT_EQ(OverrideErrorOf("train=1"),
            "--set train=1: `train` expects fields, one `name: value` a line, found `1`");
}

class LoadJobFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    std::string path = ::testing::TempDir() + "/job.yaml";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(LoadJobFileTest, ResolvesPathsAgainstTheCurrentDirectory) {
  const std::string path = Write(kSmall);
  char directory[4096];
  ASSERT_NE(getcwd(directory, sizeof(directory)), nullptr);
  JobFileOptions options;
  options.data_files = {"book.txt", "/abs"};
  options.overrides = {"checkpoint.directory=./out/../ckpt"};
  const auto spec = LoadJobFile(path, options);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().files(0), std::string(directory) + "/book.txt");
  EXPECT_EQ(spec->data().files(1), "/abs");
  EXPECT_EQ(spec->checkpoint().directory(), std::string(directory) + "/ckpt");
  EXPECT_EQ(spec->model().intermediate_size(), 256);
}

TEST_F(LoadJobFileTest, NamesTheFileInFrontOfTheFailedSum) {
  const std::string path = Write(kSmall);
  const auto spec = LoadJobFile(path, {{"train.global_batch_size=9"}, {}});
  EXPECT_EQ(std::string(spec.status().message()),
            "--set train.global_batch_size=9: train.global_batch_size: 9 is not a multiple of "
            "data_parallel_size × "
            "micro_batch_size = 1 × 2 = 2");
}

TEST_F(LoadJobFileTest, MissingFilesAndDirectoriesAreNamed) {
  EXPECT_EQ(std::string(LoadJobFile("/nonexistent/job.yaml", {}).status().message()),
            "job file /nonexistent/job.yaml does not exist; examples/ has job files to start from");
  EXPECT_EQ(std::string(LoadJobFile("/tmp", {}).status().message()),
            "/tmp: is not a regular file; expected a YAML job file");
}

TEST(LoadJobTextTest, AJobForGpusIsReadAnywhere) {
  const auto on_cuda = LoadJobText("job.yaml", absl::StrCat("device: cuda\n", kSmall), {});
  ASSERT_TRUE(on_cuda.ok()) << on_cuda.status();
  EXPECT_EQ(on_cuda->device(), job::v1::DEVICE_CUDA);
  EXPECT_EQ(LoadJobText("job.yaml", absl::StrCat("device_sharing: true\n", kSmall), {}).status(),
            absl::InvalidArgumentError("job.yaml:1:17: device_sharing: is for GPUs; expected "
                                       "device = cuda, or false"));
  JobFileOptions options;
  options.overrides = {"device=cpu"};
  const auto on_cpu = LoadJobText("job.yaml", kSmall, options);
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
  EXPECT_TRUE(absl::StrContains(ToYaml(*on_cpu), "\ndevice: cpu\n")) << ToYaml(*on_cpu);
  EXPECT_TRUE(MessageDifferencer::Equals(*on_cpu, LoadJobText("job.yaml", kSmall, {}).value()));
}

TEST_F(LoadJobFileTest, TheTokenizerGivesTheVocabularyAndASmallerOneOfTheModelIsRefused) {
  const std::string tokenizer = ::testing::TempDir() + "/tokenizer.json";
  tokenizer::ByteLevelBpe bpe;
  bpe.special_tokens = {"<|endoftext|>"};
  bpe.merges = {{"t", "h"}, {"th", "e"}, {" ", "the"}};
  std::ofstream(tokenizer) << tokenizer::WriteTokenizerJson(bpe);
  JobFileOptions options;
  options.tokenizer = tokenizer;
  options.json_field = "text";
  options.skip_bad = true;
  const auto spec = LoadJobText("job.yaml", kSmall, options);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().vocab_size(), 260);
  EXPECT_EQ(spec->data().json_field(), "text");
  EXPECT_TRUE(spec->data().skip_bad());
  options.overrides = {"model.vocab_size=259"};
  EXPECT_EQ(LoadJobText("job.yaml", kSmall, options).status().message(),
            absl::StrCat("--set model.vocab_size=259: model.vocab_size: is 259, but the tokenizer ",
                         tokenizer, " has 260 tokens; expected at least as many"));
  options.overrides = {"model.vocab_size=300"};
  EXPECT_EQ(LoadJobText("job.yaml", kSmall, options)->model().vocab_size(), 300);
  options = {.overrides = {"data.tokenizer_vocab_size=512"}};
  EXPECT_EQ(LoadJobText("job.yaml", kSmall, options)->model().vocab_size(), 512);
  options = {.tokenizer = "/nonexistent"};
  EXPECT_EQ(LoadJobText("job.yaml", kSmall, options).status().message(),
            "--tokenizer: data.tokenizer: tokenizer /nonexistent: does not exist");
}

class ModelFromTest : public ::testing::Test {
 protected:
  ModelFromTest() {
    folder_.Write("config.json", R"({"architectures": ["Qwen2ForCausalLM"], "vocab_size": 300,
      "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2})");
  }
  std::string Text(const std::string& model) const {
    return absl::StrCat("name: small\nmodel:\n  from: ", folder_.path(), "\n", model,
                        "data:\n  files: [/usr/share/games/fortunes]\ntrain:\n  steps: 10\n"
                        "  seq_length: 32\n  global_batch_size: 8\n  micro_batch_size: 2\n");
  }
  hugging_face::TestFolder folder_;
};

TEST_F(ModelFromTest, TheFolderCompletesTheModelSection) {
  const auto spec = LoadJobText("job.yaml", Text("  sliding_window: 16\n"), {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->model().vocab_size(), 300);
  EXPECT_EQ(spec->model().num_key_value_heads(), 2);
  EXPECT_TRUE(spec->model().qkv_bias());
  EXPECT_FALSE(spec->model().attention_bias());
  EXPECT_EQ(spec->model().max_position_embeddings(), 32768);
  EXPECT_EQ(spec->model().sliding_window(), 16);
  EXPECT_EQ(spec->model().from(), folder_.path());
  const auto again = LoadJobText("again.yaml", ToYaml(*spec), {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(MessageDifferencer::Equals(*spec, *again));
}

TEST_F(ModelFromTest, TheFoldersTokenizerIsTheDefault) {
  tokenizer::ByteLevelBpe bpe;
  bpe.special_tokens = {"<|endoftext|>"};
  folder_.Write("tokenizer.json", tokenizer::WriteTokenizerJson(bpe));
  const auto spec = LoadJobText("job.yaml", Text(""), {});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->data().tokenizer(), folder_.path());
  EXPECT_EQ(spec->model().vocab_size(), 300);
  EXPECT_EQ(LoadJobText("job.yaml", Text(""), {.tokenizer = "bytes"})->data().tokenizer(), "bytes");
}

TEST_F(ModelFromTest, AContradictionIsRefusedAtItsPlaceWithBothValues) {
  EXPECT_EQ(LoadJobText("job.yaml", Text("  hidden_size: 128\n"), {}).status().message(),
            absl::StrCat("job.yaml:4:16: model.hidden_size: the job has 128, ", folder_.path(),
                         " has 64; leave the field out, or start from other weights"));
  EXPECT_EQ(
      LoadJobText("job.yaml", Text(""), {.overrides = {"model.qk_norm=true"}}).status().message(),
      absl::StrCat("--set model.qk_norm=true: model.qk_norm: the job has true, ", folder_.path(),
                   " has false; leave the field out, or start from other weights"));
}

TEST_F(ModelFromTest, ALayoutThatDoesNotDivideTheFoldersModelIsRefusedWithItsSum) {
  const absl::Status refused =
      LoadJobText("job.yaml", Text(""), {.overrides = {"parallel.tensor_model_parallel_size=3"}})
          .status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StartsWith(refused.message(),
                               "job.yaml:3:3: model.num_attention_heads: 4 is not a multiple of "
                               "parallel.tensor_model_parallel_size = 3 (4 = 1 × 3 + 1)"))
      << refused;
}

TEST_F(ModelFromTest, AFieldOfRopeScalingChangesThatOfTheFolder) {
  folder_.Write("config.json", R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 300,
      "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
      "rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 20}})");
  const auto folder = LoadJobText("job.yaml", Text(""), {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto set =
      LoadJobText("job.yaml", Text(""), {.overrides = {"model.rope_scaling.factor=8"}});
  const auto in_file = LoadJobText("job.yaml", Text("  rope_scaling:\n    factor: 8\n"), {});
  for (const auto& spec : {set, in_file}) {
    ASSERT_TRUE(spec.ok()) << spec.status();
    const job::v1::RopeScaling& scaling = spec->model().rope_scaling();
    EXPECT_EQ(scaling.rope_type(), job::v1::ROPE_TYPE_YARN);
    EXPECT_EQ(scaling.factor(), 8);
    EXPECT_EQ(scaling.beta_fast(), 20);
    EXPECT_GT(scaling.attention_factor(), folder->model().rope_scaling().attention_factor());
  }
  const auto other =
      LoadJobText("job.yaml", Text("  rope_scaling:\n    rope_type: linear\n    factor: 2\n"), {});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->model().rope_scaling().rope_type(), job::v1::ROPE_TYPE_LINEAR);
  EXPECT_EQ(other->model().rope_scaling().beta_fast(), 0);
}

TEST_F(ModelFromTest, AFolderWithoutWeightsIsNamedAtItsPlace) {
  folder_.Remove("config.json");
  EXPECT_TRUE(absl::StartsWith(
      LoadJobText("job.yaml", Text(""), {}).status().message(),
      absl::StrCat("job.yaml:3:9: model.from: ", folder_.path(), ": has no weights: expected")));
}

TEST(JobFileTest, YamlReadsBackAsTheSameSpecification) {
  JobSpec spec = *ReadText(kSmall);
  spec.mutable_data()->add_files("/with \"quotes\", spaces : and #");
  spec.mutable_data()->add_files("/über");
  spec.mutable_optimizer()->set_lr(1.0 / 3);
  spec.mutable_fault()->mutable_heartbeat_interval()->set_nanos(250'000'000);
  spec.mutable_train()->set_precision(job::v1::PRECISION_BF16);
  const auto resolved = job::ResolveJobSpec(spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const auto again = ReadText(ToYaml(*resolved));
  ASSERT_TRUE(again.ok()) << again.status() << ToYaml(*resolved);
  EXPECT_TRUE(MessageDifferencer::Equals(*resolved, *again)) << ToYaml(*resolved);
}

TEST(JobFileTest, YamlIsForPeople) {
  JobSpec spec;
  spec.set_name("true");
  spec.mutable_data()->add_files("/a b");
  spec.mutable_fault()->mutable_progress_timeout()->set_seconds(90);
  EXPECT_EQ(ToYaml(spec),
            "name: true\ndevice_sharing: false\ndata:\n  files:\n    - \"/a b\"\n  "
            "held_out_fraction: 0\n  tokenizer_vocab_size: 0\n  skip_bad: false\nfault:\n"
            "  progress_timeout: 1m30s\n  max_restarts_without_progress: 0\ntensorboard: false\n"
            "priority: 0\n");
}

}  // namespace
}  // namespace megascale::cli
