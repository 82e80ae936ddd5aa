// What host_vocabulary.h needs on the host: kernels by name, and the running thread's place, memory
// and barriers. The program that runs the kernels defines these functions; in tests that is the
// emulator (gpu/emulator/block_executor.h). For tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

namespace megascale::kernels::host {

struct Kernel {
  const char* name;
  size_t params_bytes;  // of its one argument, a struct passed by value
  int threads_max;      // of a block
  void (*run)(const void* params);
};

// Adds a kernel to the kernels of the program; `kernel` must live as long as the program.
class Registration {
 public:
  explicit Registration(const Kernel* kernel);
};

#ifdef __cpp_lib_source_location
using Where = std::source_location;
#else  // clang 14, which only checks the style of what includes this, does not know it
struct Where {
  static Where current();
  const char* file_name() const;
  uint32_t line() const;
};
#endif

// The running thread's place.
struct Place {
  int thread = 0, num_threads = 0;
  int block[3] = {0, 0, 0};
  int grid[3] = {1, 1, 1};
};
const Place& Here();

// A place in the source, and the place of the caller if the caller passed its place on.
struct Site {
  Where here;
  Where caller;
};

// What a thread does with shared memory. Each of these functions looks for conflicts.
enum class Access : uint8_t { kRead, kWrite };
std::byte* TouchShared(size_t offset, size_t bytes, size_t alignment, Access access);
void StartCopy(size_t to, const void* from, size_t bytes, bool is_valid);
void CommitCopies();
void WaitCopies(int groups_left, const Site& site);

void SyncThreads(const Site& site);
void SyncWarp(const Site& site);

// Waits until all lanes of the warp have called it. Then `meet` is called once, with the `lane`
// argument of each lane.
using Meet = void (*)(void* const* lanes);
void MeetLanes(void* lane, Meet meet, const char* what, const Site& site);
void LoadMatrices(uint32_t* to, size_t row, bool transposed, const Site& site);
void MultiplyAdd(float* d, const uint32_t* a, const uint32_t* b, const Site& site);

// Returns where the host finds the byte at an address of the device.
const void* Translate(const void* address, size_t bytes, size_t alignment);

}  // namespace megascale::kernels::host
