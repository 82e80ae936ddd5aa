// Jobs whose ranks find each other over a real redis-server: the same bits as over the driver, and
// a clear reason and another attempt when the server is away in any phase.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"
#include "runtime/base/tls/testing/test_certificates.h"
#include "runtime/comm/store/redis/testing/test_redis_server.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;
using testing::HasSubstr;

constexpr char kPassword[] = "a-s3cret-of-the-store";
constexpr size_t kFileBytesMax = 64 << 20;

// Two agents with two slots each and a store with a password; and, to compare with, the same job
// over the driver's store without faults.
class RedisTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    Cluster cluster;
    cluster.StartDriver();
    cluster.StartAgent(0, 4);
    cluster.Submit("calm");
    ASSERT_EQ(cluster.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
    digest_ = new std::string(cluster.Digest("calm"));
    losses_ = new std::vector<std::string>(cluster.LossLog("calm"));
  }
  static void TearDownTestSuite() {
    delete digest_;
    delete losses_;
  }

  RedisTest() {
    const std::string path = server_.directory() + "/passwords";
    EXPECT_EQ(base::WriteFileDurably(path, absl::StrCat(server_.url(), " ", kPassword, "\n")),
              absl::OkStatus());
    EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
    ::setenv("MEGASCALE_STORE_PASSWORDS", path.c_str(), 1);
  }
  ~RedisTest() override { ::unsetenv("MEGASCALE_STORE_PASSWORDS"); }

  void StartTwoAgents() {
    cluster_.StartDriver();
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
  }
  std::string Store() const { return "store=" + server_.url(); }

  // Waits until the job recovers for this reason.
  std::string AwaitReason(const std::string& reason) const {
    Job job;
    EXPECT_TRUE(WaitUntil(
        [&] {
          job = cluster_.Status("job");
          return job.state() == control::v1::JOB_STATE_RECOVERING && job.reason() == reason;
        },
        60))
        << job.DebugString();
    return job.message();
  }
  void ExpectTheSameBits() const {
    ASSERT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
    EXPECT_EQ(cluster_.Digest("job"), *digest_);
    EXPECT_EQ(cluster_.LossLog("job"), *losses_);
  }

  static std::string* digest_;
  static std::vector<std::string>* losses_;
  comm::TestRedisServer server_{{.password = kPassword}};
  Cluster cluster_;
};
std::string* RedisTest::digest_ = nullptr;
std::vector<std::string>* RedisTest::losses_ = nullptr;

TEST_F(RedisTest, TheBitsAreThoseOfTheDriversStoreAndTheServerIsNotMissedOnceRanksHaveMet) {
  StartTwoAgents();
  cluster_.Submit("job", {Store()});
  ASSERT_TRUE(cluster_.WaitForStep("job", 20));
  EXPECT_THAT(server_.Command({"KEYS", "megascale:{job:1:*}:v:address/*"}), HasSubstr("address/"));
  server_.Signal(SIGKILL);
  ExpectTheSameBits();
  EXPECT_EQ(cluster_.Status("job").attempt(), 1);
  EXPECT_THAT(cluster_.Megascale({"status", "job", "-o", "json"}).out, HasSubstr(server_.url()));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_.directory())) {
    if (!entry.is_regular_file()) continue;
    const auto text = base::ReadFile(entry.path().string(), kFileBytesMax);
    EXPECT_FALSE(text.ok() && absl::StrContains(*text, kPassword))
        << entry.path() << " holds the password";
  }
}

// Returns the addresses of both ends of every TCP connection and listening socket of a process.
std::vector<std::string> TcpSocketsOf(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), error)) {
    const std::string target = std::filesystem::read_symlink(entry, error).string();
    if (absl::StartsWith(target, "socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::vector<std::string> sockets;
  const std::string table = base::ReadFile("/proc/net/tcp", 16 << 20).value_or("");
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 10 || inodes.count(words[9]) == 0) continue;
    sockets.push_back(absl::StrCat(words[1].substr(0, 8), " ", words[2].substr(0, 8)));
  }
  return sockets;
}

// The agents' flags reach the connection to the store and the workers' sockets.
TEST_F(RedisTest, AJobMeetsOverTlsAndItsTensorsUseTheInterfaceThatTheAgentsWereGiven) {
  base::TestAuthority authority(server_.directory(), "ca");
  const auto certificate = authority.Issue("server", "IP:127.0.0.1");
  const auto ours = authority.Issue("agent", "DNS:agent");
  const comm::TestRedisServer server({.has_tls = true,
                                      .ca_file = authority.certificate_file(),
                                      .certificate_file = certificate.certificate_file,
                                      .key_file = certificate.key_file});
  cluster_.SetAgentFlags({"--store-ca", authority.certificate_file(), "--store-cert",
                          ours.certificate_file, "--store-key", ours.key_file, "--interface",
                          "127.0.0.2"});
  StartTwoAgents();
  ASSERT_TRUE(absl::StartsWith(server.url(), "rediss://"));
  cluster_.Submit("job", {"store=" + server.url()});
  ASSERT_TRUE(cluster_.WaitForStep("job", 20));
  for (const char* rank : {"2", "3"}) {  // who is connected to by ranks 0 and 1
    const std::string key =
        server.Command({"KEYS", absl::StrCat("megascale:{job:1:*}:v:address/", rank)});
    EXPECT_THAT(server.Command({"GET", std::string(absl::StripAsciiWhitespace(key))}),
                testing::StartsWith("tcp 127.0.0.2 "));
  }
  const Job job = cluster_.Status("job");
  ASSERT_EQ(job.ranks_size(), 4);
  for (const auto& rank : job.ranks()) {
    EXPECT_THAT(TcpSocketsOf(rank.status().pid()), testing::Not(testing::IsEmpty()));
    EXPECT_THAT(TcpSocketsOf(rank.status().pid()), testing::Each(HasSubstr("0200007F")));
  }
  ExpectTheSameBits();
}

TEST_F(RedisTest, AServerThatStandsStillBeforeTheStartIsNamedAndWaitedFor) {
  StartTwoAgents();
  server_.Signal(SIGSTOP);
  cluster_.Submit("job", {Store()});
  EXPECT_THAT(AwaitReason("StoreUnavailable"),
              HasSubstr(absl::StrCat("store ", server_.url(),
                                     ": takes connections but does not answer within 2s; start the "
                                     "server, or let the job's `store` name one that runs")));
  server_.Signal(SIGCONT);
  ExpectTheSameBits();
  EXPECT_GT(cluster_.Status("job").attempt(), 1);
}

TEST_F(RedisTest, AServerThatIsGoneWhileRanksLookForEachOtherEndsTheAttemptAndNotTheJob) {
  StartTwoAgents();
  cluster_.Submit("job", {Store()});
  ASSERT_TRUE(cluster_.WaitForStep("job", 10));
  server_.Signal(SIGTERM);
  const Job before = cluster_.Status("job");
  ASSERT_EQ(before.ranks_size(), 4);
  ::kill(before.ranks(0).status().pid(), SIGKILL);  // the next attempt has no preflight
  EXPECT_THAT(AwaitReason("StoreUnavailable"),
              HasSubstr(absl::StrCat("store ", server_.url(), ": connection refused; start ")));
  server_.Start();
  ExpectTheSameBits();
  EXPECT_GT(cluster_.Status("job").attempt(), before.attempt() + 1);
}

TEST_F(RedisTest, AServerThatNeverComesOrRefusesUsEndsTheJobWithWhatToDo) {
  server_.Signal(SIGKILL);
  StartTwoAgents();
  cluster_.Submit("job", {Store(), "fault.max_restarts_without_progress=1"});
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_FAILED);
  EXPECT_EQ(cluster_.Status("job").reason(), "StoreUnavailable");
  EXPECT_THAT(cluster_.Status("job").message(),
              testing::MatchesRegex(absl::StrCat("gave up after 2 attempts in a row without "
                                                 "progress; the last: node n[01]: store ",
                                                 server_.url(), ": connection refused; .*")));
  server_.Start();
  cluster_.Submit("stranger", {absl::StrCat("store=", server_.unix_url())});
  EXPECT_EQ(cluster_.WaitForEnd("stranger"), control::v1::JOB_STATE_FAILED);
  EXPECT_EQ(cluster_.Status("stranger").reason(), "Refused");
  EXPECT_THAT(cluster_.Status("stranger").message(), HasSubstr("NOAUTH"));
}

}  // namespace
}  // namespace megascale::e2e
