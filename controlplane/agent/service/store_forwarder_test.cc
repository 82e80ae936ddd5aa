#include "controlplane/agent/service/store_forwarder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/clock.h"
#include "runtime/comm/store/redis/testing/test_redis_server.h"

namespace megascale::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using v1::StoreRequest;

constexpr absl::Duration kDeadline = absl::Seconds(30);

absl::Duration Now() { return base::RealClock().Monotonic(); }

class StoreForwarderTest : public ::testing::Test {
 protected:
  v1::DesiredJob JobWith(const std::string& store, const std::string& secret = "s") const {
    v1::DesiredJob job;
    job.set_job_id("j");
    job.set_attempt(3);
    job.set_secret(secret);
    job.mutable_spec()->set_store(store);
    return job;
  }

  void Ask(int64_t process_id, StoreRequest::Operation operation, const std::string& key,
           const std::string& value = "") {
    StoreRequest request;
    request.set_job_id("j");
    request.set_attempt(3);
    request.set_operation(operation);
    request.set_request_id(absl::StrCat("rank/", key));
    request.set_key(key);
    request.set_value(value);
    forwarder_.OnRequest(process_id, request, Now());
    forwarder_.FlushToDriver();
  }

  void AskMany(int64_t process_id, const std::vector<std::string>& keys) {
    StoreRequest request;
    request.set_job_id("j");
    request.set_attempt(3);
    request.set_operation(StoreRequest::OPERATION_WAIT);
    request.set_request_id(absl::StrCat("rank-", process_id));
    for (const std::string& key : keys) request.add_keys(key);
    forwarder_.OnRequest(process_id, request, Now());
    forwarder_.FlushToDriver();
  }
  void Reply(const std::string& request_id, const std::vector<std::string>& values) {
    v1::StoreReply reply;
    reply.set_request_id(request_id);
    for (const std::string& value : values) reply.add_values(value);
    if (values.size() == 1) reply.set_value(values[0]);
    forwarder_.OnDriverReply(reply);
  }

  void RunUntil(const std::function<bool()>& condition) {
    const absl::Duration deadline = Now() + kDeadline;
    while (!condition()) {
      ASSERT_LT(Now(), deadline);
      std::vector<pollfd> entries;
      forwarder_.AddPollEntries(&entries);
      const absl::Duration wake = std::min(forwarder_.NextWake(), deadline);
      ::poll(entries.data(), entries.size(), base::PollMilliseconds(wake - Now()));
      forwarder_.Drive(Now());
    }
  }
  std::vector<std::string> TakeReplies(size_t count) {
    RunUntil([&] { return replies_.size() >= count; });
    return std::exchange(replies_, {});
  }
  std::vector<std::string> TakeForwarded() { return std::exchange(forwarded_, {}); }

  // "process: request id = value", or "… ! code".
  std::vector<std::string> replies_;
  std::vector<std::string> forwarded_;  // request ids that the driver got
  StoreForwarder forwarder_{
      {},
      [this](v1::AgentUp message) {
        for (const auto& request : message.store().requests()) {
          forwarded_.push_back(request.request_id());
        }
      },
      [this](int64_t process_id, const v1::StoreReply& reply) {
        replies_.push_back(
            absl::StrCat(process_id, ": ", reply.request_id(), reply.code() == 0 ? " = " : " ! ",
                         reply.code() == 0 ? reply.value() : absl::StrCat(reply.code()),
                         absl::StrJoin(reply.values(), " ")));
      }};
};

TEST_F(StoreForwarderTest, AJobWithoutAStoreAsksTheDriver) {
  forwarder_.OnStarted(7, JobWith(""));
  Ask(7, StoreRequest::OPERATION_SET, "a", "1");
  Ask(7, StoreRequest::OPERATION_WAIT, "b");
  EXPECT_THAT(TakeForwarded(), ElementsAre("7/rank/a", "7/rank/b"));
  v1::StoreReply reply;
  reply.set_request_id("7/rank/a");
  forwarder_.OnDriverReply(reply);
  forwarder_.OnDriverReply(reply);
  EXPECT_THAT(TakeReplies(1), ElementsAre("7: rank/a = ")) << "once";
  forwarder_.OnStreamOpened();
  forwarder_.FlushToDriver();
  EXPECT_THAT(TakeForwarded(), ElementsAre("7/rank/a", "7/rank/b"))
      << "what was written and what waits";
  EXPECT_EQ(forwarder_.OnEnded(7), "");
  forwarder_.OnStreamOpened();
  forwarder_.FlushToDriver();
  EXPECT_THAT(TakeForwarded(), IsEmpty());
}

TEST_F(StoreForwarderTest, WhatSeveralProcessesWaitForIsAskedOnce) {
  forwarder_.SetDriverTakesManyKeys(true);
  for (int64_t process : {7, 8, 9}) forwarder_.OnStarted(process, JobWith(""));
  AskMany(7, {"a", "b"});
  AskMany(8, {"a", "b"});
  AskMany(8, {"a", "b"});
  AskMany(9, {"a", "c"});
  EXPECT_THAT(TakeForwarded(), ElementsAre("7/rank-7", "9/rank-9"));
  forwarder_.OnEnded(7);
  Reply("7/rank-7", {"1", "2"});
  EXPECT_THAT(TakeReplies(1), ElementsAre("8: rank-8 = 1 2")) << "its first asker has ended";
  AskMany(8, {"a", "b"});
  EXPECT_THAT(TakeForwarded(), ElementsAre("8/rank-8")) << "nothing is kept";
  forwarder_.OnEnded(8);
  Reply("8/rank-8", {"1", "2"});
  Reply("9/rank-9", {"1", "3"});
  EXPECT_THAT(TakeReplies(1), ElementsAre("9: rank-9 = 1 3"));
}

TEST_F(StoreForwarderTest, AnOlderDriverIsAskedForOneKeyAtATime) {
  forwarder_.OnStarted(7, JobWith(""));
  AskMany(7, {"a", "b"});
  EXPECT_THAT(TakeForwarded(), ElementsAre("7/rank-7#0", "7/rank-7#1"));
  Reply("7/rank-7#1", {"2"});
  Reply("7/rank-7#1", {"2"});
  Reply("7/rank-7#2", {"3"});
  Reply("7/rank-7", {"1", "2"});
  EXPECT_THAT(replies_, IsEmpty());
  forwarder_.SetDriverTakesManyKeys(true);
  forwarder_.OnStreamOpened();
  forwarder_.FlushToDriver();
  EXPECT_THAT(TakeForwarded(), ElementsAre("7/rank-7")) << "it was upgraded meanwhile";
  Reply("7/rank-7#0", {"1"});
  EXPECT_THAT(replies_, IsEmpty());
  Reply("7/rank-7", {"1", "2"});
  EXPECT_THAT(TakeReplies(1), ElementsAre("7: rank-7 = 1 2"));
}

TEST_F(StoreForwarderTest, ProcessesOfOneAttemptMeetOnRedisAndOthersDoNot) {
  comm::TestRedisServer server;
  forwarder_.OnStarted(1, JobWith(server.url()));
  forwarder_.OnStarted(2, JobWith(server.url()));
  forwarder_.OnStarted(3, JobWith(server.url(), "of another driver"));
  Ask(1, StoreRequest::OPERATION_WAIT, "a");
  Ask(3, StoreRequest::OPERATION_WAIT, "a");
  Ask(2, StoreRequest::OPERATION_SET, "a", "here");
  EXPECT_THAT(TakeReplies(2), testing::UnorderedElementsAre("1: rank/a = here", "2: rank/a = "));
  AskMany(1, {"a", "b"});
  AskMany(2, {"a", "b"});
  Ask(2, StoreRequest::OPERATION_SET, "b", "there");
  EXPECT_THAT(TakeReplies(3),
              testing::UnorderedElementsAre("1: rank-1 = here there", "2: rank-2 = here there",
                                            "2: rank/b = "));
  Ask(3, StoreRequest::OPERATION_GET, "a");
  EXPECT_THAT(TakeReplies(1), ElementsAre("3: rank/a ! 5"));
  EXPECT_EQ(forwarder_.OnEnded(3), "") << "what is not there is no failure of the store";
  EXPECT_THAT(TakeForwarded(), IsEmpty());
}

TEST_F(StoreForwarderTest, WhatTheServerFailedToServeIsKnownWhenTheProcessEnds) {
  comm::TestRedisServer server({.more = {"--maxmemory", "1"}});
  forwarder_.OnStarted(1, JobWith(server.url()));
  Ask(1, StoreRequest::OPERATION_SET, "a", "1");
  EXPECT_THAT(TakeReplies(1), ElementsAre("1: rank/a ! 8"));
  EXPECT_THAT(forwarder_.OnEnded(1),
              HasSubstr(absl::StrCat("store ", server.url(), ": answers \"OOM ")));
}

TEST_F(StoreForwarderTest, ACheckWritesAddsAndReads) {
  comm::TestRedisServer server;
  const auto check = [&](const std::string& url) {
    std::vector<StoreCheck> checks;
    forwarder_.Check("n0", JobWith(url), Now());
    RunUntil([&] {
      checks = forwarder_.TakeChecks();
      return !checks.empty();
    });
    EXPECT_EQ(checks.size(), 1u);
    EXPECT_EQ(checks[0].job_id, "j");
    EXPECT_EQ(checks[0].attempt, 3);
    return checks[0].outcome;
  };
  EXPECT_EQ(check(server.url()), absl::OkStatus());
  EXPECT_EQ(server.Command({"ACL", "SETUSER", "setter", "on", "nopass", "~*", "+set", "+ping"}),
            "OK");
  const absl::Status refused =
      check(absl::StrCat("redis://setter@", server.url().substr(std::string("redis://").size())));
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("\"NOPERM "));
}

}  // namespace
}  // namespace megascale::agent
