#include "controlplane/agent/core/machine_check_core.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/exit_class.h"
#include "controlplane/launch/process_keeper.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kPause = absl::Seconds(1);

// A directory of a job may lie on storage that hangs for every machine.
bool IsOfJobs(absl::string_view part) { return absl::StartsWith(part, "directory "); }

}  // namespace

absl::Duration MachineCheckCore::DeadlineOf(v1::TestKind kind) {
  return kind == v1::TEST_KIND_FULL ? absl::Minutes(3) : absl::Minutes(1);
}

void MachineCheckCore::SetWanted(const v1::MachineTestRequest* wanted) {
  if (wanted == nullptr) {
    wanted_.reset();
    return;
  }
  if (!wanted_.has_value() || wanted_->id() != wanted->id()) {
    num_starts_ = 0;
    start_after_ = -absl::InfiniteDuration();
  }
  wanted_ = *wanted;
}

void MachineCheckCore::Abandon() {
  wanted_.reset();
  test_.Clear();
}

void MachineCheckCore::OnStarted(const absl::StatusOr<int>& pid, absl::Duration now) {
  if (pid.ok()) {
    deadline_ = now + DeadlineOf(test_.kind());
    return;
  }
  process_id_ = 0;
  StartAgain(absl::StrCat("could not be started: ", pid.status().message()), now);
}

void MachineCheckCore::StartAgain(const std::string& why, absl::Duration now) {
  if (num_starts_ >= kStartsMax) {
    return Finish(v1::MachineTest::STATE_FAILED, absl::StrCat("its process ", why));
  }
  test_.Clear();
  start_after_ = now + kPause;
}

void MachineCheckCore::OnMessage(const v1::MachineTest& message) {
  if (message.id() == test_.id()) test_ = message;
}

void MachineCheckCore::OnEnded(const ProcessEnd& end, absl::Duration now) {
  process_id_ = 0;
  deadline_ = absl::InfiniteDuration();
  if (test_.state() != v1::MachineTest::STATE_RUNNING) return;  // it told its result, or is old
  const std::string part = test_.part();
  const std::string where = part.empty() ? "its start" : part;
  if (!overdue_ && killed_) {  // it was not wanted any more
    test_.Clear();
  } else if (IsOfJobs(part)) {
    v1::TestResult* left_out = test_.add_results();
    left_out->set_part(part);
    left_out->set_note(overdue_ ? "gave no answer in time" : launch::DescribeExit(end.status));
    Finish(test_.evidence().empty() ? v1::MachineTest::STATE_PASSED : v1::MachineTest::STATE_FAILED,
           test_.evidence());
  } else if (IsKill(end.status) && !overdue_) {
    StartAgain(launch::DescribeExit(end.status), now);
  } else if (overdue_) {
    Finish(v1::MachineTest::STATE_FAILED,
           absl::StrCat(where, ": did not end within ",
                        absl::FormatDuration(DeadlineOf(test_.kind()))));
  } else {
    Finish(v1::MachineTest::STATE_FAILED,
           absl::StrCat(where, ": its process ", launch::DescribeExit(end.status)));
  }
}

void MachineCheckCore::Finish(v1::MachineTest::State state, const std::string& evidence) {
  test_.set_state(state);
  test_.set_evidence(evidence);
  test_.clear_part();
}

void MachineCheckCore::Reconcile(bool is_free, absl::Duration now, int64_t* last_process_id,
                                 std::vector<Action>* actions) {
  is_free_ = is_free;
  if (has_process()) {
    overdue_ = overdue_ || (!killed_ && IsWanted() && now >= deadline_);
    if ((!IsWanted() || overdue_) && !killed_) {
      killed_ = true;
      actions->push_back(KillProcess{process_id_});
    }
    return;
  }
  if (!IsDue() || !is_free || now < start_after_) return;
  ++num_starts_;
  test_.Clear();
  test_.set_id(wanted_->id());
  test_.set_kind(wanted_->kind());
  test_.set_state(v1::MachineTest::STATE_RUNNING);
  killed_ = overdue_ = false;
  process_id_ = ++*last_process_id;
  actions->push_back(StartTest{process_id_, *wanted_});
}

absl::Duration MachineCheckCore::NextWake() const {
  if (IsDue() && is_free_ && num_starts_ > 0) return start_after_;
  return has_process() && !killed_ ? deadline_ : absl::InfiniteDuration();
}

void MachineCheckCore::Report(v1::ActualState* state) const {
  if (test_.id() == 0) return;
  *state->mutable_machine_test() = test_;
  // The machine is not free before the process is reaped.
  if (has_process()) state->mutable_machine_test()->set_state(v1::MachineTest::STATE_RUNNING);
}

}  // namespace megascale::agent
