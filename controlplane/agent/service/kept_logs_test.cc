#include "controlplane/agent/service/kept_logs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"

namespace megascale::agent {
namespace {

using ::testing::UnorderedElementsAre;

class KeptLogsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(::testing::TempDir(), "/kept-logs");
    std::filesystem::remove_all(directory_);
    for (int i = 0; i < 4; ++i) AddJob(absl::StrCat("job-", i), 1000, i);
  }

  // `age`: the greater, the newer.
  void AddJob(const std::string& id, size_t bytes, int age) {
    const std::string logs = absl::StrCat(directory_, "/", id, "/attempt-1");
    ASSERT_TRUE(base::MakeDirectories(logs).ok());
    ASSERT_TRUE(base::WriteFileDurably(logs + "/rank-0.0.log", std::string(bytes, 'x')).ok());
    const auto day = std::chrono::hours(24);
    std::filesystem::last_write_time(
        absl::StrCat(directory_, "/", id),
        std::filesystem::file_time_type::clock::now() - (100 - age) * day);
  }

  std::vector<std::string> Left() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  std::string directory_;
};

TEST_F(KeptLogsTest, TheNewestEndedJobsKeepTheirLogs) {
  PruneJobLogs(directory_, {}, {.jobs = 2});
  EXPECT_THAT(Left(), UnorderedElementsAre("job-2", "job-3"));
}

TEST_F(KeptLogsTest, EndedJobsKeepLogsUpToABoundInBytes) {
  PruneJobLogs(directory_, {}, {.jobs = 64, .bytes = 3500});
  EXPECT_THAT(Left(), UnorderedElementsAre("job-1", "job-2", "job-3"));
}

TEST_F(KeptLogsTest, JobsOnTheMachineKeepTheirLogsAndCountForNothing) {
  PruneJobLogs(directory_, {"job-0"}, {.jobs = 1, .bytes = 1000});
  EXPECT_THAT(Left(), UnorderedElementsAre("job-0", "job-3"));
}

TEST_F(KeptLogsTest, TheNewestJobKeepsItsLogsWhateverTheirSize) {
  PruneJobLogs(directory_, {}, {.jobs = 64, .bytes = 10});
  EXPECT_THAT(Left(), UnorderedElementsAre("job-3"));
}

TEST_F(KeptLogsTest, WhatIsNoJobsStays) {
  ASSERT_TRUE(base::MakeDirectories(directory_ + "/data/attempt-1").ok());
  ASSERT_TRUE(base::WriteFileDurably(directory_ + "/data/tokens.bin", "x").ok());
  ASSERT_TRUE(base::WriteFileDurably(directory_ + "/notes.txt", "x").ok());
  PruneJobLogs(directory_, {}, {.jobs = 0});
  EXPECT_THAT(Left(), UnorderedElementsAre("data", "notes.txt"));
}

TEST_F(KeptLogsTest, NothingIsDeletedWithinTheBounds) {
  PruneJobLogs(directory_, {}, {});
  EXPECT_EQ(Left().size(), 4u);
  PruneJobLogs(directory_ + "/missing", {}, {});
}

}  // namespace
}  // namespace megascale::agent
