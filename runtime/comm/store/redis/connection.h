// Sends commands to a Redis server and reads the replies, pipelined, over a connected descriptor.
// It uses hiredis, but lets it neither wait nor connect, and trusts the peer less than hiredis
// does. It never blocks, calls back or ends the process, whatever the other end sends; memory stays
// within the limits. Threads: one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/base/fd.h"
#include "runtime/comm/store/redis/reply.h"

struct redisAsyncContext;

namespace megascale::comm {

struct RedisConnectionLimits {
  size_t reply_bytes_max = 20 << 20;  // of one reply, with all its elements
  size_t elements_max = 1024;         // of one array
};

class RedisConnection {
 public:
  // `socket`: a non-blocking stream socket, connected or connecting.
  RedisConnection(base::UniqueFd socket, RedisConnectionLimits limits);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Queues a command. Requires: status() is OK.
  void Send(const std::vector<std::string>& words);

  // The descriptor and the events for poll(2). fd() is -1 once status() is not OK.
  int fd() const;
  short events() const;

  // Writes and reads as much as possible without waiting. Returns the replies that came, in the
  // order of their commands. They are valid even if the connection ended in this call.
  std::vector<RedisReply> Drive();

  // Returns OK, or why the connection ended: Unavailable - it was closed or broke; DataLoss - the
  // server sent bytes that are not a reply, or a reply to no command; ResourceExhausted - a reply
  // beyond the limits. Commands without a reply may or may not have been executed.
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
  size_t reply_bytes_ = 0;  // of the reply being read
  bool wants_write_ = false;
  std::vector<RedisReply> replies_;
  redisAsyncContext* context_ = nullptr;
};

}  // namespace megascale::comm
