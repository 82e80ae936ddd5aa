#include "runtime/checkpoint/format/shard.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/format/safetensors.h"

namespace megascale::checkpoint {
namespace {

using v1::TensorSlice;

constexpr char kAttemptKey[] = "attempt";
constexpr char kStepKey[] = "step";
constexpr char kNextSampleKey[] = "next_sample";
constexpr char kShardKey[] = "shard";
constexpr char kFormatKey[] = "format";
constexpr char kFormat[] = "megascale";
// More than any tensor has. Bounds the recursion over dimensions.
constexpr size_t kDimsMax = 8;

absl::Span<const int64_t> GlobalShape(const TensorSlice& slice) {
  return absl::MakeConstSpan(slice.global_shape().data(),
                             static_cast<size_t>(slice.global_shape_size()));
}

// A whole tensor or box keeps its shape, so that other readers of safetensors see it; a part is
// flat.
std::vector<int64_t> StoredShape(const TensorSlice& slice) {
  Box box = BoxOf(slice);
  const auto elements = NumElements(box.shape);
  if (elements.ok() && *elements == slice.flat_count()) return std::move(box.shape);
  return {slice.flat_count()};
}

// Gives each slice without a key a unique one.
void GiveKeys(std::vector<TensorSlice>* slices) {
  std::set<std::string> keys;
  for (const TensorSlice& slice : *slices) keys.insert(slice.key());
  for (TensorSlice& slice : *slices) {
    if (!slice.key().empty()) continue;
    std::string key = slice.name();
    for (int number = 1; !keys.insert(key).second; ++number) {
      key = absl::StrCat(slice.name(), "#", number);
    }
    slice.set_key(std::move(key));
  }
}

absl::StatusOr<int64_t> MetadataNumber(const SafetensorsHeader& header, const std::string& key,
                                       absl::string_view file) {
  const auto found = header.metadata.find(key);
  int64_t value = 0;
  if (found == header.metadata.end() || !absl::SimpleAtoi(found->second, &value) || value < 0) {
    return absl::DataLossError(
        absl::StrCat(file, ": is no shard of Megascale: its metadata has no number \"", key, "\""));
  }
  return value;
}

}  // namespace

absl::Status CheckSlice(const TensorSlice& slice) {
  const auto wrong = [&slice](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice \"", slice.key(), "\" of tensor \"", slice.name(), "\": ", what));
  };
  if (slice.name().empty() || slice.key().empty()) return wrong("has no name or no key");
  const auto element_bytes = DtypeBytes(slice.dtype());
  if (!element_bytes.ok()) return wrong(absl::StrCat("unknown type ", slice.dtype()));
  const auto shape = GlobalShape(slice);
  if (shape.size() > kDimsMax) {
    return wrong(absl::StrCat("has ", shape.size(), " dimensions, at most ", kDimsMax));
  }
  if (const auto elements = NumElements(shape); !elements.ok()) {
    return wrong(elements.status().message());
  }
  const Box box = BoxOf(slice);
  if (const absl::Status checked = CheckBox(box, shape); !checked.ok()) {
    return wrong(checked.message());
  }
  const int64_t box_elements = *NumElements(box.shape);
  if (slice.flat_begin() < 0 || slice.flat_count() < 0 ||
      slice.flat_count() > box_elements - slice.flat_begin()) {
    return wrong(absl::StrCat("elements ", slice.flat_begin(), " + ", slice.flat_count(),
                              " leave its box of ", box_elements));
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(slice.flat_count(), *element_bytes, &bytes)) {
    return wrong(absl::StrCat("absurd number of elements ", slice.flat_count()));
  }
  if (slice.replica() < 0) return wrong(absl::StrCat("is replica ", slice.replica()));
  return absl::OkStatus();
}

Box BoxOf(const TensorSlice& slice) {
  if (slice.box_offset().empty() && slice.box_shape().empty()) return WholeBox(GlobalShape(slice));
  return {.offset = {slice.box_offset().begin(), slice.box_offset().end()},
          .shape = {slice.box_shape().begin(), slice.box_shape().end()}};
}

std::vector<Box> BoxesOf(const TensorSlice& slice) {
  return BoxesOfRange(BoxOf(slice), slice.flat_begin(), slice.flat_count());
}

absl::StatusOr<ShardLayout> ShardLayout::Create(int rank, std::vector<TensorSlice> slices) {
  ShardLayout layout;
  layout.rank_ = rank;
  GiveKeys(&slices);
  std::set<std::string> keys;
  int64_t data_bytes = 0;
  for (const TensorSlice& slice : slices) {
    RETURN_IF_ERROR(CheckSlice(slice));
    if (!keys.insert(slice.key()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("slice \"", slice.key(), "\": its key is taken"));
    }
    const int64_t element_bytes = *DtypeBytes(slice.dtype());
    if (data_bytes % element_bytes != 0) {
      return absl::InvalidArgumentError(absl::StrCat("slice \"", slice.key(),
                                                     "\": would begin within a ", slice.dtype(),
                                                     "; lay wider types out first"));
    }
    layout.offsets_.push_back(data_bytes);
    data_bytes += slice.flat_count() * element_bytes;
  }
  layout.slices_ = std::move(slices);
  constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
  layout.data_begin_ = static_cast<int64_t>(layout.Header({kLongest, kLongest, kLongest}).size());
  layout.size_bytes_ = layout.data_begin_ + data_bytes;
  return layout;
}

std::string ShardLayout::Header(const ShardMoment& moment) const {
  SafetensorsHeader header;
  v1::ShardFile shard;
  shard.set_rank(rank_);
  for (size_t i = 0; i < slices_.size(); ++i) {
    const TensorSlice& slice = slices_[i];
    *shard.add_slices() = slice;
    header.entries.push_back({slice.key(), slice.dtype(), StoredShape(slice), offsets_[i],
                              slice.flat_count() * *DtypeBytes(slice.dtype())});
  }
  header.metadata[kFormatKey] = kFormat;
  header.metadata[kAttemptKey] = absl::StrCat(moment.attempt);
  header.metadata[kStepKey] = absl::StrCat(moment.step);
  header.metadata[kNextSampleKey] = absl::StrCat(moment.next_sample);
  header.metadata[kShardKey] = ToJson(shard, JsonStyle::kOneLine);
  return SerializeSafetensorsHeader(header);
}

std::string ShardLayout::PaddedHeader(const ShardMoment& moment) const {
  std::string header = Header(moment);
  MEGASCALE_CHECK(static_cast<int64_t>(header.size()) <= data_begin_);
  // Pad the header to its greatest possible length, so that the data has the same offset at every
  // step.
  header.resize(static_cast<size_t>(data_begin_), ' ');
  const uint64_t length = header.size() - kHeaderLengthBytes;
  std::memcpy(header.data(), &length, sizeof(length));
  return header;
}

void ShardLayout::WriteHeader(const ShardMoment& moment, absl::Span<std::byte> payload) const {
  MEGASCALE_CHECK(static_cast<int64_t>(payload.size()) == size_bytes_);
  const std::string header = PaddedHeader(moment);
  std::memcpy(payload.data(), header.data(), header.size());
}

absl::StatusOr<Shard> ParseShard(absl::string_view start, int64_t file_bytes,
                                 absl::string_view file) {
  ASSIGN_OR_RETURN(const SafetensorsHeader header, ParseSafetensorsHeader(start, file_bytes, file));
  Shard shard;
  ASSIGN_OR_RETURN(shard.moment.attempt, MetadataNumber(header, kAttemptKey, file));
  ASSIGN_OR_RETURN(shard.moment.step, MetadataNumber(header, kStepKey, file));
  ASSIGN_OR_RETURN(shard.moment.next_sample, MetadataNumber(header, kNextSampleKey, file));
  const auto json = header.metadata.find(kShardKey);
  if (json == header.metadata.end()) {
    return absl::DataLossError(absl::StrCat(file, ": its metadata has no \"", kShardKey, "\""));
  }
  v1::ShardFile record;
  RETURN_IF_ERROR(FromJson(json->second, absl::StrCat(file, ", metadata"), &record));
  shard.rank = record.rank();
  std::map<absl::string_view, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : header.entries) entries[entry.key] = &entry;
  for (const TensorSlice& slice : record.slices()) {
    const absl::Status checked = CheckSlice(slice);
    if (!checked.ok()) return absl::DataLossError(absl::StrCat(file, ": ", checked.message()));
    const auto entry = entries.find(slice.key());
    if (entry == entries.end() || entry->second->dtype != slice.dtype() ||
        entry->second->size_bytes != slice.flat_count() * *DtypeBytes(slice.dtype())) {
      return absl::DataLossError(absl::StrCat(file, ": slice \"", slice.key(),
                                              "\" is described but not stored as described"));
    }
    shard.data_offsets.push_back(header.data_begin + entry->second->begin);
    shard.slices.push_back(slice);
    entries.erase(entry);
  }
  if (!entries.empty()) {
    return absl::DataLossError(absl::StrCat(file, ": tensor \"", entries.begin()->first,
                                            "\" is stored but not described"));
  }
  return shard;
}

}  // namespace megascale::checkpoint
