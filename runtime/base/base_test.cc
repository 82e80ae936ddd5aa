#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/frame.h"
#include "runtime/base/shared_memory.h"
#include "runtime/base/status.h"
#include "runtime/base/thread_environment.h"

namespace megascale::base {
namespace {

std::string TestDirectory() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path = absl::StrCat(::testing::TempDir(), "/", info->name());
  std::filesystem::remove_all(path);
  EXPECT_TRUE(MakeDirectories(path).ok());
  return path;
}

TEST(ChecksumTest, Sha256OfTheEmptyStringIsTheStandardsValue) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(ChecksumTest, PiecesHashLikeTheWhole) {
  Sha256 hash;
  hash.Update("ab");
  hash.Update("c");
  EXPECT_EQ(hash.Finish(), Sha256Hex("abc"));
}

TEST(FdTest, DurableWriteReplacesTheWholeFile) {
  const std::string path = TestDirectory() + "/file";
  ASSERT_TRUE(WriteFileDurably(path, "a long first content").ok());
  ASSERT_TRUE(WriteFileDurably(path, "second").ok());
  EXPECT_EQ(ReadFile(path, 100).value(), "second");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(FdTest, ReadFileRefusesWhatIsTooLargeMissingOrNoFile) {
  const std::string directory = TestDirectory();
  ASSERT_TRUE(WriteFileDurably(directory + "/file", "12345").ok());
  EXPECT_EQ(ReadFile(directory + "/file", 4).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(directory + "/none", 4).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(directory, 4).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FdTest, MakeDirectoriesSaysWhyItCannot) {
  const std::string directory = TestDirectory();
  ASSERT_TRUE(WriteFileDurably(directory + "/file", "x").ok());
  EXPECT_TRUE(MakeDirectories(directory + "/a/b").ok());
  EXPECT_TRUE(MakeDirectories(directory + "/a/b").ok());
  EXPECT_EQ(MakeDirectories(directory + "/file/b").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(MakeDirectories(directory + "/file").code(), absl::StatusCode::kFailedPrecondition);
}

TEST(FrameTest, PayloadAndDescriptorsArriveTogether) {
  auto pair = MakeSocketPair().value();
  auto region = SharedMemory::Create("frame_test", 4096).value();
  std::strcpy(reinterpret_cast<char*>(region->data()), "shared");
  ASSERT_TRUE(SendFrame(pair.first.get(), "hello", {region->fd()}, absl::Seconds(5)).ok());
  ASSERT_TRUE(SendFrame(pair.first.get(), "", {}, absl::Seconds(5)).ok());
  Frame frame = ReceiveFrame(pair.second.get(), absl::Seconds(5)).value();
  EXPECT_EQ(frame.payload, "hello");
  ASSERT_EQ(frame.fds.size(), 1u);
  auto mapped = SharedMemory::Map(std::move(frame.fds[0])).value();
  EXPECT_STREQ(reinterpret_cast<char*>(mapped->data()), "shared");
  EXPECT_EQ(ReceiveFrame(pair.second.get(), absl::Seconds(5)).value().payload, "");
}

TEST(ClockTest, PollNeverSpinsAndNeverWaitsForEver) {
  EXPECT_EQ(PollMilliseconds(absl::InfiniteDuration()), 60'000);
  EXPECT_EQ(PollMilliseconds(absl::Nanoseconds(1)), 1);
  EXPECT_EQ(PollMilliseconds(absl::Milliseconds(20)), 20);
  EXPECT_EQ(PollMilliseconds(absl::ZeroDuration()), 0);
  EXPECT_EQ(PollMilliseconds(-absl::InfiniteDuration()), 0);
}

TEST(FrameTest, FramesLargerThanTheSocketsBufferArriveWhole) {
  auto pair = MakeSocketPair().value();
  const std::string large(8 << 20, 'x');
  std::thread sender(
      [&] { EXPECT_TRUE(SendFrame(pair.first.get(), large, {}, absl::Seconds(30)).ok()); });
  EXPECT_EQ(ReceiveFrame(pair.second.get(), absl::Seconds(30)).value().payload, large);
  sender.join();
}

TEST(FrameTest, AClosedPeerIsUnavailableAndAnAbsurdLengthIsDataLoss) {
  auto pair = MakeSocketPair().value();
  ASSERT_TRUE(WriteAll(pair.first.get(), "\xff\xff\xff\xff").ok());
  EXPECT_EQ(ReceiveFrame(pair.second.get(), absl::Seconds(5)).status().code(),
            absl::StatusCode::kDataLoss);
  pair.first.reset();
  EXPECT_EQ(ReceiveFrame(pair.second.get(), absl::Seconds(5)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(ThreadEnvironmentTest, ThreadsLookForWorkOnlyWhereEachHasACore) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  EXPECT_TRUE(HaveCores(1, cores));
  EXPECT_FALSE(HaveCores(2, cores));
  EXPECT_EQ(ThreadEnvironment(false).back(), "GOMP_SPINCOUNT=0");
  EXPECT_NE(ThreadEnvironment(true), ThreadEnvironment(false));
}

TEST(StatusTest, AFullDiskIsResourceExhausted) {
  EXPECT_EQ(ErrnoStatus(ENOSPC, "write").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Annotate(absl::NotFoundError("b"), "a").message(), "a: b");
}

}  // namespace
}  // namespace megascale::base
