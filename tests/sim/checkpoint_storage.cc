#include "tests/sim/checkpoint_storage.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/owner.h"

namespace megascale::sim {
namespace {

constexpr double kFull = 0.5;  // of the writes while storage is full
constexpr char kGivenJob[] = "given";
constexpr char kOtherLog[] = "another log";
constexpr char kAway[] = "storage: is not mounted";
constexpr int64_t kGivenAttempt = 1;
constexpr int kGivenRanks = 64;

}  // namespace

CheckpointStorage::CheckpointStorage(World* world) : world_(*world) {
  Directory& given = jobs_[kGivenJob][{kGivenStep, kGivenAttempt}];
  for (int rank = 0; rank < kGivenRanks; ++rank) given.shards[rank] = {kGivenAttempt, kGivenStep};
  given.complete = true;
}

std::string CheckpointStorage::GivenPath() {
  agent::CheckpointId id;
  id.set_step(kGivenStep);
  id.set_attempt(kGivenAttempt);
  return PathOf(kGivenJob, id);
}

std::string CheckpointStorage::PathOf(const std::string& job_id, const agent::CheckpointId& id) {
  return absl::StrCat("/checkpoints/", job_id, "/",
                      checkpoint::StepDirectoryName(id.step(), id.attempt()));
}

bool CheckpointStorage::IsAway() const { return world_.timeline.now() < world_.storage_away_until; }

absl::Status CheckpointStorage::Claim(const agent::DesiredJob& job) {
  if (IsAway()) return absl::UnavailableError(kAway);
  if (!job.has_owner()) return absl::OkStatus();
  const auto [found, is_new] = owners_.try_emplace(job.job_id(), job.owner());
  if (is_new && job.owns_directory()) return absl::UnavailableError(kAway);
  if (checkpoint::IsSameOwner(found->second, job.owner())) return absl::OkStatus();
  if (!IsTaken(job.job_id())) {
    world_.Violate("OwnerIsKept", absl::StrCat("job ", job.job_id(), ": its directory belongs to ",
                                               checkpoint::Describe(found->second), ", and not to ",
                                               checkpoint::Describe(job.owner())));
  }
  return absl::PermissionDeniedError("the checkpoint directory is another job's");
}

std::string CheckpointStorage::TakeOver() {
  if (owners_.empty()) return "";
  const auto taken = std::next(owners_.begin(), world_.rng.Between(0, owners_.size() - 1));
  taken->second.set_log_id(kOtherLog);
  taken_.insert(taken->first);
  for (auto& [age, directory] : jobs_[taken->first]) directory.owner = taken->second;
  return taken->first;
}

absl::Status CheckpointStorage::CheckOwner(const checkpoint::v1::Owner& owner,
                                           const std::string& job_id) const {
  const auto found = owners_.find(job_id);
  if (!owner.job_id().empty() && found != owners_.end() &&
      !checkpoint::IsSameOwner(owner, found->second)) {
    return absl::PermissionDeniedError("the checkpoint directory is another job's");
  }
  // An attempt in which an agent of an older version takes part has no owner (docs/versions.md).
  const bool is_of_older = owner.job_id().empty() && !world_.tampering.no_owners &&
                           (!world_.old_agents.empty() || world_.old_driver);
  if (IsTaken(job_id) && !is_of_older) {
    world_.Violate("OthersAreLeftAlone",
                   absl::StrCat("job ", job_id, " changes a directory that is another job's"));
  }
  return absl::OkStatus();
}

absl::Status CheckpointStorage::Writable() const {
  if (IsAway()) return absl::UnavailableError(kAway);
  if (world_.timeline.now() < world_.storage_full_until && world_.rng.Chance(kFull)) {
    return absl::ResourceExhaustedError("storage: disk full");
  }
  if (world_.timeline.now() >= world_.storage_fails_until) return absl::OkStatus();
  return absl::UnavailableError("storage: input/output error");
}

absl::Status CheckpointStorage::WriteShard(const checkpoint::v1::Owner& owner,
                                           const std::string& job_id,
                                           const agent::SealedSnapshot& snapshot) {
  RETURN_IF_ERROR(Writable());
  RETURN_IF_ERROR(CheckOwner(owner, job_id));
  Directory& directory = jobs_[job_id][{snapshot.step(), snapshot.attempt()}];
  directory.shards[snapshot.rank()] = {snapshot.attempt(), snapshot.step()};
  directory.damaged.erase(snapshot.rank());
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointStorage::WriteManifest(const checkpoint::v1::Owner& owner,
                                                             const std::string& job_id,
                                                             const agent::CheckpointId& id,
                                                             int world_size) {
  RETURN_IF_ERROR(Writable());
  RETURN_IF_ERROR(CheckOwner(owner, job_id));
  const std::string path = PathOf(job_id, id);
  auto& directories = jobs_[job_id];
  const auto found = directories.find({id.step(), id.attempt()});
  if (found == directories.end()) {
    return absl::NotFoundError(absl::StrCat(path, ": was given up"));
  }
  if (static_cast<int>(found->second.shards.size()) < world_size) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": a shard is missing"));
  }
  found->second.complete = true;
  found->second.owner = owner;
  return path;
}

absl::Status CheckpointStorage::ApplyRetention(const std::string& job_id,
                                               const checkpoint::Retention& retention) {
  RETURN_IF_ERROR(Writable());
  RETURN_IF_ERROR(CheckOwner(retention.owner, job_id));
  auto& directories = jobs_[job_id];
  for (auto it = directories.begin(); it != directories.end();) {
    agent::CheckpointId id;
    id.set_step(it->first.first);
    id.set_attempt(it->first.second);
    if (!checkpoint::IsSuperseded(id, retention)) {
      ++it;
      continue;
    }
    it = directories.erase(it);
    world_.Say("storage", absl::StrCat("deleted ", PathOf(job_id, id)));
    world_.Tell(&Observer::OnCheckpointDeleted, job_id, id);
  }
  return absl::OkStatus();
}

void CheckpointStorage::GiveUpIncomplete(const checkpoint::v1::Owner& owner,
                                         const std::string& job_id,
                                         const agent::CheckpointId& newest) {
  if (!CheckOwner(owner, job_id).ok()) return;
  std::erase_if(jobs_[job_id], [&](const auto& entry) {
    const auto& [age, directory] = entry;
    return !directory.complete &&
           std::pair(age.second, age.first) < std::pair(newest.attempt(), newest.step());
  });
}

const CheckpointStorage::Directory* CheckpointStorage::Find(const std::string& path) const {
  for (const auto& [job_id, directories] : jobs_) {
    if (!absl::StartsWith(path, absl::StrCat("/checkpoints/", job_id, "/"))) continue;
    for (const auto& [age, directory] : directories) {
      agent::CheckpointId id;
      id.set_step(age.first);
      id.set_attempt(age.second);
      if (PathOf(job_id, id) == path) return &directory;
    }
  }
  return nullptr;
}

void CheckpointStorage::Damage() {
  std::vector<std::pair<std::string, Age>> complete;
  for (const auto& [job_id, directories] : jobs_) {
    for (const auto& [age, directory] : directories) {
      if (directory.complete) complete.emplace_back(job_id, age);
    }
  }
  const auto& [job_id, age] = complete[world_.rng.Index(complete.size())];
  Directory& directory = jobs_[job_id][age];
  const int rank = static_cast<int>(world_.rng.Index(directory.shards.size()));
  directory.damaged.insert(rank);
  world_.Say("storage", absl::StrCat("shard ", rank, " of step ", age.first, ", attempt ",
                                     age.second, ", of job ", job_id, " is damaged"));
}

bool CheckpointStorage::IsDamaged(const std::string& path, int rank) const {
  const Directory* directory = Find(path);
  return directory != nullptr && directory->damaged.count(rank) > 0;
}

absl::StatusOr<int64_t> CheckpointStorage::ReadShard(const agent::RestorePoint& restore,
                                                     int rank) const {
  const std::string& path = restore.directory();
  const Directory* directory = Find(path);
  if (directory == nullptr || !directory->complete) {
    return absl::DataLossError(absl::StrCat(path, ": there is no complete checkpoint"));
  }
  checkpoint::v1::Manifest manifest;
  manifest.set_job_id(restore.owner().job_id());
  manifest.set_step(restore.step());
  manifest.set_attempt(restore.attempt());
  if (!directory->owner.job_id().empty()) *manifest.mutable_owner() = directory->owner;
  RETURN_IF_ERROR(checkpoint::CheckIsCommitted(manifest, restore));
  if (directory->owner.log_id() == kOtherLog) {
    world_.Violate("OthersAreLeftAlone", absl::StrCat(path, " is restored, and is another job's"));
  }
  const auto shard = directory->shards.find(rank);
  if (shard == directory->shards.end()) {
    return absl::DataLossError(absl::StrCat(path, ": has no shard of rank ", rank));
  }
  if (directory->damaged.count(rank) > 0) {
    return absl::DataLossError(absl::StrCat(path, ": the shard of rank ", rank, " is damaged"));
  }
  return shard->second.second;
}

}  // namespace megascale::sim
