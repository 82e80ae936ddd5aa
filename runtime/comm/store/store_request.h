// What both stores, the driver's and that on Redis, do alike with a request and its reply.
// Threads: plain functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "proto/agent.pb.h"

namespace megascale::comm {

// The keys of a request: StoreRequest.keys, or its one key.
size_t NumKeys(const megascale::agent::v1::StoreRequest& request);
const std::string& KeyOf(const megascale::agent::v1::StoreRequest& request, size_t index);

// Errors: InvalidArgument - several keys for another operation than WAIT; ResourceExhausted - a
// key, the request id or the value is larger than these limits.
absl::Status CheckSizes(const megascale::agent::v1::StoreRequest& request, size_t key_bytes_max,
                        size_t value_bytes_max);

// Returns OK if the values of a WAIT for many keys fit into one reply. Errors: ResourceExhausted.
absl::Status CheckReplySize(size_t num_keys, size_t bytes, size_t bytes_max);

// Returns a reply with a status, without a value.
megascale::agent::v1::StoreReply MakeReply(const std::string& request_id,
                                           const absl::Status& status);

}  // namespace megascale::comm
