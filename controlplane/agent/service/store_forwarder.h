// The agent's side of the rendezvous store. Forwards the workers' requests to the store of their
// job (the driver, over the agent's stream, or a Redis server), and returns the answers. A WAIT of
// several processes for the same keys is forwarded once. For this folder and tests/sim.
// Threads: one; no call blocks.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "runtime/comm/store/redis/redis_store.h"

namespace megascale::agent {

// Passwords and certificates for Redis servers. Their addresses come with the jobs.
struct StoreAccess {
  std::string password_file;  // see runtime/comm/store/redis/password_file.h; empty: no passwords
  comm::RedisTls tls;         // for addresses that begin with rediss://
};

// The result of a check.
struct StoreCheck {
  std::string job_id;
  int64_t attempt = 0;
  absl::Status outcome;
};

class StoreForwarder {
 public:
  using SendToDriver = std::function<void(v1::AgentUp)>;
  // Delivers an answer to a process, under the request id that the process gave.
  using SendToProcess = std::function<void(int64_t process_id, const v1::StoreReply&)>;

  StoreForwarder(StoreAccess access, SendToDriver driver, SendToProcess process);

  // Call before any request of the process.
  void OnStarted(int64_t process_id, const v1::DesiredJob& job);
  // Requires: `request` carries the process's job and attempt.
  void OnRequest(int64_t process_id, v1::StoreRequest request, absl::Duration now);
  // Forgets the process's requests and writes. Returns the error of the process's Redis server; "":
  // no error, or a refusal, which the process itself reports better.
  std::string OnEnded(int64_t process_id);

  // Sends everything again, because a restarted driver has lost its store.
  void OnStreamOpened();
  // As DesiredState.store_many_keys; false at first.
  void SetDriverTakesManyKeys(bool takes) { driver_takes_many_keys_ = takes; }
  void OnDriverReply(const v1::StoreReply& reply);
  // Sends the requests that have gathered for the driver.
  void FlushToDriver();

  // Begins to check that the job's store, a Redis server, does all that an attempt needs: write,
  // read and add. TakeChecks has the result within seconds.
  void Check(const std::string& node_id, const v1::DesiredJob& job, absl::Duration now);
  std::vector<StoreCheck> TakeChecks();

  void AddPollEntries(std::vector<pollfd>* entries) const;
  absl::Duration NextWake() const;
  void Drive(absl::Duration now);

 private:
  // A process that may send requests.
  struct Client {
    std::string address;  // of its Redis server; empty: the driver
    std::string scope;
    std::string failure;  // error of its Redis server
  };

  struct Asker {
    int64_t process_id = 0;
    std::string request_id;  // as the process gave it
    bool operator==(const Asker&) const = default;
  };
  // A request that the store has not answered yet.
  struct Asked {
    v1::StoreRequest request;  // as the store sees it
    std::vector<Asker> askers;
    std::string address;    // of the Redis server; empty: the driver
    std::string signature;  // in shared_; empty: not a WAIT
    // If each key is asked for by itself: the values so far.
    std::vector<std::optional<std::string>> parts = {};
    size_t num_parts_missing = 0;
  };

  void SendToStore(Asked& asked, const std::string& scope, absl::Duration now);
  void AddToBatch(Asked& asked);
  void Answer(const std::string& id, const v1::StoreReply& reply);
  void OnPart(const std::string& id, size_t index, const v1::StoreReply& reply);
  // Removes it.
  Asked Take(std::map<std::string, Asked>::iterator asked);
  comm::RedisStore& StoreAt(const std::string& address);
  void OnCheckReply(const StoreCheck& check, const v1::StoreReply& reply, bool is_last);

  const StoreAccess access_;
  const SendToDriver send_to_driver_;
  const SendToProcess send_to_process_;
  bool driver_takes_many_keys_ = false;
  std::map<int64_t, Client> clients_;
  std::map<std::string, std::unique_ptr<comm::RedisStore>> stores_;  // by address

  // By the id that the store sees: that of the first asker, after the number of its process.
  std::map<std::string, Asked> asked_;
  std::map<std::string, std::string> shared_;  // what a WAIT asks for -> its id in asked_
  // Writes of these processes to the driver's store. They are repeated to a new driver, because the
  // driver may be killed while the ranks look for each other, and its store dies with it.
  std::map<std::string, v1::StoreRequest> written_;
  v1::StoreRequests batch_;

  int64_t num_checks_ = 0;
  std::vector<StoreCheck> checks_;
};

}  // namespace megascale::agent
