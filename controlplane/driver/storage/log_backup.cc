#include "controlplane/driver/storage/log_backup.h"

#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/driver/storage/event_log.h"
#include "controlplane/driver/storage/job_files.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

std::string LogOf(const std::string& directory) { return absl::StrCat(directory, "/log"); }

absl::StatusOr<DriverState> ReadState(const std::string& directory) {
  ASSIGN_OR_RETURN(const LogContents contents, ReadRocksDbLog(LogOf(directory)));
  DriverState state = contents.state;
  for (const Event& event : contents.events) Apply(event, &state);
  return state;
}

absl::Status CheckHasNoLog(const std::string& directory) {
  std::error_code error;
  if (std::filesystem::exists(LogOf(directory), error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        LogOf(directory), ": there is a log already; move it away, or give another directory"));
  }
  return absl::OkStatus();
}

absl::Status WriteState(const DriverState& state, const std::string& directory) {
  RETURN_IF_ERROR(CheckHasNoLog(directory));
  ASSIGN_OR_RETURN(const std::unique_ptr<EventLog> log, OpenRocksDbLog(LogOf(directory)));
  return log->WriteSnapshot(state);
}

// Moves the folders of jobs that the log does not know out of the driver's sight.
absl::Status MoveUnknownJobs(const DriverState& state, const std::string& state_directory) {
  const std::filesystem::path jobs(absl::StrCat(state_directory, "/jobs"));
  const std::filesystem::path aside(absl::StrCat(state_directory, "/jobs.before-restore"));
  std::error_code error;
  std::vector<std::filesystem::path> unknown;
  for (const auto& folder : std::filesystem::directory_iterator(jobs, error)) {
    if (std::filesystem::exists(folder.path() / kForgottenFile, error)) continue;
    if (FindJob(state, folder.path().filename().string()) == nullptr) {
      unknown.push_back(folder.path());
    }
  }
  for (const std::filesystem::path& folder : unknown) {
    RETURN_IF_ERROR(base::MakeDirectories(aside.string()));
    std::filesystem::rename(folder, aside / folder.filename(), error);
    if (error) return base::ErrnoStatus(error.value(), absl::StrCat("move ", folder.string()));
    base::LogWarning(absl::StrCat("the copy knows nothing of job ", folder.filename().string(),
                                  ": moved its folder to ", aside.string()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BackUpLog(const std::string& state_directory, const std::string& copy) {
  ASSIGN_OR_RETURN(const DriverState state, ReadState(state_directory));
  return WriteState(state, copy);
}

absl::Status RestoreLog(const std::string& copy, const std::string& state_directory,
                        absl::Time now) {
  ASSIGN_OR_RETURN(DriverState state, ReadState(copy));
  Event started = StartedEvent(state, {.now = now, .secret = "", .restored = true});
  started.set_time_unix_nanos(absl::ToUnixNanos(now));
  Apply(started, &state);
  RETURN_IF_ERROR(CheckHasNoLog(state_directory));
  // Before the log is written: with the log, unknown folders would end the driver's start.
  RETURN_IF_ERROR(MoveUnknownJobs(state, state_directory));
  return WriteState(state, state_directory);
}

}  // namespace megascale::driver
