#include "runtime/comm/store/redis/testing/test_redis_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"

namespace megascale::comm {
namespace {

constexpr absl::Duration kStart = absl::Seconds(20);
constexpr int kPauseMilliseconds = 10;
constexpr timeval kAnswer = {5, 0};

// Returns a port that was free a moment ago.
int FreePort() {
  const base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in local = {};
  local.sin_family = AF_INET;
  local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(local);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&local), size), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &size), 0);
  return ntohs(local.sin_port);
}

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

Reply Ask(redisContext* context, const std::vector<std::string>& words) {
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  return Reply(static_cast<redisReply*>(
      redisCommandArgv(context, static_cast<int>(words.size()), texts.data(), sizes.data())));
}

std::string TextOf(const redisReply& reply) {
  if (reply.type == REDIS_REPLY_INTEGER) return absl::StrCat(reply.integer);
  if (reply.type == REDIS_REPLY_NIL) return "(nil)";
  if (reply.type != REDIS_REPLY_ARRAY) return std::string(reply.str, reply.len);
  std::string text;
  for (size_t i = 0; i < reply.elements; ++i) {
    absl::StrAppend(&text, TextOf(*reply.element[i]), "\n");
  }
  return text;
}

}  // namespace

TestRedisServer::TestRedisServer(TestRedisServerOptions options)
    : options_(std::move(options)), port_(FreePort()) {
  char directory[] = "/tmp/ms-redis-XXXXXX";
  EXPECT_NE(::mkdtemp(directory), nullptr);
  directory_ = directory;
  Start();
}

TestRedisServer::~TestRedisServer() {
  if (pid_ > 0) Signal(SIGKILL);
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::string TestRedisServer::url() const {
  return absl::StrCat(options_.has_tls ? "rediss" : "redis", "://127.0.0.1:", port_);
}

void TestRedisServer::Start() {
  ASSERT_EQ(pid_, -1) << "it runs";
  const std::string port = absl::StrCat(port_);
  std::vector<std::string> words = {"redis-server", "--bind", "127.0.0.1"};
  const auto add = [&](const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
  };
  add({"--unixsocket", socket_path(), "--dir", directory_, "--logfile", directory_ + "/log"});
  add({"--save", "", "--port", options_.has_tls ? "0" : port});
  if (options_.is_durable) add({"--appendonly", "yes", "--appendfsync", "always"});
  if (options_.has_tls) {
    add({"--tls-port", port, "--tls-cert-file", options_.certificate_file, "--tls-key-file",
         options_.key_file, "--tls-ca-cert-file", options_.ca_file});
  }
  // By default the cluster bus port would be 10,000 higher, which may exceed the highest port.
  if (options_.is_cluster) {
    add({"--cluster-enabled", "yes", "--cluster-port", absl::StrCat(FreePort())});
  }
  if (!options_.password.empty()) add({"--requirepass", options_.password});
  add(options_.more);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = ::open("/dev/null", O_RDWR);
    for (const int fd : {0, 1, 2}) ::dup2(null, fd);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  const absl::Duration deadline = base::RealClock().Monotonic() + kStart;
  while (Command({"PING"}) != "PONG") {
    ASSERT_EQ(::waitpid(pid_, nullptr, WNOHANG), 0) << "redis-server ended; see " << directory_;
    ASSERT_LT(base::RealClock().Monotonic(), deadline) << "redis-server does not answer";
    ::poll(nullptr, 0, kPauseMilliseconds);
  }
}

void TestRedisServer::Signal(int signal) {
  ASSERT_GT(pid_, 0);
  ASSERT_EQ(::kill(pid_, signal), 0);
  if (signal == SIGSTOP) {
    int status = 0;
    ASSERT_EQ(::waitpid(pid_, &status, WUNTRACED), pid_);
  } else if (signal != SIGCONT) {
    ASSERT_EQ(::waitpid(pid_, nullptr, 0), pid_);
    pid_ = -1;
  }
}

std::string TestRedisServer::Command(const std::vector<std::string>& words) const {
  const std::unique_ptr<redisContext, FreeContext> context(
      redisConnectUnixWithTimeout(socket_path().c_str(), kAnswer));
  if (context == nullptr || context->err != 0) return "";
  redisSetTimeout(context.get(), kAnswer);
  if (!options_.password.empty()) Ask(context.get(), {"AUTH", options_.password});
  const Reply reply = Ask(context.get(), words);
  return reply == nullptr ? "" : TextOf(*reply);
}

}  // namespace megascale::comm
