// The contract of a rendezvous store: one suite for the embedded store, and for the store on a real
// Redis server over TCP, over a Unix socket, and over TLS with a password.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/tls/testing/test_certificates.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/redis/redis_store.h"
#include "runtime/comm/store/redis/testing/test_redis_server.h"
#include "runtime/comm/store/testing/test_store_requests.h"

namespace megascale::comm {
namespace {

using megascale::agent::v1::StoreReply;
using megascale::agent::v1::StoreRequest;
using Reply = std::function<void(const StoreReply&)>;

constexpr absl::Duration kDeadline = absl::Seconds(30);

class Subject {
 public:
  virtual ~Subject() = default;
  virtual void Handle(const StoreRequest& request, Reply reply) = 0;
  // Drives the store until `condition` is true, or until it can do nothing more.
  virtual void RunUntil(const std::function<bool()>& condition) = 0;
};

class EmbeddedSubject : public Subject {
 public:
  void Handle(const StoreRequest& request, Reply reply) override {
    store_.Handle(request, std::move(reply));
  }
  void RunUntil(const std::function<bool()>& condition) override {}

 private:
  EmbeddedStore store_;
};

// Requests go over two connections in turn, as from two machines.
class RedisSubject : public Subject {
 public:
  explicit RedisSubject(const std::string& kind) {
    char directory[] = "/tmp/ms-conformance-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
    TestRedisServerOptions server;
    RedisStoreOptions options;
    if (kind == "RedisTlsPassword") {
      server.has_tls = true;
      server.password = "a s3cret";
      base::TestAuthority authority(directory_, "ca");
      const auto ours = authority.Issue("server", "IP:127.0.0.1");
      server.ca_file = options.tls.ca_file = authority.certificate_file();
      server.certificate_file = ours.certificate_file;
      server.key_file = ours.key_file;
      const auto client = authority.Issue("client", "DNS:client");
      options.tls.certificate_file = client.certificate_file;
      options.tls.key_file = client.key_file;
    }
    server_ = std::make_unique<TestRedisServer>(server);
    options.address = server_->address();
    if (kind == "RedisUnix") options.address = ParseRedisAddress(server_->unix_url()).value();
    if (!server.password.empty()) {
      options.password_file = directory_ + "/passwords";
      const std::string line = absl::StrCat(server_->url(), " ", server.password, "\n");
      EXPECT_EQ(base::WriteFileDurably(options.password_file, line), absl::OkStatus());
      EXPECT_EQ(::chmod(options.password_file.c_str(), 0600), 0);
    }
    for (auto& store : stores_) store = std::make_unique<RedisStore>(options);
  }
  ~RedisSubject() override { std::filesystem::remove_all(directory_); }

  void Handle(const StoreRequest& request, Reply reply) override {
    const std::string scope = absl::StrCat(request.job_id(), ":", request.attempt());
    for (const auto& store : stores_) store->Forget(request.request_id());
    stores_[++num_requests_ % 2]->Handle(scope, request, std::move(reply), Now());
  }

  void RunUntil(const std::function<bool()>& condition) override {
    const absl::Duration deadline = Now() + kDeadline;
    while (!condition() && Now() < deadline) {
      std::vector<pollfd> entries;
      absl::Duration wake = deadline;
      for (const auto& store : stores_) {
        entries.push_back({store->fd(), store->events(), 0});
        wake = std::min(wake, store->NextWake());
      }
      ::poll(entries.data(), entries.size(), base::PollMilliseconds(wake - Now()));
      for (const auto& store : stores_) store->Drive(Now());
    }
  }

 private:
  static absl::Duration Now() { return base::RealClock().Monotonic(); }

  std::string directory_;
  std::unique_ptr<TestRedisServer> server_;
  std::unique_ptr<RedisStore> stores_[2];
  size_t num_requests_ = 0;
};

absl::StatusCode CodeOf(const StoreReply& reply) {
  return static_cast<absl::StatusCode>(reply.code());
}

class StoreConformanceTest : public ::testing::TestWithParam<std::string> {
 protected:
  StoreConformanceTest() {
    if (GetParam() == "Embedded") {
      subject_ = std::make_unique<EmbeddedSubject>();
    } else {
      subject_ = std::make_unique<RedisSubject>(GetParam());
    }
  }

  Reply Collect(std::vector<StoreReply>* replies) {
    return [replies](const StoreReply& reply) { replies->push_back(reply); };
  }
  void Await(const std::vector<StoreReply>& replies, size_t count) {
    subject_->RunUntil([&] { return replies.size() >= count; });
    ASSERT_EQ(replies.size(), count);
  }
  StoreReply Ask(const StoreRequest& request) {
    std::vector<StoreReply> replies;
    subject_->Handle(request, Collect(&replies));
    subject_->RunUntil([&] { return !replies.empty(); });
    EXPECT_EQ(replies.size(), 1u);
    if (replies.empty()) return {};
    EXPECT_EQ(replies[0].request_id(), request.request_id());
    return replies[0];
  }

  std::unique_ptr<Subject> subject_;
};

TEST_P(StoreConformanceTest, SetIsSeenByGetWithinItsAttemptOnly) {
  StoreRequest get = Make(StoreRequest::OPERATION_GET, "get", "k");
  const StoreReply none = Ask(get);
  EXPECT_EQ(CodeOf(none), absl::StatusCode::kNotFound);
  EXPECT_EQ(none.message(), "the store has no key k");
  EXPECT_EQ(Ask(SetOf("k", "one")).code(), 0);
  EXPECT_EQ(Ask(SetOf("k", "two")).code(), 0);
  EXPECT_EQ(Ask(get).value(), "two");
  get.set_attempt(2);
  EXPECT_EQ(CodeOf(Ask(get)), absl::StatusCode::kNotFound);
  get.set_attempt(1);
  get.set_job_id("other");
  EXPECT_EQ(CodeOf(Ask(get)), absl::StatusCode::kNotFound);
}

TEST_P(StoreConformanceTest, KeysAndValuesAreBytes) {
  const std::string bytes("\0\r\n$3\r\n{}*\xff", 12);
  EXPECT_EQ(Ask(SetOf("a{b}c d\n", bytes)).code(), 0);
  EXPECT_EQ(Ask(Make(StoreRequest::OPERATION_GET, "g", "a{b}c d\n")).value(), bytes);
  EXPECT_EQ(Ask(Make(StoreRequest::OPERATION_WAIT, "w", "a{b}c d\n")).value(), bytes);
  EXPECT_EQ(Ask(SetOf("", "")).code(), 0);
  const StoreReply empty = Ask(Make(StoreRequest::OPERATION_GET, "g", ""));
  EXPECT_EQ(empty.code(), 0);
  EXPECT_EQ(empty.value(), "");
  const std::string large(1 << 20, 'x');
  EXPECT_EQ(Ask(SetOf("large", large)).code(), 0);
  EXPECT_TRUE(Ask(Make(StoreRequest::OPERATION_WAIT, "w", "large")).value() == large);
}

TEST_P(StoreConformanceTest, WaitIsAnsweredWhenTheKeyComes) {
  std::vector<StoreReply> first;
  std::vector<StoreReply> second;
  subject_->Handle(Make(StoreRequest::OPERATION_WAIT, "w1", "k"), Collect(&first));
  subject_->Handle(Make(StoreRequest::OPERATION_WAIT, "w2", "k"), Collect(&second));
  EXPECT_EQ(Ask(SetOf("other", "x")).code(), 0);
  EXPECT_EQ(first.size() + second.size(), 0u);
  EXPECT_EQ(Ask(SetOf("k", "here")).code(), 0);
  Await(first, 1);
  Await(second, 1);
  EXPECT_EQ(first[0].value(), "here");
  EXPECT_EQ(first[0].request_id(), "w1");
  EXPECT_EQ(Ask(Make(StoreRequest::OPERATION_WAIT, "w3", "k")).value(), "here");
  EXPECT_EQ(Ask(SetOf("k", "again")).code(), 0);
  EXPECT_EQ(first.size() + second.size(), 2u);
}

TEST_P(StoreConformanceTest, ManyWaitsAreAnsweredEachWithItsOwnKey) {
  constexpr int kCount = 100;
  std::vector<StoreReply> replies;
  for (int i = 0; i < kCount; ++i) {
    subject_->Handle(Make(StoreRequest::OPERATION_WAIT, absl::StrCat("w", i), absl::StrCat("k", i)),
                     Collect(&replies));
  }
  for (int i = kCount - 1; i >= 0; --i) {
    EXPECT_EQ(Ask(SetOf(absl::StrCat("k", i), absl::StrCat("v", i))).code(), 0);
  }
  Await(replies, kCount);
  std::vector<std::string> got;
  std::vector<std::string> expected;
  for (int i = 0; i < kCount; ++i) {
    const StoreReply& reply = replies[static_cast<size_t>(i)];
    got.push_back(absl::StrCat(reply.request_id(), "=", reply.value()));
    expected.push_back(absl::StrCat("w", i, "=v", i));
  }
  EXPECT_THAT(got, testing::UnorderedElementsAreArray(expected));
}

TEST_P(StoreConformanceTest, ARepeatedWaitReplacesTheOneBefore) {
  std::vector<StoreReply> lost;
  std::vector<StoreReply> kept;
  subject_->Handle(Make(StoreRequest::OPERATION_WAIT, "w", "k"), Collect(&lost));
  subject_->Handle(Make(StoreRequest::OPERATION_WAIT, "w", "k"), Collect(&kept));
  EXPECT_EQ(Ask(SetOf("k", "v")).code(), 0);
  Await(kept, 1);
  EXPECT_EQ(lost.size(), 0u);
}

TEST_P(StoreConformanceTest, AWaitForManyKeysIsAnsweredOnceWithAllValuesInItsOrder) {
  std::vector<StoreReply> replies;
  std::vector<std::string> keys;
  for (int i = 0; i < 100; ++i) keys.push_back(absl::StrCat("k", (i * 37) % 100));
  keys.push_back("k5");  // twice
  subject_->Handle(WaitOf("w", keys), Collect(&replies));
  for (int i = 99; i >= 0; --i) {
    EXPECT_EQ(replies.size(), 0u);
    EXPECT_EQ(Ask(SetOf(absl::StrCat("k", i), absl::StrCat("v", i))).code(), 0);
  }
  Await(replies, 1);
  ASSERT_EQ(replies[0].code(), 0) << replies[0].message();
  ASSERT_EQ(replies[0].values_size(), 101);
  for (int i = 0; i < 101; ++i) EXPECT_EQ(replies[0].values(i), "v" + keys[i].substr(1));
  EXPECT_EQ(Ask(WaitOf("w2", {"k7"})).values(0), "v7") << "all are there already";
}

TEST_P(StoreConformanceTest, ValuesThatFitNoReplyAreRefused) {
  std::vector<std::string> keys;
  for (int i = 0; i < 5; ++i) {
    keys.push_back(absl::StrCat("k", i));
    EXPECT_EQ(Ask(SetOf(keys.back(), std::string(1 << 20, 'x'))).code(), 0);
  }
  const StoreReply reply = Ask(WaitOf("w", keys));
  EXPECT_EQ(CodeOf(reply), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(reply.message(),
            "the values of 5 keys take 5242880 bytes, and a reply at most 4194304; ask for fewer");
}

TEST_P(StoreConformanceTest, OnlyAWaitHasManyKeys) {
  StoreRequest request = WaitOf("w", {"a", "b"});
  request.set_operation(StoreRequest::OPERATION_GET);
  EXPECT_EQ(CodeOf(Ask(request)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf(Ask(WaitOf("w", {"a", std::string(1025, 'k')}))),
            absl::StatusCode::kResourceExhausted);
}

TEST_P(StoreConformanceTest, AnAdditionIsDoneOncePerRequestId) {
  EXPECT_EQ(Ask(AddOf("a", "n", 5)).sum(), 5);
  EXPECT_EQ(Ask(AddOf("b", "n", -2)).sum(), 3);
  EXPECT_EQ(Ask(AddOf("a", "n", 5)).sum(), 5) << "answers as the first did";
  EXPECT_EQ(Ask(Make(StoreRequest::OPERATION_GET, "g", "n")).value(), "3");
  EXPECT_EQ(Ask(SetOf("n", "10")).code(), 0);
  EXPECT_EQ(Ask(AddOf("c", "n", 1)).sum(), 11);
  std::vector<StoreReply> waiting;
  subject_->Handle(Make(StoreRequest::OPERATION_WAIT, "w", "m"), Collect(&waiting));
  EXPECT_EQ(Ask(AddOf("d", "m", 1)).sum(), 1);
  Await(waiting, 1);
  EXPECT_EQ(waiting[0].value(), "1");
}

TEST_P(StoreConformanceTest, SumsHave64BitsAndNoMore) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Ask(AddOf("a", "n", kMost - 1)).sum(), kMost - 1);
  EXPECT_EQ(Ask(AddOf("b", "n", 1)).sum(), kMost);
  EXPECT_EQ(CodeOf(Ask(AddOf("c", "n", 1))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(Make(StoreRequest::OPERATION_GET, "g", "n")).value(), absl::StrCat(kMost));
  EXPECT_EQ(Ask(SetOf("text", "x")).code(), 0);
  EXPECT_EQ(CodeOf(Ask(AddOf("d", "text", 1))), absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreConformanceTest, WhatIsTooLargeOrUnknownIsRefused) {
  const auto exhausted = absl::StatusCode::kResourceExhausted;
  EXPECT_EQ(CodeOf(Ask(SetOf(std::string(1025, 'k'), "v"))), exhausted);
  EXPECT_EQ(CodeOf(Ask(SetOf("k", std::string((1 << 20) + 1, 'v')))), exhausted);
  EXPECT_EQ(CodeOf(Ask(Make(StoreRequest::OPERATION_UNSPECIFIED, "r", "k"))),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformanceTest,
                         ::testing::Values("Embedded", "Redis", "RedisUnix", "RedisTlsPassword"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace megascale::comm
