// A function with its own stack, which runs until it yields, and continues when it is resumed.
// Switching takes tens of nanoseconds, which is fast enough for blocks with thousands of threads.
// For x86-64. Tells AddressSanitizer about its stack.
#pragma once

#include <cstddef>
#include <functional>

namespace megascale::emulator {

// Threads: one at a time; the function runs on the thread that calls Resume.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Begins again with `entry(argument)`. Requires: the previous function has ended, or is abandoned
  // without running the destructors of its frames.
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
