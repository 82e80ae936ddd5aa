#include "controlplane/driver/core/recovery.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/restore_order.h"
#include "runtime/job/job_spec.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace telemetry = megascale::telemetry::v1;

constexpr absl::Duration kBackoffMax = absl::Minutes(1);
constexpr int kFailuresBeforeTest = 2;

// Returns the highest step of which every rank has a snapshot on its node; -1: there is no such
// step.
int64_t NewestStepInMemory(const JobRecord& job, const std::vector<agent::Placement>& placements) {
  std::map<int64_t, std::set<int>> ranks_of_step;
  for (const auto& fenced : job.fenced()) {
    for (const auto& snapshot : fenced.snapshots()) {
      // A snapshot of a step that was rolled back has the right bits, but its steps are no longer
      // in the loss log.
      if (snapshot.attempt() != job.attempt() && snapshot.step() > job.restore().step()) continue;
      const size_t rank = static_cast<size_t>(snapshot.rank());
      if (rank >= placements.size() || placements[rank].node_id() != fenced.node_id()) continue;
      ranks_of_step[snapshot.step()].insert(snapshot.rank());
    }
  }
  for (auto it = ranks_of_step.rbegin(); it != ranks_of_step.rend(); ++it) {
    if (it->second.size() == placements.size()) return it->first;
  }
  return -1;
}

// Returns where the job starts without snapshots and checkpoints of its own.
agent::RestorePoint Beginning(const JobRecord& job) {
  agent::RestorePoint restore;
  if (job.submitted().from_checkpoint().empty()) {
    restore.set_source(agent::RestorePoint::SOURCE_INITIAL);
    return restore;
  }
  restore.set_source(agent::RestorePoint::SOURCE_STORAGE);
  restore.set_directory(job.submitted().from_checkpoint());
  if (job.has_data()) {
    restore.set_step(job.first_step());
    restore.set_sample_offset(job.sample_offset());
  } else if (job.preflights_size() > 0) {
    restore.set_step(job.preflights(0).preflight().first_step());
    restore.set_sample_offset(job.preflights(0).preflight().sample_offset());
  }
  return restore;
}

bool IsSignalOfMachine(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE;
}

}  // namespace

std::string ReasonOf(const Culprit& culprit) {
  switch (culprit.failure_class()) {
    case telemetry::FAILURE_CLASS_EXITED:
      return culprit.rank() < 0 ? "HostFailed" : "RankExited";
    case telemetry::FAILURE_CLASS_OUT_OF_MEMORY:
      return "OutOfMemory";
    case telemetry::FAILURE_CLASS_HUNG:
      return culprit.rank() < 0 ? "HostHung" : "RankHung";
    case telemetry::FAILURE_CLASS_SLOW:
      return "RankSlow";
    case telemetry::FAILURE_CLASS_UNREACHABLE:
      return "NodeLost";
    case telemetry::FAILURE_CLASS_CORRUPT:
      return "DataCorrupt";
    case telemetry::FAILURE_CLASS_DIVERGED:
      return "Diverged";
    case telemetry::FAILURE_CLASS_REFUSED:
      return "Refused";
    case telemetry::FAILURE_CLASS_ABORTED:
      return "PeerLost";
    case telemetry::FAILURE_CLASS_STORAGE:
      return "StorageFailed";
    case telemetry::FAILURE_CLASS_RENDEZVOUS:
      return "StoreUnavailable";
    case telemetry::FAILURE_CLASS_LINK:
      return "LinkFailed";
    default:
      return "Failed";
  }
}

std::string Describe(const Culprit& culprit) {
  const std::string who = culprit.rank() < 0
                              ? absl::StrCat("node ", culprit.node_id())
                              : absl::StrCat("rank ", culprit.rank(), " on ", culprit.node_id());
  const std::string& evidence = culprit.evidence();
  const std::string line = evidence.substr(0, evidence.find('\n'));
  if (culprit.failure_class() != telemetry::FAILURE_CLASS_LINK)
    return absl::StrCat(who, ": ", line);
  return absl::StrCat(who, " got no answer from rank ", culprit.peer_rank(), " on ",
                      culprit.peer_node_id(), ", though both machines reach the driver: ", line);
}

std::string Describe(const agent::RestorePoint& restore) {
  switch (restore.source()) {
    case agent::RestorePoint::SOURCE_MEMORY:
      return absl::StrCat("step ", restore.step(), " in the agents' memory");
    case agent::RestorePoint::SOURCE_STORAGE:
      return absl::StrCat("step ", restore.step(), " in ", restore.directory());
    default:
      return "initial weights";
  }
}

Culprit CheckpointNotStored(const JobRecord& job) {
  Culprit culprit;
  culprit.set_node_id(NodeOfRank(job, 0));
  culprit.set_rank(-1);
  culprit.set_failure_class(telemetry::FAILURE_CLASS_HUNG);
  culprit.set_evidence(absl::StrCat(
      "the checkpoint of the last step, ", job.submitted().spec().train().steps(),
      ", did not reach storage in time; see the logs of the host processes, and whether every "
      "machine can write to ",
      CheckpointDirectory(job)));
  return culprit;
}

bool IsBetterCause(const v1::Failure& candidate, const v1::Failure& known) {
  const auto is_of = [](const v1::Failure& failure, FailureClass failure_class) {
    return failure.culprit().failure_class() == failure_class;
  };
  const auto follows = [&](const v1::Failure& failure) {
    return is_of(failure, telemetry::FAILURE_CLASS_ABORTED);
  };
  if (follows(candidate) != follows(known)) return follows(known);
  // A machine that is lost answers nobody.
  const auto explains = [&](const v1::Failure& lost, const v1::Failure& unanswered) {
    return is_of(lost, telemetry::FAILURE_CLASS_UNREACHABLE) &&
           is_of(unanswered, telemetry::FAILURE_CLASS_LINK);
  };
  if (explains(candidate, known)) return true;
  if (explains(known, candidate)) return false;
  if (!candidate.has_noticed_at() || !known.has_noticed_at()) return false;
  return job::ToDuration(candidate.noticed_at()) < job::ToDuration(known.noticed_at());
}

void AddFailure(const v1::Failure& failure, bool is_cause, JobRecord* job) {
  job->set_num_failures(job->num_failures() + 1);
  auto* failures = job->mutable_failures();
  *failures->Add() = failure;
  const auto noticed = [&](int index) {
    return job::ToDuration(failures->Get(index).noticed_at());
  };
  for (int i = failures->size() - 1; i > (is_cause ? 0 : 1); --i) {
    if (!is_cause && noticed(i - 1) <= noticed(i)) break;
    failures->SwapElements(i - 1, i);
  }
  for (int i = 1; i < failures->size(); ++i) {
    std::string* evidence = failures->Mutable(i)->mutable_culprit()->mutable_evidence();
    evidence->resize(std::min(evidence->size(), evidence->find('\n')));
  }
  if (failures->size() > kFailuresMax) failures->RemoveLast();
}

bool IsRetried(FailureClass failure_class) {
  return failure_class != telemetry::FAILURE_CLASS_REFUSED &&
         failure_class != telemetry::FAILURE_CLASS_DIVERGED &&
         failure_class != telemetry::FAILURE_CLASS_STORAGE;
}

bool IsFaultOfMachine(const JobRecord& job) {
  if (job.culprit().failure_class() == telemetry::FAILURE_CLASS_LINK) return true;
  if (job.culprit().failure_class() != telemetry::FAILURE_CLASS_UNREACHABLE) return false;
  std::set<std::string> lost;
  for (const Culprit& cause : job.causes()) {
    if (cause.failure_class() == telemetry::FAILURE_CLASS_UNREACHABLE) lost.insert(cause.node_id());
  }
  return lost.size() < kFailuresOfOneNodeMax;
}

bool MayBlameNode(const Culprit& cause) {
  return cause.failure_class() != telemetry::FAILURE_CLASS_ABORTED &&
         cause.failure_class() != telemetry::FAILURE_CLASS_RENDEZVOUS &&
         cause.failure_class() != telemetry::FAILURE_CLASS_LINK;
}

bool CouldBeOfMachine(const JobRecord& job) {
  const Culprit& culprit = job.culprit();
  if (!job.failures().empty() && job.failures(0).of_another_run()) return false;
  switch (culprit.failure_class()) {
    case telemetry::FAILURE_CLASS_CORRUPT:
    case telemetry::FAILURE_CLASS_DIVERGED:
    case telemetry::FAILURE_CLASS_HUNG:
      return true;
    case telemetry::FAILURE_CLASS_EXITED:
      break;
    default:
      return false;
  }
  if (!job.failures().empty() && IsSignalOfMachine(job.failures(0).signal())) return true;
  const auto there =
      std::count_if(job.causes().begin(), job.causes().end(), [&](const auto& cause) {
        return cause.node_id() == culprit.node_id() && MayBlameNode(cause);
      });
  return there >= kFailuresBeforeTest;
}

std::set<std::string> NodesThatFailedOften(const JobRecord& job) {
  std::map<std::string, int> failures;
  for (const Culprit& cause : job.causes()) {
    if (MayBlameNode(cause)) ++failures[cause.node_id()];
  }
  std::set<std::string> nodes;
  for (const auto& [node_id, count] : failures) {
    if (count >= kFailuresOfOneNodeMax) nodes.insert(node_id);
  }
  return nodes;
}

void ForgetFailures(JobRecord* job) {
  job->set_attempts_without_progress(0);
  job->clear_machine_failures();
  job->clear_causes();
}

bool WasRefusedByNode(const JobRecord& job) {
  const Culprit& culprit = job.culprit();
  return culprit.failure_class() == telemetry::FAILURE_CLASS_REFUSED &&
         std::any_of(job.refusing().begin(), job.refusing().end(), [&](const auto& refusing) {
           if (refusing.node_id() != culprit.node_id()) return false;
           // A snapshot of an older driver does not say which attempt was refused.
           return refusing.attempt() > 0
                      ? refusing.attempt() == culprit.attempt() && culprit.rank() < 0
                      : absl::EndsWith(culprit.evidence(), refusing.message());
         });
}

absl::Duration BackoffOf(const JobRecord& job) {
  const int64_t attempts =
      job.attempts_without_progress() + job.machine_failures() + NumFailedReads(job);
  if (attempts < 1) return absl::ZeroDuration();
  const auto& first = job.submitted().spec().fault().restart_backoff();
  absl::Duration backoff = absl::Seconds(first.seconds()) + absl::Nanoseconds(first.nanos());
  for (int64_t i = 1; i < attempts && backoff < kBackoffMax; ++i) {
    backoff *= 2;
  }
  return std::min(backoff, kBackoffMax);
}

agent::RestorePoint ChooseRestore(int rules, const JobRecord& job,
                                  const std::vector<agent::Placement>& placements) {
  agent::RestorePoint restore = Beginning(job);
  if (job.committed_size() > 0) {
    const auto& newest = job.committed(job.committed_size() - 1);
    restore.set_source(agent::RestorePoint::SOURCE_STORAGE);
    restore.set_step(newest.step());
    restore.set_directory(newest.directory());
    if (rules >= 10) restore.set_attempt(newest.attempt());
    if (rules >= 10) restore.set_without_owner(!newest.has_owner());
  }
  const int64_t in_memory = NewestStepInMemory(job, placements);
  if (in_memory >= 0 && in_memory >= restore.step()) {
    const int64_t sample_offset = restore.sample_offset();
    restore.Clear();
    restore.set_sample_offset(sample_offset);
    restore.set_source(agent::RestorePoint::SOURCE_MEMORY);
    restore.set_step(in_memory);
  }
  return restore;
}

void AddToEvidence(const std::string& words, JobRecord* job) {
  const std::string evidence = job->culprit().evidence();
  const size_t line_end = std::min(evidence.find('\n'), evidence.size());
  job->mutable_culprit()->set_evidence(
      absl::StrCat(evidence.substr(0, line_end), "; ", words, evidence.substr(line_end)));
}

bool CannotStartByRules2(const JobRecord& job) {
  const std::string& given = job.submitted().from_checkpoint();
  return job.culprit().failure_class() == telemetry::FAILURE_CLASS_CORRUPT && !job.progressed() &&
         job.restore().source() == agent::RestorePoint::SOURCE_STORAGE && !given.empty() &&
         job.restore().directory() == given;
}

void StepOverCorruptByRules2(JobRecord* job) {
  if (job->culprit().failure_class() != telemetry::FAILURE_CLASS_CORRUPT || job->progressed()) {
    return;
  }
  auto* committed = job->mutable_committed();
  std::string instead;
  if (job->restore().source() == agent::RestorePoint::SOURCE_MEMORY) {
    for (auto& fenced : *job->mutable_fenced()) fenced.clear_snapshots();
    instead = "the newest checkpoint on storage is used";
  } else if (!committed->empty() &&
             committed->rbegin()->directory() == job->restore().directory()) {
    committed->RemoveLast();
    instead = committed->empty() ? "there is no older checkpoint: the job begins anew"
                                 : "an older checkpoint is used";
  } else {
    return;
  }
  AddToEvidence(instead, job);
}

}  // namespace megascale::driver
