#include "controlplane/nodes/slurm/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "controlplane/nodes/slurm/batch_script.h"
#include "controlplane/nodes/slurm/slurm_source.h"

namespace megascale::nodes {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Answers commands from a list, and notes what was run.
struct Answers {
  std::deque<Finished> answers;
  std::vector<std::string> lines;

  Slurm::Run Run() {
    return
        [this](const std::vector<std::string>& words, absl::Duration) -> absl::StatusOr<Finished> {
          lines.push_back(absl::StrJoin(words, " "));
          if (answers.empty()) return Finished{};
          Finished answer = std::move(answers.front());
          answers.pop_front();
          return answer;
        };
  }
};

TEST(SlurmTest, TimesAreReadInAllForms) {
  EXPECT_EQ(*ParseTimeLeft("1-02:03:04"), absl::Seconds(93784));
  EXPECT_EQ(*ParseTimeLeft("2:03:04"), absl::Seconds(7384));
  EXPECT_EQ(*ParseTimeLeft("0:45"), absl::Seconds(45));
  EXPECT_EQ(*ParseTimeLeft("UNLIMITED"), absl::InfiniteDuration());
  for (const char* const bad : {"", "45", "INVALID", "1-", "-1:00", "1:2:3:4", "a:b"}) {
    EXPECT_FALSE(ParseTimeLeft(bad).ok()) << bad;
  }
}

TEST(SlurmTest, OnlyNamesOfNodesAreNames) {
  for (const char* const good : {"n1", "gpu-07.rack_3", "7"}) EXPECT_TRUE(IsNodeName(good)) << good;
  for (const char* const bad : {"", "-w", "n1;rm", "n 1", "n1\n", "$(id)", "ä1"}) {
    EXPECT_FALSE(IsNodeName(bad)) << bad;
  }
  EXPECT_FALSE(IsNodeName(std::string(65, 'n')));
}

TEST(SlurmTest, AHostileNameIsRefusedAndAHostileReasonStaysText) {
  Answers answers;
  answers.answers.push_back({0, "n1\n$(reboot)\n", ""});
  Slurm slurm(answers.Run());
  const auto names = slurm.NamesIn("n[1-2]");
  EXPECT_THAT(std::string(names.status().message()), HasSubstr("names a node '$(reboot)'"));
  answers.answers.push_back({0, "n1|draining|fan \x1b[31m|| broken\n-w|idle|none\n", ""});
  const auto nodes = slurm.Nodes("n1");
  ASSERT_TRUE(nodes.ok());
  ASSERT_THAT(*nodes, SizeIs(1));
  EXPECT_EQ(nodes->at("n1").reason, "fan \\x1b[31m|| broken");
}

TEST(SlurmTest, AControllerThatDoesNotAnswerIsUnknownNotGone) {
  Answers answers;
  answers.answers.push_back(
      {1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"});
  Slurm slurm(answers.Run());
  EXPECT_EQ(slurm.Jobs({"x"}).status().code(), absl::StatusCode::kUnavailable);
  answers.answers.push_back({1, "", "sbatch: error: invalid partition specified: nope\n"});
  const auto refused = slurm.Submit({}, "/x");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.status().message(), "sbatch: invalid partition specified: nope");
  answers.answers.push_back({0, "submitted, perhaps\n", ""});
  EXPECT_FALSE(slurm.Submit({}, "/x").ok());
}

TEST(SlurmTest, WhatNeverStartsIsToldFromWhatWaits) {
  for (const char* const reason : {"PartitionNodeLimit", "AssocMaxNodePerJobLimit",
                                   "BadConstraints", "QOSMaxCpuPerJobLimit"}) {
    EXPECT_EQ(NeverStarts({.id = "1", .state = "PD", .reason = reason}), reason);
  }
  for (const char* const reason : {"Resources", "Priority", "AssocGrpNodeLimit", "Dependency"}) {
    EXPECT_EQ(NeverStarts({.id = "1", .state = "PD", .reason = reason}), "") << reason;
  }
  EXPECT_EQ(NeverStarts({.id = "1", .state = "R", .reason = "PartitionNodeLimit"}), "");
}

TEST(SlurmTest, TheCallersFormatsDoNotLeakIn) {
  for (const char* const name : {"SQUEUE_FORMAT", "SLURM_JOB_ID", "SBATCH_PARTITION",
                                 "SINFO_FORMAT", "SLURM_TIME_FORMAT", "SCANCEL_INTERACTIVE"}) {
    EXPECT_TRUE(IsDroppedVariable(name)) << name;
  }
  EXPECT_FALSE(IsDroppedVariable("SLURM_CONF"));
  EXPECT_FALSE(IsDroppedVariable("PATH"));
  ASSERT_EQ(::setenv("SQUEUE_FORMAT", "%all", 1), 0);
  const auto printed =
      RunCommand({"sh", "-c", "echo \"[$SQUEUE_FORMAT]\"; exit 3"}, absl::Seconds(30));
  ASSERT_TRUE(printed.ok()) << printed.status();
  EXPECT_EQ(printed->out, "[]\n");
  EXPECT_EQ(printed->exit_code, 3);
}

TEST(SlurmTest, ACommandThatHangsIsEnded) {
  const auto hung = RunCommand({"sleep", "1000"}, absl::Milliseconds(50));
  EXPECT_EQ(hung.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(RunCommand({"no-such-program-here"}, absl::Seconds(5)).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(SlurmTest, ScriptsQuoteEveryWord) {
  EXPECT_EQ(BatchScript({"/opt/it's here/megascale", "$(id)"}),
            "#!/bin/sh\nexec '/opt/it'\\''s here/megascale' '$(id)'\n");
}

TEST(SlurmTest, OptionsThatTheLaunchSetsAreRefused) {
  EXPECT_TRUE(CheckSbatchOptions({
                                     "--account=a",
                                     "--gres=gpu:8",
                                     "-A",
                                 })
                  .ok());
  for (const char* const bad : {"--nodes=3", "-N3", "--array=1-4", "script.sh", "-d=1"}) {
    EXPECT_FALSE(CheckSbatchOptions({bad}).ok()) << bad;
  }
}

TEST(SlurmSourceTest, JobsBecomeMachines) {
  Answers answers;
  answers.answers = {{0,
                      "7|R|ms|UNLIMITED|(null)|n[1-2]|None\n"
                      "8|PD|ms|1:00|(null)||Dependency\n"
                      "9|R|ms-machine|1:00|r-1|n3|None\n"
                      "10|PD|ms-machine|1:00|r-2||Resources\n"
                      "11|CG|ms-machine|1:00|r-0|n4|None\n",
                      ""},
                     {0, "n1\nn2\n", ""},
                     {0, "n3\n", ""},
                     {0, "n1|allocated|none\nn2|draining*|bad fan\nn3|down*|Not responding\n", ""}};
  Slurm slurm(answers.Run());
  SlurmSource source(&slurm, {.job_id = "7", .name = "ms"});
  const auto machines = source.Observe();
  ASSERT_TRUE(machines.ok()) << machines.status();
  ASSERT_THAT(*machines, SizeIs(4));
  EXPECT_EQ((*machines)[0].state, MachineState::kPresent);
  EXPECT_FALSE((*machines)[0].returnable);
  EXPECT_EQ((*machines)[1].state, MachineState::kLeaving);
  EXPECT_EQ((*machines)[1].why, "draining: bad fan");
  EXPECT_EQ((*machines)[2].state, MachineState::kGone);
  EXPECT_EQ((*machines)[2].request, "r-1");
  EXPECT_EQ((*machines)[3].state, MachineState::kAsked);
  EXPECT_EQ((*machines)[3].why, "Resources");
  EXPECT_EQ(source.time_left(), absl::InfiniteDuration());
}

TEST(SlurmSourceTest, ARequestThatSlurmHasIsNotMadeAgain) {
  Answers answers;
  answers.answers = {{0, "10|PD|ms-machine|1:00|r-2||Resources\n", ""}};
  Slurm slurm(answers.Run());
  SlurmSource source(&slurm, {.job_id = "7", .name = "ms", .machine_script = "/l/machine.sh"});
  EXPECT_TRUE(source.Ask({.id = "r-2", .exclude = {}}).ok());
  EXPECT_THAT(answers.lines, SizeIs(1));
  answers.answers = {{0, "", ""}, {0, "12\n", ""}};
  EXPECT_TRUE(source.Ask({.id = "r-3", .exclude = {"n1", "n2"}}).ok());
  EXPECT_THAT(answers.lines.back(), HasSubstr("--comment=r-3"));
  EXPECT_THAT(answers.lines.back(), HasSubstr("--exclude=n1,n2 /l/machine.sh"));
}

}  // namespace
}  // namespace megascale::nodes
