#include "cli/view/interrupt.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

namespace megascale::cli {
namespace {

sigset_t HeldBack() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = HeldBack();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = base::UniqueFd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
}

Interrupt::~Interrupt() {
  Count();
  const sigset_t set = HeldBack();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

int Interrupt::Count() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) ++count_;
  return count_;
}

}  // namespace megascale::cli
