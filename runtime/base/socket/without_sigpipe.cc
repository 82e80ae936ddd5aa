#include "runtime/base/socket/without_sigpipe.h"

#include <pthread.h>
#include <time.h>

#include <cerrno>

namespace megascale::base {

WithoutSigpipe::WithoutSigpipe() {
  sigemptyset(&pipe_);
  sigaddset(&pipe_, SIGPIPE);
  sigset_t pending;
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
}

WithoutSigpipe::~WithoutSigpipe() {
  const timespec at_once = {};
  while (!was_pending_ && sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace megascale::base
