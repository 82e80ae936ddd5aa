// One event being applied to the state: the class behind Apply of driver_core.h, which is the
// manual. driver_core.cc has what events do to jobs, driver_nodes.cc what they do to nodes,
// driver_settle.cc what follows. Private to this folder.
#pragma once

#include <string>

#include "controlplane/driver/driver_state.h"
#include "controlplane/driver/placement.h"
#include "controlplane/driver/preflight_check.h"
#include "controlplane/driver/recovery.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// The last words of a cancelled job.
std::string CancelledMessage(const JobRecord& job);

// One event being applied. Every handler returns false when it refuses the event.
class Transition {
 public:
  Transition(const Event& event, DriverState* state) : event_(event), state_(*state) {}

  bool Run();

 private:
  bool OnSubmitted(const v1::JobSubmitted& submitted);
  bool OnCancel(const v1::CancelRequested& cancel);
  bool OnJobsForgotten(const v1::JobsForgotten& forgotten);
  bool OnNodeJoined(const megascale::agent::v1::Hello& hello);
  bool OnDriverStarted(const v1::DriverStarted& started);
  bool OnNodeLost(const v1::NodeLost& lost);
  bool OnNodeEvicted(const v1::NodeEvicted& evicted);
  bool OnNodeUncordoned(const v1::NodeUncordoned& uncordoned);
  bool OnNodeDraining(const v1::NodeDraining& draining);
  bool OnPreflightPassed(const v1::PreflightPassed& passed);
  bool OnPreflightRefused(const v1::PreflightRefused& refused);
  bool OnTrainingStarted(const v1::TrainingStarted& started);
  bool OnProgress(const v1::AttemptProgressed& progressed);
  bool OnRankFailed(const v1::RankFailed& failed);
  bool OnRankEnded(const v1::RankEnded& ended);
  bool OnNodeFenced(const v1::NodeFenced& fenced);
  bool OnShardsStored(const v1::ShardsStored& stored);
  bool OnManifestWritten(const v1::ManifestWritten& written);
  bool OnBackoffElapsed(const v1::BackoffElapsed& elapsed);
  bool OnStageTimedOut(const v1::StageTimedOut& timed_out);
  bool OnRetentionEnded(const v1::RetentionEnded& ended);

  // What follows without another event, for every job in the order of submission.
  void Settle();
  void SettleStage(JobRecord* job);
  // Places what waits. Source: docs/running-on-a-cluster.md (The queue).
  void PlaceByRules1();
  // Returns the first job that recovers and does not run again yet; null: none.
  const JobRecord* PlaceRecovering();
  void PlaceQueued(const JobRecord* recovering);
  bool PlaceByTaking(JobRecord* job);
  void SettlePreflight(JobRecord* job);
  void SettleRun(JobRecord* job);
  void SettleStop(JobRecord* job);
  void SettleLeave(JobRecord* job);
  void SettleFence(JobRecord* job);
  void AfterFailure(JobRecord* job);
  void AfterLeave(JobRecord* job);

  // The job in its present attempt; null when the event is of another one or the job is at its end.
  JobRecord* Current(const std::string& job_id, int64_t attempt);
  void Enter(JobRecord* job, v1::Stage stage);
  void Say(JobRecord* job, megascale::control::v1::JobState job_state, const std::string& reason,
           const std::string& message);
  void End(JobRecord* job, megascale::control::v1::JobState job_state, const std::string& reason,
           const std::string& message);
  void Complete(JobRecord* job);
  void EndUnfenced(JobRecord* job);
  // Requires: `found` says who, not in which attempt.
  void Fail(JobRecord* job, v1::Failure found);
  void Refuse(JobRecord* job, const PreflightRefusal& refusal);
  // Every job with ranks on the node begins to leave it.
  void Leave(const std::string& node_id, const std::string& reason);
  // `found`: of every job that has ranks there.
  void LoseProcesses(const std::string& node_id, const v1::Failure& found);
  void StartAttempt(JobRecord* job, PlacementResult placement);
  void StartRun(JobRecord* job, const megascale::agent::v1::RestorePoint& restore);

  const Event& event_;
  DriverState& state_;
};

}  // namespace megascale::driver
