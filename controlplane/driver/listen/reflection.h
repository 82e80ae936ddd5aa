// Serves the driver's schema as grpc.reflection.v1, which newer clients ask first. gRPC's own
// plugin serves grpc.reflection.v1alpha. Threads: any; an open stream occupies no thread.
#pragma once

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

namespace megascale::driver {

// Makes the service. `services`: the names that it lists.
std::unique_ptr<grpc::Service> MakeReflection(std::vector<std::string> services);

}  // namespace megascale::driver
