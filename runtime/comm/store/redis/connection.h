// Commands to a Redis server and its replies, pipelined, over a descriptor that is connected:
// hiredis without its own waiting, connecting and trust. Nothing here blocks, calls back or ends
// the process, whatever the other end sends; memory stays within the limits. Threads: one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/fd.h"
#include "runtime/comm/redis/reply.h"

struct redisAsyncContext;

namespace megascale::comm {

struct RedisConnectionLimits {
  size_t reply_bytes_max = 20 << 20;  // of one reply, with all its elements
  size_t elements_max = 1024;         // of one array
};

class RedisConnection {
 public:
  // `socket`: a stream socket, non-blocking, connected or about to be.
  RedisConnection(base::UniqueFd socket, RedisConnectionLimits limits);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Puts a command at the end of those that are to be written. Requires: status() is OK.
  void Send(const std::vector<std::string>& words);

  // What poll(2) is to wait for. fd() is -1 once status() is not OK.
  int fd() const;
  short events() const;

  // Writes and reads what can be without waiting; returns the replies that came, in the order of
  // their commands. The last ones count although the connection has ended with them.
  std::vector<RedisReply> Drive();

  // OK, or why the connection has ended: Unavailable - it was closed or broke; DataLoss - what came
  // is no reply, or one that nobody asked for; ResourceExhausted - a reply beyond the limits. The
  // commands without a reply may have been done or not.
  const absl::Status& status() const { return status_; }
  size_t num_pending() const { return num_pending_; }  // commands without a reply
  size_t unsent_bytes() const;

 private:
  struct Hooks;

  void ReadAll();
  void End(const absl::Status& why);
  void OnReply(void* reply);

  const RedisConnectionLimits limits_;
  absl::Status status_;
  size_t num_pending_ = 0;
  size_t reply_bytes_ = 0;  // of the reply that is being read
  bool wants_write_ = false;
  std::vector<RedisReply> replies_;
  redisAsyncContext* context_ = nullptr;
};

}  // namespace megascale::comm
