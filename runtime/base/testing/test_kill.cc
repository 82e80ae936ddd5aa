#include "runtime/base/testing/test_kill.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace megascale::base {

void KillOnceReady(const std::function<void(const std::function<void()>& ready)>& body) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body([&ready] {
      if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    });
    ::_exit(2);
  }
  ::close(ready[1]);  // so that read ends if the child ends early
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(ready[0]);
}

void RunAndKill(const std::function<void(const std::function<void()>& die_here)>& body) {
  KillOnceReady([&body](const std::function<void()>& ready) {
    body([&ready] {
      ready();
      for (;;) ::pause();
    });
  });
}

}  // namespace megascale::base
