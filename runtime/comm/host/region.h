// The shared memory through which the ranks of one machine communicate, for one attempt of a job.
// An agent makes it (RegionBytes, FormatRegion); each rank's Fabric attaches to it (RegionLayout).
// The position of everything in it is a pure function of the groups, the placement and the node.
//
//   header
//   group 0: slots of its local members
//            rings of its ordered pairs of local members
//            windows of its members, if all are local
//   group 1: …
//
// A message to one member goes through the ring of the pair. A message to all goes once through the
// sender's window, which all others read. Large messages put only their address there.
//
// Threads: plain functions; memory shared between processes is atomic or a Ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/host/ring.h"

namespace megascale::comm {

// The members of one communicator.
struct GroupSpec {
  std::string name;        // unique in the job: "data/0", "forward/1-2"
  std::vector<int> ranks;  // world ranks, distinct; their order is the order of sums
  // Capacity in bytes from one member to another. A multiple of 64, at least 256. A larger capacity
  // costs memory (for each ordered pair of members) and cache; a smaller one costs wake-ups. If all
  // members are local, rings and windows get half of it each.
  size_t ring_bytes = 512 << 10;
};

// Checks groups. Errors: InvalidArgument - a missing or repeated name, no member or a repeated one,
// a rank without a placement, a bad ring size.
absl::Status ValidateGroups(const std::vector<GroupSpec>& groups,
                            const std::vector<std::string>& placements);

// Returns the size of the region of `node_id`. `placements`: the node id of every world rank.
// Requires: ValidateGroups returned OK.
size_t RegionBytes(const std::vector<GroupSpec>& groups, const std::vector<std::string>& placements,
                   const std::string& node_id);

// Returns the bytes that the process of `rank` itself allocates for the members of its groups on
// other nodes: a ring each way for every such member of every group. Kernel buffers of sockets are
// not among them. Requires: ValidateGroups returned OK.
size_t StreamBytes(const std::vector<GroupSpec>& groups, const std::vector<std::string>& placements,
                   int rank);

// The same by the number of a group's members, for those who need no names: the bytes of one group
// in the region of a node that has `num_local` >= 1 of its members (a region has a header of
// kRegionHeaderBytes besides its groups), and those that each of these members allocates itself.
struct GroupSizes {
  size_t num_members = 0;
  size_t num_local = 0;
  size_t ring_bytes = GroupSpec().ring_bytes;
};
inline constexpr size_t kRegionHeaderBytes = kPageBytes;
size_t GroupBytes(const GroupSizes& group);
size_t GroupStreamBytes(const GroupSizes& group);

// Identifies a region. Ranks refuse one that was formatted for another spec.
struct RegionSpec {
  std::vector<GroupSpec> groups;
  std::vector<std::string> placements;  // node id of every world rank
  std::string node_id;                  // node of this region
  std::string job_id;
  int64_t attempt = 0;
};

// Prepares `memory` for an attempt. Requires: no process of an earlier attempt is alive. Errors:
// InvalidArgument - bad groups; FailedPrecondition - `memory` is smaller than RegionBytes.
absl::Status FormatRegion(const RegionSpec& spec, const base::SharedMemory& memory);

// Why a member gave up; sent to the others in its slot or through a stream.
struct AbortNotice {
  static constexpr size_t kBlamedMax = 15;
  static constexpr size_t kTextMax = 444;
  uint32_t num_blamed = 0;
  int32_t blamed[kBlamedMax] = {};
  uint32_t text_bytes = 0;
  char text[kTextMax] = {};
};
AbortNotice MakeNotice(const absl::Status& reason);

enum class PeerState : uint32_t { kAbsent, kOpen, kAborted, kClosed };

// Memory of a process that other processes may map, through the descriptor `fd` of that process.
struct ReadableMemory {
  static constexpr int kMax = 4;
  uint64_t address = 0;
  uint64_t num_bytes = 0;  // 0: unused
  int32_t fd = -1;
};

// How other members find the process of a member. All fields are valid once `process_id` is not 0.
struct ProcessCard {
  std::atomic<int32_t> process_id;
  uint64_t pid_namespace = 0;
  uint64_t word = 0;  // a random number, which the process also has at word_address
  uint64_t word_address = 0;
  ReadableMemory memories[ReadableMemory::kMax];
};

// One member's own part of the region. The member writes it; its peers bump the doorbell.
struct MemberSlot {
  Doorbell doorbell;
  std::atomic<PeerState> state;
  ProcessCard card;
  std::atomic<uint64_t> readable;  // a bit for each member whose memory this one can read
  AbortNotice notice;              // valid once state is kAborted
};

// Finds slots and rings in a formatted region.
class RegionLayout {
 public:
  // Errors: FailedPrecondition - not formatted, or for another job, attempt, node or set of groups.
  static absl::StatusOr<RegionLayout> Attach(const RegionSpec& spec,
                                             const base::SharedMemory& memory);

  // Returns the slot of member `index` of group `group_index`. Requires: it is on this node.
  MemberSlot* Slot(size_t group_index, int index) const;
  // Returns the ring between two members on this node.
  Ring RingBetween(size_t group_index, int from_index, int to_index) const;
  // Returns the window of member `index`: as it writes, or as member `reader` reads. Empty (false)
  // unless all members are local and there are several. The readers are the other members, in
  // order.
  Ring WindowOf(size_t group_index, int index) const;
  Ring WindowOf(size_t group_index, int index, int reader) const;

 private:
  struct Group {
    size_t slots_offset = 0;
    size_t rings_offset = 0;
    size_t windows_offset = 0;
    size_t ring_bytes = 0;
    bool has_windows = false;
    std::vector<int> local_index;  // index of each member among the local ones; -1: on another node
    size_t num_local = 0;
  };
  friend size_t RegionBytes(const std::vector<GroupSpec>&, const std::vector<std::string>&,
                            const std::string&);
  friend absl::Status FormatRegion(const RegionSpec&, const base::SharedMemory&);
  static RegionLayout Compute(const std::vector<GroupSpec>& groups,
                              const std::vector<std::string>& placements,
                              const std::string& node_id);
  std::byte* RingStart(size_t group_index, int from_index, int to_index) const;
  std::byte* WindowStart(size_t group_index, int index) const;

  std::vector<Group> groups_;
  size_t size_bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace megascale::comm
