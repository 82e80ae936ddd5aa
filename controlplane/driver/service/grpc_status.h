// A status as gRPC sends it. Private to this folder.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace megascale::driver {

// Returns `status` with its code and message; the codes of gRPC have the same numbers.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

}  // namespace megascale::driver
