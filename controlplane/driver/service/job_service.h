// Implements the gRPC JobService over the event loop. Every call occupies a gRPC thread until it
// returns.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace megascale::driver {

class AgentStreams;
class DriverLoop;

// Makes the service to register with a gRPC server; `loop` and `agents` must outlive it.
std::unique_ptr<grpc::Service> MakeJobService(DriverLoop* loop, AgentStreams* agents);

}  // namespace megascale::driver
