// Keeps SIGPIPE from a thread while it calls a library that writes to sockets with write(2), as
// OpenSSL and hiredis do: when the other end has hung up, the write fails with EPIPE only.
#pragma once

#include <signal.h>

namespace megascale::base {

// Created and destroyed by the thread that it protects.
class WithoutSigpipe {
 public:
  WithoutSigpipe();
  ~WithoutSigpipe();
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_;
};

}  // namespace megascale::base
