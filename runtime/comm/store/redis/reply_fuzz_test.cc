// Replies of a broken or hostile server: real replies, mutated by a seed, in pieces of any size. In
// every case the connection ends or continues, memory stays within its limits, and every request is
// answered exactly once. A failure names its seed; time is simulated.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/comm/store/redis/connection.h"
#include "runtime/comm/store/redis/redis_store.h"

namespace megascale::comm {
namespace {

using megascale::agent::v1::StoreReply;
using megascale::agent::v1::StoreRequest;

constexpr int kSeeds = 3000;

// Real replies of a server, and input that is known to have broken parsers.
const std::string kCorpus[] = {
    "+PONG\r\n",
    "+OK\r\n",
    "$2\r\n42\r\n",
    "$-1\r\n",
    "$0\r\n\r\n",
    ":9223372036854775807\r\n",
    "*3\r\n$1\r\na\r\n$-1\r\n$2\r\nbc\r\n",
    "*0\r\n",
    "*-1\r\n",
    "*1\r\n*1\r\n*1\r\n:1\r\n",
    "-READONLY You can't write against a read only replica.\r\n",
    "-LOADING Redis is loading the dataset in memory\r\n",
    "-NOAUTH Authentication required.\r\n",
    "-MOVED 866 127.0.0.1:7001\r\n",
    "-ERR max number of clients reached\r\n",
    "$536870912\r\nx",
    "$9223372036854775807\r\n",
    "$-2\r\n",
    "*2147483647\r\n",
    "*4294967297\r\n",
    "*-2147483648\r\n",
    "*8\r\n*8\r\n*8\r\n*8\r\n*8\r\n*8\r\n*8\r\n*8\r\n*8\r\n*8\r\n",
    ":99999999999999999999999999\r\n",
    "%1\r\n+a\r\n:1\r\n",
    ">3\r\n+message\r\n+a\r\n+b\r\n",
    "\r\n",
    "HTTP/1.1 400 Bad Request\r\n\r\n",
};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t Below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  std::string Reply() {
    std::string text = kCorpus[Below(std::size(kCorpus))];
    while (Below(3) == 0) text += kCorpus[Below(std::size(kCorpus))];
    for (size_t left = Below(4); left > 0; --left) Change(&text);
    return text;
  }

 private:
  void Change(std::string* text) {
    const size_t at = Below(text->size());
    switch (Below(6)) {
      case 0:
        if (!text->empty()) (*text)[at] = static_cast<char>(Below(256));
        break;
      case 1:
        text->erase(at, Below(8));
        break;
      case 2:
        text->insert(at, 1, "$*:+-\r\n09"[Below(9)]);
        break;
      case 3:
        text->insert(at, text->substr(Below(text->size()), Below(16)));
        break;
      case 4:
        text->insert(at, absl::StrCat(static_cast<int64_t>(random_())));
        break;
      default:
        text->insert(at, std::string(Below(5000), 'x'));
    }
  }

  std::mt19937_64 random_;
};

TEST(ReplyFuzzTest, AConnectionEndsOrGoesOnWithinItsLimits) {
  constexpr RedisConnectionLimits kLimits = {.reply_bytes_max = 4096, .elements_max = 16};
  int64_t num_replies = 0;
  int num_ended = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Mutator mutator(static_cast<uint64_t>(seed));
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    const base::UniqueFd server(ends[0]);
    RedisConnection connection(base::UniqueFd(ends[1]), kLimits);
    for (int round = 0; round < 8 && connection.status().ok(); ++round) {
      for (size_t left = mutator.Below(4); left > 0; --left) connection.Send({"GET", "k"});
      const std::string reply = mutator.Reply();
      for (size_t done = 0; done < reply.size() && connection.status().ok();) {
        const size_t size = std::min(reply.size() - done, 1 + mutator.Below(600));
        ASSERT_EQ(::send(server.get(), reply.data() + done, size, MSG_NOSIGNAL),
                  static_cast<ssize_t>(size));
        done += size;
        const size_t pending = connection.num_pending();
        const std::vector<RedisReply> replies = connection.Drive();
        ASSERT_EQ(replies.size() + connection.num_pending(), pending);
        for (const RedisReply& one : replies) {
          ASSERT_LE(one.text.size(), kLimits.reply_bytes_max);
          ASSERT_LE(one.elements.size(), kLimits.elements_max);
        }
        num_replies += static_cast<int64_t>(replies.size());
      }
    }
    if (!connection.status().ok()) {
      ++num_ended;
      EXPECT_EQ(connection.fd(), -1);
      EXPECT_FALSE(connection.status().message().empty());
    }
  }
  EXPECT_GT(num_replies, kSeeds / 4) << "the fuzz reaches no sound replies any more";
  EXPECT_GT(num_ended, kSeeds / 2) << "the fuzz reaches no broken ones any more";
}

// A server that answers each command with a mutated reply, or with the right one.
class FuzzedServer {
 public:
  explicit FuzzedServer(const std::string& path)
      : listening_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listening_.get(), 16), 0);
  }

  void Drive(Mutator* mutator) {
    base::UniqueFd client(::accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK));
    if (client.valid()) client_ = std::move(client);
    char buffer[1 << 12];
    const ssize_t count = client_.valid() ? ::read(client_.get(), buffer, sizeof(buffer)) : 0;
    if (count <= 0) return;
    const std::string asked(buffer, static_cast<size_t>(count));
    std::string reply = mutator->Reply();
    if (asked.find("PING") != std::string::npos && mutator->Below(8) > 0) reply = "+PONG\r\n";
    if (mutator->Below(16) == 0) client_.reset();
    if (client_.valid()) (void)!::send(client_.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
  }

 private:
  base::UniqueFd listening_;
  base::UniqueFd client_;
};

TEST(ReplyFuzzTest, EveryRequestIsAnsweredExactlyOnceWhateverTheServerSays) {
  base::InitLog("fuzz", base::LogLevel::kError);  // a line for each server that fails
  char directory[] = "/tmp/ms-fuzz-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string path = absl::StrCat(directory, "/s");
  std::map<int, int> num_answers;  // by code
  for (int seed = 0; seed < kSeeds / 10; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Mutator mutator(static_cast<uint64_t>(seed));
    FuzzedServer server(path);
    RedisStoreOptions options;
    options.address = ParseRedisAddress("unix:" + path).value();
    RedisStore store(options);
    std::map<std::string, int> answers;
    absl::Duration now = absl::ZeroDuration();
    for (int i = 0; i < 8; ++i) {
      StoreRequest request;
      request.set_request_id(absl::StrCat("r", i));
      request.set_key(absl::StrCat("k", i));
      // All but waits, which a server that answers "not there" for ever keeps waiting.
      request.set_operation(i % 3 == 0   ? StoreRequest::OPERATION_SET
                            : i % 3 == 1 ? StoreRequest::OPERATION_GET
                                         : StoreRequest::OPERATION_ADD);
      store.Handle(
          "scope", request,
          [&](const StoreReply& reply) {
            ++answers[reply.request_id()];
            ++num_answers[reply.code()];
          },
          now);
    }
    for (int turn = 0; turn < 4000 && store.num_waiting() > 0; ++turn) {
      now += absl::Milliseconds(10);
      store.Drive(now);
      server.Drive(&mutator);
    }
    EXPECT_EQ(answers.size(), 8u);
    for (const auto& [id, count] : answers) EXPECT_EQ(count, 1) << id;
    ::unlink(path.c_str());
  }
  ::rmdir(directory);
  EXPECT_GT(num_answers[0], 0) << "no request succeeds any more";
  EXPECT_GT(num_answers[static_cast<int>(absl::StatusCode::kUnavailable)], 0);
}

}  // namespace
}  // namespace megascale::comm
