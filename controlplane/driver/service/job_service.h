// JobService over the event loop. Every call takes a thread of gRPC while it lasts.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace megascale::driver {

class AgentStreams;
class DriverLoop;

// To be registered with a gRPC server; `loop` and `agents` must outlive it.
std::unique_ptr<grpc::Service> MakeJobService(DriverLoop* loop, AgentStreams* agents);

}  // namespace megascale::driver
