// Limits on what a client can make the driver's port hold: bytes of a message, streams of a
// connection, time until it must speak. Without them one broken or hostile client could take the
// memory of the others. For the number of streams see open_streams.h, for the number of jobs
// kOpenJobsMax in driver_core.h.
#pragma once

#include <grpcpp/server_builder.h>

namespace megascale::driver {

// The maximum size of one message in either direction; a larger one fails with RESOURCE_EXHAUSTED.
// A list of a thousand jobs has about 2 MiB, an agent's report at most 1 MiB of steps.
inline constexpr int kMessageBytesMax = 64 << 20;

void SetLimits(grpc::ServerBuilder* builder);

// Raises the process's soft limit of open descriptors to the hard limit: each connection and each
// job that has not ended takes one descriptor. Does nothing if that is not allowed.
void RaiseDescriptorLimit();

}  // namespace megascale::driver
