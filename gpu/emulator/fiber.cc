#include "gpu/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "runtime/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "fibers are written for x86-64"
#endif

// Saves the registers that a call preserves on this stack, stores the stack's place at `save`, and
// goes on with those that `load` points to.
asm(R"(
.text
.globl megascale_switch_fiber
.type megascale_switch_fiber, @function
megascale_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size megascale_switch_fiber, .-megascale_switch_fiber
)");

extern "C" void megascale_switch_fiber(void** save, void* load);

namespace megascale::emulator {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kGuardBytes = 4096;
constexpr size_t kSavedRegisters = 6;

thread_local Fiber* running = nullptr;

void BeginSwitch([[maybe_unused]] void** shadow, [[maybe_unused]] const void* stack,
                 [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(shadow, stack, bytes);
#endif
}
void EndSwitch([[maybe_unused]] void* shadow, [[maybe_unused]] const void** stack,
               [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(shadow, stack, bytes);
#endif
}

}  // namespace

Fiber::Fiber() {
  void* const memory = ::mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MEGASCALE_CHECK(memory != MAP_FAILED);
  MEGASCALE_CHECK(::mprotect(memory, kGuardBytes, PROT_NONE) == 0);
  stack_ = static_cast<std::byte*>(memory) + kGuardBytes;
}

Fiber::~Fiber() { ::munmap(stack_ - kGuardBytes, kGuardBytes + kStackBytes); }

void Fiber::Start(void (*entry)(void*), void* argument) {
  entry_ = entry;
  argument_ = argument;
  has_ended_ = false;
  shadow_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack_, kStackBytes);  // frames that were given up
#endif
  // The first switch pops the registers and returns to Run, whose frame must begin as after a call:
  // 8 bytes past a multiple of 16.
  auto* top = reinterpret_cast<void**>(stack_ + kStackBytes - 2 * sizeof(void*));
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::Run);
  for (size_t i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  saved_ = top;
}

bool Fiber::Resume() {
  MEGASCALE_CHECK(!has_ended_ && running == nullptr);
  running = this;
  void* shadow = nullptr;
  BeginSwitch(&shadow, stack_, kStackBytes);
  megascale_switch_fiber(&resumer_, saved_);
  EndSwitch(shadow, nullptr, nullptr);
  running = nullptr;
  return has_ended_;
}

void Fiber::Yield() {
  BeginSwitch(has_ended_ ? nullptr : &shadow_, resumer_stack_, resumer_bytes_);
  megascale_switch_fiber(&saved_, resumer_);
  EndSwitch(shadow_, &resumer_stack_, &resumer_bytes_);
}

void Fiber::Run() {
  Fiber* const self = running;
  EndSwitch(nullptr, &self->resumer_stack_, &self->resumer_bytes_);
  self->entry_(self->argument_);
  self->has_ended_ = true;
  self->Yield();
  std::abort();  // an ended function does not go on
}

}  // namespace megascale::emulator
