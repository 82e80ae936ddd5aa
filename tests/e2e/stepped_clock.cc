// A library for LD_PRELOAD that shifts the wall clock of a process by an offset in seconds, an
// int64_t in the file that MEGASCALE_TEST_CLOCK names. The file is mapped, so a test steps the
// clock of running processes by writing there. Monotonic time does not change. A wait until a point
// of wall time (as abseil, and with it gRPC, makes them) notices a step as it would one of the
// machine's own clock.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr int64_t kNanos = 1000000000;
// The longest time for which a wait may miss a step of the clock.
constexpr int64_t kMomentNanos = 20000000;

using Offset = std::atomic<int64_t>;
static_assert(sizeof(Offset) == sizeof(int64_t));

const Offset* MapOffset() {
  static const Offset none = 0;
  const char* path = std::getenv("MEGASCALE_TEST_CLOCK");
  const int fd = path == nullptr ? -1 : ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return &none;
  void* mapped = ::mmap(nullptr, sizeof(Offset), PROT_READ, MAP_SHARED, fd, 0);
  ::close(fd);
  return mapped == MAP_FAILED ? &none : static_cast<const Offset*>(mapped);
}

int64_t OffsetSeconds() {
  static const Offset* const offset = MapOffset();
  return offset->load(std::memory_order_relaxed);
}

// Returns the C library's function of this name.
template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

int RealClock(clockid_t clock, timespec* time) {
  static auto* const real = Real<int(clockid_t, timespec*)>("clock_gettime");
  return real(clock, time);
}

template <typename... Arguments>
long RealCall(Arguments... arguments) {
  static auto* const real = Real<long(long, ...)>("syscall");
  return real(arguments...);
}

// Waits. A long wait ends after a moment, as if interrupted, so that the caller reads the clock
// again.
long WaitUntil(long word, long operation, long value, const timespec& due, long bits) {
  timespec now;
  RealClock(CLOCK_REALTIME, &now);
  const int64_t due_nanos = (due.tv_sec - OffsetSeconds()) * kNanos + due.tv_nsec;
  const int64_t moment = now.tv_sec * kNanos + now.tv_nsec + kMomentNanos;
  const int64_t until = std::clamp<int64_t>(due_nanos, 0, moment);
  const timespec limit = {until / kNanos, until % kNanos};
  const long result = RealCall(SYS_futex, word, operation, value, &limit, 0L, bits);
  if (result == -1 && errno == ETIMEDOUT && due_nanos > moment) errno = EINTR;
  return result;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = RealClock(clock, time);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    time->tv_sec += OffsetSeconds();
  }
  return result;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now;
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return result;
}

time_t time(time_t* seconds) noexcept {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (seconds != nullptr) *seconds = now.tv_sec;
  return now.tv_sec;
}

long syscall(long number, ...) noexcept {
  std::va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  const auto& [a, b, c, d, e, f] = arguments;
  if (number == SYS_futex && (b & FUTEX_CLOCK_REALTIME) != 0 && d != 0) {
    return WaitUntil(a, b, c, *reinterpret_cast<const timespec*>(d), f);
  }
  return RealCall(number, a, b, c, d, e, f);
}

}  // extern "C"
