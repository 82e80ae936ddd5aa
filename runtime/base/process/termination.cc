#include "runtime/base/process/termination.h"

#include <csignal>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/log.h"

namespace megascale::base {
namespace {

constexpr absl::Duration kAnswerTimeout = absl::Seconds(2);

sigset_t HeldBack() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Termination::Termination() {
  const sigset_t set = HeldBack();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([state = state_] { Watch(state); }).detach();
}

void Termination::OnDraining() {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->draining = true;
  state_->changed.notify_all();
}

void Termination::Watch(const std::shared_ptr<State>& state) {
  const sigset_t set = HeldBack();
  std::unique_lock<std::mutex> lock(state->mutex, std::defer_lock);
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    lock.lock();
    const bool draining = state->changed.wait_for(lock, absl::ToChronoMilliseconds(kAnswerTimeout),
                                                  [&] { return state->draining; });
    lock.unlock();
    if (!draining) break;
    LogInfo("SIGTERM: the agent drains, so this process goes on until the agent ends it");
  }
  LogError(absl::StrCat("SIGTERM, and the agent did not say within ",
                        absl::FormatDuration(kAnswerTimeout), " that it drains"));
  std::fflush(nullptr);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(SIGTERM);
}

}  // namespace megascale::base
