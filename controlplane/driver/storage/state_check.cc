#include "controlplane/driver/storage/state_check.h"

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

}  // namespace megascale::driver
