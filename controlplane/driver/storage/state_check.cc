#include "controlplane/driver/storage/state_check.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/storage/job_files.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::driver {

absl::Status CheckJobFolders(const std::string& state_directory, EventLog* log) {
  ASSIGN_OR_RETURN(const LogContents contents, log->ReadAll());
  std::set<std::string> known;
  for (const JobRecord& job : contents.state.jobs()) known.insert(JobId(job));
  for (const Event& event : contents.events) known.insert(event.job_submitted().job_id());
  std::error_code error;
  const std::string jobs = absl::StrCat(state_directory, "/jobs");
  for (const auto& folder : std::filesystem::directory_iterator(jobs, error)) {
    if (!std::filesystem::exists(folder.path() / kJobFile, error)) continue;
    if (std::filesystem::exists(folder.path() / kForgottenFile, error)) continue;
    const std::string job_id = folder.path().filename().string();
    if (known.count(job_id) > 0) continue;
    return absl::DataLossError(absl::StrCat(
        state_directory, "/log: knows nothing of job ", base::Printable(job_id),
        ", whose folder is ", base::Printable(folder.path().string()),
        ": the log is damaged or belongs to another driver; restore it from a backup, or "
        "give another --state-dir"));
  }
  return absl::OkStatus();
}

absl::Status CheckOutsideState(const v1::JobSubmitted& submit, const std::string& state_directory) {
  const std::string& given = submit.spec().checkpoint().directory();
  if (given.empty()) return absl::OkStatus();
  std::error_code error;
  const auto real = [&](const std::string& path) {
    const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
    return error ? std::filesystem::path(path).lexically_normal() : resolved;
  };
  const std::filesystem::path directory = real(absl::StrCat(given, "/", submit.job_id()));
  const std::filesystem::path state = real(state_directory);
  const auto differs =
      std::mismatch(state.begin(), state.end(), directory.begin(), directory.end());
  if (differs.first != state.end()) return absl::OkStatus();
  if (directory == state / "jobs" / submit.job_id() / "checkpoints") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("checkpoint.directory: ", base::Printable(given),
                   " lies in the driver's state directory ", state_directory,
                   ", where it keeps its log and the folders of jobs; choose another "
                   "directory, or leave the field out"));
}

}  // namespace megascale::driver
