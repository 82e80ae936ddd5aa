#include "runtime/checkpoint/shared_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "runtime/checkpoint/testing/test_checkpoint.h"

namespace megascale::checkpoint {
namespace {

NonceWait WaitIn(const std::string& directory, absl::Duration timeout) {
  return {.directory = directory,
          .nonce = "of attempt 2",
          .node_id = "n1",
          .writer_node_id = "n0",
          .timeout = timeout};
}

TEST(SharedDirectoryTest, WhatOneWroteTheOtherSees) {
  const std::string directory = TestDirectory();
  ASSERT_EQ(WriteNonce(directory, "of attempt 2"), absl::OkStatus());
  EXPECT_EQ(WaitForNonce(WaitIn(directory, absl::ZeroDuration())), absl::OkStatus());
  RemoveNonce(directory);
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  RemoveNonce(directory);
}

TEST(SharedDirectoryTest, ANonceThatComesLateIsWaitedFor) {
  const std::string directory = TestDirectory();
  absl::Status seen = absl::UnknownError("not over");
  std::thread other([&] { seen = WaitForNonce(WaitIn(directory, absl::Seconds(60))); });
  EXPECT_EQ(WriteNonce(directory, "of attempt 2"), absl::OkStatus());
  other.join();
  EXPECT_EQ(seen, absl::OkStatus());
}

TEST(SharedDirectoryTest, AnotherDirectoryOrAnOldNonceNamesBothNodesAndTheDirectory) {
  const std::string directory = TestDirectory();
  const std::string expected =
      "checkpoint.directory: node n1 does not see in " + directory +
      " what node n0 wrote there (looked for 10ms); every machine needs the same directory: mount "
      "one shared file system there";
  const absl::Duration timeout = absl::Milliseconds(10);
  EXPECT_EQ(WaitForNonce(WaitIn(directory, timeout)), absl::FailedPreconditionError(expected));
  ASSERT_EQ(WriteNonce(directory, "of attempt 1"), absl::OkStatus());
  EXPECT_EQ(WaitForNonce(WaitIn(directory, timeout)), absl::FailedPreconditionError(expected));
}

TEST(SharedDirectoryTest, ADirectoryThatIsNotThereIsNotTheSame) {
  const std::string directory = TestDirectory() + "/none";
  EXPECT_EQ(WriteNonce(directory, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(WaitForNonce(WaitIn(directory, absl::ZeroDuration())).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace megascale::checkpoint
