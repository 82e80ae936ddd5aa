// A function with a stack of its own that stops and goes on when it says so. Switching costs tens
// of nanoseconds, which thousands of threads of a block need. For x86-64; AddressSanitizer is told.
#pragma once

#include <cstddef>
#include <functional>

namespace megascale::emulator {

// Threads: one at a time, all calls on the thread that calls Resume.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Begins anew with `entry(argument)`. Requires: the last one ended or is given up for good, with
  // no destructor of its frames run.
  void Start(void (*entry)(void*), void* argument);
  // Runs until the function yields or ends; returns whether it has ended.
  bool Resume();
  // Called within the function: goes back to Resume.
  void Yield();

 private:
  static void Run();

  std::byte* stack_;  // with a guard page below
  void* saved_ = nullptr;
  void* resumer_ = nullptr;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool has_ended_ = true;
  // For AddressSanitizer.
  void* shadow_ = nullptr;
  const void* resumer_stack_ = nullptr;
  size_t resumer_bytes_ = 0;
};

}  // namespace megascale::emulator
