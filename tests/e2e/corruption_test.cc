// Checkpoints and data that are damaged: the job goes on from what is whole and says so, or is
// refused with the file and what was expected of it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/test_forge.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;

struct Damage {
  std::string name;
  std::function<void(const std::string& directory)> apply;
  std::string evidence;  // "DIR" stands for the damaged checkpoint
};

void FlipByte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-5, std::ios::end);
  const auto at = file.tellg();
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(at);
  file.put(byte);
}

void CutInHalf(const std::string& path) {
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
}

std::vector<Damage> Damages() {
  return {
      {"a byte is flipped",
       [](const std::string& directory) { FlipByte(directory + "/rank-00001.safetensors"); },
       "DIR/rank-00001.safetensors: its SHA-256 is "},
      {"a shard is truncated",
       [](const std::string& directory) { CutInHalf(directory + "/rank-00002.safetensors"); },
       "DIR/rank-00002.safetensors: has "},
      {"a shard is missing",
       [](const std::string& directory) {
         std::filesystem::remove(directory + "/rank-00003.safetensors");
       },
       "DIR/rank-00003.safetensors: No such file or directory"},
      {"the manifest is half-written",
       [](const std::string& directory) { CutInHalf(directory + "/manifest.json"); },
       "DIR/manifest.json: "},
  };
}

class CorruptionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_.StartDriver();
    StartAgents();
  }
  void StartAgents() {
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
  }

  Cluster cluster_;
};

TEST_F(CorruptionTest, WithTheNewestCheckpointDamagedThePreviousOneIsUsedAndItSaysSo) {
  cluster_.Submit("calm");
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  int index = 0;
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    const std::string job_id = absl::StrCat("job-", ++index);
    cluster_.Submit(job_id, {"fault.heartbeat_timeout=2s"});
    ASSERT_TRUE(cluster_.WaitForStep(job_id, 70));
    // With the agents their memory is gone, so that storage is what is left.
    cluster_.KillAgent(0);
    cluster_.KillAgent(1);
    // Lost to the driver too: nothing more is committed.
    ASSERT_TRUE(WaitUntil(
        [&] { return cluster_.Status(job_id).state() == control::v1::JOB_STATE_RECOVERING; }, 60));
    const Job before = cluster_.Status(job_id);
    ASSERT_LT(before.last_step(), 150) << "the job ended before it could be disturbed";
    ASSERT_GE(before.last_checkpoint().step(), 40);
    const std::string newest = before.last_checkpoint().directory();
    damage.apply(newest);
    StartAgents();
    EXPECT_EQ(cluster_.WaitForEnd(job_id), control::v1::JOB_STATE_SUCCEEDED);
    const Job after = cluster_.Status(job_id);
    EXPECT_EQ(cluster_.Digest(job_id), cluster_.Digest("calm"));
    EXPECT_EQ(cluster_.LossLog(job_id), cluster_.LossLog("calm"));
    EXPECT_EQ(after.attempt(), before.attempt() + 2)
        << "one that finds it damaged, one that goes on";
    EXPECT_EQ(after.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_CORRUPT);
    const std::string evidence = absl::StrReplaceAll(damage.evidence, {{"DIR", newest}});
    EXPECT_NE(after.culprit().evidence().find(evidence), std::string::npos)
        << after.culprit().evidence();
    EXPECT_NE(after.culprit().evidence().find("an older checkpoint is used"), std::string::npos)
        << after.culprit().evidence();
  }
}

TEST_F(CorruptionTest, ToStartFromADamagedCheckpointIsRefusedWithTheFile) {
  cluster_.Submit("first");
  ASSERT_EQ(cluster_.WaitForEnd("first"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string good = cluster_.Status("first").last_checkpoint().directory();
  int index = 0;
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    const std::string copy = absl::StrCat(cluster_.directory(), "/copy-", ++index);
    std::filesystem::copy(good, copy, std::filesystem::copy_options::recursive);
    damage.apply(copy);
    const std::string job_id = absl::StrCat("from-", index);
    const CommandResult submitted =
        cluster_.Megascale({"submit", cluster_.directory() + "/job.yaml", "--job-id", job_id,
                            "--from", copy, "--set", "train.steps=160"});
    ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
    EXPECT_EQ(cluster_.WaitForEnd(job_id), control::v1::JOB_STATE_FAILED);
    const Job job = cluster_.Status(job_id);
    EXPECT_EQ(job.attempt(), 1) << "there is nothing older to try";
    const std::string evidence = absl::StrReplaceAll(damage.evidence, {{"DIR", copy}});
    EXPECT_NE(job.message().find(evidence), std::string::npos) << job.message();
    EXPECT_EQ(job.message().find('\n'), std::string::npos) << "one line: " << job.message();
  }
}

TEST_F(CorruptionTest, ACheckpointOfAnotherModelIsRefusedWithTheField) {
  cluster_.Submit("first", {"train.steps=20"});
  ASSERT_EQ(cluster_.WaitForEnd("first"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string good = cluster_.Status("first").last_checkpoint().directory();
  const auto start = [&](const std::string& job_id, const std::vector<std::string>& more) {
    std::vector<std::string> command = {
        "submit", cluster_.directory() + "/job.yaml", "--job-id", job_id, "--from", good,
        "--set",  "model.intermediate_size=128"};
    command.insert(command.end(), more.begin(), more.end());
    EXPECT_EQ(cluster_.Megascale(command).exit_code, 0);
    EXPECT_EQ(cluster_.WaitForEnd(job_id), control::v1::JOB_STATE_FAILED);
    const Job job = cluster_.Status(job_id);
    EXPECT_EQ(job.attempt(), 1);
    return job;
  };
  const Job refused = start("other", {});
  EXPECT_EQ(refused.reason(), "Refused");
  EXPECT_NE(refused.message().find("model.intermediate_size"), std::string::npos)
      << refused.message();
  // What may differ are the bits, not the shapes.
  const Job forced = start("forced", {"--allow-changed", "model"});
  EXPECT_EQ(forced.reason(), "DataCorrupt");
  EXPECT_NE(forced.message().find("has the shape [256, 64], the model wants [128, 64]: it is the "
                                  "checkpoint of another model"),
            std::string::npos)
      << forced.message();
}

TEST_F(CorruptionTest, AWeightThatIsNoNumberStopsTheJobWithStepLayerAndOperator) {
  cluster_.Submit("first", {"train.steps=20"});
  ASSERT_EQ(cluster_.WaitForEnd("first"), control::v1::JOB_STATE_SUCCEEDED);
  const std::string checkpoint = cluster_.Status("first").last_checkpoint().directory();
  ASSERT_EQ(checkpoint::ForgeElement(checkpoint, {.tensor = "model.layers.1.attn.qkv.weight",
                                                  .index = 7,
                                                  .value = std::numeric_limits<float>::infinity()}),
            absl::OkStatus());
  const CommandResult submitted =
      cluster_.Megascale({"submit", cluster_.directory() + "/job.yaml", "--job-id", "job", "--from",
                          checkpoint, "--set", "train.steps=60"});
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const Job job = cluster_.Status("job");
  EXPECT_EQ(job.attempt(), 1) << "diverged numbers come back however often they are tried";
  EXPECT_EQ(job.reason(), "Diverged");
  EXPECT_EQ(job.culprit().failure_class(), telemetry::v1::FAILURE_CLASS_DIVERGED);
  for (const char* part : {"training diverged at step 21: loss nan",
                           "it began in layer 1: matrix product with attn.qkv.weight gave "}) {
    EXPECT_NE(job.message().find(part), std::string::npos)
        << part << " is not in " << job.message();
  }
}

TEST_F(CorruptionTest, ADataFileThatShrinksDuringTheRunEndsTheJobWithItsName) {
  cluster_.Submit("job", {"train.steps=1000000"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 10));
  const std::string text = cluster_.directory() + "/text";
  std::filesystem::resize_file(text, 5000);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  const Job job = cluster_.Status("job");
  EXPECT_EQ(job.reason(), "Refused");
  EXPECT_NE(job.message().find(absl::StrCat("data.files changed since the job began (", text)),
            std::string::npos)
      << job.message();
}

}  // namespace
}  // namespace megascale::e2e
