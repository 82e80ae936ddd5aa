// Applies one event to the state. This is the implementation of Apply in driver_core.h, which is
// the manual. driver_core.cc handles events about jobs; transition_nodes.cc handles events about
// nodes, and lets them exchange bytes; transition_suspects.cc handles suspicions;
// transition_pools.cc decides which machine is at fault; transition_settle.cc decides what follows
// from the events. Private to this folder.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/core/job_index.h"
#include "controlplane/driver/core/placement.h"
#include "controlplane/driver/core/recovery.h"
#include "controlplane/driver/core/restore_order.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "controlplane/driver/exchanges/failed_links.h"
#include "proto/control.pb.h"

namespace megascale::driver {

// Returns the final message of a cancelled job.
std::string CancelledMessage(const JobRecord& job);

// Returns the nodes of a placement.
std::set<std::string> NodesOf(const PlacementResult& placement);

struct PreflightRefusal {
  std::string node_id;  // the node that differs; empty: no single node is at fault
  std::string message;  // for people; empty: the job may start
  bool storage_away = false;
};

// Applies one event. Every handler returns false when it refuses the event.
class Transition {
 public:
  Transition(const Event& event, DriverState* state, JobIndex* index)
      : event_(event), state_(*state), index_(*index) {}

  bool Run();

 private:
  // Applies an event about nodes.
  bool OnNodeEvent();
  bool OnSubmitted(const v1::JobSubmitted& submitted);
  bool OnCancel(const v1::CancelRequested& cancel);
  bool OnJobsForgotten(const v1::JobsForgotten& forgotten);
  bool OnNodeJoined(const v1::NodeJoined& joined);
  bool OnDriverStarted(const v1::DriverStarted& started);
  bool OnNodeLost(const v1::NodeLost& lost);
  bool OnNodeEvicted(const v1::NodeEvicted& evicted);
  bool OnNodeUncordoned(const v1::NodeUncordoned& uncordoned);
  bool OnNodeDraining(const v1::NodeDraining& draining);
  bool OnNodesForgotten(const v1::NodesForgotten& forgotten);
  bool OnNodeQuarantined(const v1::NodeQuarantined& quarantined);
  bool OnNodeSpareSet(const v1::NodeSpareSet& spare_set);
  bool OnMachineTested(const v1::MachineTested& tested);
  bool OnEpochFenced(const v1::EpochFenced& fenced);
  bool OnNodeBusy(const v1::NodeBusy& busy);
  bool OnExchangeTested(const v1::ExchangeTested& tested);
  bool OnPreflightPassed(const v1::PreflightPassed& passed);
  bool OnPreflightRefused(const v1::PreflightRefused& refused);
  bool OnLoadingStarted(const v1::LoadingStarted& started);
  bool OnStepsTaken(const v1::StepsTaken& taken);
  bool OnHeldOutImproved(const v1::HeldOutImproved& improved);
  bool OnSuspectFound(const v1::SuspectFound& found);
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

  // Moves every job, in the order of submission, as far as possible without another event. Skips a
  // job that this event did not touch, unless the job depends on a node that changed, because an
  // earlier event has moved it as far as possible.
  void Settle();
  void SettleStage(JobRecord* job);
  // Brings the time accounts of the touched jobs up to the event.
  void KeepBooks();
  // The places of the jobs that may wait for slots now, in order: a superset of those that do.
  JobIndex::Places Waiting() const;
  // As Queue of driver_state.h.
  std::vector<JobRecord*> QueueNow();
  // Places jobs that wait for slots, unless nothing changed that their placement depends on.
  void PlaceWaiting();
  // Notes the span of time around the event in which the ages of the waiting jobs lead to the same
  // decisions as now.
  void NoteAges();
  // As PlaceJob, and counts the call. No link fails while jobs are placed.
  PlacementResult TryToPlace(const JobRecord& job, const std::set<std::string>& givers = {});
  // Places jobs that wait for slots as drivers with rules 1 did. A log of schema 1 has only such
  // events, and rocksdb_log.cc upgrades it by replaying them, so this stays for as long as that
  // schema is accepted.
  void PlaceByRules1();
  // The next three place jobs that wait for slots. Source: docs/running-on-a-cluster.md (The
  // queue).
  // Places recovering jobs. Returns the first one that could not be placed; null: all of them run
  // again.
  const JobRecord* PlaceRecovering();
  // Returns true if the job must wait for tests of its machines; its status then says so.
  bool WaitsForTests(JobRecord* job);
  void PlaceQueued(const JobRecord* recovering);
  // As PlaceQueued, since rules 5.
  void PlaceQueue();
  // Begins the first attempt of the job. Returns false if there are no slots for it: then `placed_`
  // says why.
  bool TryQueued(JobRecord* job);
  // Returns true if queued jobs may start although this one, which recovers, waits for slots.
  bool MayBePassed(const JobRecord& job);
  bool PlaceByTaking(JobRecord* job);
  void SettlePreflight(JobRecord* job);
  // Keeps at most one list of the job's files, in its record, and only digests of the preflights.
  static void KeepFiles(JobRecord* job);
  void SettleRun(JobRecord* job);
  void SettleStop(JobRecord* job);
  void SettleLeave(JobRecord* job);
  void SettleFence(JobRecord* job);
  void AfterFailure(JobRecord* job);
  void AfterLeave(JobRecord* job);
  // Returns false when the job ended because it has no other checkpoint to read.
  bool AfterFailedRead(JobRecord* job);

  // Returns the job; null when `attempt` is not its present attempt or the job has ended.
  JobRecord* Current(const std::string& job_id, int64_t attempt);
  // Returns the job, which counts as touched; null: there is no such job.
  JobRecord* Find(absl::string_view job_id);
  // Call before changing a job that was not touched by Find, Enter or SetStatus.
  void Touch(const JobRecord& job) { index_.Touch(JobId(job)); }
  // Returns the node, which counts as changed; null: there is no such node.
  NodeRecord* NodeToChange(const std::string& node_id);
  void Enter(JobRecord* job, v1::Stage stage);
  void SetStatus(JobRecord* job, megascale::control::v1::JobState job_state,
                 const std::string& reason, const std::string& message);
  void End(JobRecord* job, megascale::control::v1::JobState job_state, const std::string& reason,
           const std::string& message);
  void Complete(JobRecord* job);
  void EndUnfenced(JobRecord* job);
  // Returns whether the job, of which processes may exist, must be fenced on the node.
  bool MustFence(const JobRecord& job, const std::string& node_id) const;
  // Quarantines the nodes whose processes of the job cannot be ended. The job continues without
  // them. Returns false if it did nothing yet, because such nodes joined, or joined again, less
  // than kFenceTimeout ago.
  bool GiveUpUnfenced(JobRecord* job);
  // Requires: `found` names the culprit; Fail fills in the attempt.
  void Fail(JobRecord* job, v1::Failure found);
  // If the reporting rank got no answer from machines that reach the driver, as its own does,
  // `found` becomes a failure of the links to them.
  void NoteUnreached(const JobRecord& job, const megascale::agent::v1::RankFailure& failure,
                     v1::Failure* found) const;
  // Keeps the links that failed in the job's newest attempt.
  void NoteFailedLinks(const JobRecord& job);
  // Ends the job as job->ending() says. `why`: why it may keep more checkpoints than it should.
  void Finish(JobRecord* job, const std::string& why = "");
  void SettleRetain(JobRecord* job);
  void Refuse(JobRecord* job, const PreflightRefusal& refusal);
  // Handles a refusal of an attempt after the job's first one: the node is at fault, not the job.
  void RefuseNode(JobRecord* job, const PreflightRefusal& refusal);
  void AfterRefusal(JobRecord* job);
  // Returns how many parties (party.h) speak through these nodes.
  size_t NumParties(const std::set<std::string>& node_ids) const;
  // Counts an attempt that ended by a failure, for the machines or for the job.
  void CountFailure(JobRecord* job);
  // Returns true if the job ended, because its budget of failures is used up.
  bool GaveUp(JobRecord* job);
  // Quarantines the nodes that the job left after repeated failures, once it makes progress without
  // them.
  void BlameNodesLeft(JobRecord* job);
  // Sets `time` to that of the event.
  void Stamp(google::protobuf::Timestamp* time) const;
  void Quarantine(const std::string& node_id, const std::string& evidence);
  void KeepSuspicion(const megascale::control::v1::Suspicion& suspicion, JobRecord* job);
  // Handles progress of the job: ends the suspicion of a stall, because nothing holds the job up,
  // and any other suspicion that is old.
  void EndSuspicion(JobRecord* job);
  // Lets the machine be tested before it gets another rank. `job`: the job that failed there; null:
  // there is no such job.
  void DemandTest(NodeRecord* node, const std::string& why, const JobRecord* job);
  void DemandTestBesideJobs(NodeRecord* node, const std::set<std::string>& busy);
  void TestAfterFailure(const JobRecord& job);
  void SetMachineTests(megascale::agent::v1::TestKind kind);
  // Deletes the results of exchanges with the machine, in the records of all other machines, too,
  // because the machine may have changed since.
  void ClearExchanges(NodeRecord* node);
  // Drops exchanges and results of agents that share a machine.
  void ForgetLocalResults();
  // Lets the machine exchange bytes with others, and deletes its earlier results.
  void DemandExchanges(NodeRecord* node, const std::string& why, bool after_failure);
  // If the ranks of a job lost each other without a known cause, lets all machines of the job
  // exchange bytes; if a link failed, the two machines at its ends.
  void ExchangeAfterFailure(const JobRecord& job);
  // Keeps the result of the exchange, and quarantines the machines that it shows to be at fault.
  void EndExchange(const v1::Exchange& exchange);
  void EndRound(const v1::Exchange& round);
  void DropExchange(int place);
  enum class NodeUse {
    kFree,
    kHolds,  // only memory of jobs that recover is there
    kBusy,   // processes of jobs may run there
  };
  // Looks at the jobs that have ranks on the node, which lives.
  NodeUse UseOf(const std::string& node_id) const;
  // Drops exchanges that cannot end, and lets free machines begin others.
  void PairMachines();
  // Whether the node may exchange now, as far as its jobs allow it.
  bool MayExchange(const NodeRecord& node) const;
  // Returns the machines that are free for an exchange; empty if no machine wants one.
  std::vector<FreeMachine> FreeMachines() const;
  // Whether jobs must be fenced on all machines, because the log was restored from a copy.
  bool IsRestored() const;
  void BeginExchange(const std::vector<std::string>& node_ids);
  // Begins the rounds of new machines, and those that a failure demands, once the exchanges of
  // pairs have ended.
  void BeginRounds(const std::vector<FreeMachine>& free);
  // Returns whether the machines began a round.
  bool BeginRoundsOf(const std::vector<const NodeRecord*>& machines);
  // Begins the rounds that the machines of a job's first attempt still want. Returns false if there
  // are no such rounds.
  bool BeginRoundsBefore(const PlacementResult& placement);
  // Once the exchanges that a failure demanded have ended, the machines no longer count as tested
  // because of a failure.
  void EndHaste();
  // Returns why the suspect's machine must not be evicted; "": it is to be evicted.
  std::string WhySuspectStays(JobRecord* job) const;
  // Ends every attempt, because the agents may have served a later state than the state of this
  // log.
  void BeginEpoch();
  // Makes every job with ranks on the node begin to leave it.
  void Leave(const std::string& node_id, const std::string& reason);
  // Handles the loss of all processes on a node: `found` becomes a failure of every job with ranks
  // there.
  void LoseProcesses(const std::string& node_id, const v1::Failure& found);
  void StartAttempt(JobRecord* job, PlacementResult placement);
  void StartRun(JobRecord* job, const megascale::agent::v1::RestorePoint& restore);

  const Event& event_;
  DriverState& state_;
  JobIndex& index_;
  bool nodes_changed_ = false;
  bool stages_changed_ = false;
  // What the placement of waiting jobs keeps:
  bool attempt_begun_ = false;
  std::optional<NodePairs> failed_pairs_;  // of state_; unset: not asked for yet
  std::set<std::string> begun_on_;         // nodes of attempts that this event began
  JobIndex::Change change_ = JobIndex::Change::kSlots;
  JobIndex::Placed placed_;
};

}  // namespace megascale::driver
