#include "tests/diagnose/slow_storage.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/diagnose/switch.h"

namespace megascale::injection {
namespace {

const Switch* slow = nullptr;  // null: reads are as fast as they are

void SleepAsSwitched() {
  double seconds = 0;
  double unused = 0;
  if (slow == nullptr || !slow->Read(&seconds, &unused)) return;
  const auto whole = static_cast<time_t>(seconds);
  const timespec pause = {
      .tv_sec = whole,
      .tv_nsec = static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};  // NOLINT
  ::nanosleep(&pause, nullptr);
}

}  // namespace

void SlowStorage(const std::string& folder) { slow = new Switch(folder, "slow-storage"); }

}  // namespace megascale::injection

// The linker takes this one in place of the C library's.
extern "C" ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  megascale::injection::SleepAsSwitched();
  return ::syscall(SYS_pread64, fd, data, size, offset);
}
