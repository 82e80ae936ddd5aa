// Meets the members of this rank's groups on other machines. Of two ranks the lower one connects
// and the higher one listens, once per group that they share. No rank waits for one that it shares
// no group with.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/fd.h"
#include "runtime/comm/store.h"

namespace megascale::comm {

struct ConnectOptions {
  int rank = 0;
  std::string job_id;
  int64_t attempt = 0;
  std::string secret;
  Store* store = nullptr;
  std::string socket_directory;  // this or tcp_address
  std::string tcp_address;
  absl::Duration timeout;
  const std::atomic<bool>* cancelled = nullptr;  // looked at ten times a second
};

struct StreamRequest {
  std::string group;
  int peer = 0;  // world rank
};

// One authenticated stream for each request, in their order. Errors: see Fabric::Connect.
absl::StatusOr<std::vector<base::UniqueFd>> ConnectStreams(
    const ConnectOptions& options, const std::vector<StreamRequest>& requests);

}  // namespace megascale::comm
