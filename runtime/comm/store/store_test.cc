// redis/conformance_test.cc tests the behaviour that both stores share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/link_store.h"
#include "runtime/comm/store/testing/test_store_requests.h"

namespace megascale::comm {
namespace {

using megascale::agent::v1::StoreReply;
using megascale::agent::v1::StoreRequest;

constexpr absl::Duration kDeadline = absl::Seconds(30);

// The replies that have come so far, in order.
class Replies {
 public:
  EmbeddedStore::Reply Collect() {
    return [this](const StoreReply& reply) { all_.push_back(reply); };
  }
  size_t size() const { return all_.size(); }
  const StoreReply& last() const { return all_.back(); }
  absl::StatusCode code() const { return static_cast<absl::StatusCode>(last().code()); }

 private:
  std::vector<StoreReply> all_;
};

StoreReply Ask(EmbeddedStore& store, const StoreRequest& request) {
  Replies replies;
  store.Handle(request, replies.Collect());
  EXPECT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies.last().request_id(), request.request_id());
  return replies.last();
}

absl::StatusCode CodeOf(const StoreReply& reply) {
  return static_cast<absl::StatusCode>(reply.code());
}

TEST(EmbeddedStoreTest, ADroppedAttemptAnswersItsWaitsAndIsRefusedLater) {
  EmbeddedStore store;
  Replies waiting;
  store.Handle(Make(StoreRequest::OPERATION_WAIT, "w", "k"), waiting.Collect());
  StoreRequest next = SetOf("k", "of attempt 2");
  next.set_attempt(2);
  Ask(store, next);
  store.DropAttemptsBefore("job", 2);
  EXPECT_EQ(waiting.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(CodeOf(Ask(store, SetOf("k", "late"))), absl::StatusCode::kAborted);
  next.set_operation(StoreRequest::OPERATION_GET);
  EXPECT_EQ(Ask(store, next).value(), "of attempt 2");
  store.Handle(Make(StoreRequest::OPERATION_WAIT, "w", "never"), waiting.Collect());
  store.DropJob("job");
  EXPECT_EQ(waiting.size(), 2u);
  EXPECT_EQ(CodeOf(Ask(store, next)), absl::StatusCode::kNotFound);
}

TEST(EmbeddedStoreTest, ARepeatedWaitForOtherKeysIsRefused) {
  EmbeddedStore store;
  Replies waiting;
  store.Handle(WaitOf("w", {"a", "b"}), waiting.Collect());
  EXPECT_EQ(CodeOf(Ask(store, WaitOf("w", {"a"}))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Ask(store, Make(StoreRequest::OPERATION_WAIT, "w", "a"))),
            absl::StatusCode::kInvalidArgument);
  store.Handle(WaitOf("w", {"a", "b"}), waiting.Collect());
  Ask(store, SetOf("a", "1"));
  Ask(store, SetOf("b", "2"));
  EXPECT_EQ(waiting.size(), 1u);
}

// Returns the work of answering one of `num_waiters` ranks, each of which waits for two keys that
// nobody else waits for.
int64_t WorkBeside(int num_waiters) {
  EmbeddedStore store;
  Replies replies;
  for (int i = 0; i < num_waiters; ++i) {
    const std::string id = absl::StrCat(i);
    store.Handle(WaitOf("w" + id, {"a" + id, "b" + id}), replies.Collect());
  }
  return base::WorkOf([&] {
    store.Handle(WaitOf("one", {"a", "b"}), replies.Collect());
    store.Handle(SetOf("a", "1"), replies.Collect());
    store.Handle(SetOf("b", "2"), replies.Collect());
    EXPECT_EQ(replies.size(), 3u);
  });
}

TEST(EmbeddedStoreTest, TheWorkForARequestDoesNotGrowWithTheWaiters) {
  EXPECT_GT(WorkBeside(256), 0);
  EXPECT_EQ(WorkBeside(12288), WorkBeside(256));
}

TEST(EmbeddedStoreTest, AnsweredWaitsTakeNoMemory) {
  EmbeddedStore store({.attempt_bytes_max = 10'000});
  Replies waiting;
  // Returns how many waits for the key and one that is there the store takes.
  const auto fill = [&](const std::string& key) {
    size_t count = 0;
    const size_t before = waiting.size();
    while (waiting.size() == before) {
      store.Handle(WaitOf(absl::StrCat(key, count), {"there", key}), waiting.Collect());
      if (++count == 1000) break;
    }
    return count;
  };
  Ask(store, SetOf("there", "1"));
  const size_t count = fill("x");
  EXPECT_EQ(waiting.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(count, 10u);
  Ask(store, SetOf("x", "2"));
  EXPECT_EQ(waiting.size(), count);
  EXPECT_GE(fill("y"), count - 1) << "all but the entry of x is free again";
}

TEST(EmbeddedStoreTest, MemoryIsBounded) {
  EmbeddedStore store({.key_bytes_max = 10,
                       .value_bytes_max = 100,
                       .attempt_bytes_max = 1000,
                       .num_attempts_max = 2});
  const auto exhausted = absl::StatusCode::kResourceExhausted;
  EXPECT_EQ(CodeOf(Ask(store, SetOf("a key that is long", "v"))), exhausted);
  EXPECT_EQ(CodeOf(Ask(store, SetOf("k", std::string(101, 'x')))), exhausted);
  int num_taken = 0;
  while (CodeOf(Ask(store, SetOf(std::to_string(num_taken), "v"))) == absl::StatusCode::kOk) {
    ASSERT_LT(++num_taken, 100);
  }
  EXPECT_GT(num_taken, 3);
  EXPECT_EQ(CodeOf(Ask(store, SetOf("0", "w"))), absl::StatusCode::kOk) << "no larger than before";
  EXPECT_EQ(CodeOf(Ask(store, AddOf("a", "n", 1))), exhausted);
  Replies waiting;
  store.Handle(Make(StoreRequest::OPERATION_WAIT, "w", "x"), waiting.Collect());
  EXPECT_EQ(waiting.code(), exhausted);
  for (const int64_t attempt : {2, 3}) {
    StoreRequest set = SetOf("k", "v");
    set.set_attempt(attempt);
    EXPECT_EQ(CodeOf(Ask(store, set)), attempt == 2 ? absl::StatusCode::kOk : exhausted);
  }
}

// Two clients of one store, without a wire in between.
class LinkStoreTest : public ::testing::Test {
 protected:
  LinkStore& client(int i) { return i == 0 ? first_ : second_; }

  EmbeddedStore core_;
  LinkStore first_{{"job", 1, "rank-0", absl::Seconds(10)}, SenderFor(0)};
  LinkStore second_{{"job", 1, "rank-1", absl::Seconds(10)}, SenderFor(1)};

 private:
  LinkStore::SendRequest SenderFor(int i) {
    return [this, i](const StoreRequest& request) {
      core_.Handle(request, [this, i](const StoreReply& reply) { client(i).OnReply(reply); });
      return absl::OkStatus();
    };
  }
};

TEST_F(LinkStoreTest, ClientsMeetInTheStore) {
  std::thread other([&] { EXPECT_EQ(second_.Wait("k", absl::Seconds(10)).value(), "v"); });
  EXPECT_EQ(first_.Set("k", "v"), absl::OkStatus());
  other.join();
  EXPECT_EQ(second_.Get("k").value(), "v");
  EXPECT_EQ(second_.Get("none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(first_.Add("n", 2, "once").value(), 2);
  EXPECT_EQ(second_.Add("n", 2, "once").value(), 4) << "request ids are each client's own";
  EXPECT_EQ(first_.Add("n", 2, "once").value(), 2) << "done before";
}

TEST_F(LinkStoreTest, WaitGivesUpAtItsDeadlineAndIgnoresTheLateAnswer) {
  EXPECT_EQ(first_.Wait("k", absl::Milliseconds(10)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(second_.Set("k", "late"), absl::OkStatus());
  EXPECT_EQ(first_.Get("k").value(), "late");
}

TEST_F(LinkStoreTest, ADroppedAttemptAbortsWaiters) {
  std::thread driver([&] { core_.DropAttemptsBefore("job", 2); });
  EXPECT_EQ(first_.Wait("k", absl::Seconds(10)).status().code(), absl::StatusCode::kAborted);
  driver.join();
}

TEST(LinkStoreManyTest, WaitsForManyKeysWithOneRequest) {
  std::vector<StoreRequest> sent;
  LinkStore* store = nullptr;
  LinkStore made({.job_id = "job", .attempt = 1, .client = "rank-3"},
                 [&](const StoreRequest& request) {
                   sent.push_back(request);
                   StoreReply reply;
                   reply.set_request_id(request.request_id());
                   reply.set_value("of " + request.key());
                   if (request.key() == "lost") {
                     reply.set_code(static_cast<int>(absl::StatusCode::kNotFound));
                   }
                   for (const std::string& key : request.keys()) {
                     if (key != "lost") reply.add_values("of " + key);
                   }
                   store->OnReply(reply);
                   return absl::OkStatus();
                 });
  store = &made;
  EXPECT_THAT(store->WaitAll({"a", "b"}, kDeadline).value(), testing::ElementsAre("of a", "of b"));
  EXPECT_EQ(sent.size(), 1u);
  EXPECT_THAT(store->WaitAll({}, kDeadline).value(), testing::IsEmpty());
  EXPECT_EQ(store->WaitAll({"a", "lost"}, kDeadline).status(),
            absl::InternalError("store OPERATION_WAIT of 2 keys from a to lost: the answer has 1 "
                                "values and none for lost"));
  const auto values = store->GetAll({"a", "lost"});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(*values, testing::ElementsAre("of a", std::nullopt));
}

TEST(LinkStoreCloseTest, CloseWakesWaitersAndFailsLaterCalls) {
  LinkStore store({"job", 1, "rank-0", absl::Seconds(10)},
                  [](const StoreRequest&) { return absl::OkStatus(); });
  std::thread link([&] { store.Close(absl::UnavailableError("the agent is gone")); });
  EXPECT_EQ(store.Wait("k", absl::Seconds(10)).status().code(), absl::StatusCode::kUnavailable);
  link.join();
  EXPECT_EQ(store.Set("k", "v").code(), absl::StatusCode::kUnavailable);
}

TEST(LinkStoreCloseTest, AFailingSendIsTheCallsError) {
  LinkStore store({"job", 1, "rank-0", absl::Seconds(10)},
                  [](const StoreRequest&) { return absl::UnavailableError("broken link"); });
  EXPECT_EQ(store.Get("k").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace megascale::comm
