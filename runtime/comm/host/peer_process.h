// The process of another member on this machine: checks whether it lives, and reads its memory.
//
// Large messages are not copied into shared memory: a member publishes the address of its data, and
// the others read it there. Shared memory (FabricOptions::readable) is mapped and read directly;
// other memory is copied by the kernel (process_vm_readv). Reading cannot harm the owner, however
// late it happens, so a rank of an attempt that is over does no damage. Where the kernel forbids it
// (another user, seccomp, Yama), messages go through rings and windows.
//
// The kernel may reuse a process id. So the process is held by a pidfd, which is never reused, and
// it must prove that it wrote the ProcessCard (region.h).
//
// Threads: the owner's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "runtime/base/fd.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/host/region.h"

namespace megascale::comm {

// Returns a number that no other process has at the same address.
uint64_t MakeWord();

// Fills the card of this process. `word` and `readable` must not move while the card is valid; only
// the first ReadableMemory::kMax of `readable` count. Where Yama is active, also permits other
// children of the parent process to read this process's memory.
void Introduce(const uint64_t& word, absl::Span<const base::SharedMemory* const> readable,
               ProcessCard& card);

class PeerProcess {
 public:
  // Whether Meet was called on a valid card.
  bool is_met() const { return card_ != nullptr; }
  // Opens the process of `card`; does nothing until the card is valid. `card` must outlive this
  // object.
  void Meet(const ProcessCard& card);

  // Whether the process has ended. Also false if that is unknown: it was not met, or is in another
  // pid namespace.
  bool HasEnded() const;

  // Whether the process's memory may be read.
  bool can_read() const { return can_read_; }
  // Copies from the process's memory. False: it ended, or has no memory there (any more); `to`
  // holds garbage. Another process may have its id by then: the bytes are valid only if HasEnded()
  // is false afterwards.
  bool Read(uint64_t address, size_t num_bytes, std::byte* to);
  // Like Read, but without a copy where the memory is shared. Null on failure. The result is valid
  // until the next Fetch.
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
  bool has_ended_ = false;  // it had ended before it was met
  bool can_read_ = false;
  Mapping mappings_[ReadableMemory::kMax] = {};
  std::vector<std::byte> fetched_;
};

}  // namespace megascale::comm
