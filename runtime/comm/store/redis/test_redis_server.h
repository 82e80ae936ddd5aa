// A redis-server of a test's own: with its own folder, port and Unix socket, ended with the test.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/comm/redis/address.h"

namespace megascale::comm {

struct TestRedisServerOptions {
  std::string password = {};  // of the default user; empty: none
  bool has_tls = false;       // the TCP port speaks TLS; needs the files below
  std::string ca_file = {};   // clients must have a certificate of it
  std::string certificate_file = {};
  std::string key_file = {};
  bool is_durable = true;   // data is synced to its folder, so that it survives Signal(SIGKILL)
  bool is_cluster = false;  // a node of one, without slots
  std::vector<std::string> more = {};  // options of redis-server: {"--maxmemory", "1mb"}
};

// Failures are failures of the test.
class TestRedisServer {
 public:
  // Starts it and waits until it answers.
  explicit TestRedisServer(TestRedisServerOptions options = {});
  ~TestRedisServer();
  TestRedisServer(const TestRedisServer&) = delete;
  TestRedisServer& operator=(const TestRedisServer&) = delete;

  // "redis://127.0.0.1:PORT", or "rediss://…".
  std::string url() const;
  std::string unix_url() const { return "unix:" + socket_path(); }
  RedisAddress address() const { return ParseRedisAddress(url()).value(); }
  const std::string& directory() const { return directory_; }

  // Sends a signal: SIGSTOP, SIGCONT. After SIGKILL and SIGTERM it is reaped.
  void Signal(int signal);
  // After one of these: again on the same port, with the same data.
  void Start();

  // What it answers on its Unix socket, arrays as their elements, one a line.
  std::string Command(const std::vector<std::string>& words) const;

 private:
  std::string socket_path() const { return directory_ + "/redis.sock"; }

  const TestRedisServerOptions options_;
  std::string directory_;
  int port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace megascale::comm
