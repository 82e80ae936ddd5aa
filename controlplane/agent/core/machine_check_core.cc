#include "controlplane/agent/core/machine_check_core.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/exit_class.h"
#include "controlplane/launch/process_keeper.h"

namespace megascale::agent {
namespace {

// The pause after the first start. Each later one is twice as long.
constexpr absl::Duration kPause = absl::Seconds(1);
// The agent looks at a running test this often. A longer time between two looks counts as this
// much: the agent was suspended, and the test perhaps with it.
constexpr absl::Duration kLookInterval = absl::Seconds(1);

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
    num_starts_ = num_overdue_ = 0;
    start_after_ = -absl::InfiniteDuration();
    give_up_at_ = absl::InfiniteDuration();
  }
  wanted_ = *wanted;
}

void MachineCheckCore::Abandon() {
  wanted_.reset();
  test_.Clear();
}

void MachineCheckCore::OnStarted(const absl::StatusOr<int>& pid, absl::Duration now) {
  if (pid.ok()) return;
  process_id_ = 0;
  StartAgain(absl::StrCat("could not be started: ", pid.status().message()), now);
}

void MachineCheckCore::StartAgain(const std::string& why, absl::Duration now) {
  if (!test_.evidence().empty()) {  // a part has found a fault
    return Finish(v1::MachineTest::STATE_FAILED, test_.evidence());
  }
  if (num_starts_ >= kStartsMax || IsExchange()) {
    return FinishWithNote(test_.part(), absl::StrCat("not tested: its process ", why));
  }
  test_.Clear();
  start_after_ = now + kPause * (int64_t{1} << (num_starts_ - 1));
}

// A machine that is slow for a while, or was suspended, is not at fault.
void MachineCheckCore::OnOverdue(const std::string& where, absl::Duration now) {
  const std::string why =
      absl::StrCat("did not end within ", absl::FormatDuration(DeadlineOf(test_.kind())));
  if (++num_overdue_ < kOverdueMax) return StartAgain(why, now);
  Finish(v1::MachineTest::STATE_FAILED,
         absl::StrCat(where, ": ", why, ", ", num_overdue_, " times in a row"));
}

void MachineCheckCore::FinishWithNote(const std::string& part, const std::string& note) {
  v1::TestResult* left_out = test_.add_results();
  left_out->set_part(part.empty() ? "start" : part);
  left_out->set_note(note);
  Finish(test_.evidence().empty() ? v1::MachineTest::STATE_PASSED : v1::MachineTest::STATE_FAILED,
         test_.evidence());
}

void MachineCheckCore::CountTime(absl::Duration now) {
  ran_ += std::clamp(now - counted_at_, absl::ZeroDuration(), kLookInterval);
  counted_at_ = now;
}

void MachineCheckCore::OnMessage(const v1::MachineTest& message) {
  if (message.id() == test_.id()) test_ = message;
}

void MachineCheckCore::OnEnded(const ProcessEnd& end, absl::Duration now) {
  process_id_ = 0;
  if (test_.state() != v1::MachineTest::STATE_RUNNING) return;  // it told its result, or is old
  const std::string part = test_.part();
  const std::string where = part.empty() ? "its start" : part;
  if (!overdue_ && killed_) {  // it was not wanted any more
    test_.Clear();
  } else if (test_.uses_job_directory()) {  // its storage may hang for every machine
    FinishWithNote(part, overdue_ ? "gave no answer in time" : launch::DescribeExit(end.status));
  } else if (overdue_) {
    OnOverdue(where, now);
  } else if (IsCrash(end.status)) {
    Finish(v1::MachineTest::STATE_FAILED,
           absl::StrCat(where, ": its process ", launch::DescribeExit(end.status)));
  } else {
    num_overdue_ = 0;
    StartAgain(end.out_of_memory.empty() ? launch::DescribeExit(end.status) : end.out_of_memory,
               now);
  }
}

void MachineCheckCore::Finish(v1::MachineTest::State state, const std::string& evidence) {
  test_.set_state(state);
  test_.set_evidence(evidence);
  test_.clear_part();
  test_.clear_uses_job_directory();
}

void MachineCheckCore::Reconcile(bool is_free, absl::Duration now, int64_t* last_process_id,
                                 std::vector<Action>* actions) {
  is_free_ = is_free;
  if (has_process()) {
    CountTime(now);
    overdue_ = overdue_ || (!killed_ && IsWanted() && ran_ >= DeadlineOf(test_.kind()));
    if ((!IsWanted() || overdue_) && !killed_) {
      killed_ = true;
      ran_ = absl::ZeroDuration();
      actions->push_back(KillProcess{process_id_});
    }
    return;
  }
  if (IsDue() && !is_free && IsExchange()) return GiveUpWaiting(now);
  if (!IsDue() || !is_free || now < start_after_) return;
  ++num_starts_;
  BeginTest(v1::MachineTest::STATE_RUNNING);
  killed_ = overdue_ = false;
  ran_ = absl::ZeroDuration();
  counted_at_ = now;
  process_id_ = ++*last_process_id;
  actions->push_back(StartTest{process_id_, *wanted_});
}

void MachineCheckCore::BeginTest(v1::MachineTest::State state) {
  test_.Clear();
  test_.set_id(wanted_->id());
  test_.set_kind(wanted_->kind());
  test_.set_state(state);
}

void MachineCheckCore::GiveUpWaiting(absl::Duration now) {
  if (give_up_at_ == absl::InfiniteDuration()) give_up_at_ = now + kExchangeWait;
  if (now < give_up_at_) return;
  BeginTest(v1::MachineTest::STATE_PASSED);
  FinishWithNote("exchange", "not tested: processes of a job have not ended");
}

absl::Duration MachineCheckCore::NextWake() const {
  if (IsDue() && IsExchange() && !is_free_) return give_up_at_;
  if (IsDue() && is_free_ && num_starts_ > 0) return start_after_;
  const absl::Duration left = (killed_ ? kReapMax : DeadlineOf(test_.kind())) - ran_;
  if (!has_process() || left <= absl::ZeroDuration()) return absl::InfiniteDuration();
  return counted_at_ + std::min(left, kLookInterval);
}

void MachineCheckCore::Report(v1::ActualState* state) const {
  state->set_test_hangs(has_process() && killed_ && ran_ >= kReapMax);
  if (test_.id() == 0) return;
  *state->mutable_machine_test() = test_;
  // The machine is not free before the process is reaped.
  if (has_process()) state->mutable_machine_test()->set_state(v1::MachineTest::STATE_RUNNING);
}

}  // namespace megascale::agent
