#include "controlplane/driver/service/attempt_store.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;

void AttemptStore::SetAttempts(const std::map<std::string, RunningAttempt>& attempts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::map<std::string, RunningAttempt> before = std::exchange(attempts_, attempts);
  for (const auto& [job_id, running] : attempts) {
    store_.DropAttemptsBefore(job_id, running.attempt);
  }
  for (const auto& [job_id, running] : before) {
    if (attempts.count(job_id) == 0) store_.DropJob(job_id);
  }
}

void AttemptStore::Handle(const agent::StoreRequest& request, const std::string& node_id,
                          const Reply& reply) {
  // Held during the call, so that no request reaches the store after its job was dropped.
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = attempts_.find(request.job_id());
  const bool is_present = it != attempts_.end() && it->second.attempt == request.attempt();
  if (is_present && absl::c_binary_search(it->second.nodes, node_id)) {
    store_.Handle(request, reply);
    return;
  }
  agent::StoreReply refusal;
  refusal.set_request_id(request.request_id());
  refusal.set_code(static_cast<int>(absl::StatusCode::kAborted));
  refusal.set_message(absl::StrCat(
      "attempt ", request.attempt(), " of job ", request.job_id(),
      is_present ? absl::StrCat(" has no rank on node ", node_id) : " is not the present one"));
  reply(refusal);
}

}  // namespace megascale::driver
