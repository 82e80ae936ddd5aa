#include "runtime/checkpoint/owner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/testing/test_checkpoint.h"
#include "runtime/checkpoint/writer.h"

namespace megascale::checkpoint {
namespace {

using absl::StrContains;

v1::Owner Job(const std::string& job_id, const std::string& log_id) {
  v1::Owner owner;
  owner.set_job_id(job_id);
  owner.set_log_id(log_id);
  owner.set_spec_sha256("5bec");
  return owner;
}

const v1::Owner kDemo = Job("demo", "10c0000000000000");
const v1::Owner kOther = Job("demo", "ffff000000000000");  // another driver's, with the same id

bool IsOthers(const absl::Status& status) {
  return absl::IsPermissionDenied(status) && base::ErrnoOf(status) == 0;
}

class OwnerTest : public ::testing::Test {
 protected:
  OwnerTest()
      : root_(absl::StrCat(::testing::TempDir(), "owner_test.",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        directory_(root_ + "/demo") {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }

  absl::Status Claim(const v1::Owner& owner) {
    return ClaimDirectory({.directory = directory_, .owner = owner}).status();
  }
  // Claims for a job that ran here before.
  absl::Status ClaimAgain(const v1::Owner& owner, bool owned_before = true) {
    return ClaimDirectory({.directory = directory_,
                           .owner = owner,
                           .ran_before = true,
                           .owned_before = owned_before,
                           .take_over = true})
        .status();
  }

  const std::string root_;
  const std::string directory_;
};

TEST_F(OwnerTest, ADirectoryBelongsToTheFirstJobAndToItsLaterAttempts) {
  ASSERT_EQ(Claim(kDemo), absl::OkStatus());
  EXPECT_EQ(Claim(kDemo), absl::OkStatus());
  EXPECT_EQ(ClaimAgain(kDemo), absl::OkStatus());
  EXPECT_EQ(CheckOwner(directory_, kDemo), absl::OkStatus());
  v1::Owner old = kDemo;
  old.clear_spec_sha256();  // an older release accepted the job
  EXPECT_EQ(CheckOwner(directory_, old), absl::OkStatus());
  EXPECT_EQ(CheckOwner(directory_, v1::Owner()), absl::OkStatus()) << "an older driver's";
}

TEST_F(OwnerTest, AnotherLogsJobOfTheSameIdAndAnotherSpecificationAreRefused) {
  ASSERT_EQ(Claim(kDemo), absl::OkStatus());
  const absl::Status refused = Claim(kOther);
  EXPECT_TRUE(IsOthers(refused)) << refused;
  EXPECT_TRUE(StrContains(refused.message(), "belongs to job demo of the driver's log 10c00000"));
  EXPECT_TRUE(StrContains(refused.message(), "--take-over"));
  v1::Owner changed = kDemo;
  changed.set_spec_sha256("0123");
  EXPECT_TRUE(IsOthers(Claim(changed)));
}

TEST_F(OwnerTest, OfManyThatClaimAtOnceOneWins) {
  std::vector<absl::Status> results(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Claim(Job("demo", absl::StrCat("log", i))); });
  }
  for (std::thread& thread : threads) thread.join();
  int won = 0;
  for (const absl::Status& result : results) {
    won += result.ok() ? 1 : 0;
    EXPECT_TRUE(result.ok() || IsOthers(result)) << result;
  }
  EXPECT_EQ(won, 1);
}

TEST_F(OwnerTest, ATakeOverMovesTheOthersCheckpointsAndStopsItsHosts) {
  ASSERT_EQ(Claim(kDemo), absl::OkStatus());
  WriteTestCheckpoint(directory_, {1, 100, 0}, 1);
  WriteTestCheckpoint(directory_, {1, 200, 0}, 1);
  const std::string from = directory_ + "/step-00000100-attempt-1";
  const auto taken = ClaimDirectory(
      {.directory = directory_, .owner = kOther, .take_over = true, .from_checkpoint = from});
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_EQ(taken->size(), 1u);
  EXPECT_TRUE(StrContains(taken->front(), "over from job demo of the driver's log 10c0"));
  EXPECT_TRUE(StrContains(taken->front(), "1 checkpoint of it: in "));
  EXPECT_TRUE(ReadManifest(from).ok()) << "it begins there";
  EXPECT_FALSE(ReadManifest(directory_ + "/step-00000200-attempt-1").ok());

  WriteTestCheckpoint(directory_, {1, 300, 0}, 1);
  agent::v1::CheckpointId newest;
  newest.set_step(300);
  newest.set_attempt(1);
  EXPECT_TRUE(IsOthers(ApplyRetention(directory_, {{newest}, 9, kDemo})));
  EXPECT_TRUE(IsOthers(GiveUpIncomplete(directory_, newest, kDemo).status()));
  EXPECT_TRUE(ReadManifest(from).ok());
  EXPECT_TRUE(IsOthers(ClaimAgain(kDemo))) << "it does not take it back";
}

TEST_F(OwnerTest, AManifestAndAShardOfAJobThatLostTheDirectoryAreNotWritten) {
  ASSERT_EQ(Claim(kOther), absl::OkStatus());
  const std::string mine = WriteTestCheckpoint(directory_, {1, 100, 0}, 1);
  auto manifest = ReadManifest(mine);
  ASSERT_TRUE(manifest.ok());
  *manifest->mutable_owner() = kDemo;
  EXPECT_TRUE(IsOthers(WriteManifest(mine, *manifest)));
  EXPECT_FALSE(ReadManifest(mine)->has_owner());
}

TEST_F(OwnerTest, CheckpointsOfNobodyAreTheJobsOwnOnlyIfItHasRun) {
  WriteTestCheckpoint(directory_, {1, 100, 0}, 1);  // an older release wrote it
  const absl::Status refused = Claim(kDemo);
  EXPECT_TRUE(IsOthers(refused)) << refused;
  EXPECT_TRUE(StrContains(refused.message(), "has checkpoints, such as step-00000100-attempt-1"));
  EXPECT_EQ(ClaimAgain(kDemo, /*owned_before=*/false), absl::OkStatus());
  EXPECT_TRUE(IsOthers(Claim(kOther)));
}

TEST_F(OwnerTest, WhatWasThereIsNeverMadeAnew) {
  const absl::Status away = ClaimAgain(kDemo, /*owned_before=*/false);
  EXPECT_EQ(base::ErrnoOf(away), ENOENT) << away;
  EXPECT_FALSE(std::filesystem::exists(directory_));
  std::filesystem::create_directories(directory_);  // a bare mount point
  EXPECT_EQ(base::ErrnoOf(ClaimAgain(kDemo)), ENOENT);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  EXPECT_EQ(base::ErrnoOf(CheckOwner(directory_, kDemo)), ENOENT);
}

TEST_F(OwnerTest, ATornFileIsSomebodysUntilItIsTakenOver) {
  ASSERT_EQ(Claim(kDemo), absl::OkStatus());
  for (const char* torn : {"", "{\"job_id\": \"demo\", \"lo", "{}", "{\"job_id\": \"demo\"}"}) {
    ASSERT_TRUE(base::WriteFileDurably(directory_ + "/.owner.json", torn).ok());
    EXPECT_TRUE(IsOthers(Claim(kDemo))) << torn;
    EXPECT_TRUE(IsOthers(CheckOwner(directory_, kDemo))) << torn;
  }
  const auto taken = ClaimDirectory({.directory = directory_, .owner = kDemo, .take_over = true});
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(CheckOwner(directory_, kDemo), absl::OkStatus());
  // A newer version may add fields.
  ASSERT_TRUE(base::WriteFileDurably(directory_ + "/.owner.json",
                                     "{\"job_id\": \"demo\", \"log_id\": \"10c0000000000000\", "
                                     "\"region\": \"north\"}")
                  .ok());
  EXPECT_EQ(Claim(kDemo), absl::OkStatus());
}

TEST_F(OwnerTest, DirectoriesOfTwoJobsDoNotNestHoweverTheyAreNamed) {
  ASSERT_EQ(Claim(kDemo), absl::OkStatus());
  std::filesystem::create_directory_symlink(directory_, root_ + "/link");
  const std::string step = "/step-00000100-attempt-1";
  for (const std::string& path :
       {directory_ + step, root_ + "/link" + step, root_ + "/x/../demo/deep/er", root_ + "/demo/.",
        root_ + "/link", root_}) {
    const auto refused = ClaimDirectory({.directory = path, .owner = Job("second", "10c0")});
    EXPECT_TRUE(IsOthers(refused.status())) << path << ": " << refused.status();
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + step));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/.owner.json"));
  EXPECT_TRUE(
      ClaimDirectory({.directory = root_ + "/second", .owner = Job("second", "10c0")}).ok());
}

TEST_F(OwnerTest, ARestorePointMustBeWhatTheLogCommitted) {
  agent::v1::RestorePoint restore;
  restore.set_step(100);
  restore.set_attempt(2);
  v1::Manifest manifest;
  manifest.set_job_id("demo");
  manifest.set_step(100);
  manifest.set_attempt(2);
  EXPECT_TRUE(CheckIsCommitted(manifest, restore).ok()) << "--from names another's on purpose";
  *restore.mutable_owner() = kDemo;
  EXPECT_TRUE(absl::IsDataLoss(CheckIsCommitted(manifest, restore))) << "no owner";
  restore.set_without_owner(true);  // an agent of an older release wrote it
  EXPECT_TRUE(CheckIsCommitted(manifest, restore).ok());
  *manifest.mutable_owner() = kOther;
  const absl::Status others = CheckIsCommitted(manifest, restore);
  EXPECT_TRUE(absl::IsDataLoss(others));
  EXPECT_TRUE(IsOfAnotherRun(others));
  EXPECT_FALSE(IsOfAnotherRun(absl::DataLossError("shard x: its SHA-256 is wrong")));
  EXPECT_TRUE(StrContains(others.message(),
                          "is the checkpoint of another run (job demo of the "
                          "driver's log ffff"));
  *manifest.mutable_owner() = kDemo;
  EXPECT_TRUE(CheckIsCommitted(manifest, restore).ok());
  manifest.set_attempt(1);
  EXPECT_TRUE(absl::IsDataLoss(CheckIsCommitted(manifest, restore)));
  manifest.set_attempt(2);
  manifest.set_job_id("other");
  EXPECT_TRUE(absl::IsDataLoss(CheckIsCommitted(manifest, restore)));
}

TEST_F(OwnerTest, ACheckpointInTheWrongPlaceIsSaidToBe) {
  ASSERT_EQ(Claim(kDemo), absl::OkStatus());
  const std::string mine = WriteTestCheckpoint(directory_, {1, 100, 0}, 1);
  v1::Manifest manifest = ReadManifest(mine).value();
  EXPECT_EQ(CheckPlace(mine, manifest), absl::OkStatus()) << "an older release's";
  *manifest.mutable_owner() = kDemo;
  EXPECT_EQ(CheckPlace(mine, manifest), absl::OkStatus());
  *manifest.mutable_owner() = kOther;
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckPlace(mine, manifest)));
  manifest.set_step(200);
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckPlace(mine, manifest)));
}

}  // namespace
}  // namespace megascale::checkpoint
