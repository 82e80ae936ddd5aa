#include "runtime/device/testing/named_memory.h"

#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "runtime/base/check.h"

namespace megascale::device {
namespace {

// A table of fixed size: a signal handler can use no other.
struct NamedRange {
  std::atomic<const std::byte*> begin = nullptr;
  std::atomic<size_t> bytes = 0;
  std::atomic<const char*> name = nullptr;
  std::atomic<const char*> what = nullptr;
};
constexpr size_t kNamedRanges = 4096;
NamedRange named_ranges[kNamedRanges];

void NameFault(int signal, siginfo_t* info, void* /*context*/) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const NamedRange& range : named_ranges) {
    const std::byte* begin = range.begin;
    if (begin == nullptr || address < begin || address >= begin + range.bytes) continue;
    char line[200];
    const int length =
        std::snprintf(line, sizeof(line), "%s: byte %zd of '%s'\n", range.what.load(),
                      static_cast<ssize_t>(address - begin), range.name.load());
    (void)!::write(STDERR_FILENO, line, static_cast<size_t>(length));
  }
  ::signal(signal, SIG_DFL);  // The instruction faults again, and ends the process.
}

void NameFaults() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = &NameFault;
    action.sa_flags = SA_SIGINFO;
    return ::sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  MEGASCALE_CHECK(installed);
}

}  // namespace

void NameMemory(const std::byte* begin, size_t bytes, const char* name, const char* what) {
  NameFaults();
  for (NamedRange& range : named_ranges) {
    const std::byte* expected = nullptr;
    if (!range.begin.compare_exchange_strong(expected, begin)) continue;
    range.what = what;
    range.name = name;
    range.bytes = bytes;
    return;
  }
}

void UnnameMemory(const std::byte* begin) {
  for (NamedRange& range : named_ranges) {
    if (range.begin != begin) continue;
    range.bytes = 0;
    range.name = nullptr;
    range.begin = nullptr;
    return;
  }
}

}  // namespace megascale::device
