#include "runtime/layout/ring_sizes.h"

#include <algorithm>

#include "runtime/base/status.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/model/chunk_layout.h"
#include "runtime/tensor/tensor.h"

namespace megascale::layout {
namespace {

// A sender need not wait for a receiver that is this many messages behind.
constexpr int64_t kMessagesInRing = 4;
constexpr int64_t kHeaderBytes = 128;  // of a message, and what pads it

}  // namespace

absl::StatusOr<RingSizes> RingSizes::Create(const megascale::job::v1::JobSpec& spec,
                                            const plan::Mesh& mesh) {
  ASSIGN_OR_RETURN(const RankLayout part, RankLayoutOf(spec, mesh, 0));
  // Gradients and sums have the wider type of the two.
  const auto element = static_cast<int64_t>(tensor::SizeOf(tensor::AccumulationType(part.compute)));
  RingSizes sizes(mesh);
  int64_t& bucket_bytes = sizes.message_bytes_[plan::Payload::kBucket];
  int64_t& replicated_bytes = sizes.message_bytes_[plan::Payload::kReplicated];
  const int num_chunks = part.plan_options.num_chunks();
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    ASSIGN_OR_RETURN(const model::ChunkRange range,
                     model::MakeChunkRange(part.config, num_chunks, chunk));
    const model::ChunkLayout layout = part.ShardOf(range).layout();
    for (const model::Bucket& bucket : part.BucketsOf(layout)) {
      bucket_bytes = std::max(bucket_bytes, bucket.range.count * element / mesh.data_size());
      if (mesh.tensor_size() == 1) continue;
      replicated_bytes = std::max(
          replicated_bytes, NumReplicated(layout, bucket.range) * element / mesh.tensor_size());
    }
  }
  sizes.message_bytes_[plan::Payload::kRows] =
      part.micro_batch * part.seq / mesh.tensor_size() * part.config.hidden_size * element;
  sizes.message_bytes_[plan::Payload::kEmbedding] =
      model::EmbeddingElements(part.config, mesh.tensor_size()) * element;
  return sizes;
}

size_t RingSizes::For(int64_t message_bytes, int num_members) {
  const int64_t wanted = kMessagesInRing * (message_bytes + kHeaderBytes);
  const int64_t num_rings = 2 * std::max<int64_t>(num_members - 1, 1);
  const int64_t most = std::min(static_cast<int64_t>(kRingBytesMax),
                                static_cast<int64_t>(kRingsOfChannelMax) / num_rings);
  // Whole pages; a group that is too large for that gets the smallest rings.
  const auto page = static_cast<int64_t>(kRingBytesMin);
  const int64_t pages = std::min((wanted + page - 1) / page, most / page);
  return static_cast<size_t>(std::max<int64_t>(pages, 1) * page);
}

size_t RingSizes::Of(const plan::Channel& channel) const {
  int64_t message_bytes = 0;
  for (const plan::Payload payload : plan::PayloadsOf(mesh_, channel)) {
    const auto found = message_bytes_.find(payload);
    if (found != message_bytes_.end()) message_bytes = std::max(message_bytes, found->second);
  }
  return For(message_bytes, mesh_.GroupSize(channel.group));
}

}  // namespace megascale::layout
