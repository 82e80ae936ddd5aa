#include "controlplane/driver/core/restore_order.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controlplane/driver/core/placement.h"
#include "controlplane/driver/core/recovery.h"
#include "runtime/base/repeated.h"
#include "runtime/base/text/shortlist.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace pb = megascale::driver::v1;

// Attempts to read a checkpoint on the same nodes; the next one is on other machines.
constexpr int64_t kReadsOnSameNodes = 2;
constexpr int64_t kReadsMax = 3;

bool FailedAtRestore(const JobRecord& job, agent::RestorePoint::Source source) {
  return !job.failures().empty() && job.failures(0).at_restore() && !job.progressed() &&
         job.restore().source() == source;
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// Null: no attempt has failed to read it.
const pb::UnreadCheckpoint* FindUnread(const JobRecord& job, const std::string& directory) {
  for (const pb::UnreadCheckpoint& unread : job.unread()) {
    if (unread.checkpoint().directory() == directory) return &unread;
  }
  return nullptr;
}
pb::UnreadCheckpoint* FindUnread(JobRecord* job, const std::string& directory) {
  return const_cast<pb::UnreadCheckpoint*>(
      FindUnread(static_cast<const JobRecord&>(*job), directory));
}

// Returns the checkpoint that the next attempt reads unless memory has a newer step; empty: there
// is no checkpoint.
std::string NextDirectory(const JobRecord& job) {
  if (!job.committed().empty()) return job.committed().rbegin()->directory();
  const std::string& given = job.submitted().from_checkpoint();
  const pb::UnreadCheckpoint* unread = FindUnread(job, given);
  return unread != nullptr && unread->set_aside() ? "" : given;
}

std::set<std::string> NodesUnread(const pb::UnreadCheckpoint& unread) {
  std::set<std::string> nodes;
  for (const pb::FailedRead& read : unread.reads()) nodes.insert(read.node_id());
  return nodes;
}

std::string NodeList(const std::set<std::string>& nodes) {
  return base::Shortlist(std::vector<std::string>(nodes.begin(), nodes.end()));
}

void SetAside(pb::UnreadCheckpoint* unread, JobRecord* job) {
  unread->set_set_aside(true);
  base::EraseIf(job->mutable_committed(), [&](const auto& manifest) {
    return manifest.directory() == unread->checkpoint().directory();
  });
}

// Returns "on node n1 in attempts 2 and 3 (rank 2: shard /c/…: its SHA-256 is …)".
std::string WordsOfNode(const pb::UnreadCheckpoint& unread, const std::string& node_id) {
  std::vector<std::string> attempts;
  std::string error;
  for (const pb::FailedRead& read : unread.reads()) {
    if (read.node_id() != node_id) continue;
    const std::string attempt = absl::StrCat(read.attempt());
    if (attempts.empty() || attempts.back() != attempt) attempts.push_back(attempt);
    error = absl::StrCat("rank ", read.rank(), ": ", read.error());
  }
  return absl::StrCat("on node ", node_id, " in attempt", attempts.size() == 1 ? " " : "s ",
                      absl::StrJoin(attempts, " and "), " (", error, ")");
}

std::string WordsOf(const pb::UnreadCheckpoint& unread) {
  if (unread.of_another_run() && !unread.reads().empty()) {
    return absl::StrCat("step ", unread.checkpoint().step(), ": ",
                        unread.reads().rbegin()->error());
  }
  std::vector<std::string> places;
  const std::set<std::string> nodes = NodesUnread(unread);
  for (const std::string& node_id : nodes) places.push_back(WordsOfNode(unread, node_id));
  const std::string verdict =
      nodes.size() > 1
          ? absl::StrCat("the checkpoint is damaged or gone, since ", NodeList(nodes),
                         " failed alike")
          : absl::StrCat("no other machine had room to try, so that either the checkpoint or ",
                         NodeList(nodes), " is at fault");
  return absl::StrCat("step ", unread.checkpoint().step(), " in ", unread.checkpoint().directory(),
                      ": ", absl::StrJoin(places, ", "), "; ", verdict);
}

}  // namespace

bool EverCommitted(const JobRecord& job) {
  return !job.committed().empty() ||
         std::any_of(job.unread().begin(), job.unread().end(),
                     [](const auto& unread) { return unread.checkpoint().attempt() > 0; });
}

agent::StoredManifest NewestCheckpoint(const JobRecord& job) {
  agent::StoredManifest newest;
  if (!job.committed().empty()) newest = *job.committed().rbegin();
  for (const pb::UnreadCheckpoint& unread : job.unread()) {
    const bool is_own = unread.checkpoint().attempt() > 0;
    if (is_own && unread.checkpoint().step() >= newest.step()) newest = unread.checkpoint();
  }
  return newest;
}

bool CouldNotRead(const JobRecord& job) {
  return FailedAtRestore(job, agent::RestorePoint::SOURCE_STORAGE);
}

bool CouldNotReadMemory(const JobRecord& job) {
  return FailedAtRestore(job, agent::RestorePoint::SOURCE_MEMORY);
}

void AskForPreflights(JobRecord* job) {
  for (auto& preflight : *job->mutable_preflights()) preflight.set_again(true);
}

bool CouldNotUseStorage(const JobRecord& job) {
  const bool host_failed =
      job.culprit().rank() < 0 &&
      job.culprit().failure_class() == megascale::telemetry::v1::FAILURE_CLASS_EXITED;
  return host_failed || CouldNotRead(job);
}

void StepOverMemory(JobRecord* job) {
  for (auto& fenced : *job->mutable_fenced()) fenced.clear_snapshots();
  AddToEvidence("the newest checkpoint on storage is used", job);
}

void NoteFailedRead(JobRecord* job) {
  pb::UnreadCheckpoint* unread = FindUnread(job, job->restore().directory());
  if (unread == nullptr) {
    unread = job->add_unread();
    unread->mutable_checkpoint()->set_step(job->restore().step());
    unread->mutable_checkpoint()->set_directory(job->restore().directory());
    for (const auto& manifest : job->committed()) {
      if (manifest.directory() == job->restore().directory()) {
        *unread->mutable_checkpoint() = manifest;
      }
    }
  }
  unread->set_num_attempts(unread->num_attempts() + 1);
  if (job->failures(0).of_another_run()) unread->set_of_another_run(true);
  for (const pb::Failure& failure : job->failures()) {
    if (!failure.at_restore()) continue;
    if (unread->reads_size() >= kFailuresMax) unread->mutable_reads()->DeleteSubrange(0, 1);
    pb::FailedRead* read = unread->add_reads();
    read->set_attempt(job->attempt());
    read->set_node_id(failure.culprit().node_id());
    read->set_rank(failure.culprit().rank());
    read->set_error(FirstLine(failure.culprit().evidence()));
  }
}

std::string NextRead(const DriverState& state, JobRecord* job) {
  pb::UnreadCheckpoint* unread = FindUnread(job, job->restore().directory());
  if (!unread->of_another_run() && unread->num_attempts() < kReadsOnSameNodes) {
    return "it is read again";
  }
  const std::set<std::string> nodes = NodesUnread(*unread);
  if (!unread->of_another_run() && unread->num_attempts() < kReadsMax &&
      HasRoomWithout(state, *job, nodes)) {
    return absl::StrCat("it is read again on other nodes than ", NodeList(nodes));
  }
  SetAside(unread, job);
  const std::string next = NextDirectory(*job);
  if (next.empty()) return "";
  return absl::StrCat("an older checkpoint is used: ", next);
}

std::string NothingCanBeRead(const JobRecord& job) {
  std::vector<std::string> tried;
  for (const pb::UnreadCheckpoint& unread : job.unread()) tried.push_back(WordsOf(unread));
  // The advice comes first, because the list of attempts may be long and is cut if there is no
  // room.
  return absl::StrCat(
      EverCommitted(job)
          ? "no checkpoint of this job could be read, and a job that has one does not begin at "
            "initial weights by itself"
          : "the checkpoint that it was to start from could not be read",
      "; see which one is whole with `megascale checkpoint verify ",
      job.unread(0).checkpoint().directory(),
      "` on another machine, and go on from it with `megascale submit JOB.yaml --from "
      "DIRECTORY` (without --from, a new job begins at initial weights). Tried: ",
      absl::StrJoin(tried, "; "));
}

std::set<std::string> NodesThatCannotRead(const DriverState& state, const JobRecord& job) {
  // Another failure, such as a refusal, may have followed the one at the restore.
  if (state.rules() < 4 && !CouldNotRead(job)) return {};
  const pb::UnreadCheckpoint* unread = FindUnread(job, NextDirectory(job));
  if (unread == nullptr || unread->num_attempts() < kReadsOnSameNodes) return {};
  return NodesUnread(*unread);
}

int64_t NumFailedReads(const JobRecord& job) {
  if (!CouldNotRead(job)) return 0;
  int64_t num_reads = 0;
  for (const pb::UnreadCheckpoint& unread : job.unread()) {
    num_reads += unread.set_aside() ? 1 : unread.num_attempts();
  }
  return num_reads;
}

std::set<std::string> NoteRead(JobRecord* job) {
  if (job->restore().source() != agent::RestorePoint::SOURCE_STORAGE) return {};
  pb::UnreadCheckpoint* unread = FindUnread(job, job->restore().directory());
  if (unread == nullptr) return {};
  // If it fails once more, the next attempt uses other machines at once.
  unread->set_num_attempts(std::min(unread->num_attempts(), kReadsOnSameNodes - 1));
  if (!CouldNotRead(*job)) return {};
  const std::set<std::string> nodes = NodesUnread(*unread);
  const auto& placements = job->placements();
  const bool elsewhere =
      std::none_of(placements.begin(), placements.end(),
                   [&](const auto& placement) { return nodes.count(placement.node_id()) > 0; });
  AddToEvidence(elsewhere
                    ? absl::StrCat("other nodes could read it: not the checkpoint but ",
                                   NodeList(nodes), nodes.size() == 1 ? " is" : " are", " at fault")
                    : "then it could be read",
                job);
  return elsewhere ? nodes : std::set<std::string>();
}

void ForgetUnread(int64_t committed_step, JobRecord* job) {
  base::EraseIf(job->mutable_unread(),
                [&](const auto& one) { return one.checkpoint().step() <= committed_step; });
}

namespace {

// The first checkpoint at or after the lowest loss replaces the one that was kept before. Until
// there is one, that stays.
void ChooseBest(JobRecord* job) {
  if (!job->submitted().spec().checkpoint().keep_best() || !job->has_lowest_held_out()) return;
  const int64_t lowest = job->lowest_held_out().step();
  if (job->has_best_checkpoint() && job->best_checkpoint().step() >= lowest) return;
  for (const agent::StoredManifest& manifest : job->committed()) {
    if (manifest.step() < lowest) continue;
    *job->mutable_best_checkpoint() = manifest;
    return;
  }
}

}  // namespace

void KeepCheckpoints(JobRecord* job) {
  ChooseBest(job);
  auto* committed = job->mutable_committed();
  const int keep = std::max(1, job->submitted().spec().checkpoint().keep());
  const int num_older = std::max(0, committed->size() - keep);
  const agent::StoredManifest& best = job->best_checkpoint();
  const auto is_dropped = [&](const agent::StoredManifest& manifest) {
    return !job->has_best_checkpoint() || manifest.step() != best.step() ||
           manifest.attempt() != best.attempt();
  };
  const auto older = committed->begin() + num_older;
  committed->erase(std::remove_if(committed->begin(), older, is_dropped), older);
}

void PutBackUnread(JobRecord* job) {
  auto* committed = job->mutable_committed();
  for (const pb::UnreadCheckpoint& unread : job->unread()) {
    if (unread.set_aside() && unread.checkpoint().attempt() > 0) {
      *committed->Add() = unread.checkpoint();
    }
  }
  std::stable_sort(committed->begin(), committed->end(),
                   [](const auto& a, const auto& b) { return a.step() < b.step(); });
  job->clear_unread();
}

}  // namespace megascale::driver
