// The store that the driver serves to agents, for the present attempts only. A request of a process
// is refused if its attempt is over, or if its machine holds no rank of the attempt.
// Threads: any. Replies must not block.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "controlplane/driver/shell/driver_shell.h"
#include "proto/agent.pb.h"
#include "runtime/comm/store/embedded_store.h"

namespace megascale::driver {

class AttemptStore {
 public:
  using Reply = comm::EmbeddedStore::Reply;

  // Sets the present attempts by job id, and forgets the keys of all others. Meant for
  // DriverShell::Options::on_attempts.
  void SetAttempts(const std::map<std::string, RunningAttempt>& attempts);

  // Serves a request of an agent, as EmbeddedStore::Handle does. Errors, in the reply: Aborted -
  // the request is not of a present attempt with a rank on this node.
  void Handle(const megascale::agent::v1::StoreRequest& request, const std::string& node_id,
              const Reply& reply);

 private:
  std::mutex mutex_;
  comm::EmbeddedStore store_;
  std::map<std::string, RunningAttempt> attempts_;
};

}  // namespace megascale::driver
