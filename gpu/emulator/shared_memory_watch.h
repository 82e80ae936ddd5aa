// The bookkeeping that finds races on a block's shared memory: for each byte who wrote and who read
// it last, and between which barriers. Two accesses by different threads, at least one of which
// writes, must be ordered: by a barrier of the block, or by one of the warp where both are of one
// warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace megascale::emulator {

// A thread at a moment. Epochs count barriers and only grow.
struct Moment {
  int thread = 0;
  int warp = 0;
  uint64_t block_epoch = 0;
  uint64_t warp_epoch = 0;
};

// Threads: one.
class SharedMemoryWatch {
 public:
  // Begins a block: `bytes` bytes that nobody has written.
  void Reset(size_t bytes);

  // Each returns what is wrong with the access of [first, first + bytes), or "".
  std::string Read(size_t first, size_t bytes, const Moment& now);
  std::string Write(size_t first, size_t bytes, const Moment& now);
  // The bytes are being copied into: until EndCopy nobody may touch them.
  std::string BeginCopy(size_t first, size_t bytes, const Moment& now);
  // The copies are there, as if `now` had written them.
  void EndCopy(size_t first, size_t bytes, const Moment& now);

 private:
  struct Byte {
    Moment write = {};
    Moment read = {};    // the last one
    uint64_t block = 0;  // of the state: another block's is as good as none
    bool is_written = false;
    bool is_read = false;
    bool is_copied_to = false;
    bool reads_of_many = false;   // several threads, since the last barrier of the block
    bool reads_of_warps = false;  // of several warps
  };

  Byte& At(size_t index);
  std::string CheckWrite(size_t index, const Moment& now);

  uint64_t block_ = 0;
  size_t bytes_ = 0;
  std::vector<Byte> state_;
};

}  // namespace megascale::emulator
