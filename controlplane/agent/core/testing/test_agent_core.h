// A fixture for tests of AgentCore: a core with job "j", ways to set its desired state and to end
// processes, and its actions as text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/agent_core.h"

namespace megascale::agent {

using v1::ActualRank;
using v1::DesiredJob;

// Returns an action as text: "start rank 0 as 2".
inline std::string Describe(const Action& action) {
  struct Visitor {
    std::string operator()(const PrepareMemory& a) {
      return absl::StrCat("prepare ", a.job->job_id(), "/", a.job->attempt());
    }
    std::string operator()(const StartProcess& a) {
      const std::string what = a.rank == kHostRank ? (a.preflight_only ? "preflight" : "host")
                                                   : absl::StrCat("rank ", a.rank);
      return absl::StrCat("start ", what, " as ", a.process_id);
    }
    std::string operator()(const CheckStore& a) {
      return absl::StrCat("check store of ", a.job->job_id(), "/", a.job->attempt());
    }
    std::string operator()(const KillProcess& a) { return absl::StrCat("kill ", a.process_id); }
    std::string operator()(const SendToWorker& a) {
      return absl::StrCat("tell ", a.process_id,
                          a.message.stop().checkpoint() ? " stop with checkpoint" : " stop");
    }
    std::string operator()(const SendToHost& a) {
      if (a.message.has_persist()) {
        return absl::StrCat("tell ", a.process_id, " persist rank ", a.message.persist().rank(),
                            " step ", a.message.persist().step());
      }
      if (a.message.has_finalize()) {
        return absl::StrCat("tell ", a.process_id, " finalize ", a.message.finalize().step());
      }
      return absl::StrCat("tell ", a.process_id, " retain ", a.message.retain().committed_size());
    }
    std::string operator()(const MarkPersisted& a) {
      return absl::StrCat("mark rank ", a.snapshot.rank, " step ", a.snapshot.step);
    }
    std::string operator()(const DropMemory& a) { return absl::StrCat("drop ", a.job_id); }
    std::string operator()(const StartTest& a) {
      return absl::StrCat("start test ", a.request.id(), " as ", a.process_id);
    }
  };
  return std::visit(Visitor(), action);
}

inline ProcessEnd Exited(int status) { return {status << 8, "", "", ""}; }
// Killed by somebody else.
inline ProcessEnd Killed(int signal) { return {signal, "", "", ""}; }
// Killed by the core's KillProcess.
inline ProcessEnd Ours() { return {SIGKILL, "", "", "", /*killed=*/true}; }

// Two ranks of job "j" here, two elsewhere.
class AgentCoreTest : public testing::Test {
 protected:
  // Makes `desired_` a state with job "j" in `phase`.
  DesiredJob* Want(DesiredJob::Phase phase, int64_t attempt) {
    desired_.Clear();
    desired_.set_version(++version_);
    desired_.set_incarnation("i1");
    DesiredJob* job = desired_.add_jobs();
    job->set_job_id("j");
    job->set_attempt(attempt);
    job->set_phase(phase);
    job->mutable_stop_grace()->set_seconds(30);
    for (int rank = 0; rank < 4; ++rank) {
      v1::Placement* placement = job->add_placements();
      placement->set_rank(rank);
      placement->set_node_id(rank < 2 ? "n0" : "n1");
    }
    return job;
  }

  // Passes `desired_` to the core and carries out the actions, as a shell would.
  std::vector<std::string> Apply() {
    core_.OnDesired(desired_, now_);
    return Settle();
  }

  std::vector<std::string> Settle() {
    std::vector<std::string> words;
    for (;;) {
      const std::vector<Action> actions = core_.Reconcile(now_);
      if (actions.empty()) return words;
      for (const Action& action : actions) {
        words.push_back(Describe(action));
        if (const auto* start = std::get_if<StartProcess>(&action)) {
          core_.OnStarted(start->process_id, 1000 + static_cast<int>(start->process_id), now_);
        }
        if (const auto* test = std::get_if<StartTest>(&action)) {
          core_.OnStarted(test->process_id, 1000 + static_cast<int>(test->process_id), now_);
        }
      }
    }
  }

  // Attempt 1 runs: host is process 1, rank 0 process 2, rank 1 process 3.
  void Run() {
    Want(DesiredJob::PHASE_RUN, 1);
    Apply();
  }

  void End(int64_t process_id, const ProcessEnd& end) { core_.OnEnded(process_id, end, now_); }

  v1::ActualState Report() const { return core_.Report({}); }
  v1::ActualJob Job() const {
    const v1::ActualState state = core_.Report({});
    return state.jobs_size() == 1 ? state.jobs(0) : v1::ActualJob();
  }
  ActualRank RankOf(int rank) const {
    const v1::ActualJob job = Job();
    for (const ActualRank& actual : job.ranks()) {
      if (actual.status().rank() == rank) return actual;
    }
    return {};
  }

  // Returns whether the driver is to hear of it soon.
  bool Step(int64_t process_id, int64_t step) {
    link::v1::FromWorker message;
    message.mutable_step()->set_step(step);
    return core_.OnWorkerMessage(process_id, message);
  }
  void Finish(int64_t process_id, bool stopped) {
    link::v1::FromWorker message;
    message.mutable_finished()->set_stopped(stopped);
    message.mutable_finished()->set_step(42);
    core_.OnWorkerMessage(process_id, message);
    End(process_id, Exited(0));
  }
  void Fail(int64_t process_id, telemetry::v1::FailureClass failure_class) {
    link::v1::FromWorker message;
    message.mutable_failure()->set_failure_class(failure_class);
    message.mutable_failure()->set_message("said so");
    core_.OnWorkerMessage(process_id, message);
  }
  void StoreShard(int64_t process_id, int rank, int64_t step) {
    link::v1::FromHost message;
    message.mutable_shard()->set_rank(rank);
    message.mutable_shard()->set_attempt(1);
    message.mutable_shard()->set_step(step);
    core_.OnHostMessage(process_id, message);
  }
  void Hold(int rank, int64_t attempt, int64_t step) {
    checkpoint::SealedSnapshot snapshot;
    snapshot.rank = rank;
    snapshot.attempt = attempt;
    snapshot.step = step;
    held_.push_back(snapshot);
    core_.OnSnapshots("j", held_);
  }

  AgentCore core_{"n0", "i1"};
  v1::DesiredState desired_;
  int64_t version_ = 0;
  absl::Duration now_ = absl::Seconds(100);
  std::vector<checkpoint::SealedSnapshot> held_;
};

}  // namespace megascale::agent
