// Runs a redis-server for one test, with its own directory, port and Unix socket.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/comm/store/redis/address.h"

namespace megascale::comm {

struct TestRedisServerOptions {
  std::string password = {};  // of the default user; empty: no password
  bool has_tls = false;       // the TCP port speaks TLS; needs the three files below
  std::string ca_file = {};   // clients must have a certificate signed by it
  std::string certificate_file = {};
  std::string key_file = {};
  bool is_durable = true;   // data is synced to its directory, so that it survives Signal(SIGKILL)
  bool is_cluster = false;  // a cluster node without slots
  std::vector<std::string> more = {};  // more options of redis-server: {"--maxmemory", "1mb"}
};

// Failures fail the test.
class TestRedisServer {
 public:
  // Starts the server and waits until it answers.
  explicit TestRedisServer(TestRedisServerOptions options = {});
  ~TestRedisServer();
  TestRedisServer(const TestRedisServer&) = delete;
  TestRedisServer& operator=(const TestRedisServer&) = delete;

  // Returns "redis://127.0.0.1:PORT", or "rediss://…".
  std::string url() const;
  std::string unix_url() const { return "unix:" + socket_path(); }
  RedisAddress address() const { return ParseRedisAddress(url()).value(); }
  const std::string& directory() const { return directory_; }
  pid_t pid() const { return pid_; }

  // Sends SIGSTOP, SIGCONT, SIGKILL or SIGTERM; after the last two the server is reaped.
  void Signal(int signal);
  // Restarts the server after SIGKILL or SIGTERM, on the same port with the same data.
  void Start();

  // Sends a command over the Unix socket and returns the answer; an array as one element per line.
  std::string Command(const std::vector<std::string>& words) const;

 private:
  std::string socket_path() const { return directory_ + "/redis.sock"; }

  const TestRedisServerOptions options_;
  std::string directory_;
  int port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace megascale::comm
