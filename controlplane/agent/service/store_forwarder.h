// The agent's side of the rendezvous store: takes the requests of its workers to where the store of
// their job is - the driver, over the agent's stream, or a Redis server -, and the answers back.
// Private to this folder. Threads: one; nothing blocks.
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "runtime/comm/redis/redis_store.h"

namespace megascale::agent {

// What an agent needs to speak to Redis servers, beside their addresses.
struct StoreAccess {
  std::string password_file;  // see runtime/comm/redis/password_file.h; empty: no passwords
  comm::RedisTls tls;         // for addresses that begin with rediss://
};

// What came of a check.
struct StoreCheck {
  std::string job_id;
  int64_t attempt = 0;
  absl::Status outcome;
};

class StoreForwarder {
 public:
  using SendToDriver = std::function<void(v1::AgentUp)>;
  // An answer for a process, under the request id that the process gave.
  using SendToProcess = std::function<void(int64_t process_id, const v1::StoreReply&)>;

  StoreForwarder(StoreAccess access, SendToDriver driver, SendToProcess process);

  // Before any request of the process.
  void OnStarted(int64_t process_id, const v1::DesiredJob& job);
  // Requires: `request` carries the process's job and attempt.
  void OnRequest(int64_t process_id, v1::StoreRequest request, absl::Duration now);
  // Forgets its requests and what it wrote. Returns how a Redis server failed it: "" - it did not,
  // or refused it, which the process itself reports best.
  std::string OnEnded(int64_t process_id);

  // The driver may be another one and know nothing: all is told again.
  void OnStreamOpened();
  void OnDriverReply(const v1::StoreReply& reply);
  // Sends what has gathered for the driver.
  void FlushToDriver();

  // Asks the job's store, which is a Redis server, for what an attempt needs of it: to write, to
  // read and to add. The outcome comes from TakeChecks within seconds.
  void Check(const std::string& node_id, const v1::DesiredJob& job, absl::Duration now);
  std::vector<StoreCheck> TakeChecks();

  void AddPollEntries(std::vector<pollfd>* entries) const;
  absl::Duration NextWake() const;
  void Drive(absl::Duration now);

 private:
  // A process that may ask.
  struct Client {
    std::string address;  // of its Redis server; empty: the driver
    std::string scope;
    std::string failure;  // of its Redis server
  };

  comm::RedisStore& StoreAt(const std::string& address);
  void Answer(int64_t process_id, const v1::StoreReply& reply);
  void OnRedisReply(int64_t process_id, const v1::StoreReply& reply);
  void OnCheckReply(const StoreCheck& check, const v1::StoreReply& reply, bool is_last);

  const StoreAccess access_;
  const SendToDriver send_to_driver_;
  const SendToProcess send_to_process_;
  std::map<int64_t, Client> clients_;
  std::map<std::string, std::unique_ptr<comm::RedisStore>> stores_;  // by address

  // Requests to the driver by the id that it sees, until they are answered or their process ended.
  std::map<std::string, v1::StoreRequest> waiting_;
  // Of the same processes: what they put into the driver's store. The driver may be killed while
  // they look for each other, and the next one knows nothing of it.
  std::map<std::string, v1::StoreRequest> written_;
  v1::StoreRequests batch_;

  int64_t num_checks_ = 0;
  std::vector<StoreCheck> checks_;
};

}  // namespace megascale::agent
