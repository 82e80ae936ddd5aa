#include "runtime/checkpoint/shard.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/message_json.h"
#include "runtime/checkpoint/safetensors.h"

namespace megascale::checkpoint {
namespace {

using v1::TensorSlice;

constexpr char kAttemptKey[] = "attempt";
constexpr char kStepKey[] = "step";
constexpr char kNextSampleKey[] = "next_sample";
constexpr char kShardKey[] = "shard";
constexpr char kFormatKey[] = "format";
constexpr char kFormat[] = "megascale";

absl::Span<const int64_t> GlobalShape(const TensorSlice& slice) {
  return absl::MakeConstSpan(slice.global_shape().data(),
                             static_cast<size_t>(slice.global_shape_size()));
}

absl::Span<const int64_t> BoxShape(const TensorSlice& slice) {
  if (slice.box_shape().empty()) return GlobalShape(slice);
  return absl::MakeConstSpan(slice.box_shape().data(), static_cast<size_t>(slice.box_shape_size()));
}

int64_t BoxOffset(const TensorSlice& slice, size_t dim) {
  return slice.box_offset().empty() ? 0 : slice.box_offset(static_cast<int>(dim));
}

// A whole tensor keeps its shape, so that other readers of safetensors see it; a part is flat.
std::vector<int64_t> StoredShape(const TensorSlice& slice) {
  const auto shape = GlobalShape(slice);
  const auto elements = NumElements(shape);
  if (elements.ok() && *elements == slice.flat_count()) return {shape.begin(), shape.end()};
  return {slice.flat_count()};
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

absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("absurd shape [", absl::StrJoin(shape, ", "), "]"));
    }
  }
  return elements;
}

absl::Status CheckSlice(const TensorSlice& slice) {
  const auto wrong = [&slice](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice \"", slice.key(), "\" of tensor \"", slice.name(), "\": ", what));
  };
  if (slice.name().empty() || slice.key().empty()) return wrong("has no name or no key");
  if (!DtypeBytes(slice.dtype()).ok()) return wrong(absl::StrCat("unknown type ", slice.dtype()));
  RETURN_IF_ERROR(base::Annotate(NumElements(GlobalShape(slice)).status(), slice.name()));
  const auto box = BoxShape(slice);
  const auto box_elements = NumElements(box);
  if (!box_elements.ok()) return wrong("absurd box");
  if (slice.box_shape_size() != slice.box_offset_size() ||
      box.size() != GlobalShape(slice).size()) {
    return wrong("its box has not the tensor's number of dimensions");
  }
  for (size_t dim = 0; dim < box.size(); ++dim) {
    const int64_t offset = BoxOffset(slice, dim);
    if (offset < 0 || box[dim] > GlobalShape(slice)[dim] - offset) {
      return wrong(absl::StrCat("its box leaves the tensor in dimension ", dim));
    }
  }
  if (slice.flat_begin() < 0 || slice.flat_count() < 0 ||
      slice.flat_count() > *box_elements - slice.flat_begin()) {
    return wrong(absl::StrCat("elements ", slice.flat_begin(), " + ", slice.flat_count(),
                              " leave its box of ", *box_elements));
  }
  return absl::OkStatus();
}

absl::Status ForEachRun(const TensorSlice& slice,
                        absl::FunctionRef<absl::Status(const SliceRun&)> visit) {
  if (slice.flat_count() == 0) return absl::OkStatus();
  const auto shape = GlobalShape(slice);
  const auto box = BoxShape(slice);
  // Dimensions after `split` are whole in the box, so that a row of it is contiguous in the tensor.
  size_t split = box.size();
  int64_t row_elements = 1;
  while (split > 0) {
    --split;
    row_elements *= box[split];
    if (box[split] != shape[split]) break;
  }
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];

  const int64_t end = slice.flat_begin() + slice.flat_count();
  for (int64_t at = slice.flat_begin(); at < end;) {
    const int64_t in_row = at % row_elements;
    int64_t row = at / row_elements;
    int64_t tensor_begin = in_row;
    for (size_t dim = 0; dim < box.size(); ++dim)
      tensor_begin += BoxOffset(slice, dim) * strides[dim];
    for (size_t dim = split; dim-- > 0;) {
      tensor_begin += row % box[dim] * strides[dim];
      row /= box[dim];
    }
    const int64_t count = std::min(end - at, row_elements - in_row);
    RETURN_IF_ERROR(visit({tensor_begin, at - slice.flat_begin(), count}));
    at += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardLayout> ShardLayout::Create(int rank, std::vector<TensorSlice> slices) {
  ShardLayout layout;
  layout.rank_ = rank;
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

void ShardLayout::WriteHeader(const ShardMoment& moment, absl::Span<std::byte> payload) const {
  MEGASCALE_CHECK(static_cast<int64_t>(payload.size()) == size_bytes_);
  std::string header = Header(moment);
  MEGASCALE_CHECK(static_cast<int64_t>(header.size()) <= data_begin_);
  // The data stays where it is whatever the numbers are: the header is made as long as its longest.
  header.resize(static_cast<size_t>(data_begin_), ' ');
  const uint64_t length = header.size() - kHeaderLengthBytes;
  std::memcpy(header.data(), &length, sizeof(length));
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
