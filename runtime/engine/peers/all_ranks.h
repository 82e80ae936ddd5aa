// All ranks of a job, though no communicator has them all: a rank reaches the others through its
// tensor, then its data, then its pipeline group. So what a rank opens and sends grows with the
// sizes of its groups, not with the job. Through the host; while no step runs.
//
// Threads: the one that uses the communicators. Errors and deadlines: those of
// comm::HostCommunicator. A deadline blames members of this rank's own groups, which may wait for
// others themselves.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/host/host_communicator.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

class AllRanks {
 public:
  // Communicators of this rank's groups, borrowed; null: the group has this rank alone.
  struct Groups {
    comm::HostCommunicator* tensor = nullptr;
    comm::HostCommunicator* data = nullptr;
    comm::HostCommunicator* pipeline = nullptr;
  };
  AllRanks() : AllRanks(Groups()) {}
  explicit AllRanks(const Groups& groups);

  // In the order of plan::Mesh: tensor fastest, then data, then pipeline.
  int rank() const;
  int size() const { return SizeOf(0) * SizeOf(1) * SizeOf(2); }

  // Overwrites `all` with what the ranks contribute, in their order; this rank's contribution is in
  // its place already. Shapes: all [size() N]. Cost: as `all` is received by every rank, a few
  // times the memory of small things only.
  absl::Status AllGather(const tensor::HostVector& all, const comm::CallInfo& info) const;
  // Overwrites `buffer` with that of rank 0.
  absl::Status Broadcast(const tensor::HostVector& buffer, const comm::CallInfo& info) const;
  // Overwrites `*one` on every rank with the rank's that comes first by `comes_before`; of several,
  // the lowest rank's. Requires: T is of 64-bit numbers, without padding.
  template <typename T, typename Before>
  absl::Status KeepFirst(T* one, const Before& comes_before, const comm::CallInfo& info) const;
  // Moves `*bytes` from rank `from` to rank 0, whose own are overwritten, over ranks of common
  // groups; others do nothing. All call it, in the same order for several. `bytes_max`: a longer
  // message is an error (Internal) that names `from`.
  absl::Status MoveToFirst(int from, std::string* bytes, size_t bytes_max,
                           const comm::CallInfo& info) const;
  // Whether MoveToFirst(from, …) has this rank send or receive.
  bool IsOnWay(int from) const;

 private:
  static constexpr int kNumGroups = 3;
  using Place = std::array<int, kNumGroups>;

  int SizeOf(int group) const { return groups_[group] == nullptr ? 1 : groups_[group]->size(); }
  int IndexIn(int group) const { return groups_[group] == nullptr ? 0 : groups_[group]->rank(); }
  Place PlaceOf(int rank) const;
  // This rank's part in moving something from `from` to rank 0.
  struct Way {
    int receives_in = -1;  // group; -1: does not receive
    int sender = 0;        // its member
    int sends_in = -1;     // group, to its member 0; -1: does not send
  };
  Way WayFrom(int from) const;

  std::array<comm::HostCommunicator*, kNumGroups> groups_;  // tensor, data, pipeline
};

template <typename T, typename Before>
absl::Status AllRanks::KeepFirst(T* one, const Before& comes_before,
                                 const comm::CallInfo& info) const {
  static_assert(sizeof(T) % sizeof(double) == 0);
  for (comm::HostCommunicator* const group : groups_) {
    if (group == nullptr) continue;
    std::vector<T> members(static_cast<size_t>(group->size()));
    const absl::Status status = group->AllGather(
        tensor::HostVector::OfBytes(absl::MakeSpan(one, 1), tensor::DType::kF64),
        tensor::HostVector::OfBytes(absl::MakeSpan(members), tensor::DType::kF64), info);
    if (!status.ok()) return status;
    *one = *std::min_element(members.begin(), members.end(), comes_before);
  }
  return absl::OkStatus();
}

}  // namespace megascale::engine
