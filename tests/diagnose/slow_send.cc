#include "tests/diagnose/slow_send.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/diagnose/switch.h"

namespace megascale::injection {
namespace {

std::atomic<int64_t> num_late = 0;
std::atomic<const Switch*> slow = nullptr;  // null: sends are as fast as they are

// Links to the agent and exchanges within the machine are of another kind.
bool GoesToAnotherMachine(int fd) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 &&
         (domain == AF_INET || domain == AF_INET6);
}

void SleepAtRandom(int fd) {
  const Switch* const at = slow.load(std::memory_order_acquire);
  double seconds = 0;
  double probability = 0;
  if (at == nullptr || !at->Read(&seconds, &probability) || !GoesToAnotherMachine(fd)) return;
  thread_local std::mt19937_64 random(1);
  if (std::uniform_real_distribution<double>()(random) >= probability) return;
  const int error = errno;
  absl::SleepFor(absl::Seconds(seconds));
  num_late.fetch_add(1);
  errno = error;
}

}  // namespace

void SlowSend(const std::string& folder, int local_rank) {
  slow.store(new Switch(folder, absl::StrCat("send-", local_rank)), std::memory_order_release);
}

int64_t NumLatePieces() { return num_late.load(); }

}  // namespace megascale::injection

// The linker takes this one in place of the C library's.
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  megascale::injection::SleepAtRandom(fd);
  return ::syscall(SYS_sendmsg, fd, message, flags);
}
