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
  // How long the process may run, from its start. Far more than a test takes on a busy machine.
  static absl::Duration DeadlineOf(v1::TestKind kind);

  // Takes over what the driver wants; null: no test. Another id asks for another test.
  void SetWanted(const v1::MachineTestRequest* wanted);
  // Forgets results of an older epoch.
  void Abandon();

  bool has_process() const { return process_id_ != 0; }
  bool Has(int64_t process_id) const { return process_id != 0 && process_id == process_id_; }

  // A process that cannot be started, or that somebody else kills, says nothing about the machine:
  // it is started again, at most kStartsMax times.
  static constexpr int kStartsMax = 5;
  void OnStarted(const absl::StatusOr<int>& pid, absl::Duration now);
  void OnMessage(const v1::MachineTest& message);
  void OnEnded(const ProcessEnd& end, absl::Duration now);

  // `is_free`: no process of a job runs here.
  void Reconcile(bool is_free, absl::Duration now, int64_t* last_process_id,
                 std::vector<Action>* actions);
  absl::Duration NextWake() const;
  void Report(v1::ActualState* state) const;

 private:
  bool IsWanted() const { return wanted_.has_value() && wanted_->id() == test_.id(); }
  bool IsDue() const { return !has_process() && wanted_.has_value() && !IsWanted(); }
  void Finish(v1::MachineTest::State state, const std::string& evidence);
  void StartAgain(const std::string& why, absl::Duration now);

  std::optional<v1::MachineTestRequest> wanted_;
  v1::MachineTest test_;  // the newest; id 0: there was none
  int64_t process_id_ = 0;
  bool killed_ = false;
  bool overdue_ = false;
  bool is_free_ = false;  // at the newest Reconcile
  int num_starts_ = 0;    // for the wanted id
  absl::Duration start_after_ = -absl::InfiniteDuration();
  absl::Duration deadline_ = absl::InfiniteDuration();
};

}  // namespace megascale::agent
