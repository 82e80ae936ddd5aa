// A driver's shell on a disk in memory, with a clock that the test moves.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "controlplane/driver/shell/driver_shell.h"
#include "controlplane/driver/storage/testing/simulated_disk.h"
#include "runtime/base/clock.h"

namespace megascale::driver {

class ShellTestBase : public ::testing::Test {
 protected:
  // Begins a driver on `disk`, whose options are these; log, secret and clock are set here.
  void Begin(SimulatedDisk* disk, DriverShell::Options options);

  // One round of the shell with one input, whose caller is answered by `output`.
  absl::Status TryRound(const std::function<void()>& input, const std::function<void()>& output);
  void Round(
      const std::function<void()>& input, const std::function<void()>& output = [] {}) {
    const absl::Status status = TryRound(input, output);
    ASSERT_TRUE(status.ok()) << status;
  }

  // Lets time pass, a little more than `duration`, in which no agent reports.
  void PassInSilence(absl::Duration duration) {
    for (absl::Duration passed; passed <= duration; passed += absl::Milliseconds(500)) {
      clock_.Advance(absl::Milliseconds(500));
      Round([] {});
    }
  }

  // The record of job "j", which must exist.
  const JobRecord& job() const { return *FindJob(shell_->state(), "j"); }

  base::FakeClock clock_;
  SimulatedDisk disk_;
  std::unique_ptr<DriverShell> shell_;
};

// Returns step and attempt of each line of the loss log in a job's folder: "1/1 2/1 3/2".
std::string LoggedAttempts(const std::string& directory, JobFiles* files);

}  // namespace megascale::driver
