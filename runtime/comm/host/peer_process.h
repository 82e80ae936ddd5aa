// The process of another member on this machine: whether it lives, and its memory.
//
// Large messages are not copied into shared memory: a member says where its data lies, and the
// others read it there. Memory that is shared (FabricOptions::readable) is mapped and read like
// one's own; of other memory the kernel makes a copy (process_vm_readv). Reading is harmless to the
// owner, however late it happens, so a rank of an attempt that is over can do no damage. Where the
// kernel forbids it (another user, seccomp, Yama), messages go through rings and windows.
//
// A process id may be used again by another process. So a process is held by a descriptor that does
// not (a pidfd), and must prove to be the one that wrote the card.
//
// Threads: the owner's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "runtime/base/fd.h"
#include "runtime/base/shared_memory.h"
#include "runtime/comm/region.h"

namespace megascale::comm {

// A number that no other process has at the same place.
uint64_t MakeWord();

// Fills the card of this process. `word` and `readable` stay where they are while the card is
// valid; of `readable` only the first ReadableMemory::kMax count. Lets other children of the parent
// process read this one's memory, where Yama asks for that.
void Introduce(const uint64_t& word, absl::Span<const base::SharedMemory* const> readable,
               ProcessCard& card);

class PeerProcess {
 public:
  // Whether Meet was called on a card that was there.
  bool is_met() const { return card_ != nullptr; }
  // Does nothing until the card is there. The card outlives this.
  void Meet(const ProcessCard& card);

  // False too where that cannot be known: the process was not met, or is in another pid namespace.
  bool HasEnded() const;

  // Whether its memory may be read.
  bool can_read() const { return can_read_; }
  // Copies from its memory. False: it ended, or has no such memory (any more); `to` holds garbage.
  // Another process may have its id by then: what was read counts if it has not ended afterwards.
  bool Read(uint64_t address, size_t num_bytes, std::byte* to);
  // The same, without a copy where memory is shared. Valid until the next Fetch. Null: as false.
  const std::byte* Fetch(uint64_t address, size_t num_bytes);

 private:
  struct Unmap {
    size_t num_bytes;
    void operator()(const std::byte* data) const;
  };
  struct Mapping {
    bool was_tried;
    std::unique_ptr<const std::byte, Unmap> data;
  };

  const std::byte* FindMapped(uint64_t address, size_t num_bytes);
  void Map(int memory_index);
  bool ReadByKernel(uint64_t address, size_t num_bytes, std::byte* to) const;

  const ProcessCard* card_ = nullptr;
  int process_id_ = 0;
  base::UniqueFd pidfd_;
  bool has_ended_ = false;  // before it was met
  bool can_read_ = false;
  Mapping mappings_[ReadableMemory::kMax] = {};
  std::vector<std::byte> fetched_;
};

}  // namespace megascale::comm
