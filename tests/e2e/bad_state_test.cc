// Folders and addresses where a driver or an agent cannot work: each gives one line with what to
// do, the right exit code, and no process left. Real processes; damage is done to the log's real
// files.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <rocksdb/db.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

// Returns the program's messages, without the lines of its log.
std::vector<std::string> Answer(const CommandResult& result) {
  std::vector<std::string> answer;
  for (const absl::string_view line : absl::StrSplit(result.err, '\n', absl::SkipEmpty())) {
    if (absl::StartsWith(line, "megascale: ")) answer.emplace_back(line);
  }
  return answer;
}

void ExpectRefused(const CommandResult& result, int exit_code, const std::string& says) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  const std::vector<std::string> answer = Answer(result);
  ASSERT_EQ(answer.size(), 1u) << result.err;
  EXPECT_TRUE(absl::StrContains(answer[0], says)) << answer[0] << "\nexpected: " << says;
  EXPECT_TRUE(absl::StrContains(result.err, answer[0] + "\n")) << result.err;
}

class BadStateTest : public ::testing::Test {
 protected:
  CommandResult Driver(const std::string& listen, const std::string& state,
                       const std::vector<std::string>& more = {}) const {
    std::vector<std::string> command = {Program(), "driver",      "--listen",
                                        listen,    "--state-dir", state};
    command.insert(command.end(), more.begin(), more.end());
    return e2e::Run(command);
  }
  std::string listen() const { return absl::StrCat("unix:", cluster_.directory(), "/x.sock"); }
  std::string log() const { return cluster_.state_directory() + "/log"; }
  std::string count() const { return cluster_.state_directory() + "/log.events"; }

  Cluster cluster_;
};

TEST_F(BadStateTest, APortThatIsTakenIsNamed) {
  const base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in local = {};
  local.sin_family = AF_INET;
  local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(local);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&local), size), 0);
  ASSERT_EQ(::listen(socket.get(), 1), 0);
  ASSERT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size), 0);
  const std::string address = absl::StrCat("127.0.0.1:", ntohs(local.sin_port));
  ExpectRefused(Driver(address, cluster_.state_directory(), {"--insecure"}), 1,
                absl::StrCat(address,
                             ": cannot listen there: Address already in use; give another "
                             "address with --listen"));
}

TEST_F(BadStateTest, AnAddressThatIsNotThisMachinesIsNamed) {
  ExpectRefused(Driver("127.0.0.1:99999", cluster_.state_directory(), {"--insecure"}), 2,
                "has the port '99999'; expected 0 to 65535");
  ExpectRefused(Driver("192.0.2.1:7077", cluster_.state_directory(), {"--insecure"}), 2,
                "192.0.2.1:7077 is a TCP address: it needs --tls-ca, --tls-cert and --tls-key; "
                "--insecure is for loopback addresses");
}

TEST_F(BadStateTest, ASocketsPathThatIsTooLongIsNamed) {
  const std::string path = "/tmp/" + std::string(120, 'x') + "/driver.sock";
  ExpectRefused(
      Driver("unix:" + path, cluster_.state_directory()), 2,
      absl::StrCat("has a path of ", path.size(),
                   " bytes; a socket's path has at most 107, choose a shorter directory"));
}

TEST_F(BadStateTest, APlaceOfTheSocketThatIsNoFolderIsNamed) {
  ExpectRefused(Driver(absl::StrCat("unix:", cluster_.directory(), "/text/driver.sock"),
                       cluster_.state_directory()),
                1, "/text");
  const std::string taken = cluster_.directory() + "/text";
  ExpectRefused(Driver("unix:" + taken, cluster_.state_directory()), 1,
                "exists and is not a socket; remove it, or give another address with --listen");
}

TEST_F(BadStateTest, AStateDirectoryThatIsAFileIsNamed) {
  ExpectRefused(Driver(listen(), cluster_.directory() + "/text"), 1,
                cluster_.directory() + "/text: exists and is not a directory");
  ExpectRefused(Driver(listen(), cluster_.directory() + "/text/below"), 1,
                cluster_.directory() + "/text");
}

TEST_F(BadStateTest, AStateDirectoryThatCannotBeWrittenIsNamed) {
  // Nobody writes there, not even root.
  ExpectRefused(Driver(listen(), "/proc/megascale"), 1,
                "make directory /proc/megascale: none can be made there; give another --state-dir");
}

// A mount became read-only under a driver that has worked there. Uses its own mount namespace.
TEST_F(BadStateTest, AStateDirectoryThatIsReadOnlyNowIsNamedAndLeftAsItIs) {
  cluster_.StartDriver();
  cluster_.Submit("job");
  cluster_.StopDriver();
  const std::string state = cluster_.state_directory();
  const std::vector<std::string> read_only = {
      "/usr/bin/unshare",
      "-rm",
      "/bin/sh",
      "-c",
      absl::StrCat("mount --bind ", state, " ", state, " && mount -o remount,bind,ro ", state,
                   " && exec \"$@\""),
      "sh"};
  const auto there = [&](std::vector<std::string> command) {
    command.insert(command.begin(), read_only.begin(), read_only.end());
    return e2e::Run(command);
  };
  if (there({"/bin/true"}).exit_code != 0) GTEST_SKIP() << "this user may not mount";
  ExpectRefused(there({Program(), "driver", "--listen", listen(), "--state-dir", state}), 1,
                "Read-only file system; mount it for writing, or choose another directory");
  cluster_.StartDriver();
  EXPECT_EQ(cluster_.Status("job").state(), control::v1::JOB_STATE_PENDING);
}

TEST_F(BadStateTest, ASecondDriverOnAStateDirectoryIsRefused) {
  cluster_.StartDriver();
  ExpectRefused(Driver(listen(), cluster_.state_directory()), 1,
                "another driver has this state directory open; stop it, or give this one another "
                "directory");
  ExpectRefused(Driver(cluster_.address(), cluster_.directory() + "/other"), 1,
                "another driver listens there; stop it, or give another address with --listen");
  EXPECT_EQ(cluster_.Megascale({"list"}).exit_code, 0) << "the first one goes on";
}

TEST_F(BadStateTest, AStateDirectoryOfANewerVersionIsRefused) {
  cluster_.StartDriver();
  cluster_.StopDriver();
  {
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), log(), &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), "schema", "99").ok());
  }
  ExpectRefused(Driver(listen(), cluster_.state_directory()), 1,
                "was written by a newer megascale (schema 99; this one, ");
}

TEST_F(BadStateTest, AnAgentsRunDirectoryThatCannotBeMadeIsNamed) {
  ExpectRefused(e2e::Run({Program(), "agent", "--driver", listen(), "--slots", "1", "--node-id",
                          "n", "--run-dir", cluster_.directory() + "/text"}),
                1, cluster_.directory() + "/text");
  ExpectRefused(e2e::Run({Program(), "agent", "--driver", listen(), "--slots", "1", "--node-id",
                          "n", "--run-dir", "/proc/megascale"}),
                1,
                "make directory /proc/megascale: none can be made there; give another --run-dir");
}

enum class Damage { kFlip, kHalve, kEmpty, kRemove };

void Do(Damage damage, const std::filesystem::path& path) {
  std::string bytes = base::ReadFile(path.string(), 64 << 20).value_or("");
  switch (damage) {
    case Damage::kFlip:
      for (size_t i = bytes.size() / 2; i < bytes.size() && i < bytes.size() / 2 + 8; ++i) {
        bytes[i] = static_cast<char>(bytes[i] ^ 0x55);
      }
      break;
    case Damage::kHalve:
      bytes.resize(bytes.size() / 2);
      break;
    case Damage::kEmpty:
      bytes.clear();
      break;
    case Damage::kRemove:
      std::filesystem::remove(path);
      return;
  }
  ASSERT_TRUE(base::WriteFileDurably(path.string(), bytes).ok());
}

// A driver with a damaged log either has every job or does not start; it is never silently empty.
TEST_F(BadStateTest, ADamagedLogIsNeverSilentlyEmpty) {
  cluster_.StartDriver();
  cluster_.Submit("first");
  cluster_.StopDriver();
  cluster_.StartDriver();  // the first job is in a table file now, the second in the newest log
  cluster_.Submit("second");
  cluster_.StopDriver();
  const std::string saved = cluster_.directory() + "/saved";
  std::filesystem::copy(log(), saved, std::filesystem::copy_options::recursive);
  const std::string saved_count = base::ReadFile(count(), 100).value_or("");
  EXPECT_FALSE(saved_count.empty());
  int num_refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(saved)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "LOG") || name == "LOCK" || name == "IDENTITY") continue;
    for (const Damage damage : {Damage::kFlip, Damage::kHalve, Damage::kEmpty, Damage::kRemove}) {
      if (absl::StartsWith(name, "OPTIONS")) continue;  // for people
      std::filesystem::remove_all(log());
      std::filesystem::copy(saved, log(), std::filesystem::copy_options::recursive);
      ASSERT_TRUE(base::WriteFileDurably(count(), saved_count).ok());
      Do(damage, std::filesystem::path(log()) / name);
      const std::string where = absl::StrCat(name, ", damage ", static_cast<int>(damage));
      const pid_t pid = Spawn({Program(), "driver", "--listen", cluster_.address(), "--state-dir",
                               cluster_.state_directory()},
                              cluster_.directory() + "/damaged.log");
      int status = -1;
      CommandResult list;
      const bool decided = WaitUntil(
          [&] {
            if (!IsAlive(pid)) return true;
            list = cluster_.Megascale({"list", "--retry-for", "0s"});
            return list.exit_code == 0;
          },
          30);
      EXPECT_TRUE(decided) << where;
      if (IsAlive(pid)) {
        EXPECT_TRUE(absl::StrContains(list.out, "first")) << where << "\n" << list.out;
        EXPECT_TRUE(absl::StrContains(list.out, "second")) << where << "\n" << list.out;
        KillAndReap(pid);
      } else {
        ++num_refused;
        status = WaitForExit(pid, 10);
        EXPECT_TRUE(WIFEXITED(status)) << where << " status " << status;
        EXPECT_EQ(WEXITSTATUS(status), 1) << where;
        CommandResult result;
        result.err = base::ReadFile(cluster_.directory() + "/damaged.log", 1 << 20).value_or("");
        ASSERT_EQ(Answer(result).size(), 1u) << where << "\n" << result.err;
        EXPECT_TRUE(absl::StrContains(Answer(result)[0], "give another --state-dir") ||
                    absl::StrContains(Answer(result)[0], "choose another directory"))
            << where << "\n"
            << Answer(result)[0];
      }
      std::filesystem::remove(cluster_.directory() + "/damaged.log");
    }
  }
  EXPECT_GE(num_refused, 8);
}

// Nobody says that it is a copy, no agent is there to tell, and it lacks no job.
TEST_F(BadStateTest, AnOlderCopyOfTheLogIsRefused) {
  cluster_.StartDriver();
  cluster_.Submit("job");
  cluster_.StopDriver();
  const std::string saved = cluster_.directory() + "/saved";
  std::filesystem::copy(log(), saved, std::filesystem::copy_options::recursive);
  cluster_.StartDriver();
  EXPECT_EQ(cluster_.Megascale({"cancel", "job"}).exit_code, 0);
  cluster_.StopDriver();
  std::filesystem::rename(log(), log() + ".newest");
  std::filesystem::copy(saved, log(), std::filesystem::copy_options::recursive);
  ExpectRefused(Driver(listen(), cluster_.state_directory()), 1,
                "were acknowledged (" + count() + "): its end was damaged, or it is an older copy");
  std::filesystem::remove_all(log());
  std::filesystem::rename(log() + ".newest", log());
  cluster_.StartDriver();
  EXPECT_EQ(cluster_.Status("job").state(), control::v1::JOB_STATE_CANCELLED);
}

TEST_F(BadStateTest, ALogThatIsGoneIsNoEmptyDriver) {
  cluster_.StartDriver();
  cluster_.Submit("job");
  cluster_.StopDriver();
  std::filesystem::remove_all(log());
  ExpectRefused(Driver(listen(), cluster_.state_directory()), 1,
                absl::StrCat(log(), ": knows nothing of job job, whose folder is ",
                             cluster_.state_directory(), "/jobs/job"));
}

}  // namespace
}  // namespace megascale::e2e
