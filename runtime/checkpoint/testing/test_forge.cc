#include "runtime/checkpoint/testing/test_forge.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/format/shard.h"
#include "runtime/checkpoint/writer.h"

namespace megascale::checkpoint {
namespace {

constexpr size_t kShardBytesMax = size_t{1} << 30;

// Returns the offset of the element in the shard's file; -1: not in this shard.
int64_t OffsetOf(const Shard& shard, const ForgedElement& element) {
  for (size_t i = 0; i < shard.slices.size(); ++i) {
    const v1::TensorSlice& slice = shard.slices[i];
    if (slice.name() != element.tensor || slice.dtype() != "F32" || slice.replica() > 0) continue;
    const std::vector<int64_t> shape(slice.global_shape().begin(), slice.global_shape().end());
    const std::vector<Box> found = BoxesOfRange(WholeBox(shape), element.index, 1);
    for (const Box& held : BoxesOf(slice)) {
      if (!Intersect(held, found[0])) continue;
      const int64_t within = IndexWithin(BoxOf(slice), found[0].offset) - slice.flat_begin();
      return shard.data_offsets[i] + within * 4;
    }
  }
  return -1;
}

}  // namespace

absl::Status ForgeElement(const std::string& directory, const ForgedElement& element) {
  ASSIGN_OR_RETURN(const v1::Manifest manifest, ReadManifest(directory));
  for (const v1::ShardFile& record : manifest.shards()) {
    const std::string path = absl::StrCat(directory, "/", record.file());
    ASSIGN_OR_RETURN(std::string bytes, base::ReadFile(path, kShardBytesMax));
    ASSIGN_OR_RETURN(const Shard shard,
                     ParseShard(bytes, static_cast<int64_t>(bytes.size()), path));
    const int64_t offset = OffsetOf(shard, element);
    if (offset < 0) continue;
    std::memcpy(bytes.data() + offset, &element.value, sizeof(element.value));
    RETURN_IF_ERROR(base::WriteFileDurably(path, bytes));
    v1::ShardFile forged = record;
    forged.set_sha256(base::Sha256Hex(bytes));
    RETURN_IF_ERROR(
        base::WriteFileDurably(absl::StrCat(directory, "/", ShardRecordName(record.rank())),
                               ToJson(forged, JsonStyle::kOneLine)));
    return WriteManifest(directory, manifest);
  }
  return absl::NotFoundError(absl::StrCat(directory, ": has no element ", element.index, " of ",
                                          element.tensor, " as F32"));
}

}  // namespace megascale::checkpoint
