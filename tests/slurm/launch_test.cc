// `megascale launch slurm` on a real Slurm: the same bits as without it, machines that are drained,
// killed and in quarantine, and the ends that Slurm gives a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/client/job_client.h"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"
#include "tests/slurm/slurm_cluster.h"
#include "tests/soak.h"

namespace megascale::slurm {
namespace {

using e2e::CommandResult;
using e2e::WaitUntil;
using ::testing::HasSubstr;
using ::testing::Not;

class LaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!SlurmCluster::IsInstalled()) GTEST_SKIP() << "this machine has no Slurm, or no root";
    cluster_ = std::make_unique<SlurmCluster>(3);
    job_ = e2e::WriteJobFile(cluster_->folder());
  }

  std::string launch(const std::string& file = "") const {
    return cluster_->folder() + "/launch" + (file.empty() ? "" : "/" + file);
  }
  // A job of the launch pauses in each pass, so that there is time to disturb it.
  CommandResult Launch(std::vector<std::string> options) {
    std::vector<std::string> command = {e2e::Runfile("tests/diagnose/paced_program"),
                                        "launch",
                                        "slurm",
                                        launch(),
                                        "--slots",
                                        "2",
                                        "--machine-tests",
                                        "off"};
    command.insert(command.end(), options.begin(), options.end());
    const CommandResult launched = cluster_->Run(command);
    const size_t at = launched.out.find("\njob ");
    if (at != std::string::npos) {
      slurm_job_ = launched.out.substr(at + 5, launched.out.find(' ', at + 5) - at - 5);
    }
    return launched;
  }
  CommandResult Megascale(std::vector<std::string> words) const {
    words.insert(words.begin(), e2e::Program());
    for (const std::string& word :
         {std::string("--address"), Address(), std::string("--tls-ca"), launch("certs/ca.pem"),
          std::string("--tls-cert"), launch("certs/user.pem"), std::string("--tls-key"),
          launch("certs/user.key")}) {
      words.push_back(word);
    }
    return e2e::Run(words);
  }
  std::string Address() const {
    const std::string text = base::ReadFile(launch("address"), 4096).value_or("none:1");
    return text.substr(0, text.find('\n'));
  }
  client::JobClient* Client() {
    if (client_ == nullptr || client_address_ != Address()) {
      client_address_ = Address();
      auto made = client::JobClient::Create(
          {.address = *client::ParseAddress(client_address_),
           .tls = {launch("certs/ca.pem"), launch("certs/user.pem"), launch("certs/user.key")}});
      EXPECT_TRUE(made.ok()) << made.status();
      client_ = *std::move(made);
    }
    return client_.get();
  }
  control::v1::Job Job() { return Client()->Get("toy").value_or(control::v1::Job()); }
  bool WaitForStep(int64_t step) {
    return WaitUntil([&] { return Job().last_step() >= step; }, 120);
  }
  bool WaitForSlurmEnd(int seconds = 180) {
    return WaitUntil([&] { return cluster_->StateOf(slurm_job_).empty(); }, seconds);
  }
  std::string LaunchLog() const {
    return base::ReadFile(launch(absl::StrCat("logs/launch-", slurm_job_, ".log")), 1 << 20)
        .value_or("");
  }
  std::string NewestCheckpoint() const {
    std::string newest;
    std::error_code ignored;
    for (const auto& entry :
         std::filesystem::directory_iterator(launch("driver/jobs/toy/checkpoints"), ignored)) {
      if (absl::StartsWith(entry.path().filename().string(), "step-")) {
        newest = std::max(newest, entry.path().string());
      }
    }
    return newest;
  }
  static std::string DigestOf(const std::string& checkpoint) {
    return e2e::Run({e2e::Program(), "checkpoint", "digest", checkpoint}).out;
  }
  // The digest of the same job without Slurm.
  std::string LocalDigest(const std::vector<std::string>& options = {},
                          const std::string& checkpoint = "step-00000150-attempt-1") const {
    const std::string state = cluster_->folder() + "/local";
    std::vector<std::string> command = {e2e::Program(),
                                        "local",
                                        job_,
                                        "--agents",
                                        "2",
                                        "--slots",
                                        "2",
                                        "--state-dir",
                                        state,
                                        "--job-id",
                                        "toy",
                                        "--machine-tests",
                                        "off",
                                        "--held-out-windows",
                                        "1"};
    command.insert(command.end(), options.begin(), options.end());
    const CommandResult ran = e2e::Run(command);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return DigestOf(state + "/jobs/toy/checkpoints/" + checkpoint);
  }

  std::unique_ptr<SlurmCluster> cluster_;
  std::unique_ptr<client::JobClient> client_;
  std::string client_address_;
  std::string job_;
  std::string slurm_job_;
};

TEST_F(LaunchTest, ADrainedMachineIsLeftWithoutLossAndTheBitsAreThoseWithoutSlurm) {
  const CommandResult launched = Launch({"--nodes", "2", "--job", job_, "--job-id", "toy"});
  ASSERT_EQ(launched.exit_code, 0) << launched.out << launched.err << LaunchLog();
  ASSERT_TRUE(WaitForStep(10)) << LaunchLog();
  ASSERT_EQ(cluster_
                ->Run({"scontrol", "update", "NodeName=n2", "State=DRAIN",
                       "Reason=fan \x1b[31m'; reboot"})
                .exit_code,
            0);
  EXPECT_TRUE(WaitUntil([&] { return Job().attempt() == 2 && Job().last_step() > 0; }, 60));
  EXPECT_EQ(Job().attempt_reason(), "NodeEvicted");
  const CommandResult nodes = Megascale({"nodes"});
  EXPECT_THAT(nodes.out, HasSubstr("its manager: draining: fan \\x1b[31m'; reboot"));
  ASSERT_TRUE(WaitForSlurmEnd());
  EXPECT_THAT(LaunchLog(), HasSubstr("without n1,n2"));
  EXPECT_THAT(LaunchLog(), HasSubstr("the launch ends: its job has ended"));
  // No step was computed twice: the loss log of the first attempt was never cut.
  EXPECT_FALSE(std::filesystem::exists(launch("driver/jobs/toy/metrics-attempt-1.jsonl")));
  EXPECT_EQ(DigestOf(NewestCheckpoint()), LocalDigest());
  EXPECT_EQ(cluster_->Out({"squeue", "--noheader"}), "") << "the replacement goes back, too";
}

TEST_F(LaunchTest, AKilledMachineIsReplacedByTheSpareAtOnceAndComesBack) {
  ASSERT_EQ(Launch({"--nodes", "2", "--spares", "1"}).exit_code, 0) << LaunchLog();
  const auto spares = [&] {
    int count = 0;
    const auto cluster = Client()->Cluster();
    if (!cluster.ok()) return count;
    for (const auto& node : cluster->nodes()) {
      count += node.pool() == control::v1::POOL_SPARE ? 1 : 0;
    }
    return count;
  };
  ASSERT_TRUE(WaitUntil([&] { return spares() == 1; }, 60)) << LaunchLog();
  ASSERT_EQ(Megascale({"submit", job_, "--job-id", "toy"}).exit_code, 0);
  ASSERT_TRUE(WaitForStep(5)) << LaunchLog();
  cluster_->KillNode(2);  // the launch runs on n1, and n3 is the spare
  EXPECT_TRUE(WaitUntil([&] { return Job().attempt() == 2 && Job().last_step() > 5; }, 60));
  EXPECT_TRUE(
      WaitUntil([&] { return absl::StrContains(LaunchLog(), "asks Slurm for a machine"); }, 30));
  // The machine is repaired; Slurm gives it to the request that waits.
  cluster_->StartNode(2);
  const auto is_back = [&] {
    const auto nodes = Client()->Cluster();
    if (!nodes.ok()) return false;
    for (const auto& node : nodes->nodes()) {
      if (node.node_id() == "n2" && node.alive()) return true;
    }
    return false;
  };
  EXPECT_TRUE(WaitUntil(is_back, 120)) << LaunchLog() << cluster_->Out({"squeue"});
}

TEST_F(LaunchTest, ScancelLeavesACheckpointOfTheLastStep) {
  ASSERT_EQ(Launch({"--nodes", "2"}).exit_code, 0) << LaunchLog();
  const CommandResult submitted = Megascale({"submit", job_, "--job-id", "toy"});
  ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
  ASSERT_TRUE(WaitForStep(10));
  EXPECT_EQ(cluster_->Run({"scancel", slurm_job_}).exit_code, 0);
  ASSERT_TRUE(WaitForSlurmEnd(60)) << LaunchLog();
  EXPECT_THAT(LaunchLog(), HasSubstr("the launch ends: a signal of Slurm"));
  const std::string log =
      base::ReadFile(launch("driver/jobs/toy/metrics.jsonl"), 1 << 24).value_or("");
  const std::vector<std::string> steps = absl::StrSplit(log, '\n', absl::SkipEmpty());
  ASSERT_FALSE(steps.empty());
  EXPECT_THAT(NewestCheckpoint(),
              HasSubstr(absl::StrCat("step-", absl::Dec(steps.size(), absl::kZeroPad8), "-")))
      << "a checkpoint of the last step in the loss log";
  // Another launch in the folder goes on with the job.
  ASSERT_EQ(Launch({"--nodes", "2"}).exit_code, 0) << LaunchLog();
  EXPECT_TRUE(WaitForStep(static_cast<int64_t>(steps.size()) + 5)) << LaunchLog();
}

TEST_F(LaunchTest, MachinesOfADriverThatRunsAlready) {
  e2e::Cluster driver;
  driver.StartDriver();
  ASSERT_EQ(Launch({"--nodes", "2", "--driver", driver.address(), "--job", job_, "--job-id", "toy",
                    "--set", "train.steps=10"})
                .exit_code,
            0)
      << LaunchLog();
  ASSERT_TRUE(WaitForSlurmEnd()) << LaunchLog();
  EXPECT_EQ(driver.Status("toy").state(), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_FALSE(std::filesystem::exists(launch("certs"))) << "they are the driver's";
}

// Under `./dev soak`: Slurm's limits are whole minutes.
TEST_F(LaunchTest, TheSuccessorGoesOnAtTheTimeLimit) {
  if (!IsSoak()) return;
  ASSERT_EQ(Launch({"--nodes", "2", "--time", "1", "--end-before", "40s", "--job", job_, "--job-id",
                    "toy", "--set", "train.steps=400"})
                .exit_code,
            0)
      << LaunchLog();
  ASSERT_TRUE(WaitForSlurmEnd()) << LaunchLog();
  EXPECT_THAT(LaunchLog(), HasSubstr("the launch ends: the time limit is near"));
  int64_t launches = 1;
  const auto successor = [&] {
    const std::string next = cluster_->Out({"squeue", "--noheader", "--format=%i", "--states=R"});
    if (!next.empty() && next != slurm_job_) ++launches;
    if (!next.empty()) slurm_job_ = next;
    return next.empty() && cluster_->Out({"squeue", "--noheader"}).empty();
  };
  ASSERT_TRUE(WaitUntil(successor, 400)) << LaunchLog();
  EXPECT_GE(launches, 2);
  EXPECT_THAT(LaunchLog(), HasSubstr("the launch ends: its job has ended"));
  EXPECT_EQ(DigestOf(NewestCheckpoint()),
            LocalDigest({"--set", "train.steps=400"}, "step-00000400-attempt-1"));
}

// Under `./dev soak`: the process of the launch gets SIGKILL; what it asked for goes back.
TEST_F(LaunchTest, AKilledLaunchLeavesNoMachineBehind) {
  if (!IsSoak()) return;
  ASSERT_EQ(Launch({"--nodes", "1", "--max-nodes", "3"}).exit_code, 0) << LaunchLog();
  ASSERT_EQ(Megascale({"submit", job_, "--job-id", "toy"}).exit_code, 0);
  ASSERT_TRUE(WaitForStep(5)) << LaunchLog() << "a machine is asked for, since the job needs two";
  const CommandResult killed = cluster_->Run({"pgrep", "-f", "launch slurm-run " + launch()});
  for (const auto& pid : absl::StrSplit(killed.out, '\n', absl::SkipEmpty())) {
    ::kill(std::stoi(std::string(pid)), SIGKILL);
  }
  EXPECT_TRUE(WaitUntil(
      [&] {
        return cluster_->Out({"squeue", "--noheader"}).empty();
      },
      90))
      << cluster_->Out({"squeue"});
}

TEST_F(LaunchTest, WhatSlurmCannotGiveIsOneLineBeforeAnythingIsAskedFor) {
  const auto refused = [&](const std::vector<std::string>& options, const std::string& words) {
    const CommandResult launched = Launch(options);
    EXPECT_NE(launched.exit_code, 0) << words;
    EXPECT_THAT(launched.err, HasSubstr(words));
    EXPECT_THAT(launched.out, Not(HasSubstr("job ")));
  };
  refused({"--nodes", "9"}, "Requested node configuration is not available");
  refused({"--nodes", "2", "--partition", "nope"}, "invalid partition specified: nope");
  refused({"--nodes", "2", "--", "--constraint=none-such"}, "Invalid feature specification");
  refused({"--nodes", "2", "--", "--array=1-3"}, "the launch sets it itself");
  refused({"--nodes", "0"}, "--nodes: 0 is out of range");
  refused({"--tls-ca", "/x/ca.pem"}, "for an existing driver: give --driver, too");
  refused({"--nodes", "2", "--job", "/none/such.yaml"}, "/none/such.yaml");
  EXPECT_EQ(cluster_->Out({"squeue", "--noheader"}), "");
  // A second launch of the same name.
  ASSERT_EQ(Launch({"--nodes", "1"}).exit_code, 0) << LaunchLog();
  const CommandResult again = Launch({"--nodes", "1"});
  EXPECT_NE(again.exit_code, 0);
  EXPECT_THAT(again.err, HasSubstr("already; `scancel --name megascale-launch` ends it"));
}

}  // namespace
}  // namespace megascale::slurm
