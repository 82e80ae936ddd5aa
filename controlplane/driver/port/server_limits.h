// What anybody can make the driver's port hold: bytes of a message, streams of a connection, time
// to begin to speak. Each is set on purpose, so that no client, broken or hostile, takes the memory
// of the others. Start with open_streams.h for what is streamed, and kOpenJobsMax of driver_core.h
// for jobs.
#pragma once

#include <grpcpp/server_builder.h>

namespace megascale::driver {

// Of one message in either direction; what is larger is RESOURCE_EXHAUSTED. A list of a thousand
// jobs has about 2 MiB, a report of an agent at most 1 MiB of steps.
inline constexpr int kMessageBytesMax = 64 << 20;

void SetLimits(grpc::ServerBuilder* builder);

// Raises the process's soft limit of open descriptors to its hard one: a connection takes one, as
// does a job that has not ended. Effects: none where that is not allowed.
void RaiseDescriptorLimit();

}  // namespace megascale::driver
