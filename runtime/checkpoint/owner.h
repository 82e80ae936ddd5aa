// To whom a directory of checkpoints belongs: a job of one driver's log. Names of checkpoints are
// the same in every job, so two jobs in one directory would replace, delete and restore each
// other's. The file `.owner.json` in the directory names the owner. It is made once, by a link that
// never replaces a file, and replaced only by a take-over that a user asked for. Whoever writes,
// deletes or restores checkpoints checks it first. Threads: plain functions. Blocking: storage.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/checkpoint.pb.h"

namespace megascale::checkpoint {

inline constexpr char kOwnerFile[] = ".owner.json";

// Returns whether both are the same job of the same log, with the same specification as far as both
// name it.
bool IsSameOwner(const megascale::checkpoint::v1::Owner& a,
                 const megascale::checkpoint::v1::Owner& b);

// Returns the owner in words: "job demo of the driver's log 3f2a…".
std::string Describe(const megascale::checkpoint::v1::Owner& owner);

// Errors: NotFound (with its errno) - there is no such file or directory; PermissionDenied without
// an errno - the file is damaged or of a newer version; else those of the file system.
absl::StatusOr<megascale::checkpoint::v1::Owner> ReadOwner(const std::string& directory);

// Returns OK if the directory has this owner. An owner without a job id is that of a driver of an
// older release: nothing is checked. Errors: PermissionDenied without an errno - it belongs to
// another job, so this one must never write or delete here again; NotFound with its errno - the
// file or the directory is missing: storage is away; else as ReadOwner.
absl::Status CheckOwner(const std::string& directory,
                        const megascale::checkpoint::v1::Owner& owner);

struct DirectoryClaim {
  std::string directory;
  megascale::checkpoint::v1::Owner owner;
  // The job has run before: its directory is there, and is never made anew. Checkpoints in it
  // without an owner are the job's own, of an older release.
  bool ran_before = false;
  bool owned_before = false;         // a preflight of the job has found its owner there
  bool take_over = false;            // a user allows to take it from another owner; see ran_before
  std::string from_checkpoint = {};  // a take-over leaves this checkpoint in its place
};

// Makes `owner` the owner of the directory, unless it is that already, and makes the directory if
// the job is new. A take-over moves the other owner's checkpoints into a folder of the directory.
// Returns what people should know, one line each. Only one process of a job may claim at a time;
// of two jobs one wins. Errors: PermissionDenied without an errno - it belongs to another job, lies
// in another job's directory or has another's within it, or has checkpoints of an unknown job; one
// line with what to do; NotFound with its errno - what was there is missing: storage is away; else
// those of the file system.
absl::StatusOr<std::vector<std::string>> ClaimDirectory(const DirectoryClaim& claim);

// Returns whether CheckIsCommitted made this error, perhaps on another machine.
bool IsOfAnotherRun(const absl::Status& status);

// Returns the highest attempt in the names of the checkpoints in the directory, and of those that
// take-overs moved; 0: there is none.
int64_t NewestAttemptIn(const std::string& directory);

// Returns OK if the manifest is that of the checkpoint which the job's driver committed. Without
// restore.owner the restore point may be another job's, so nothing is checked. Errors: DataLoss -
// it is another run's: one line.
absl::Status CheckIsCommitted(const megascale::checkpoint::v1::Manifest& manifest,
                              const megascale::agent::v1::RestorePoint& restore);

// Returns OK unless the step directory is known to be misplaced: its manifest names another step or
// attempt than its name, or another owner than the directory around it. Errors: FailedPrecondition.
absl::Status CheckPlace(const std::string& step_directory,
                        const megascale::checkpoint::v1::Manifest& manifest);

}  // namespace megascale::checkpoint
