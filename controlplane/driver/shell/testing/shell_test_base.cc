#include "controlplane/driver/shell/testing/shell_test_base.h"

#include <utility>
#include <vector>

namespace megascale::driver {

void ShellTestBase::Begin(SimulatedDisk* disk, DriverShell::Options options) {
  options.log = disk->OpenLog();
  options.secret = "secret";
  options.clock = &clock_;
  auto shell = DriverShell::Create(std::move(options));
  ASSERT_TRUE(shell.ok()) << shell.status();
  shell_ = *std::move(shell);
  shell_->Begin();
}

absl::Status ShellTestBase::TryRound(const std::function<void()>& input,
                                     const std::function<void()>& output) {
  return shell_->Round({[&]() -> DriverShell::Output {
    input();
    return output;
  }});
}

}  // namespace megascale::driver
