// One job under several layouts, through the whole program: driver, agents on two "machines", and a
// process for each rank. tests/parity has many more layouts, whose ranks are threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/numerics.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

constexpr int kSteps = 20;
constexpr int kHalf = kSteps / 2;  // where a checkpoint is made
constexpr int kBatchSize = 8;
constexpr int kSequenceLength = 32;
// The rounding error of float64 over kSteps updates.
constexpr double kTolerance = 1e-10;

struct Layout {
  std::string name;
  int num_ranks;
  std::vector<std::string> parallel;  // FIELD=VALUE
};

const Layout kOneRank = {"one-rank", 1, {"data_parallel_size=1", "pipeline_model_parallel_size=1"}};
const Layout kDataAndPipeline = {
    "data-pipeline", 4, {"data_parallel_size=2", "pipeline_model_parallel_size=2"}};
const Layout kTensor = {
    "tensor",
    2,
    {"data_parallel_size=1", "pipeline_model_parallel_size=1", "tensor_model_parallel_size=2"}};
const Layout kTensorAndData = {
    "tensor-data",
    4,
    {"data_parallel_size=2", "pipeline_model_parallel_size=1", "tensor_model_parallel_size=2"}};
const Layout kInterleaved = {
    "interleaved",
    4,
    {"data_parallel_size=2", "pipeline_model_parallel_size=2",
     "virtual_pipeline_model_parallel_size=2", "pipeline_schedule=interleaved_1f1b", "zero_stage=2",
     "ddp_bucket_size=1"}};
const Layout kZeroBubble = {
    "zero-bubble",
    4,
    {"data_parallel_size=1", "pipeline_model_parallel_size=4", "pipeline_schedule=zb_h1"}};
// A layout for two machines.
const Layout kAllAxes = {
    "all-axes",
    8,
    {"data_parallel_size=2", "pipeline_model_parallel_size=2", "tensor_model_parallel_size=2"}};

// Returns the fields of a model of 4 layers with 4 heads, in float64.
std::vector<std::string> FieldsOf(const Layout& layout) {
  std::vector<std::string> fields = {"train.precision=fp64",
                                     absl::StrCat("train.steps=", kSteps),
                                     absl::StrCat("train.seq_length=", kSequenceLength),
                                     absl::StrCat("train.global_batch_size=", kBatchSize),
                                     "train.micro_batch_size=1",
                                     "model.hidden_size=32",
                                     "fault.heartbeat_timeout=60s",  // other tests may run too
                                     absl::StrCat("checkpoint.interval=", kHalf)};
  for (const std::string& field : layout.parallel) fields.push_back("parallel." + field);
  return fields;
}

struct Step {
  int64_t step = 0;
  double loss = NAN;
  double grad_norm = NAN;
};

// Compares steps up to the first one that differs.
void ExpectSameSteps(const std::vector<Step>& found, const std::vector<Step>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].step, expected[i].step);
    ASSERT_NEAR(found[i].loss, expected[i].loss, kTolerance) << "step " << expected[i].step;
    ASSERT_NEAR(found[i].grad_norm, expected[i].grad_norm, kTolerance * expected[i].grad_norm)
        << "step " << expected[i].step;
  }
}

// Changes a manifest as if the numerics version before this program's had made it. Returns that
// version.
std::string MakeOfNumericsBefore(const std::string& manifest) {
  int version = 0;
  EXPECT_TRUE(absl::SimpleAtoi(checkpoint::kNumericsVersion, &version));
  std::string text = base::ReadFile(manifest, size_t{1} << 24).value();
  size_t at = text.find("\"megascale_numerics\"");
  at = at == std::string::npos ? at : text.find(absl::StrCat("\"", version, "\""), at);
  if (at == std::string::npos) {
    ADD_FAILURE() << manifest << " has no numerics version";
    return "";
  }
  const std::string before = absl::StrCat(version - 1);
  text.replace(at + 1, checkpoint::kNumericsVersion.size(), before);
  EXPECT_TRUE(base::WriteFileDurably(manifest, text).ok());
  return before;
}

class LayoutsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.SetDriverFlags({"--node-timeout", "60s"});  // other tests may run too
    cluster_.StartDriver();
    for (int i = 0; i < kAgents; ++i) cluster_.StartAgent(i, 4);
  }

  // Trains under `layout` to the end, each rank a process, and returns its loss log.
  std::vector<Step> Train(const std::string& job_id, const Layout& layout) {
    cluster_.Submit(job_id, FieldsOf(layout));
    return EndOf(job_id, layout);
  }

  std::vector<Step> EndOf(const std::string& job_id, const Layout& layout) {
    EXPECT_EQ(cluster_.WaitForEnd(job_id), control::v1::JOB_STATE_SUCCEEDED);
    const Job job = cluster_.Status(job_id);
    EXPECT_EQ(job.attempt(), 1);
    EXPECT_EQ(job.last_record().tokens(), kBatchSize * kSequenceLength) << "in a step";
    EXPECT_EQ(NumWorkers(job_id), layout.num_ranks);
    std::vector<Step> steps;
    for (const std::string& line : cluster_.LossLog(job_id)) {
      long long step = 0;  // what %lld reads
      double loss = NAN;
      double grad_norm = NAN;
      EXPECT_EQ(std::sscanf(line.c_str(), "%lld %la %la", &step, &loss, &grad_norm), 3) << line;
      steps.push_back({step, loss, grad_norm});
    }
    return steps;
  }

  // Returns the number of workers that the agents have started, by their logs.
  int NumWorkers(const std::string& job_id) {
    int num = 0;
    for (int i = 0; i < kAgents; ++i) {
      const std::string logs = absl::StrCat(cluster_.directory(), "/n", i, "/logs/", job_id);
      if (!std::filesystem::exists(logs)) continue;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(logs)) {
        num += entry.path().filename().string().rfind("rank-", 0) == 0 ? 1 : 0;
      }
    }
    return num;
  }

  // Runs `submit --from CHECKPOINT --follow` of the job under another layout.
  CommandResult GoOn(const std::string& job_id, const std::string& checkpoint, const Layout& layout,
                     const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {
        "submit",  cluster_.directory() + "/job.yaml", "--job-id", job_id, "--from", checkpoint,
        "--follow"};
    for (const std::string& field : FieldsOf(layout)) {
      command.insert(command.end(), {"--set", field});
    }
    command.insert(command.end(), more.begin(), more.end());
    return cluster_.Megascale(command);
  }

  static constexpr int kAgents = 2;
  Cluster cluster_;
};

TEST_F(LayoutsTest, ProcessesOfEveryLayoutTrainAsOneDoes) {
  const std::vector<Step> one = Train("one", kOneRank);
  ASSERT_EQ(one.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(one.back().loss, one.front().loss - 0.1);  // it trains
  for (const Layout* layout :
       {&kDataAndPipeline, &kTensorAndData, &kInterleaved, &kZeroBubble, &kAllAxes}) {
    SCOPED_TRACE(layout->name);
    ExpectSameSteps(Train(layout->name, *layout), one);
  }
}

TEST_F(LayoutsTest, EightProcessesRepeatThemselvesToTheBit) {
  Train("first", kAllAxes);
  Train("second", kAllAxes);
  EXPECT_EQ(cluster_.LossLog("first"), cluster_.LossLog("second"));
  const std::string digest = cluster_.Digest("first");
  EXPECT_FALSE(digest.empty());
  EXPECT_EQ(cluster_.Digest("second"), digest);
}

TEST_F(LayoutsTest, ACheckpointGoesOnUnderAnotherLayoutOnlyWhereThatIsAllowed) {
  const std::vector<Step> whole = Train("whole", kDataAndPipeline);
  ASSERT_EQ(whole.size(), static_cast<size_t>(kSteps));
  const std::string checkpoint =
      absl::StrCat(cluster_.state_directory(), "/jobs/whole/checkpoints/",
                   checkpoint::StepDirectoryName(kHalf, 1));

  const std::string expected =
      "the checkpoint was made under other conditions: layout.data_parallel_size was 2, is 1; "
      "layout.pipeline_model_parallel_size was 2, is 1; layout.tensor_model_parallel_size was 1, "
      "is 2; restore them, or go on with other bits by --allow-changed layout";
  const std::vector<std::vector<std::string>> too_little = {{}, {"--allow-changed", "model,batch"}};
  for (size_t i = 0; i < too_little.size(); ++i) {
    const std::string id = absl::StrCat("refused-", i);
    const CommandResult refused = GoOn(id, checkpoint, kTensor, too_little[i]);
    EXPECT_EQ(refused.exit_code, 1) << refused.out << refused.err;
    EXPECT_NE(absl::StrCat(refused.out, refused.err).find(expected), std::string::npos)
        << refused.out << refused.err;
    const Job job = cluster_.Status(id);
    EXPECT_EQ(job.state(), control::v1::JOB_STATE_FAILED);
    EXPECT_EQ(job.reason(), "Refused");
    EXPECT_NE(job.message().find(expected), std::string::npos) << job.message();
    EXPECT_EQ(job.message().find('\n'), std::string::npos) << job.message();
    EXPECT_EQ(job.attempt(), 1) << "to try again would change nothing";
    EXPECT_EQ(NumWorkers(id), 0);
  }

  const std::vector<Step> rest(whole.begin() + kHalf, whole.end());
  for (const Layout* layout : {&kTensor, &kInterleaved}) {
    SCOPED_TRACE(layout->name);
    const CommandResult allowed =
        GoOn(layout->name, checkpoint, *layout, {"--allow-changed", "layout"});
    EXPECT_EQ(allowed.exit_code, 0) << allowed.out << allowed.err;
    ExpectSameSteps(EndOf(layout->name, *layout), rest);
  }

  // As the numerics version before this one would have stored it.
  const std::string before = MakeOfNumericsBefore(checkpoint + "/manifest.json");
  const std::string differs =
      absl::StrCat("megascale_numerics was ", before, ", is ", checkpoint::kNumericsVersion,
                   "; restore them, or go on with other bits by --allow-changed "
                   "megascale_numerics");
  const CommandResult refused = GoOn("older", checkpoint, kDataAndPipeline, {});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(absl::StrCat(refused.out, refused.err).find(differs), std::string::npos)
      << refused.out << refused.err;
  const CommandResult allowed = GoOn("older-allowed", checkpoint, kDataAndPipeline,
                                     {"--allow-changed", "megascale_numerics"});
  EXPECT_EQ(allowed.exit_code, 0) << allowed.out << allowed.err;
  ExpectSameSteps(EndOf("older-allowed", kDataAndPipeline), rest);
}

}  // namespace
}  // namespace megascale::e2e
