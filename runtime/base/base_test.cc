#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/frame.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/base/process/thread_environment.h"
#include "runtime/base/status.h"

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
  // A broken link is no file that may be missing.
  ASSERT_EQ(::symlink("none", (directory + "/link").c_str()), 0);
  EXPECT_EQ(ReadFile(directory + "/link", 4).status(),
            absl::FailedPreconditionError(
                directory + "/link: is a symbolic link to a file that does not exist"));
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

TEST(FrameTest, AHostOf256RanksGetsAllDescriptorsInOrder) {
  auto pair = MakeSocketPair().value();
  RaiseDescriptorLimit();
  const auto first = SharedMemory::Create("test", 4096).value();
  const auto other = SharedMemory::Create("test", 8192).value();
  for (const size_t count : {size_t{250}, size_t{251}, size_t{258}, kFrameFdsMax}) {
    std::vector<int> fds(count, other->fd());
    fds.front() = first->fd();
    std::thread sender(
        [&] { EXPECT_TRUE(SendFrame(pair.first.get(), "hello", fds, absl::Seconds(5)).ok()); });
    auto frame = ReceiveFrame(pair.second.get(), absl::Seconds(5));
    sender.join();
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(frame->payload, "hello");
    ASSERT_EQ(frame->fds.size(), count);
    struct stat info = {};
    ASSERT_EQ(::fstat(frame->fds.front().get(), &info), 0);
    EXPECT_EQ(info.st_size, static_cast<off_t>(first->size_bytes()));
    ASSERT_EQ(::fstat(frame->fds.back().get(), &info), 0);
    EXPECT_EQ(info.st_size, static_cast<off_t>(other->size_bytes()));
  }
  const std::vector<int> many(kFrameFdsMax + 1, first->fd());
  EXPECT_EQ(SendFrame(pair.first.get(), "hello", many, absl::Seconds(5)).code(),
            absl::StatusCode::kInvalidArgument);
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
  EXPECT_TRUE(HaveCores(1, 2, 2));
  EXPECT_FALSE(HaveCores(2, 2, 2));
  EXPECT_FALSE(HaveCores(2, 1, 1.5)) << "a quota of a core and a half";
  EXPECT_FALSE(HaveCores(1 << 20, 1 << 20, 64));
  EXPECT_EQ(ThreadEnvironment(false),
            (std::vector<std::string>{"OMP_WAIT_POLICY=passive", "GOMP_SPINCOUNT=0",
                                      "OMP_THREAD_LIMIT=2147483647"}));
  EXPECT_NE(ThreadEnvironment(true), ThreadEnvironment(false));
}

// Sets this process's limit for as long as it lives.
class SoftLimit {
 public:
  SoftLimit(int resource, rlim_t value) : resource_(resource) {
    EXPECT_EQ(::getrlimit(resource, &before_), 0);
    const struct rlimit limit = {value, before_.rlim_max};
    EXPECT_EQ(::setrlimit(resource, &limit), 0);
  }
  ~SoftLimit() { EXPECT_EQ(::setrlimit(resource_, &before_), 0); }
  const struct rlimit& before() const { return before_; }

 private:
  const int resource_;
  struct rlimit before_ = {};
};

TEST(StatusTest, AFullDiskSaysHowMuchWasWrittenAndWhatToDo) {
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(full.valid());
  const absl::Status status = Annotate(WriteAll(full.get(), "12345"), "/dev/full");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "/dev/full: wrote 0 of 5 bytes: disk full; free some space there, or choose another "
            "directory");
  EXPECT_EQ(ErrnoOf(status), ENOSPC);
  EXPECT_FALSE(IsOutOfMemory(status));
}

TEST(StatusTest, AFileThatIsTooLargeLeavesNothingBeside) {
  const std::string directory = TestDirectory();
  ::signal(SIGXFSZ, SIG_IGN);
  absl::Status status;
  {
    const SoftLimit limit(RLIMIT_FSIZE, 3);
    status = WriteFileDurably(directory + "/file", "12345");
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            directory +
                "/file.tmp: wrote 3 of 5 bytes: file too large for the file system or for "
                "the limit `ulimit -f`; raise the limit, or choose another directory");
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

TEST(StatusTest, TooManyOpenFilesNamesTheLimit) {
  const std::string directory = TestDirectory();
  ASSERT_TRUE(WriteFileDurably(directory + "/file", "1").ok());
  absl::Status status;
  rlim_t lowest_free = 0;
  {
    lowest_free = static_cast<rlim_t>(UniqueFd(::dup(STDIN_FILENO)).get());
    const SoftLimit limit(RLIMIT_NOFILE, lowest_free);
    status = ReadFile(directory + "/file", 10).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            absl::StrCat(directory, "/file: too many open files: the limit of this process is ",
                         lowest_free, "; raise it with `ulimit -n` before it starts"));
  EXPECT_FALSE(IsOutOfMemory(status));
}

TEST(FdTest, TheLimitOfOpenFilesIsRaisedToWhatIsAllowed) {
  const SoftLimit limit(RLIMIT_NOFILE, 64);
  RaiseOpenFilesLimit();
  struct rlimit now = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, limit.before().rlim_max);
}

TEST(StatusTest, EachWantHasItsOwnWords) {
  EXPECT_EQ(ErrnoStatus(EDQUOT, "w").message(),
            "w: disk quota used up; delete files of this user there, or have the quota raised");
  EXPECT_EQ(ErrnoStatus(EROFS, "w"),
            WithErrno(absl::FailedPreconditionError("w: the file system is read-only; mount it for "
                                                    "writing, or choose another directory"),
                      EROFS));
  EXPECT_EQ(ErrnoStatus(ENFILE, "w").message(),
            "w: too many open files on this machine; raise the sysctl fs.file-max");
  EXPECT_TRUE(IsOutOfMemory(Annotate(ErrnoStatus(ENOMEM, "map"), "tensors")));
  EXPECT_EQ(ErrnoStatus(ENOENT, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(EACCES, "x").message(), "x: Permission denied");
  EXPECT_EQ(Annotate(absl::NotFoundError("b"), "a").message(), "a: b");
}

}  // namespace
}  // namespace megascale::base
