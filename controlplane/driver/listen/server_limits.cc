#include "controlplane/driver/listen/server_limits.h"

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>

namespace megascale::driver {
namespace {

constexpr int kMetadataBytesMax = 16 << 10;
constexpr int kStreamsPerConnectionMax = 1024;
// A connection that sends nothing, or no HTTP/2, is closed after this time.
constexpr int kHandshakeMilliseconds = 10'000;
// After this time the driver notices that a client's machine is gone, and frees its streams.
constexpr int kKeepaliveMilliseconds = 30'000;
constexpr int kKeepaliveTimeoutMilliseconds = 20'000;

}  // namespace

void SetLimits(grpc::ServerBuilder* builder, size_t memory_bytes, int threads) {
  grpc::ResourceQuota quota("driver");
  quota.Resize(memory_bytes);
  quota.SetMaxThreads(threads);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(kReceivedBytesMax);
  builder->SetMaxSendMessageSize(kSentBytesMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsPerConnectionMax);
  builder->AddChannelArgument("grpc.server_handshake_timeout_ms", kHandshakeMilliseconds);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMilliseconds);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Measuring a connection's bandwidth takes a ping and a timer for messages as small as reports.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
}

}  // namespace megascale::driver
