#include "runtime/comm/store/redis/connection.h"

#include <hiredis/async.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/socket/without_sigpipe.h"

namespace megascale::comm {
namespace {

constexpr int kReadsPerDrive = 256;  // of 16 KiB each, so that other connections get their turn
constexpr size_t kElementBytes = sizeof(RedisReply);

bool IsReadable(int fd) {
  pollfd entry = {fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

// The functions that hiredis calls. They create RedisReply as reply objects, so that sizes are
// checked before memory is allocated.
struct RedisConnection::Hooks {
  static RedisConnection* Of(const redisReadTask* task) {
    return static_cast<RedisConnection*>(task->privdata);
  }

  // Puts a reply into its array, or delivers a complete one. Returning null ends the connection.
  static void* Place(const redisReadTask* task, RedisReply reply) {
    RedisConnection* connection = Of(task);
    connection->reply_bytes_ += kElementBytes + reply.text.size();
    if (connection->reply_bytes_ > connection->limits_.reply_bytes_max) return nullptr;
    if (task->parent == nullptr) return new RedisReply(std::move(reply));
    auto& elements = static_cast<RedisReply*>(task->parent->obj)->elements;
    elements[static_cast<size_t>(task->idx)] = std::move(reply);
    return &elements[static_cast<size_t>(task->idx)];
  }

  static void* CreateString(const redisReadTask* task, char* text, size_t size) {
    const auto kind = task->type == REDIS_REPLY_ERROR    ? RedisReply::Kind::kError
                      : task->type == REDIS_REPLY_STATUS ? RedisReply::Kind::kStatus
                                                         : RedisReply::Kind::kText;
    return Place(task, {kind, 0, std::string(text, size), {}});
  }

  static void* CreateArray(const redisReadTask* task, int size) {
    const auto& limits = Of(task)->limits_;
    if (size < 0 || static_cast<size_t>(size) > limits.elements_max) return nullptr;
    RedisReply reply;
    reply.kind = RedisReply::Kind::kArray;
    reply.elements.resize(static_cast<size_t>(size));
    return Place(task, std::move(reply));
  }

  static void* CreateInteger(const redisReadTask* task, long long value) {
    return Place(task, {RedisReply::Kind::kInteger, value, "", {}});
  }

  static void* CreateNil(const redisReadTask* task) { return Place(task, {}); }

  static void Free(void* reply) { delete static_cast<RedisReply*>(reply); }

  static void OnReply(redisAsyncContext* context, void* reply, void* connection) {
    static_cast<RedisConnection*>(connection)->OnReply(reply);
  }

  static void AddWrite(void* connection) {
    static_cast<RedisConnection*>(connection)->wants_write_ = true;
  }
  static void DelWrite(void* connection) {
    static_cast<RedisConnection*>(connection)->wants_write_ = false;
  }

  // hiredis frees the context after this call, after any error.
  static void Cleanup(void* of) {
    auto* connection = static_cast<RedisConnection*>(of);
    if (connection->context_ == nullptr) return;
    const redisAsyncContext& context = *std::exchange(connection->context_, nullptr);
    if (!connection->status_.ok() || context.err == 0) return;
    const std::string why = context.errstr == nullptr ? "" : context.errstr;
    if (context.err == REDIS_ERR_OOM) {
      connection->status_ = absl::ResourceExhaustedError(
          absl::StrCat("sent a reply of more than ", connection->limits_.reply_bytes_max,
                       " bytes or ", connection->limits_.elements_max, " elements"));
    } else if (context.err == REDIS_ERR_PROTOCOL) {
      connection->status_ = absl::DataLossError(absl::StrCat("sent what is no reply: ", why));
    } else if (context.err == REDIS_ERR_EOF) {
      connection->status_ = absl::UnavailableError("closed the connection");
    } else {
      connection->status_ = absl::UnavailableError(absl::StrCat("connection broken: ", why));
    }
  }
};

RedisConnection::RedisConnection(base::UniqueFd socket, RedisConnectionLimits limits)
    : limits_(limits) {
  static redisReplyObjectFunctions functions = {
      Hooks::CreateString, Hooks::CreateArray, Hooks::CreateInteger, Hooks::CreateNil, Hooks::Free};
  // This version of hiredis makes asynchronous contexts only by connecting itself, which may block
  // in name resolution and has no TLS. So let it fail to connect, and give the context our socket.
  context_ = redisAsyncConnectUnix("/dev/null/none");
  MEGASCALE_CHECK_MSG(context_ != nullptr, "out of memory");
  MEGASCALE_CHECK_MSG(context_->c.err != 0, "nothing can be connected to below /dev/null");
  context_->c.err = context_->err = 0;
  context_->c.errstr[0] = '\0';
  context_->c.fd = socket.release();
  context_->c.reader->fn = &functions;
  context_->c.reader->privdata = this;
  context_->ev.data = this;
  context_->ev.addWrite = Hooks::AddWrite;
  context_->ev.delWrite = Hooks::DelWrite;
  context_->ev.cleanup = Hooks::Cleanup;
}

RedisConnection::~RedisConnection() { End(absl::CancelledError("closed by us")); }

int RedisConnection::fd() const { return context_ == nullptr ? -1 : context_->c.fd; }

short RedisConnection::events() const {
  return static_cast<short>(POLLIN | (wants_write_ ? POLLOUT : 0));
}

size_t RedisConnection::unsent_bytes() const {
  return context_ == nullptr ? 0 : sdslen(context_->c.obuf);
}

void RedisConnection::Send(const std::vector<std::string>& words) {
  MEGASCALE_CHECK(context_ != nullptr);
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  ++num_pending_;
  const int queued = redisAsyncCommandArgv(
      context_, Hooks::OnReply, this, static_cast<int>(words.size()), texts.data(), sizes.data());
  MEGASCALE_CHECK_MSG(queued == REDIS_OK, "a live connection takes commands");
}

std::vector<RedisReply> RedisConnection::Drive() {
  const base::WithoutSigpipe guard;
  if (context_ != nullptr && wants_write_) redisAsyncHandleWrite(context_);
  ReadAll();
  return std::exchange(replies_, {});
}

void RedisConnection::ReadAll() {
  for (int i = 0; i < kReadsPerDrive && context_ != nullptr && IsReadable(fd()); ++i) {
    if (num_pending_ == 0) {
      // hiredis would end the process on a reply to no command, so look at the socket itself. If
      // the server has closed it, no command is lost.
      char byte = 0;
      const bool is_closed = ::recv(fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
      return End(is_closed ? absl::UnavailableError("closed the connection")
                           : absl::DataLossError("sent a reply that nobody asked for"));
    }
    redisAsyncHandleRead(context_);
    if (context_ == nullptr) return;
    const redisReader& reader = *context_->c.reader;
    if (reader.len - reader.pos > limits_.reply_bytes_max) {
      return End(absl::ResourceExhaustedError(
          absl::StrCat("sends a reply of more than ", limits_.reply_bytes_max, " bytes")));
    }
  }
}

void RedisConnection::OnReply(void* reply) {
  if (reply == nullptr) return;  // the connection is ending
  MEGASCALE_CHECK(num_pending_ > 0);
  --num_pending_;
  reply_bytes_ = 0;
  replies_.push_back(std::move(*static_cast<RedisReply*>(reply)));
  if (num_pending_ > 0 || context_ == nullptr) return;
  const redisReader& reader = *context_->c.reader;
  if (reader.pos < reader.len) End(absl::DataLossError("sent a reply that nobody asked for"));
}

void RedisConnection::End(const absl::Status& why) {
  if (context_ == nullptr) return;
  if (status_.ok()) status_ = why;
  redisAsyncFree(context_);  // within a callback hiredis defers this until the callback returns
}

}  // namespace megascale::comm
