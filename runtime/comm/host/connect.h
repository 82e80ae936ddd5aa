// Connects this rank to the members of its groups on other machines. Of two ranks the lower one
// connects and the higher one listens, once per group that they share. A rank waits only for ranks
// that it shares a group with.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/base/fd.h"
#include "runtime/comm/store/store.h"

namespace megascale::comm {

// The most descriptors that a rank's process has open beside its streams: about 30 when it begins
// to connect (shared memory, its link to the agent, its log, those of libraries), then the
// listening socket, epolls, and connections that have not authenticated yet; the rest is for files
// that it opens and closes again. Whoever checks a limit of descriptors counts these, so that a
// rank that was let start does not fail here.
inline constexpr int64_t kDescriptorsBesideStreams = 64;

struct ConnectOptions {
  int rank = 0;
  std::string job_id;
  int64_t attempt = 0;
  std::string secret;
  bool binds_address = true;  // as in FabricOptions
  Store* store = nullptr;
  std::string socket_directory;  // set this or tcp_address
  std::string tcp_address;
  absl::Duration timeout;
  // As in FabricOptions.
  absl::Duration reach_timeout = absl::InfiniteDuration();
  absl::Duration join_timeout = absl::InfiniteDuration();
  const std::atomic<bool>* cancelled = nullptr;  // checked ten times a second
  // If there is no room for another incoming socket, a socket that has not authenticated for this
  // long may be replaced. A peer that is slower than this connects again.
  absl::Duration stranger_patience = absl::Seconds(2);
  // Counts how often a socket was looked at. Borrowed; null: nobody wants to know.
  int64_t* num_looks = nullptr;
};

struct StreamRequest {
  std::string group;
  int peer = 0;  // world rank
};

// Returns one authenticated stream for each request, in their order. Errors: see Fabric::Connect.
absl::StatusOr<std::vector<base::UniqueFd>> ConnectStreams(
    const ConnectOptions& options, const std::vector<StreamRequest>& requests);

}  // namespace megascale::comm
