#include "runtime/engine/peers/all_ranks.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::engine {
namespace {

absl::Span<const std::byte> BytesToSend(const void* data, size_t size) {
  return {static_cast<const std::byte*>(data), size};
}
absl::Span<std::byte> RoomFor(void* data, size_t size) {
  return {static_cast<std::byte*>(data), size};
}

}  // namespace

AllRanks::AllRanks(const Groups& groups) : groups_{groups.tensor, groups.data, groups.pipeline} {}

int AllRanks::rank() const {
  return IndexIn(0) + SizeOf(0) * (IndexIn(1) + SizeOf(1) * IndexIn(2));
}

AllRanks::Place AllRanks::PlaceOf(int rank) const {
  return {rank % SizeOf(0), rank / SizeOf(0) % SizeOf(1), rank / SizeOf(0) / SizeOf(1)};
}

absl::Status AllRanks::AllGather(const tensor::HostVector& all, const comm::CallInfo& info) const {
  MEGASCALE_CHECK(all.size() % size() == 0);
  int64_t part = all.size() / size();      // what a member of the group contributes
  int64_t begin = int64_t{rank()} * part;  // of this rank's
  for (int group = 0; group < kNumGroups; ++group) {
    const int64_t whole = part * SizeOf(group);
    const int64_t begin_of_all = begin - int64_t{IndexIn(group)} * part;
    if (groups_[group] != nullptr) {
      RETURN_IF_ERROR(
          groups_[group]->AllGather(all.Slice(begin, part), all.Slice(begin_of_all, whole), info));
    }
    part = whole;
    begin = begin_of_all;
  }
  return absl::OkStatus();
}

// From rank 0 to its pipeline group, from these ranks to their data groups, then to all.
absl::Status AllRanks::Broadcast(const tensor::HostVector& buffer,
                                 const comm::CallInfo& info) const {
  for (int group = kNumGroups - 1; group >= 0; --group) {
    bool has_nearer = false;  // along a group to which it has not been sent
    for (int nearer = 0; nearer < group; ++nearer) has_nearer |= IndexIn(nearer) != 0;
    if (groups_[group] == nullptr || has_nearer) continue;
    RETURN_IF_ERROR(groups_[group]->Broadcast(buffer, 0, info));
  }
  return absl::OkStatus();
}

AllRanks::Way AllRanks::WayFrom(int from) const {
  Place at = PlaceOf(from);
  const Place here = PlaceOf(rank());
  Way way;
  for (int group = 0; group < kNumGroups; ++group) {
    if (at[group] == 0) continue;
    if (at == here) way.sends_in = group;
    const int sender = at[group];
    at[group] = 0;
    if (at != here) continue;
    way.receives_in = group;
    way.sender = sender;
  }
  return way;
}

bool AllRanks::IsOnWay(int from) const {
  const Way way = WayFrom(from);
  return way.sends_in >= 0 || way.receives_in >= 0;
}

absl::Status AllRanks::MoveToFirst(int from, std::string* bytes, size_t bytes_max,
                                   const comm::CallInfo& info) const {
  const Way way = WayFrom(from);
  std::string moved;
  if (way.receives_in >= 0) {
    comm::HostCommunicator& group = *groups_[way.receives_in];
    uint64_t size = 0;
    RETURN_IF_ERROR(group.Recv(way.sender, RoomFor(&size, sizeof(size)), info));
    if (size > bytes_max) {
      return absl::InternalError(absl::StrCat("rank ", from, " sends ", size,
                                              " bytes to rank 0; expected at most ", bytes_max));
    }
    moved.resize(size);
    RETURN_IF_ERROR(group.Recv(way.sender, RoomFor(moved.data(), moved.size()), info));
  }
  // On its way, what others send is not this rank's own.
  const std::string& sent = rank() == from ? *bytes : moved;
  if (way.sends_in >= 0) {
    comm::HostCommunicator& group = *groups_[way.sends_in];
    const uint64_t size = sent.size();
    RETURN_IF_ERROR(group.Send(0, BytesToSend(&size, sizeof(size)), info));
    RETURN_IF_ERROR(group.Send(0, BytesToSend(sent.data(), sent.size()), info));
  }
  if (rank() == 0 && from != 0) *bytes = std::move(moved);
  return absl::OkStatus();
}

}  // namespace megascale::engine
