// The bookkeeping that finds races on a block's shared memory. It records for each byte which
// thread wrote it last and which thread read it last, and between which barriers. Two accesses by
// different threads, at least one of which writes, must be ordered by a barrier of the block; a
// barrier of the warp is enough if the two threads are in the same warp.
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
  // Begins a block with `bytes` bytes, none of which has been written.
  void Reset(size_t bytes);

  // Read and Write return what is wrong with the access to [first, first + bytes), or "".
  std::string Read(size_t first, size_t bytes, const Moment& now);
  std::string Write(size_t first, size_t bytes, const Moment& now);
  // A copy into these bytes begins. Until EndCopy, no thread may access them.
  std::string BeginCopy(size_t first, size_t bytes, const Moment& now);
  // The copy has ended, as if the thread of `now` had written the bytes.
  void EndCopy(size_t first, size_t bytes, const Moment& now);

 private:
  struct Byte {
    Moment write = {};
    Moment read = {};    // the last one
    uint64_t block = 0;  // block of this state; the state of another block is ignored
    bool is_written = false;
    bool is_read = false;
    bool is_copied_to = false;
    bool reads_of_many = false;   // several threads read since the last block barrier
    bool reads_of_warps = false;  // threads of several warps read since then
  };

  Byte& At(size_t index);
  std::string CheckWrite(size_t index, const Moment& now);

  uint64_t block_ = 0;
  size_t bytes_ = 0;
  std::vector<Byte> state_;
};

}  // namespace megascale::emulator
