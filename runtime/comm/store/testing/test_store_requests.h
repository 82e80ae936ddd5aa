// Requests to a store as processes make them, in the first attempt of job "job".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/agent.pb.h"

namespace megascale::comm {

inline agent::v1::StoreRequest Make(agent::v1::StoreRequest::Operation operation,
                                    const std::string& id, const std::string& key) {
  agent::v1::StoreRequest request;
  request.set_operation(operation);
  request.set_request_id(id);
  request.set_job_id("job");
  request.set_attempt(1);
  request.set_key(key);
  return request;
}

inline agent::v1::StoreRequest SetOf(const std::string& key, const std::string& value) {
  agent::v1::StoreRequest request = Make(agent::v1::StoreRequest::OPERATION_SET, "set", key);
  request.set_value(value);
  return request;
}

inline agent::v1::StoreRequest AddOf(const std::string& id, const std::string& key,
                                     int64_t amount) {
  agent::v1::StoreRequest request = Make(agent::v1::StoreRequest::OPERATION_ADD, id, key);
  request.set_amount(amount);
  return request;
}

inline agent::v1::StoreRequest WaitOf(const std::string& id, const std::vector<std::string>& keys) {
  agent::v1::StoreRequest request = Make(agent::v1::StoreRequest::OPERATION_WAIT, id, "");
  for (const std::string& key : keys) request.add_keys(key);
  return request;
}

}  // namespace megascale::comm
