#include "controlplane/driver/storage/data_file_lists.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/log.h"
#include "runtime/job/data_digest.h"

namespace megascale::driver {
namespace {

constexpr absl::Duration kAskInterval = absl::Minutes(1);

namespace agent = megascale::agent::v1;

// Returns whether the list has the digest in the job's record.
bool IsOf(const JobRecord& job, const agent::DataFiles& list) {
  checkpoint::v1::DataFingerprint data = job.data();
  data.clear_files_sha256();
  *data.mutable_file_sha256() = list.file_sha256();
  return job::DigestOf(data).files_sha256() == job.data().files_sha256();
}

}  // namespace

std::string DataFileLists::PathOf(const JobRecord& job) {
  return absl::StrCat(job.submitted().directory(), "/", kDataFilesFile);
}

bool DataFileLists::IsDue(const JobRecord& job, absl::Duration now) {
  if (job.data().files_sha256().empty()) return false;
  const auto [asked, is_first] = asked_.try_emplace(JobId(job), now);
  if (is_first && files_.Exists(PathOf(job))) asked->second = absl::InfiniteDuration();
  if (is_first && !job.data().file_sha256().empty()) {
    agent::DataFiles list;
    *list.mutable_file_sha256() = job.data().file_sha256();
    Take(job, list);
  }
  if (asked->second == absl::InfiniteDuration()) return false;
  if (!is_first && now - asked->second < kAskInterval) return false;
  asked->second = now;
  return true;
}

void DataFileLists::Take(const JobRecord& job, const agent::DataFiles& list) {
  if (list.file_sha256().empty() || !IsOf(job, list)) return;
  const absl::Status written =
      files_.WriteSoon(PathOf(job), absl::StrCat(absl::StrJoin(list.file_sha256(), "\n"), "\n"));
  if (!written.ok()) return base::LogWarning(written.message());
  asked_[JobId(job)] = absl::InfiniteDuration();
}

agent::DataFiles DataFileLists::Read(const JobRecord* job,
                                     const agent::FetchDataFiles& fetch) const {
  agent::DataFiles list;
  if (job != nullptr) {
    const std::string path = PathOf(*job);
    const absl::StatusOr<std::string> text = files_.ReadAt(path, 0, files_.Size(path).value_or(0));
    for (const absl::string_view line :
         absl::StrSplit(text.value_or(""), '\n', absl::SkipEmpty())) {
      list.add_file_sha256(std::string(line));
    }
    if (!IsOf(*job, list)) list.Clear();
  }
  list.set_request_id(fetch.request_id());
  list.set_job_id(fetch.job_id());
  if (list.file_sha256().empty()) list.set_code(static_cast<int>(absl::StatusCode::kNotFound));
  return list;
}

}  // namespace megascale::driver
