#include "runtime/checkpoint/owner.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/checkpoint/place_file.h"
#include "runtime/checkpoint/product_table.h"

namespace megascale::checkpoint {
namespace {

constexpr size_t kOwnerBytesMax = 64 << 10;
constexpr int kCopiesMax = 100;  // of one checkpoint, in the folder to which a take-over moves
constexpr char kTakenOver[] = "taken-over-";  // begins the name of a folder of moved checkpoints
constexpr char kOfAnotherRun[] = ": is the checkpoint of another run";
constexpr char kHowToTake[] =
    "choose another checkpoint.directory or job id, or take it over with --take-over";

std::string OwnerPath(const std::string& directory) {
  return absl::StrCat(directory, "/", kOwnerFile);
}

absl::Status OthersError(const std::string& directory, const v1::Owner& owner,
                         absl::string_view what_to_do) {
  return absl::PermissionDeniedError(
      absl::StrCat(directory, ": belongs to ", Describe(owner), "; ", what_to_do));
}

// Makes the owner's file unless there is one. On a file system without links two jobs that begin at
// the same moment are not told apart here: the one that lost finds the other's file at its next
// write.
absl::Status MakeOwnerFile(const std::string& directory, const v1::Owner& owner) {
  const std::string json = ToJson(owner, JsonStyle::kPretty);
  return MakeFileOnce(directory, kOwnerFile,
                      absl::StrCat(base::Sha256Hex(json).substr(0, 8), ".", ::getpid()), json);
}

// Returns an error if `other`, within `directory` or around it, is another job's directory.
absl::Status CheckIsFree(const std::string& directory, const std::filesystem::path& other) {
  const auto owner = ReadOwner(other.string());
  if (!owner.ok()) return base::ErrnoOf(owner.status()) != 0 ? absl::OkStatus() : owner.status();
  return absl::PermissionDeniedError(absl::StrCat(
      directory, ": may not lie in another job's directory, nor around one; ", other.string(),
      " belongs to ", Describe(*owner), "; choose another checkpoint.directory"));
}

// Refuses a directory within another job's directory, or around one. Symlinks and `..` are
// resolved. Only children are looked at, because a job touches nothing deeper of another one.
absl::Status CheckNotNested(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(directory, error);
  if (error) return base::ErrnoStatus(error.value(), directory);
  for (auto above = real.parent_path(); above != above.parent_path(); above = above.parent_path()) {
    RETURN_IF_ERROR(CheckIsFree(directory, above));
  }
  // It need not exist yet.
  std::filesystem::directory_iterator entry(real, error);
  for (const std::filesystem::directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    RETURN_IF_ERROR(CheckIsFree(directory, entry->path()));
  }
  return absl::OkStatus();
}

// Moves what another owner made into the folder `aside`; returns the number of checkpoints.
absl::StatusOr<int> MoveAside(const DirectoryClaim& claim, const std::string& aside) {
  ASSIGN_OR_RETURN(const auto found, ListStepDirectories(claim.directory));
  const std::string table = absl::StrCat(claim.directory, "/", kProductTableFile);
  const bool has_table = ::access(table.c_str(), F_OK) == 0;
  if (found.empty() && !has_table) return 0;
  RETURN_IF_ERROR(base::MakeDirectories(aside));
  int moved = 0;
  for (const auto& id : found) {
    const std::string name = StepDirectoryName(id.step(), id.attempt());
    const std::string from = absl::StrCat(claim.directory, "/", name);
    std::error_code error;
    if (!claim.from_checkpoint.empty() &&
        std::filesystem::equivalent(from, claim.from_checkpoint, error)) {
      continue;
    }
    absl::Status gone = RenamePath(from, absl::StrCat(aside, "/", name));
    // The other owner, which has just lost the directory, has made it once more.
    for (int copy = 1; !gone.ok() && copy <= kCopiesMax; ++copy) {
      const int error = base::ErrnoOf(gone);
      if (error != ENOTEMPTY && error != EEXIST) break;
      gone = RenamePath(from, absl::StrCat(aside, "/", name, ".", copy));
    }
    RETURN_IF_ERROR(gone);
    ++moved;
  }
  if (has_table) {
    RETURN_IF_ERROR(RenamePath(table, absl::StrCat(aside, "/", kProductTableFile)));
  }
  return moved;
}

// `before`: the owner in words.
absl::StatusOr<std::vector<std::string>> TakeOver(const DirectoryClaim& claim,
                                                  const std::string& before) {
  const std::string aside =
      absl::StrCat(claim.directory, "/", kTakenOver, base::Sha256Hex(before).substr(0, 8));
  ASSIGN_OR_RETURN(int moved, MoveAside(claim, aside));
  RETURN_IF_ERROR(
      base::WriteFileDurably(OwnerPath(claim.directory), ToJson(claim.owner, JsonStyle::kPretty)));
  // What the other owner wrote before it could see the new file.
  ASSIGN_OR_RETURN(const int late, MoveAside(claim, aside));
  moved += late;
  return std::vector<std::string>{absl::StrCat(
      "--take-over: took ", claim.directory, " over from ", before,
      moved == 0 ? ""
                 : absl::StrCat("; ", base::Counted(moved, "checkpoint"), " of it: in ", aside))};
}

// There is no owner's file yet.
absl::StatusOr<std::vector<std::string>> ClaimFree(const DirectoryClaim& claim) {
  if (claim.owned_before || (claim.ran_before && ::access(claim.directory.c_str(), F_OK) != 0)) {
    return base::ErrnoStatus(
        ENOENT, absl::StrCat(claim.owned_before ? OwnerPath(claim.directory) : claim.directory,
                             ": was there when the job ran before; is its file system mounted?"));
  }
  RETURN_IF_ERROR(CheckNotNested(claim.directory));
  RETURN_IF_ERROR(base::MakeDirectories(claim.directory));
  ASSIGN_OR_RETURN(const auto found, ListStepDirectories(claim.directory));
  if (!claim.ran_before && !found.empty()) {
    if (claim.take_over) return TakeOver(claim, "an unknown job");
    return absl::PermissionDeniedError(
        absl::StrCat(claim.directory, ": has checkpoints, such as ",
                     StepDirectoryName(found.back().step(), found.back().attempt()), ", and no ",
                     kOwnerFile, " that tells whose they are; ", kHowToTake));
  }
  RETURN_IF_ERROR(MakeOwnerFile(claim.directory, claim.owner));
  RETURN_IF_ERROR(CheckOwner(claim.directory, claim.owner));
  // Again, because another job may have claimed such a directory meanwhile.
  const absl::Status alone = CheckNotNested(claim.directory);
  if (!alone.ok()) ::unlink(OwnerPath(claim.directory).c_str());
  if (!alone.ok()) return alone;
  return std::vector<std::string>();
}

}  // namespace

bool IsSameOwner(const v1::Owner& a, const v1::Owner& b) {
  return a.job_id() == b.job_id() && a.log_id() == b.log_id() &&
         (a.spec_sha256().empty() || b.spec_sha256().empty() || a.spec_sha256() == b.spec_sha256());
}

std::string Describe(const v1::Owner& owner) {
  return absl::StrCat(
      "job ", owner.job_id(), " of the driver's log ", owner.log_id().substr(0, 8),
      owner.spec_sha256().empty()
          ? ""
          : absl::StrCat(" (specification ", owner.spec_sha256().substr(0, 8), ")"));
}

absl::StatusOr<v1::Owner> ReadOwner(const std::string& directory) {
  const std::string path = OwnerPath(directory);
  ASSIGN_OR_RETURN(const std::string json, base::ReadFile(path, kOwnerBytesMax));
  v1::Owner owner;
  const absl::Status parsed = FromJson(json, path, &owner);
  if (parsed.ok() && !owner.job_id().empty() && !owner.log_id().empty()) return owner;
  return absl::PermissionDeniedError(
      absl::StrCat(path, ": does not tell whose checkpoints these are",
                   parsed.ok() ? "" : absl::StrCat(" (", parsed.message(), ")"),
                   "; put the file back, or take the directory over with --take-over"));
}

absl::Status CheckOwner(const std::string& directory, const v1::Owner& owner) {
  if (owner.job_id().empty()) return absl::OkStatus();
  const auto found = ReadOwner(directory);
  if (!found.ok()) return found.status();
  if (IsSameOwner(*found, owner)) return absl::OkStatus();
  return OthersError(directory, *found,
                     absl::StrCat(Describe(owner), " may write and delete nothing there"));
}

absl::StatusOr<std::vector<std::string>> ClaimDirectory(const DirectoryClaim& claim) {
  const auto found = ReadOwner(claim.directory);
  if (absl::IsNotFound(found.status())) return ClaimFree(claim);
  if (found.ok() && IsSameOwner(*found, claim.owner)) return std::vector<std::string>();
  if (!found.ok() && base::ErrnoOf(found.status()) != 0) return found.status();
  // A job takes a directory over when it begins, and not when it has lost it to another one since.
  if (claim.take_over && !claim.ran_before) {
    return TakeOver(claim, found.ok() ? Describe(*found) : "an unknown job");
  }
  if (!found.ok()) return found.status();
  return OthersError(claim.directory, *found,
                     claim.ran_before ? "it was taken over from this job" : kHowToTake);
}

absl::Status CheckIsCommitted(const v1::Manifest& manifest,
                              const agent::v1::RestorePoint& restore) {
  if (!restore.has_owner()) return absl::OkStatus();
  const bool same_owner = manifest.has_owner() ? IsSameOwner(manifest.owner(), restore.owner())
                                               : restore.without_owner();
  if (same_owner && manifest.job_id() == restore.owner().job_id() &&
      manifest.step() == restore.step() && manifest.attempt() == restore.attempt()) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(
      restore.directory(), kOfAnotherRun, " (",
      manifest.has_owner() ? Describe(manifest.owner())
                           : absl::StrCat("job ", manifest.job_id(), ", no owner"),
      ", step ", manifest.step(), ", attempt ", manifest.attempt(), "); expected ",
      Describe(restore.owner()), ", step ", restore.step(), ", attempt ", restore.attempt()));
}

// Ranks of several machines exchange such errors as text.
bool IsOfAnotherRun(const absl::Status& status) {
  return absl::IsDataLoss(status) && absl::StrContains(status.message(), kOfAnotherRun);
}

int64_t NewestAttemptIn(const std::string& directory) {
  std::vector<std::string> folders = {directory};
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (absl::StartsWith(entry->path().filename().string(), kTakenOver)) {
      folders.push_back(entry->path().string());
    }
  }
  int64_t newest = 0;
  for (const std::string& folder : folders) {
    const auto found = ListStepDirectories(folder);
    if (!found.ok()) continue;
    for (const auto& id : *found) newest = std::max<int64_t>(newest, id.attempt());
  }
  return newest;
}

absl::Status CheckPlace(const std::string& step_directory, const v1::Manifest& manifest) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(step_directory, error);
  const auto id = ParseStepDirectoryName(path.filename().string());
  if (id.has_value() && (id->step() != manifest.step() || id->attempt() != manifest.attempt())) {
    return absl::FailedPreconditionError(
        absl::StrCat(step_directory, ": its manifest is that of step ", manifest.step(),
                     ", attempt ", manifest.attempt(), ", of job ", manifest.job_id()));
  }
  const auto around = ReadOwner(path.parent_path().string());
  if (!around.ok() || !manifest.has_owner() || IsSameOwner(*around, manifest.owner())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      step_directory, ": is a checkpoint of ", Describe(manifest.owner()),
      ", and lies in the directory of ", Describe(*around), ", which never restores it by itself"));
}

}  // namespace megascale::checkpoint
