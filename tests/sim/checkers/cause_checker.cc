#include "tests/sim/checkers/cause_checker.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/worker_process.h"

namespace megascale::sim {

using driver::FindJob;
using driver::JobId;

namespace {

// Returns true if ranks that were looking for each other at the driver's store gave up, or lost one
// that had.
bool IsOfStart(const std::string& evidence) {
  return absl::StrContains(evidence, "did not come") ||
         absl::StrContains(evidence, "while ranks connected");
}

}  // namespace

void CauseChecker::OnFault(const Fault& fault) {
  faults_[{fault.node_id, fault.harm, fault.job_id, fault.rank}] = world_.timeline.now();
}

bool CauseChecker::IsRecent(const Place& place, absl::Duration limit) const {
  const auto fault = faults_.find(place);
  if (std::get<1>(place) == Harm::kSlowKills) limit = kSlowKillsMax;
  return fault != faults_.end() && world_.timeline.now() - fault->second <= limit;
}

bool CauseChecker::Happened(const std::string& node_id, Harm harm) const {
  return IsRecent({node_id, harm, "", -1});
}

bool CauseChecker::HappenedTo(const std::string& node_id, const std::string& job_id, int rank,
                              absl::Duration limit) const {
  return IsRecent({node_id, Harm::kProcess, job_id, rank}, limit);
}

bool CauseChecker::WasCut(const std::string& one, const std::string& other) const {
  const absl::Duration until = std::max(world_.CutUntil(one, other), world_.CutUntil(other, one));
  return world_.timeline.now() - until <= kConsequencesMax;
}

bool CauseChecker::WasCutOnNodesOf(const JobRecord& job) const {
  const std::vector<std::string> nodes = driver::NodesOf(job);
  return std::any_of(nodes.begin(), nodes.end(), [&](const std::string& one) {
    return std::any_of(nodes.begin(), nodes.end(),
                       [&](const std::string& other) { return WasCut(one, other); });
  });
}

bool CauseChecker::AnyOn(const std::string& node_id) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const auto& fault) {
    return std::get<0>(fault.first) == node_id && std::get<1>(fault.first) != Harm::kNothing &&
           IsRecent(fault.first);
  });
}

bool CauseChecker::AnyOnNodesOf(const JobRecord& job) const {
  const std::vector<std::string> nodes = driver::NodesOf(job);
  return std::any_of(nodes.begin(), nodes.end(),
                     [this](const std::string& node_id) { return AnyOn(node_id); });
}

bool CauseChecker::Explains(const JobRecord& job, const control::Culprit& culprit) const {
  const std::string& node_id = culprit.node_id();
  switch (culprit.failure_class()) {
    case telemetry::FAILURE_CLASS_UNREACHABLE:
      return Happened(node_id, Harm::kAway);
    case telemetry::FAILURE_CLASS_LINK:
      return WasCut(node_id, culprit.peer_node_id());
    case telemetry::FAILURE_CLASS_EXITED:
      return HappenedTo(node_id, JobId(job), culprit.rank()) || Happened(node_id, Harm::kMemory);
    case telemetry::FAILURE_CLASS_OUT_OF_MEMORY:
      return Happened(node_id, Harm::kMemory);
    case telemetry::FAILURE_CLASS_HUNG:
      if (absl::StrContains(culprit.evidence(), "did not reach storage")) {
        return Happened("", Harm::kStorage) || AnyOnNodesOf(job);
      }
      return HappenedTo(node_id, JobId(job), culprit.rank(), kHangMax) ||
             Happened(node_id, Harm::kAway) || Happened(node_id, Harm::kSlowKills) ||
             WasCutOnNodesOf(job) ||  // the report about the link may be late
             (culprit.evidence() == kSuspicion && Happened(node_id, Harm::kPeople));
    case telemetry::FAILURE_CLASS_CORRUPT:
      return Happened(node_id, Harm::kReads);
    case telemetry::FAILURE_CLASS_REFUSED:
      return Happened(node_id, Harm::kData) || job.submitted().spec().name() == "refused" ||
             (absl::StrContains(culprit.evidence(), "is not mounted") &&
              Happened("", Harm::kStorage));
    case telemetry::FAILURE_CLASS_STORAGE:
      return Happened("", Harm::kStorage);
    case telemetry::FAILURE_CLASS_ABORTED:  // a peer failed, and nobody knows which one
      return AnyOnNodesOf(job) || WasCutOnNodesOf(job) ||
             (IsOfStart(culprit.evidence()) && Happened("", Harm::kDriver));
    default:
      return false;
  }
}

bool CauseChecker::ExplainsLeave(const driver::NodeRecord* node, const std::string& node_id) const {
  // Quarantined for failures of another job, the culprits of which were checked.
  const std::string evidence = node == nullptr ? "" : node->quarantine().evidence();
  const bool failed_another_job = absl::StrContains(evidence, " attempts of job ") ||
                                  absl::StrContains(evidence, "could not read checkpoint ");
  return failed_another_job || Happened(node_id, Harm::kPeople) || Happened(node_id, Harm::kTest) ||
         Happened(node_id, Harm::kReads) || Happened(node_id, Harm::kSlowKills);
}

void CauseChecker::CheckCulprit(const JobRecord& job, const JobRecord& old) {
  const control::Culprit& culprit = job.culprit();
  const control::Culprit& known = old.culprit();
  const bool is_new =
      job.has_culprit() &&
      (culprit.attempt() != known.attempt() || culprit.node_id() != known.node_id() ||
       culprit.rank() != known.rank() || culprit.failure_class() != known.failure_class());
  if (!is_new || Explains(job, culprit)) return;
  world_.Violate("RecoveryHasACause",
                 absl::StrCat("job ", JobId(job), ", attempt ", culprit.attempt(), ": rank ",
                              culprit.rank(), " on ", culprit.node_id(), " is named, without a ",
                              "fault that explains it: ", culprit.evidence()));
}

void CauseChecker::CheckRecovery(const JobRecord& job, const JobRecord& old,
                                 const DriverState& state) {
  // A recovering job may wait for slots for as long as other jobs need them.
  if (job.has_cancel() || old.state() == control::JOB_STATE_RECOVERING) return;
  const bool again = job.attempt() > old.attempt() && old.attempt() > 0;
  if (!again && job.state() != control::JOB_STATE_RECOVERING) return;
  const JobRecord& ended = again ? old : job;
  const bool has_failed = ended.has_culprit() && ended.culprit().attempt() == ended.attempt();
  if (has_failed) return;  // CheckCulprit
  const std::string& left = ended.leave().node_id();
  if (ended.has_leave() ? ExplainsLeave(driver::FindNode(state, left), left)
                        : AnyOnNodesOf(ended)) {
    return;
  }
  world_.Violate("RecoveryHasACause",
                 absl::StrCat("job ", JobId(job), " recovers without a fault: ", job.message()));
}

void CauseChecker::OnState(const DriverState& before, const DriverState& after) {
  for (const JobRecord& job : after.jobs()) {
    const JobRecord* old = FindJob(before, JobId(job));
    if (old == nullptr) continue;
    CheckRecovery(job, *old, after);
    CheckCulprit(job, *old);
  }
}

}  // namespace megascale::sim
