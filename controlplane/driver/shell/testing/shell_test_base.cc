#include "controlplane/driver/shell/testing/shell_test_base.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/storage/loss_history.h"

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

std::string LoggedAttempts(const std::string& directory, JobFiles* files) {
  const auto records = ReadSteps(directory, files, 0, 100);
  if (!records.ok()) return records.status().ToString();
  std::string text;
  for (const auto& record : *records) {
    absl::StrAppend(&text, text.empty() ? "" : " ", record.step(), "/", record.attempt());
  }
  return text;
}

}  // namespace megascale::driver
