#include "runtime/comm/host/region.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/comm/communicator.h"

namespace megascale::comm {
namespace {

constexpr uint64_t kMagic = 0x314d4d4f4353474d;  // "MGSCOMM1"

struct RegionHeader {
  uint64_t magic;
  int64_t attempt;
  uint64_t spec_hash;  // over job, node, placements and groups
  uint64_t size_bytes;
};
static_assert(sizeof(RegionHeader) <= kRegionHeaderBytes);

size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

constexpr size_t kSlotBytes = (sizeof(MemberSlot) + 63) / 64 * 64;

// Layout: `written`, a position for each reader, data.
size_t RingBytes(size_t capacity, size_t num_readers) {
  return RoundUp((1 + num_readers) * sizeof(RingCounter) + capacity, kPageBytes);
}

Ring MakeRing(std::byte* start, size_t capacity, size_t num_readers) {
  auto* counters = reinterpret_cast<RingCounter*>(start);
  return Ring(counters, {counters + 1, num_readers},
              start + (1 + num_readers) * sizeof(RingCounter), capacity);
}

void FormatRing(std::byte* start, size_t num_readers) {
  for (size_t i = 0; i <= num_readers; ++i) new (start + i * sizeof(RingCounter)) RingCounter();
}

// Where the parts of a group lie, counted from the group's start.
struct GroupParts {
  size_t rings = 0;
  size_t windows = 0;
  size_t end = 0;
  size_t ring_bytes = 0;  // of one ring or window
  bool has_windows = false;
};

GroupParts PartsOf(const GroupSizes& group) {
  const size_t num_others = group.num_local - 1;
  GroupParts parts;
  parts.has_windows = group.num_local == group.num_members && group.num_local > 1;
  parts.ring_bytes =
      parts.has_windows ? RoundUp(group.ring_bytes / 2, kRingAlignment) : group.ring_bytes;
  parts.rings = RoundUp(group.num_local * kSlotBytes, kPageBytes);
  parts.windows = parts.rings + group.num_local * num_others * RingBytes(parts.ring_bytes, 1);
  parts.end = parts.windows;
  if (parts.has_windows) parts.end += group.num_local * RingBytes(parts.ring_bytes, num_others);
  return parts;
}

uint64_t SpecHash(const RegionSpec& spec) {
  std::string text = absl::StrCat(spec.job_id, "\n", spec.node_id, "\n",
                                  absl::StrJoin(spec.placements, "\n"), "\n");
  for (const GroupSpec& group : spec.groups) {
    absl::StrAppend(&text, group.name, "\n", absl::StrJoin(group.ranks, ","), "\n",
                    group.ring_bytes, "\n");
  }
  return base::Xxh3(text.data(), text.size());
}

absl::Status ValidateMembers(const GroupSpec& group, size_t world_size) {
  if (group.ranks.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("group ", group.name, " has no member"));
  }
  if (std::set<int>(group.ranks.begin(), group.ranks.end()).size() != group.ranks.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group ", group.name, " names a rank twice: ", absl::StrJoin(group.ranks, ", ")));
  }
  for (const int rank : group.ranks) {
    if (rank < 0 || static_cast<size_t>(rank) >= world_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", group.name, " names rank ", rank, " of a world of ", world_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateGroups(const std::vector<GroupSpec>& groups,
                            const std::vector<std::string>& placements) {
  std::set<std::string> names;
  for (const GroupSpec& group : groups) {
    if (group.name.empty() || !names.insert(group.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("group names must be there and differ: \"", group.name, "\""));
    }
    if (absl::Status status = ValidateMembers(group, placements.size()); !status.ok())
      return status;
    if (group.ring_bytes < 256 || group.ring_bytes % kRingAlignment != 0) {
      return absl::InvalidArgumentError(absl::StrCat("group ", group.name, ": ring_bytes is ",
                                                     group.ring_bytes,
                                                     ", expected a multiple of 64, at least 256"));
    }
  }
  return absl::OkStatus();
}

RegionLayout RegionLayout::Compute(const std::vector<GroupSpec>& groups,
                                   const std::vector<std::string>& placements,
                                   const std::string& node_id) {
  RegionLayout layout;
  size_t offset = kRegionHeaderBytes;
  for (const GroupSpec& spec : groups) {
    Group group;
    group.ring_bytes = spec.ring_bytes;
    for (const int rank : spec.ranks) {
      const bool is_local = placements.at(rank) == node_id;
      group.local_index.push_back(is_local ? static_cast<int>(group.num_local) : -1);
      if (is_local) ++group.num_local;
    }
    if (group.num_local > 0) {
      const GroupParts parts = PartsOf({.num_members = spec.ranks.size(),
                                        .num_local = group.num_local,
                                        .ring_bytes = spec.ring_bytes});
      group.ring_bytes = parts.ring_bytes;
      group.has_windows = parts.has_windows;
      group.slots_offset = offset;
      group.rings_offset = offset + parts.rings;
      group.windows_offset = offset + parts.windows;
      offset += parts.end;
    }
    layout.groups_.push_back(std::move(group));
  }
  layout.size_bytes_ = offset;
  return layout;
}

size_t RegionBytes(const std::vector<GroupSpec>& groups, const std::vector<std::string>& placements,
                   const std::string& node_id) {
  return RegionLayout::Compute(groups, placements, node_id).size_bytes_;
}

size_t StreamBytes(const std::vector<GroupSpec>& groups, const std::vector<std::string>& placements,
                   int rank) {
  const std::string& node = placements.at(static_cast<size_t>(rank));
  size_t bytes = 0;
  for (const GroupSpec& group : groups) {
    if (std::find(group.ranks.begin(), group.ranks.end(), rank) == group.ranks.end()) continue;
    const auto num_local = std::count_if(group.ranks.begin(), group.ranks.end(), [&](int member) {
      return placements.at(static_cast<size_t>(member)) == node;
    });
    bytes += GroupStreamBytes({.num_members = group.ranks.size(),
                               .num_local = static_cast<size_t>(num_local),
                               .ring_bytes = group.ring_bytes});
  }
  return bytes;
}

size_t GroupBytes(const GroupSizes& group) { return PartsOf(group).end; }

size_t GroupStreamBytes(const GroupSizes& group) {
  return (group.num_members - group.num_local) * 2 * PrivateRing::BytesFor(group.ring_bytes);
}

absl::Status FormatRegion(const RegionSpec& spec, const base::SharedMemory& memory) {
  if (absl::Status status = ValidateGroups(spec.groups, spec.placements); !status.ok())
    return status;
  RegionLayout layout = RegionLayout::Compute(spec.groups, spec.placements, spec.node_id);
  if (memory.size_bytes() < layout.size_bytes_) {
    return absl::FailedPreconditionError(absl::StrCat("the communication region of node ",
                                                      spec.node_id, " has ", memory.size_bytes(),
                                                      " bytes, needs ", layout.size_bytes_));
  }
  layout.data_ = memory.data();
  for (size_t g = 0; g < layout.groups_.size(); ++g) {
    const RegionLayout::Group& group = layout.groups_[g];
    for (int i = 0; i < static_cast<int>(group.local_index.size()); ++i) {
      if (group.local_index[i] < 0) continue;
      new (layout.Slot(g, i)) MemberSlot();
      for (int j = 0; j < static_cast<int>(group.local_index.size()); ++j) {
        if (i != j && group.local_index[j] >= 0) FormatRing(layout.RingStart(g, i, j), 1);
      }
      if (group.has_windows) FormatRing(layout.WindowStart(g, i), group.num_local - 1);
    }
  }
  // Written last, so that a half-made region is refused.
  new (memory.data()) RegionHeader{kMagic, spec.attempt, SpecHash(spec), layout.size_bytes_};
  return absl::OkStatus();
}

absl::StatusOr<RegionLayout> RegionLayout::Attach(const RegionSpec& spec,
                                                  const base::SharedMemory& memory) {
  RegionLayout layout = Compute(spec.groups, spec.placements, spec.node_id);
  const auto* header = reinterpret_cast<const RegionHeader*>(memory.data());
  const std::string what = absl::StrCat("the communication region of node ", spec.node_id);
  if (memory.size_bytes() < layout.size_bytes_ || header->magic != kMagic) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " is not formatted for job ", spec.job_id, ", attempt ", spec.attempt));
  }
  if (header->attempt != spec.attempt) {
    return absl::FailedPreconditionError(absl::StrCat(what, " belongs to attempt ", header->attempt,
                                                      ", this rank to attempt ", spec.attempt));
  }
  if (header->spec_hash != SpecHash(spec) || header->size_bytes != layout.size_bytes_) {
    return absl::FailedPreconditionError(absl::StrCat(
        what, " was made for another job, node, placement or set of groups than this rank has"));
  }
  layout.data_ = memory.data();
  return layout;
}

MemberSlot* RegionLayout::Slot(size_t group_index, int index) const {
  const Group& group = groups_[group_index];
  MEGASCALE_CHECK(group.local_index[index] >= 0);
  return reinterpret_cast<MemberSlot*>(data_ + group.slots_offset +
                                       group.local_index[index] * kSlotBytes);
}

std::byte* RegionLayout::RingStart(size_t group_index, int from_index, int to_index) const {
  const Group& group = groups_[group_index];
  const int from = group.local_index[from_index];
  const int to = group.local_index[to_index];
  MEGASCALE_CHECK(from >= 0 && to >= 0 && from != to);
  const size_t pair = from * (group.num_local - 1) + (to < from ? to : to - 1);
  return data_ + group.rings_offset + pair * RingBytes(group.ring_bytes, 1);
}

Ring RegionLayout::RingBetween(size_t group_index, int from_index, int to_index) const {
  return MakeRing(RingStart(group_index, from_index, to_index), groups_[group_index].ring_bytes, 1);
}

std::byte* RegionLayout::WindowStart(size_t group_index, int index) const {
  const Group& group = groups_[group_index];
  return data_ + group.windows_offset + index * RingBytes(group.ring_bytes, group.num_local - 1);
}

Ring RegionLayout::WindowOf(size_t group_index, int index) const {
  const Group& group = groups_[group_index];
  if (!group.has_windows) return Ring();
  return MakeRing(WindowStart(group_index, index), group.ring_bytes, group.num_local - 1);
}

Ring RegionLayout::WindowOf(size_t group_index, int index, int reader) const {
  MEGASCALE_CHECK(reader != index);
  return WindowOf(group_index, index).AsReader(reader < index ? reader : reader - 1);
}

AbortNotice MakeNotice(const absl::Status& reason) {
  AbortNotice notice;
  for (const int rank : BlamedRanks(reason)) {
    if (notice.num_blamed < AbortNotice::kBlamedMax) notice.blamed[notice.num_blamed++] = rank;
  }
  const absl::string_view text = reason.message();
  notice.text_bytes = static_cast<uint32_t>(std::min(text.size(), AbortNotice::kTextMax));
  std::memcpy(notice.text, text.data(), notice.text_bytes);
  return notice;
}

}  // namespace megascale::comm
