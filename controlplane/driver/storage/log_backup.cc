#include "controlplane/driver/storage/log_backup.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "controlplane/driver/core/driver_core.h"
#include "controlplane/driver/core/epoch.h"
#include "controlplane/driver/storage/counted_log.h"
#include "controlplane/driver/storage/event_log.h"
#include "controlplane/driver/storage/job_files.h"
#include "controlplane/driver/storage/log_clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/socket/own_socket.h"
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

absl::Status HasLog(const std::string& directory) {
  return absl::AlreadyExistsError(absl::StrCat(
      LogOf(directory), ": there is a log already; move it away, or give another directory"));
}

absl::Status CheckHasNoLog(const std::string& directory) {
  std::error_code error;
  return std::filesystem::exists(LogOf(directory), error) ? HasLog(directory) : absl::OkStatus();
}

absl::Status WriteSnapshot(const DriverState& state, const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<EventLog> log, OpenRocksDbLog(path));
  return log->WriteSnapshot(state);
}

absl::Status GiveItsName(const std::string& made, const std::string& directory) {
  if (::rename(made.c_str(), LogOf(directory).c_str()) == 0) return base::SyncDirectory(directory);
  if (errno == EEXIST || errno == ENOTEMPTY) return HasLog(directory);
  return base::ErrnoStatus(errno, absl::StrCat("make ", LogOf(directory)));
}

// Leaves no log if it fails or the process is killed, so that it can be tried again.
absl::Status WriteState(const DriverState& state, const std::string& directory) {
  RETURN_IF_ERROR(base::MakeDirectories(directory));
  RETURN_IF_ERROR(CheckHasNoLog(directory));
  std::string made = absl::StrCat(LogOf(directory), ".new-XXXXXX");
  if (::mkdtemp(made.data()) == nullptr) {
    return base::ErrnoStatus(errno, absl::StrCat("make ", made));
  }
  absl::Status written = WriteSnapshot(state, made);
  if (written.ok()) written = GiveItsName(made, directory);
  std::error_code error;
  if (!written.ok()) std::filesystem::remove_all(made, error);
  return written;
}

// Whoever may write there could give the driver any jobs. A directory that does not exist yet is
// fine.
absl::Status CheckIsTrusted(const std::string& directory, absl::string_view advice) {
  const absl::Status trusted = base::CheckTrustedFolder(directory, advice);
  return absl::IsNotFound(trusted) ? absl::OkStatus() : trusted;
}

std::string SizePathOf(const std::string& copy) { return absl::StrCat(copy, "/size"); }

std::string DescribeSize(const DriverState& state) {
  return absl::StrCat(state.num_events(), " events, ", state.jobs_size(), " jobs\n");
}

// A log that was cut short reads as one that a crash tore: without its last records. Checksums of
// the records find every other change. A copy of an older version, or one that was made of a
// stopped driver's directory, has no size; it must have events.
absl::Status CheckIsWhole(const DriverState& state, const std::string& copy) {
  constexpr size_t kSizeBytesMax = 256;
  const absl::StatusOr<std::string> wanted = base::ReadFile(SizePathOf(copy), kSizeBytesMax);
  if (!wanted.ok() && !absl::IsNotFound(wanted.status())) return wanted.status();
  const std::string found = DescribeSize(state);
  if (wanted.ok() ? *wanted == found : state.num_events() > 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(copy, ": is not whole: has ", absl::StripSuffix(found, "\n"), "; expected ",
                   wanted.ok() ? absl::StripSuffix(*wanted, "\n") : "events of a driver",
                   "; copy it again, or restore another copy"));
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

absl::StatusOr<int> BackUpLog(const std::string& state_directory, const std::string& copy) {
  ASSIGN_OR_RETURN(const DriverState state, ReadState(state_directory));
  RETURN_IF_ERROR(WriteState(state, copy));
  const absl::Status described = base::WriteFileDurably(SizePathOf(copy), DescribeSize(state));
  if (described.ok()) return state.jobs_size();
  std::error_code error;
  std::filesystem::remove_all(LogOf(copy), error);
  return described;
}

absl::StatusOr<int> RestoreLog(const std::string& copy, const std::string& state_directory,
                               absl::Time now) {
  RETURN_IF_ERROR(CheckIsTrusted(copy, "restore a copy of your own"));
  RETURN_IF_ERROR(CheckIsTrusted(state_directory, "give another --state-dir"));
  ASSIGN_OR_RETURN(DriverState state, ReadState(copy));
  RETURN_IF_ERROR(CheckIsWhole(state, copy));
  Event started = StartedEvent(state, {.now = now, .secret = "", .restored = true});
  started.set_time_unix_nanos(absl::ToUnixNanos(LogTimeAtStart(state, now)));
  started.set_clock_ahead_seconds(state.clock_ahead_seconds());
  Apply(started, &state);
  RETURN_IF_ERROR(CheckHasNoLog(state_directory));
  // Before the log is written: with the log, unknown folders would end the driver's start.
  RETURN_IF_ERROR(MoveUnknownJobs(state, state_directory));
  RETURN_IF_ERROR(WriteState(state, state_directory));
  std::error_code error;
  std::filesystem::remove(SizePathOf(state_directory), error);  // it is no backup any more
  return state.jobs_size();
}

absl::Status CheckIsNoBackup(const std::string& state_directory) {
  std::error_code error;
  const bool has_size = std::filesystem::exists(SizePathOf(state_directory), error);
  // A driver of an older version may have begun on a backup: its directory is a live one.
  if (!has_size || std::filesystem::exists(CountPathOf(state_directory), error)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(state_directory,
                   ": is a backup of a log, which a driver would change; make a log from it: "
                   "megascale driver restore ",
                   state_directory, " --state-dir DIRECTORY"));
}

}  // namespace megascale::driver
