// Implements the gRPC JobService over the event loop. Every call occupies a gRPC thread until it
// returns.
#pragma once

#include <memory>
#include <string>

namespace grpc {
class Service;
}

namespace megascale::driver {

class AgentStreams;
class DriverLoop;

// Returns 32 random bytes of the kernel.
std::string RandomSecret();

// Makes the service to register with a gRPC server; `loop` and `agents` must outlive it.
std::unique_ptr<grpc::Service> MakeJobService(DriverLoop* loop, AgentStreams* agents);

}  // namespace megascale::driver
