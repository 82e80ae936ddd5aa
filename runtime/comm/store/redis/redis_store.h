// The rendezvous store on a Redis server. It handles the same requests with the same answers as the
// embedded store (embedded_store.h), over one pipelined connection. The connection is made at the
// first request, made again when it breaks, and closed when idle.
//
// Keys are "megascale:{SCOPE}:v:KEY" and expire; the caller chooses SCOPE, which names one attempt.
// A SET is one command, an ADD one script that remembers its request id, so that both may be sent
// again after a lost connection. (A SET may then be done twice, which does no harm because a key
// has one writer at a time.) The keys of WAITs are polled, in batches, with growing pauses. So no
// wake-up can be lost, a reconnect needs no new subscription, and a WAIT works through proxies
// (docs/store.md). Of a WAIT for many keys a round asks for the first few that are missing, and for
// twice as many after each round in which all of these were there.
//
// Threads: one drives it: poll(2) on fd() for events() until NextWake(), then Drive. Nothing
// blocks. Replies are called within Handle and Drive; they must not call the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "runtime/base/tls/tls_tunnel.h"
#include "runtime/comm/store/redis/address.h"
#include "runtime/comm/store/redis/connection.h"
#include "runtime/comm/store/redis/dial.h"

namespace megascale::comm {

struct RedisStoreOptions {
  RedisAddress address;
  std::string password_file;  // see password_file.h; empty: no password
  RedisTls tls;               // for an address with TLS
  // All requests fail when the server has not answered for this long. A server that restarts within
  // this time is waited for.
  absl::Duration give_up_after = absl::Seconds(5);
  absl::Duration connection_timeout = absl::Seconds(2);  // for connecting, and for a reply
  // Pause between two attempts to connect; doubles each time.
  absl::Duration backoff_min = absl::Milliseconds(20);
  absl::Duration backoff_max = absl::Milliseconds(500);
  absl::Duration poll_min =
      absl::Milliseconds(2);  // pause between two polls for awaited keys; doubles each time
  absl::Duration poll_max = absl::Milliseconds(100);
  // The connection is closed after this long without a request.
  absl::Duration idle_after = absl::Seconds(10);
  absl::Duration expiry = absl::Hours(24);  // of a key, since its last change
  size_t key_bytes_max = 1024;              // of a key, and of a request id
  size_t value_bytes_max = 1 << 20;         // of a value
  size_t reply_bytes_max = 4 << 20;         // of the values of one reply to a WAIT for many keys
  size_t waiting_bytes_max = 64 << 20;      // of requests without an answer
};

class RedisStore {
 public:
  using StoreRequest = megascale::agent::v1::StoreRequest;
  using StoreReply = megascale::agent::v1::StoreReply;
  using Reply = std::function<void(const StoreReply&)>;

  explicit RedisStore(RedisStoreOptions options);

  // Serves one request of the attempt `scope`; calls `reply` once, from a later Drive, unless
  // Forget or a repeated request id replaces it. Errors, in the reply: those of the embedded store,
  // and Unavailable - no answer in time, FailedPrecondition - the server refuses us; both name the
  // server and what to do.
  void Handle(const std::string& scope, const StoreRequest& request, Reply reply,
              absl::Duration now);

  // Drops a request whose reply is no longer wanted; it may or may not be executed.
  void Forget(const std::string& request_id);

  // The descriptor and the events for poll(2); fd() is -1 if there is nothing to wait for.
  int fd() const;
  short events() const;
  // Returns when to call Drive even if nothing happened.
  absl::Duration NextWake() const;
  void Drive(absl::Duration now);

  size_t num_waiting() const { return calls_.size(); }  // requests without an answer
  bool is_connected() const { return connection_ != nullptr; }

 private:
  struct Call {
    std::string scope;
    StoreRequest request;
    Reply reply;
    int64_t serial = 0;  // counts uses of the request id, to tell a repeated one from the first
    // The rest is for a WAIT:
    std::vector<std::optional<std::string>> values = {};  // of its keys; nullopt: not found yet
    size_t first_missing = 0;                             // index of a key
    size_t num_found = 0;
    size_t found_bytes = 0;
    size_t window = 0;       // how many keys the last round asked for
    bool all_found = false;  // the last round found all of them
  };
  using CallName = std::pair<std::string, int64_t>;  // request id, serial
  // What a WAIT asks for in a round of polls.
  struct Target {
    CallName name;
    size_t key = 0;  // index
  };
  // A command that was sent and has no reply yet.
  struct Sent {
    enum class Kind { kGreeting, kCall, kPoll } kind;
    std::optional<CallName> call = std::nullopt;    // kCall
    std::vector<std::vector<Target>> targets = {};  // kPoll: of each key
  };
  using Outgoing = std::vector<std::pair<Reply, StoreReply>>;

  absl::Status Check(const StoreRequest& request) const;
  std::string Place() const;  // returns "store redis://host:6379"
  Call* Find(const CallName& name);
  void Answer(const CallName& name, StoreReply answer);
  void AnswerError(const CallName& name, const absl::Status& status);
  void FailAll(const absl::Status& why);
  void CallReplies();

  void Connect(absl::Duration now);
  void DriveDial(absl::Duration now);
  void DriveConnection(absl::Duration now);
  absl::Status Greet();
  void Lose(const absl::Status& why, absl::Duration now);
  void CheckTimes(absl::Duration now);
  absl::Duration ConnectionDeadline() const;

  void SendDue(absl::Duration now);
  void SendPolls(absl::Duration now);
  void Send(Sent sent, const std::vector<std::string>& words, absl::Duration now);
  absl::Status OnReply(const Sent& sent, const RedisReply& reply, absl::Duration now);
  absl::Status OnGreetingReply(const RedisReply& reply);
  absl::Status OnCallReply(const CallName& name, const RedisReply& reply);
  absl::Status OnPollReply(const Sent& sent, const RedisReply& reply, absl::Duration now);
  void OnFound(const Target& target, const std::string& value);
  std::vector<std::string> WordsOf(const Call& call) const;

  const RedisStoreOptions options_;
  std::map<std::string, Call> calls_;  // by request id
  std::set<std::string> waits_;        // request ids of calls_ that wait for a key
  std::deque<CallName> queue_;         // calls to be sent; may name forgotten ones
  size_t calls_bytes_ = 0;
  int64_t last_serial_ = 0;
  Outgoing outgoing_;  // replies to call once the store's state is consistent

  std::unique_ptr<RedisDial> dial_;
  std::unique_ptr<base::TlsTunnel> tunnel_;
  std::unique_ptr<RedisConnection> connection_;
  std::deque<Sent> sent_;
  size_t num_greetings_ = 0;     // of sent_
  size_t num_polls_ = 0;         // of sent_
  bool found_in_round_ = false;  // the running round of polls found a key
  // since when the connection has been silent: its beginning, its last reply, or its first command
  absl::Duration quiet_since_;
  absl::Duration used_ = -absl::InfiniteDuration();  // when a request was last waiting
  absl::Duration connect_after_ = -absl::InfiniteDuration();
  absl::Duration backoff_;
  absl::Duration next_poll_ = -absl::InfiniteDuration();
  absl::Duration poll_pause_;
  std::optional<absl::Duration> unanswered_since_;
  absl::Status last_error_;  // of the connections since the last answer
};

}  // namespace megascale::comm
