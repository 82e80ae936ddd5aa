#include "runtime/checkpoint/directory.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/format/message_json.h"

namespace megascale::checkpoint {
namespace {

constexpr size_t kManifestBytesMax = 256 << 20;

}  // namespace

std::string StepDirectoryName(int64_t step, int64_t attempt) {
  return absl::StrFormat("step-%08d-attempt-%d", step, attempt);
}

std::string ShardFileName(int rank) { return absl::StrFormat("rank-%05d.safetensors", rank); }

std::string ShardRecordName(int rank) { return absl::StrFormat("rank-%05d.json", rank); }

std::optional<agent::v1::CheckpointId> ParseStepDirectoryName(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  int64_t step = 0;
  int64_t attempt = 0;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[1], &step) ||
      !absl::SimpleAtoi(parts[3], &attempt) || StepDirectoryName(step, attempt) != name) {
    return std::nullopt;
  }
  agent::v1::CheckpointId id;
  id.set_step(step);
  id.set_attempt(attempt);
  return id;
}

absl::StatusOr<std::vector<agent::v1::CheckpointId>> ListStepDirectories(const std::string& root) {
  DIR* directory = ::opendir(root.c_str());
  if (directory == nullptr) {
    return base::ErrnoStatus(errno, absl::StrCat("checkpoint directory ", root));
  }
  const auto close = absl::MakeCleanup([directory] { ::closedir(directory); });
  std::vector<agent::v1::CheckpointId> ids;
  while (const dirent* entry = ::readdir(directory)) {
    if (auto id = ParseStepDirectoryName(entry->d_name)) ids.push_back(*std::move(id));
  }
  std::sort(ids.begin(), ids.end(), [](const auto& a, const auto& b) {
    return std::pair(a.step(), a.attempt()) < std::pair(b.step(), b.attempt());
  });
  return ids;
}

absl::StatusOr<std::vector<v1::CheckpointSummary>> ListCheckpoints(const std::string& root) {
  ASSIGN_OR_RETURN(const std::vector<agent::v1::CheckpointId> ids, ListStepDirectories(root));
  std::vector<v1::CheckpointSummary> summaries;
  for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
    const std::string directory =
        absl::StrCat(root, "/", StepDirectoryName(id->step(), id->attempt()));
    const auto manifest = ReadManifest(directory);
    if (!manifest.ok()) continue;
    v1::CheckpointSummary& summary = summaries.emplace_back();
    summary.set_directory(directory);
    summary.set_step(manifest->step());
    summary.set_attempt(manifest->attempt());
    summary.set_job_id(manifest->job_id());
    int64_t size_bytes = 0;
    for (const v1::ShardFile& shard : manifest->shards()) size_bytes += shard.size_bytes();
    summary.set_size_bytes(size_bytes);
  }
  return summaries;
}

absl::StatusOr<v1::Manifest> ReadManifest(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kManifestFile);
  const auto json = base::ReadFile(path, kManifestBytesMax);
  if (absl::IsNotFound(json.status())) {
    return absl::NotFoundError(absl::StrCat(
        "checkpoint ", directory, ": has no ", kManifestFile,
        "; expected the directory of one complete checkpoint, like DIR/step-00000100-attempt-1"));
  }
  if (!json.ok()) return json.status();
  v1::Manifest manifest;
  RETURN_IF_ERROR(FromJson(*json, path, &manifest));
  if (manifest.format_version() > kFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": has format version ", manifest.format_version(),
                     ", written by Megascale ", manifest.megascale_version(),
                     "; this program reads ", kFormatVersion, ", use a newer one"));
  }
  if (manifest.format_version() < 1) {
    return absl::DataLossError(absl::StrCat(path, ": has no format_version"));
  }
  return manifest;
}

}  // namespace megascale::checkpoint
