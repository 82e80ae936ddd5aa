// The part of AgentCore that tests the machine: when the test's process starts and ends, and what
// is reported. Private to this folder; agent_core.h is the manual.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "controlplane/agent/core/agent_core.h"

namespace megascale::agent {

class MachineCheckCore {
 public:
  // How long the process may run. Time in which the agent itself did not run does not count. The
  // limit is far more than a test takes on a busy machine.
  static absl::Duration DeadlineOf(v1::TestKind kind);

  // Takes over what the driver wants; null: no test. Another id asks for another test.
  void SetWanted(const v1::MachineTestRequest* wanted);
  // Forgets results of an older epoch.
  void Abandon();

  bool has_process() const { return process_id_ != 0; }
  bool Has(int64_t process_id) const { return process_id != 0 && process_id == process_id_; }

  // A process that cannot be started, or that ends for another reason than a crash, says nothing
  // about the machine. It is started again after growing pauses, at most kStartsMax times in all.
  // After the last start the machine counts as not tested and passes with a note. A process that
  // did not end in time is started again once. The process of an exchange is not started again,
  // because the other machine does not wait for it.
  static constexpr int kStartsMax = 5;
  static constexpr int kOverdueMax = 2;  // this many in a row fail
  // A process that was killed this long ago, and is not reaped, hangs.
  static constexpr absl::Duration kReapMax = absl::Seconds(10);
  // How long an exchange waits until no process of a job runs here. The other machine waits longer,
  // so it still learns why there was no exchange.
  static constexpr absl::Duration kExchangeWait = absl::Seconds(4);
  void OnStarted(const absl::StatusOr<int>& pid, absl::Duration now);
  void OnMessage(const v1::MachineTest& message);
  void OnEnded(const ProcessEnd& end, absl::Duration now);

  // `is_free`: no process of a job runs here or is about to be restarted.
  void Reconcile(bool is_free, absl::Duration now, int64_t* last_process_id,
                 std::vector<Action>* actions);
  absl::Duration NextWake() const;
  void Report(v1::ActualState* state) const;

 private:
  bool IsWanted() const { return wanted_.has_value() && wanted_->id() == test_.id(); }
  bool IsExchange() const { return wanted_.has_value() && wanted_->has_exchange(); }
  bool IsDue() const { return !has_process() && wanted_.has_value() && !IsWanted(); }
  void Finish(v1::MachineTest::State state, const std::string& evidence);
  // Ends the test without a verdict about the rest: failures that parts reported stay.
  void FinishWithNote(const std::string& part, const std::string& note);
  void BeginTest(v1::MachineTest::State state);
  // Ends an exchange that has waited too long for the end of processes of jobs.
  void GiveUpWaiting(absl::Duration now);
  void StartAgain(const std::string& why, absl::Duration now);
  void OnOverdue(const std::string& where, absl::Duration now);
  void CountTime(absl::Duration now);

  std::optional<v1::MachineTestRequest> wanted_;
  v1::MachineTest test_;  // the newest; id 0: there was none
  int64_t process_id_ = 0;
  bool killed_ = false;
  bool overdue_ = false;
  bool is_free_ = false;  // at the newest Reconcile
  int num_starts_ = 0;    // for the wanted id
  int num_overdue_ = 0;   // of these starts, in a row
  absl::Duration start_after_ = -absl::InfiniteDuration();
  absl::Duration give_up_at_ = absl::InfiniteDuration();  // GiveUpWaiting
  absl::Duration counted_at_;                             // when CountTime was called last
  absl::Duration ran_;  // since the process was started, or since it was killed
};

}  // namespace megascale::agent
