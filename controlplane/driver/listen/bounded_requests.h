// Bounds the memory of the requests that calls of a synchronous gRPC service work on. gRPC's own
// budget (server_limits.h) ends where a request is parsed, and the parsed request stays for as long
// as its call: each of 500 watchers could keep 16 MiB of text that no rule allows.
// It looks at the size before the request is parsed; requests of at most MessageBudget::kSmallBytes
// always pass. A refused call ends with RESOURCE_EXHAUSTED and the reason.
// Threads: any.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>

namespace megascale::driver {

struct RequestLimits {
  // The maximum size of a request; that of `large_methods` is the server's (kReceivedBytesMax).
  size_t bytes_max = size_t{1} << 20;
  std::set<std::string> large_methods;
  // The bytes of all large requests that calls work on at one time. A request takes up to three
  // times its size while it is checked.
  size_t bytes_of_all_max = size_t{32} << 20;
};

// Returns a service to register instead of `service`, whose generated base class describes
// `descriptor`. All methods must be synchronous, with one request. Ownership: it keeps `service`.
std::unique_ptr<grpc::Service> BoundRequests(std::unique_ptr<grpc::Service> service,
                                             const google::protobuf::ServiceDescriptor& descriptor,
                                             const RequestLimits& limits);

}  // namespace megascale::driver
