// The store as a worker sees it. Requests go over the worker's link to the agent, and on to the
// driver or to Redis. Replies come back in any order; the thread that reads the link passes them to
// OnReply. Threads: any. OnReply and Close never block.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "proto/agent.pb.h"
#include "runtime/comm/store/store.h"

namespace megascale::comm {

struct LinkStoreOptions {
  std::string job_id;
  int64_t attempt = 0;
  std::string client;                               // unique among the attempt's clients: "rank-3"
  absl::Duration call_timeout = absl::Seconds(30);  // for Set, Get and Add
};

class LinkStore : public Store {
 public:
  // Sends one request to the agent. Called on the callers' threads, without the lock.
  using SendRequest = std::function<absl::Status(const megascale::agent::v1::StoreRequest&)>;

  LinkStore(LinkStoreOptions options, SendRequest send);

  absl::Status Set(const std::string& key, const std::string& value) override;
  absl::StatusOr<std::string> Get(const std::string& key) override;
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t amount,
                              const std::string& request_id) override;
  absl::StatusOr<std::string> Wait(const std::string& key, absl::Duration timeout) override;
  absl::StatusOr<std::vector<std::string>> WaitAll(const std::vector<std::string>& keys,
                                                   absl::Duration timeout) override;
  absl::StatusOr<std::vector<std::optional<std::string>>> GetAll(
      const std::vector<std::string>& keys) override;

  // Handles a reply from the link. Ignores it if no call waits for it any more.
  void OnReply(const megascale::agent::v1::StoreReply& reply);

  // Ends the store when the link is gone: running and later calls fail with `reason`.
  void Close(const absl::Status& reason);

 private:
  using Request = megascale::agent::v1::StoreRequest;
  using StoreReply = megascale::agent::v1::StoreReply;

  Request NewRequest(Request::Operation operation, const std::string& key);
  absl::StatusOr<StoreReply> Call(const Request& request, absl::Duration timeout);
  // A call has two halves, so that several can run at once. Finish follows each Begin that
  // succeeded.
  absl::Status Begin(const Request& request);
  absl::StatusOr<StoreReply> Finish(const Request& request, absl::Duration timeout);

  const LinkStoreOptions options_;
  const SendRequest send_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a call was answered, or closed_
  absl::Status closed_;
  int64_t num_requests_ = 0;
  std::map<std::string, std::optional<StoreReply>> calls_;  // by request id; filled when answered
};

}  // namespace megascale::comm
