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

void ShellTestBase::Round(const std::function<void()>& input) {
  std::vector<DriverShell::Input> inputs;
  inputs.push_back([&]() -> DriverShell::Output {
    input();
    return [] {};
  });
  ASSERT_TRUE(shell_->Round(inputs).ok());
}

}  // namespace megascale::driver
