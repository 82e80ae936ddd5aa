// Limits on what clients can make the driver's port hold: bytes of a message and of all messages
// together, threads, streams of a connection, time for its handshake. Without these limits one
// broken or hostile client could use up the memory that the others need. open_streams.h limits the
// number of streams, kOpenJobsMax in ../core/driver_core.h the number of jobs.
#pragma once

#include <grpcpp/server_builder.h>

#include <cstddef>

namespace megascale::driver {

// The maximum size of one message; a larger one fails with RESOURCE_EXHAUSTED. A list of a thousand
// jobs has about 2 MiB, an agent's report at most 1 MiB of steps.
inline constexpr int kReceivedBytesMax = 16 << 20;
inline constexpr int kSentBytesMax = 64 << 20;

// Memory for messages that are read or wait to be sent, of all connections together; enough for
// several of the largest messages. Beyond it gRPC ends streams, with RESOURCE_EXHAUSTED. Requests
// that calls work on take memory beside that: bounded_requests.h.
inline constexpr size_t kMemoryBytesMax = size_t{192} << 20;

// Threads that serve calls: kStreamsMax of open_streams.h, and calls that wait for the loop. A call
// beyond them fails with RESOURCE_EXHAUSTED.
inline constexpr int kThreadsMax = 1024;

// Sets these limits. Only tests pass less than the defaults.
void SetLimits(grpc::ServerBuilder* builder, size_t memory_bytes = kMemoryBytesMax,
               int threads = kThreadsMax);

}  // namespace megascale::driver
