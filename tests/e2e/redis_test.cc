// Jobs whose ranks find each other over a real redis-server: the same bits as over the driver, and
// a clear reason and another attempt when the server is away in any phase.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/comm/redis/test_redis_server.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using control::v1::Job;
using testing::HasSubstr;

constexpr char kPassword[] = "a-s3cret-of-the-store";
constexpr size_t kFileBytesMax = 64 << 20;

// Two agents with two slots each and a store with a password.
class RedisTest : public ::testing::Test {
 protected:
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

  // Waits until the job says why it recovers.
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

  comm::TestRedisServer server_{{.password = kPassword}};
  Cluster cluster_;
};

TEST_F(RedisTest, TheBitsAreThoseOfTheDriversStoreAndTheServerIsNotMissedOnceRanksHaveMet) {
  StartTwoAgents();
  cluster_.Submit("calm");
  ASSERT_EQ(cluster_.WaitForEnd("calm"), control::v1::JOB_STATE_SUCCEEDED);
  cluster_.Submit("job", {Store()});
  ASSERT_TRUE(cluster_.WaitForStep("job", 20));
  EXPECT_THAT(server_.Command({"KEYS", "megascale:{job:1:*}:v:address/*"}), HasSubstr("address/"));
  server_.Signal(SIGKILL);
  ASSERT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(cluster_.Status("job").attempt(), 1);
  EXPECT_EQ(cluster_.Digest("job"), cluster_.Digest("calm"));
  EXPECT_EQ(cluster_.LossLog("job"), cluster_.LossLog("calm"));
  EXPECT_THAT(cluster_.Megascale({"status", "job", "-o", "json"}).out, HasSubstr(server_.url()));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_.directory())) {
    if (!entry.is_regular_file()) continue;
    const auto text = base::ReadFile(entry.path().string(), kFileBytesMax);
    EXPECT_FALSE(text.ok() && absl::StrContains(*text, kPassword))
        << entry.path() << " holds the password";
  }
}

TEST_F(RedisTest, AServerThatStandsStillBeforeTheStartIsNamedAndWaitedFor) {
  StartTwoAgents();
  server_.Signal(SIGSTOP);
  cluster_.Submit("job", {Store(), "train.steps=5"});
  EXPECT_THAT(AwaitReason("StoreUnavailable"),
              HasSubstr(absl::StrCat("store ", server_.url(),
                                     ": takes connections but does not answer within 2s; start the "
                                     "server, or let the job's `store` name one that runs")));
  server_.Signal(SIGCONT);
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_GT(cluster_.Status("job").attempt(), 1);
}

TEST_F(RedisTest, AServerThatIsGoneWhileRanksLookForEachOtherEndsTheAttemptAndNotTheJob) {
  StartTwoAgents();
  cluster_.Submit("job", {Store(), "train.steps=60"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 10));
  server_.Signal(SIGTERM);
  const Job before = cluster_.Status("job");
  ASSERT_EQ(before.ranks_size(), 4);
  ::kill(before.ranks(0).status().pid(), SIGKILL);  // the next attempt has no preflight
  EXPECT_THAT(AwaitReason("StoreUnavailable"),
              HasSubstr(absl::StrCat("store ", server_.url(), ": connection refused; start ")));
  server_.Start();
  EXPECT_EQ(cluster_.WaitForEnd("job"), control::v1::JOB_STATE_SUCCEEDED);
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
