// What the emulated NCCL tells a profiler plugin. Like the real NCCL, it looks for the newest
// version of the plugin where NCCL_PROFILER_PLUGIN says, and reports each call, each transfer, and
// each piece of a transfer. Private to this folder.
//
// Every transfer is reported as a transfer over a network. Bytes that its socket has accepted are
// reported as delivered, because the kernel has them.
//
// Threads: Launched on one thread at a time, the others on one thread at a time.
#pragma once

#include <cstddef>

#include "gpu/cuda/nccl_profiler.h"

namespace megascale::emulator {

class NcclEvents {
 public:
  static constexpr size_t kStepBytes = 64 << 10;

  // A new communicator. Only the plugin of the program itself can be found.
  NcclEvents(const char* name, int rank, int size);
  ~NcclEvents();
  NcclEvents(const NcclEvents&) = delete;
  NcclEvents& operator=(const NcclEvents&) = delete;

  // A call was launched; returns the plugin's name for it.
  void* Launched(bool is_message);

  // One transfer, from its start to its end.
  struct Transport {
    void* event = nullptr;  // null: the plugin does not want events, or the transfer has ended
    void* step = nullptr;
    bool is_send = false;
    size_t bytes = 0;
    size_t step_begin = 0;
  };
  struct TransferSize {
    int peer = 0;
    bool is_send = false;
    size_t bytes = 0;
  };
  Transport Start(void* call, const TransferSize& size);
  // Reports that `bytes` bytes of the transfer have moved so far.
  void Moved(size_t bytes, Transport* transport);

 private:
  void StartStep(Transport* transport);
  void Record(void* step, cuda::ProfilerState state, size_t bytes) const;

  const cuda::ProfilerTableV5* plugin_ = nullptr;  // null: there is none
  void* context_ = nullptr;
  const int rank_;
};

}  // namespace megascale::emulator
