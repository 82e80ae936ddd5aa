#include "controlplane/agent/service/kept_logs.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace megascale::agent {
namespace {

using Entries = std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>>;

// Returns the entries of a directory, oldest first.
Entries EntriesOf(const std::string& directory) {
  Entries entries;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(directory, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    std::error_code gone;
    entries.emplace_back(it->last_write_time(gone), it->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

int64_t BytesIn(const std::filesystem::path& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (auto it = std::filesystem::recursive_directory_iterator(directory, error);
       !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    std::error_code gone;
    if (it->is_regular_file(gone)) bytes += static_cast<int64_t>(it->file_size(gone));
  }
  return bytes;
}

// Returns whether an entry of a log directory has logs of a job, and nothing else: whatever a user
// keeps there stays.
bool IsOfJob(const std::filesystem::path& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(std::filesystem::symlink_status(directory, error))) {
    return false;
  }
  const Entries attempts = EntriesOf(directory.string());
  return !attempts.empty() && std::all_of(attempts.begin(), attempts.end(), [](const auto& entry) {
    return absl::StartsWith(entry.second.filename().string(), "attempt-");
  });
}

}  // namespace

void PruneDirectory(const std::string& directory, size_t count) {
  const Entries entries = EntriesOf(directory);
  std::error_code ignored;
  for (size_t i = 0; i + count < entries.size(); ++i) {
    std::filesystem::remove_all(entries[i].second, ignored);
  }
}

void PruneJobLogs(const std::string& log_directory, const std::set<std::string>& present,
                  const JobLogsKept& kept) {
  Entries entries = EntriesOf(log_directory);
  std::erase_if(entries, [&](const auto& entry) {
    return present.count(entry.second.filename().string()) > 0 || !IsOfJob(entry.second);
  });
  size_t jobs = 0;
  int64_t bytes = 0;
  std::error_code ignored;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    bytes += BytesIn(entry->second);
    if (++jobs > kept.jobs || (jobs > 1 && bytes > kept.bytes)) {
      std::filesystem::remove_all(entry->second, ignored);
    }
  }
}

}  // namespace megascale::agent
