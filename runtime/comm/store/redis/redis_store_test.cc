// The store on real redis-server processes that are killed, stopped, full, replicas, unreachable,
// or behind passwords and certificates.
#include "runtime/comm/store/redis/redis_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/tls/testing/test_certificates.h"
#include "runtime/comm/store/redis/testing/test_redis_server.h"

namespace megascale::comm {
namespace {

using megascale::agent::v1::StoreReply;
using megascale::agent::v1::StoreRequest;
using testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(30);
constexpr char kStartIt[] = "; start the server, or let the job's `store` name one that runs";

absl::Duration Now() { return base::RealClock().Monotonic(); }

// A store and what it answered.
class Client {
 public:
  explicit Client(RedisStoreOptions options) : store_(std::move(options)) {}

  RedisStore& store() { return store_; }

  void Start(StoreRequest::Operation operation, const std::string& id, const std::string& key,
             const std::string& value = "") {
    StoreRequest request;
    request.set_operation(operation);
    request.set_request_id(id);
    request.set_key(key);
    if (operation == StoreRequest::OPERATION_ADD) {
      int64_t amount = 0;
      EXPECT_TRUE(absl::SimpleAtoi(value, &amount));
      request.set_amount(amount);
    } else {
      request.set_value(value);
    }
    store_.Handle(
        "scope", request,
        [this](const StoreReply& reply) {
          EXPECT_TRUE(replies_.emplace(reply.request_id(), reply).second) << "answered twice";
        },
        Now());
  }

  void Turn(absl::Duration deadline) {
    pollfd entry = {store_.fd(), store_.events(), 0};
    const absl::Duration wake = std::min(store_.NextWake(), deadline);
    ::poll(&entry, 1, base::PollMilliseconds(wake - Now()));
    store_.Drive(Now());
  }
  bool RunUntil(const std::function<bool()>& condition) {
    const absl::Duration deadline = Now() + kDeadline;
    while (!condition() && Now() < deadline) Turn(deadline);
    return condition();
  }

  // Waits for the answer to `id`: OK, or its error.
  absl::Status Await(const std::string& id) {
    if (!RunUntil([&] { return replies_.count(id) > 0; })) return absl::UnknownError("no answer");
    const StoreReply& reply = replies_.at(id);
    return absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message());
  }
  StoreReply TakeReply(const std::string& id) { return replies_.extract(id).mapped(); }
  bool Has(const std::string& id) const { return replies_.count(id) > 0; }

  absl::Status Set(const std::string& key, const std::string& value) {
    replies_.erase("set");
    Start(StoreRequest::OPERATION_SET, "set", key, value);
    return Await("set");
  }

 private:
  RedisStore store_;
  std::map<std::string, StoreReply> replies_;
};

RedisStoreOptions Impatient(const RedisAddress& address) {
  RedisStoreOptions options;
  options.address = address;
  options.give_up_after = absl::Milliseconds(400);
  options.connection_timeout = absl::Milliseconds(100);
  return options;
}

RedisStoreOptions Patient(const RedisAddress& address) {
  RedisStoreOptions options;
  options.address = address;
  options.give_up_after = kDeadline;
  return options;
}

// A proxy between a store and its server that, once, passes a command on and cuts the connection
// when the server has answered it.
class CuttingProxy {
 public:
  CuttingProxy(std::string server_path, std::string listen_path, std::string command)
      : server_path_(std::move(server_path)), command_(std::move(command)) {
    listening_ = base::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = AddressOf(listen_path);
    EXPECT_EQ(
        ::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listening_.get(), 8), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~CuttingProxy() {
    stopping_ = true;
    thread_.join();
  }
  int num_cuts() const { return num_cuts_; }

 private:
  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }

  bool WaitsFor(int fd) const {
    pollfd entry = {fd, POLLIN, 0};
    return ::poll(&entry, 1, 1) == 1;
  }

  void Run() {
    while (!stopping_) {
      if (!WaitsFor(listening_.get())) continue;
      const base::UniqueFd client(::accept(listening_.get(), nullptr, nullptr));
      const base::UniqueFd server(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const sockaddr_un address = AddressOf(server_path_);
      EXPECT_EQ(
          ::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
      bool cuts_next = false;
      while (!stopping_) {
        if (!Carry(client.get(), server.get(), &cuts_next, true)) break;
        if (!Carry(server.get(), client.get(), &cuts_next, false)) break;
      }
    }
  }

  bool Carry(int from, int to, bool* cuts_next, bool is_command) {
    if (!WaitsFor(from)) return true;
    char buffer[1 << 14];
    const ssize_t count = ::read(from, buffer, sizeof(buffer));
    if (count <= 0) return false;
    const std::string text(buffer, static_cast<size_t>(count));
    if (is_command && num_cuts_ == 0 && absl::StrContains(text, command_)) *cuts_next = true;
    if (!is_command && *cuts_next) {
      ++num_cuts_;
      return false;
    }
    return base::WriteAll(to, text).ok();
  }

  const std::string server_path_;
  const std::string command_;
  base::UniqueFd listening_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> num_cuts_ = 0;
  std::thread thread_;
};

TEST(RedisStoreTest, KeysAreNamedByTheirAttemptAndExpire) {
  TestRedisServer server;
  Client client(Patient(server.address()));
  EXPECT_EQ(client.Set("k", "v"), absl::OkStatus());
  client.Start(StoreRequest::OPERATION_ADD, "add", "n", "2");
  EXPECT_EQ(client.Await("add"), absl::OkStatus());
  EXPECT_EQ(server.Command({"GET", "megascale:{scope}:v:k"}), "v");
  for (const std::string key : {"v:k", "v:n", "a:add"}) {
    int64_t seconds = 0;
    ASSERT_TRUE(absl::SimpleAtoi(server.Command({"TTL", "megascale:{scope}:" + key}), &seconds));
    EXPECT_GT(seconds, 86'000) << key;
    EXPECT_LE(seconds, 86'400) << key;
  }
  EXPECT_EQ(server.Command({"DBSIZE"}), "3");
}

TEST(RedisStoreTest, ADatabaseOfItsOwnIsSelected) {
  TestRedisServer server;
  RedisAddress address = server.address();
  address.database = 3;
  Client client(Patient(address));
  EXPECT_EQ(client.Set("k", "v"), absl::OkStatus());
  EXPECT_EQ(server.Command({"DBSIZE"}), "0");
  EXPECT_THAT(server.Command({"INFO", "keyspace"}), HasSubstr("db3:keys=1"));
  address.database = 99;
  EXPECT_EQ(Client(Patient(address)).Set("k", "v"),
            absl::FailedPreconditionError(
                absl::StrCat("store ", server.url(),
                             "/99: answers \"ERR DB index is out of range\"; let the job's "
                             "`store` name a database that it has")));
}

TEST(RedisStoreTest, AServerThatIsKilledAndBackInTimeIsMissedByNobody) {
  TestRedisServer server;
  Client client(Patient(server.address()));
  EXPECT_EQ(client.Set("before", "1"), absl::OkStatus());
  client.Start(StoreRequest::OPERATION_WAIT, "wait", "later");
  client.Start(StoreRequest::OPERATION_WAIT, "known", "before");
  EXPECT_EQ(client.Await("known"), absl::OkStatus());
  for (const int signal : {SIGKILL, SIGTERM}) {
    server.Signal(signal);
    client.Start(StoreRequest::OPERATION_SET, absl::StrCat("set", signal), "during", "2");
    client.Start(StoreRequest::OPERATION_ADD, absl::StrCat("add", signal), "n", "1");
    EXPECT_TRUE(client.RunUntil([&] { return !client.store().is_connected(); }));
    EXPECT_FALSE(client.Has(absl::StrCat("set", signal)));
    server.Start();
    EXPECT_EQ(client.Await(absl::StrCat("set", signal)), absl::OkStatus());
    EXPECT_EQ(client.Await(absl::StrCat("add", signal)), absl::OkStatus());
  }
  EXPECT_EQ(server.Command({"GET", "megascale:{scope}:v:n"}), "2");
  EXPECT_FALSE(client.Has("wait"));
  Client other(Patient(server.address()));
  EXPECT_EQ(other.Set("later", "here"), absl::OkStatus());
  EXPECT_EQ(client.Await("wait"), absl::OkStatus());
  EXPECT_EQ(client.TakeReply("wait").value(), "here");
}

TEST(RedisStoreTest, AnAdditionWhoseAnswerWasLostIsNotDoneAgain) {
  TestRedisServer server;
  CuttingProxy proxy(server.directory() + "/redis.sock", server.directory() + "/proxy.sock",
                     "EVAL");
  Client client(Patient(ParseRedisAddress("unix:" + server.directory() + "/proxy.sock").value()));
  EXPECT_EQ(client.Set("n", "40"), absl::OkStatus());
  client.Start(StoreRequest::OPERATION_ADD, "add", "n", "2");
  EXPECT_EQ(client.Await("add"), absl::OkStatus());
  EXPECT_EQ(client.TakeReply("add").sum(), 42);
  EXPECT_EQ(proxy.num_cuts(), 1);
  client.Start(StoreRequest::OPERATION_GET, "get", "n");
  EXPECT_EQ(client.Await("get"), absl::OkStatus());
  EXPECT_EQ(client.TakeReply("get").value(), "42");
}

TEST(RedisStoreTest, AServerThatStandsStillFailsWhatIsAskedAndServesAgainWhenItGoesOn) {
  TestRedisServer server;
  Client client(Impatient(server.address()));
  EXPECT_EQ(client.Set("k", "v"), absl::OkStatus());
  server.Signal(SIGSTOP);
  client.Start(StoreRequest::OPERATION_WAIT, "wait", "never");
  const absl::Status expected = absl::UnavailableError(absl::StrCat(
      "store ", server.url(), ": takes connections but does not answer within 100ms", kStartIt));
  EXPECT_EQ(client.Set("k", "w"), expected);
  EXPECT_EQ(client.Await("wait"), expected);
  EXPECT_EQ(client.store().num_waiting(), 0u);
  server.Signal(SIGCONT);
  EXPECT_EQ(client.Set("k", "x"), absl::OkStatus());
}

TEST(RedisStoreTest, AServerThatIsNotThereIsNamedWithWhatToDo) {
  TestRedisServer server;
  server.Signal(SIGKILL);
  Client tcp(Impatient(server.address()));
  EXPECT_EQ(tcp.Set("k", "v"), absl::UnavailableError(absl::StrCat(
                                   "store ", server.url(), ": connection refused", kStartIt)));
  Client unix_socket(Impatient(ParseRedisAddress("unix:/tmp/ms-no-such-redis.sock").value()));
  EXPECT_EQ(unix_socket.Set("k", "v"),
            absl::UnavailableError(absl::StrCat("store redis+unix:///tmp/ms-no-such-redis.sock: no "
                                                "such file or directory",
                                                kStartIt)));
  Client unknown(Impatient(ParseRedisAddress("redis://no-such-host.invalid").value()));
  const absl::Status status = unknown.Set("k", "v");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("store redis://no-such-host.invalid:6379: "));
}

TEST(RedisStoreTest, WhatNobodyWaitsForIsForgotten) {
  TestRedisServer server;
  Client client(Patient(server.address()));
  client.Start(StoreRequest::OPERATION_WAIT, "wait", "k");
  client.store().Forget("wait");
  EXPECT_EQ(client.store().num_waiting(), 0u);
  EXPECT_EQ(client.Set("k", "v"), absl::OkStatus());
  EXPECT_FALSE(client.Has("wait"));
}

TEST(RedisStoreTest, AnIdleConnectionIsClosedAndAServerThatDiesThenIsNotMissed) {
  TestRedisServer server;
  RedisStoreOptions options = Patient(server.address());
  options.idle_after = absl::ZeroDuration();
  Client client(options);
  EXPECT_EQ(client.Set("k", "v"), absl::OkStatus());
  EXPECT_TRUE(client.RunUntil([&] { return !client.store().is_connected(); }));
  EXPECT_EQ(client.store().NextWake(), absl::InfiniteDuration());
  server.Signal(SIGKILL);
  client.store().Drive(Now() + absl::Hours(1));
  EXPECT_EQ(client.store().fd(), -1) << "nothing is asked, so nothing is looked for";
  server.Start();
  EXPECT_EQ(client.Set("k", "w"), absl::OkStatus());
}

TEST(RedisStoreTest, RequestsThatWaitAreBounded) {
  TestRedisServer server;
  server.Signal(SIGSTOP);
  RedisStoreOptions options = Patient(server.address());
  options.waiting_bytes_max = 10'000;
  Client client(options);
  int num_taken = 0;
  while (!client.Has("0")) {
    client.Start(StoreRequest::OPERATION_SET, "0", "k", std::string(1000, 'v'));
    if (client.Has("0")) break;
    client.store().Forget("0");
    client.Start(StoreRequest::OPERATION_SET, absl::StrCat("s", num_taken++), "k",
                 std::string(1000, 'v'));
    ASSERT_LT(num_taken, 100);
  }
  EXPECT_GT(num_taken, 5);
  EXPECT_EQ(client.Await("0").code(), absl::StatusCode::kResourceExhausted);
  server.Signal(SIGCONT);
  EXPECT_EQ(client.Await("s0"), absl::OkStatus());
}

// --- servers that refuse ---

TEST(RedisStoreRefusalTest, AReplicaSaysSo) {
  TestRedisServer server({.more = {"--replicaof", "127.0.0.1", "1"}});
  EXPECT_EQ(Client(Impatient(server.address())).Set("k", "v"),
            absl::UnavailableError(absl::StrCat(
                "store ", server.url(),
                ": answers \"READONLY You can't write against a read only replica.\"; it is a "
                "replica: let the job's `store` name the primary")));
}

TEST(RedisStoreRefusalTest, AFullServerSaysSo) {
  TestRedisServer server({.more = {"--maxmemory", "1"}});
  EXPECT_EQ(Client(Impatient(server.address())).Set("k", "v"),
            absl::ResourceExhaustedError(absl::StrCat(
                "store ", server.url(),
                ": answers \"OOM command not allowed when used memory > 'maxmemory'.\"; raise its "
                "maxmemory, or free some")));
}

TEST(RedisStoreRefusalTest, AClusterWithoutSlotsSaysSo) {
  TestRedisServer server({.is_cluster = true});
  const absl::Status status = Client(Impatient(server.address())).Set("k", "v");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("CLUSTERDOWN"));
}

TEST(RedisStoreRefusalTest, ErrorsHaveACodeAndANextAction) {
  const auto code = [](const std::string& text) {
    return StatusOfError({RedisReply::Kind::kError, 0, text, {}}).code();
  };
  EXPECT_EQ(code("LOADING Redis is loading the dataset in memory"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code("MOVED 866 127.0.0.1:7001"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code("ERR max number of clients reached"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(StatusOfError({RedisReply::Kind::kError, 0, "ERR new\x01", {}}),
            absl::InternalError("answers \"ERR new?\"; see its log"));
}

class RedisCredentialsTest : public ::testing::Test {
 protected:
  RedisCredentialsTest() {
    char directory[] = "/tmp/ms-credentials-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
  }
  ~RedisCredentialsTest() override { std::filesystem::remove_all(directory_); }

  std::string WritePasswords(const std::string& text) const {
    const std::string path = directory_ + "/passwords";
    EXPECT_EQ(base::WriteFileDurably(path, text), absl::OkStatus());
    EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
    return path;
  }

  std::string directory_;
};

TEST_F(RedisCredentialsTest, APasswordIsNeededAndMustBeRight) {
  TestRedisServer server({.password = "s3cret"});
  RedisStoreOptions options = Patient(server.address());
  const std::string place = absl::StrCat("store ", server.url(), ": answers ");
  EXPECT_EQ(Client(options).Set("k", "v"),
            absl::FailedPreconditionError(
                place + "\"NOAUTH Authentication required.\"; it wants a password: start agents "
                        "with --store-passwords FILE, which must have a line for it"));
  options.password_file = WritePasswords(server.url() + " wr0ng\n");
  const absl::Status wrong = Client(options).Set("k", "v");
  EXPECT_EQ(wrong.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr(place + "\"WRONGPASS "));
  EXPECT_FALSE(absl::StrContains(wrong.message(), "wr0ng"));
  WritePasswords(server.url() + " s3cret\n");
  EXPECT_EQ(Client(options).Set("k", "v"), absl::OkStatus());
}

TEST_F(RedisCredentialsTest, AUserMayOnlyWhatItMust) {
  TestRedisServer server;
  EXPECT_EQ(server.Command({"ACL", "SETUSER", "trainer", "on", ">s3cret", "~megascale:*", "+get",
                            "+mget", "+set", "+incrby", "+expire", "+eval", "+select", "+ping"}),
            "OK");
  EXPECT_EQ(server.Command({"ACL", "SETUSER", "reader", "on", ">s3cret", "~*", "+get", "+ping"}),
            "OK");
  RedisStoreOptions options = Patient(server.address());
  options.address.user = "trainer";
  RedisStoreOptions reader = Patient(server.address());
  reader.address.user = "reader";
  options.password_file = reader.password_file = WritePasswords(
      absl::StrCat(ToText(options.address), " s3cret\n", ToText(reader.address), " s3cret\n"));
  Client client(options);
  EXPECT_EQ(client.Set("k", "v"), absl::OkStatus());
  client.Start(StoreRequest::OPERATION_ADD, "add", "n", "1");
  EXPECT_EQ(client.Await("add"), absl::OkStatus());
  client.Start(StoreRequest::OPERATION_WAIT, "wait", "k");
  EXPECT_EQ(client.Await("wait"), absl::OkStatus());
  const absl::Status refused = Client(reader).Set("k", "v");
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("its user needs the commands "));
}

TEST_F(RedisCredentialsTest, AServerMustProveWhoItIsAndMayWantTheSame) {
  base::TestAuthority authority(directory_, "ca");
  base::TestAuthority other(directory_, "other");
  const auto certificate = authority.Issue("server", "IP:127.0.0.1");
  TestRedisServer server({.has_tls = true,
                          .ca_file = authority.certificate_file(),
                          .certificate_file = certificate.certificate_file,
                          .key_file = certificate.key_file});
  RedisStoreOptions options = Patient(server.address());
  options.tls.ca_file = other.certificate_file();
  const absl::Status stranger = Client(options).Set("k", "v");
  EXPECT_EQ(stranger.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(stranger.message()),
              HasSubstr(absl::StrCat("store ", server.url(),
                                     ": its certificate is not good for 127.0.0.1: ")));
  options.tls.ca_file = authority.certificate_file();
  const absl::Status nameless = Client(options).Set("k", "v");
  EXPECT_EQ(nameless.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(nameless.message()), HasSubstr("certificate required"));
  const auto ours = authority.Issue("client", "DNS:client");
  options.tls.certificate_file = ours.certificate_file;
  options.tls.key_file = ours.key_file;
  Client client(options);
  EXPECT_EQ(client.Set("k", "v"), absl::OkStatus());
  server.Signal(SIGKILL);
  client.Start(StoreRequest::OPERATION_GET, "get", "k");
  EXPECT_TRUE(client.RunUntil([&] { return !client.store().is_connected(); }));
  server.Start();
  EXPECT_EQ(client.Await("get"), absl::OkStatus());
  RedisStoreOptions plain = Impatient(server.address());
  plain.address.has_tls = false;
  const absl::Status spoke_plain = Client(plain).Set("k", "v");
  EXPECT_EQ(spoke_plain.code(), absl::StatusCode::kUnavailable) << spoke_plain;
}

}  // namespace
}  // namespace megascale::comm
