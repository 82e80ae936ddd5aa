// Runs all ranks of a step on real streams under the production executor, with a virtual clock.
//
// An instruction begins at the virtual time when the executor calls the device for it, whatever
// waits the plan lists. A transfer or collective begins when its last member has come. The call
// returns when the clock has reached the instruction's end. The clock advances to the next end only
// once every instruction that may run by the plan is in the device: the earlier ones of its stream
// and those that it depends on have ended. So times are equal in every run, however threads are
// scheduled, and with an executor that delays an instruction for a reason that the plan does not
// name the clock stops, which is an error at the deadline.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/plan/execute/executor.h"
#include "runtime/plan/execute/testing/test_streams.h"
#include "runtime/simulate/step_time.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::simulate {

using timeline::MeetingName;
using timeline::MeetingOf;
using timeline::SpanTime;
using timeline::StepTime;

class VirtualDevice {
 public:
  // `plans`: those of all ranks. Borrowed, like `duration`: both must outlive the device.
  VirtualDevice(const std::vector<plan::RankPlan>& plans, const DurationOf& duration)
      : plans_(plans), duration_(duration) {
    for (const plan::RankPlan& plan : plans) {
      in_device_.emplace_back(plan.instructions.size());
      first_running_.push_back(0);
      time_.ranks.emplace_back(plan.instructions.size());
      streams_.push_back(std::make_unique<plan::Streams>());
      finishes_.push_back(std::make_unique<plan::Finish>());
      executors_.push_back(MakeExecutor(plan));
    }
  }

  // Runs one step and returns its times. May be called once.
  StepTime Run() {
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (const plan::Owner owner : {plan::Owner::kStage, plan::Owner::kShard}) {
        EXPECT_TRUE(executors_[rank]->Launch(owner, {.attempt = 1, .step = 1}).ok());
      }
    }
    while (AwaitStandstill() && MoveClock()) {
    }
    if (!AllHaveEnded()) GiveUp();
    for (const auto& finish : finishes_) {
      finish->Await(1);
      EXPECT_TRUE(finish->last_error().ok()) << finish->last_error();
    }
    return time_;
  }

 private:
  static constexpr int64_t kUnknown = -1;

  // An instruction of one rank, or one that several ranks do together.
  struct Operation {
    size_t num_members = 0;  // members that have come
    int64_t duration = 0;
    int64_t begin = kUnknown;  // kUnknown until all members have come
    int64_t end = kUnknown;
    std::condition_variable ended;
  };

  std::unique_ptr<plan::Executor> MakeExecutor(const plan::RankPlan& plan) {
    std::map<plan::InstructionId, size_t> index;
    for (size_t i = 0; i < plan.instructions.size(); ++i) index[plan.instructions[i].id] = i;
    const plan::Handler handler = [this, &plan, index = std::move(index)](
                                      const plan::Instruction& instruction,
                                      const plan::StepContext&) {
      return Do(plan, instruction, index.at(instruction.id));
    };
    return plan::Executor::Create({.plan = plan,
                                   .streams = streams_.back()->by_kind(),
                                   .handlers = plan::ForAll(handler),
                                   .step_ended = finishes_.back()->StepEnded()})
        .value();
  }

  // Returns how many ranks do `instruction` together.
  static size_t NumMembers(const plan::RankPlan& plan, const plan::Instruction& instruction) {
    if (instruction.group == plan::GroupKind::kNone) return 1;
    if (instruction.peer != plan::kNoPeer) return 2;
    return static_cast<size_t>(plan.mesh.GroupSize(instruction.group));
  }

  absl::Status Do(const plan::RankPlan& plan, const plan::Instruction& instruction, size_t index) {
    const auto rank = static_cast<size_t>(plan.rank);
    const size_t num_members = NumMembers(plan, instruction);
    const MeetingName name =
        num_members > 1 ? MeetingOf(plan, instruction)
                        : MeetingName{absl::StrCat("rank ", rank), "", instruction.id.packed()};
    std::unique_lock<std::mutex> lock(mutex_);
    Operation& operation = operations_[name];
    SpanTime& span = time_.ranks[rank][index];
    span.ready = now_;
    operation.duration = std::max(operation.duration, duration_(plans_[rank], instruction));
    if (++operation.num_members == num_members) {
      operation.begin = now_;
      operation.end = now_ + operation.duration;
      operation.ended.notify_all();
    }
    in_device_[rank][index] = &operation;
    entered_.notify_one();
    operation.ended.wait(lock, [&] { return given_up_ || HasEnded(operation); });
    if (!HasEnded(operation)) {
      return absl::DeadlineExceededError(absl::StrCat("did not end until ", now_));
    }
    span.begin = operation.begin;
    span.end = operation.end;
    time_.end = std::max(time_.end, operation.end);
    return absl::OkStatus();
  }

  bool HasEnded(const Operation& operation) const {
    return operation.end != kUnknown && operation.end <= now_;
  }

  bool HasEnded(size_t rank, int index) const {
    const Operation* operation = in_device_[rank][static_cast<size_t>(index)];
    return operation != nullptr && HasEnded(*operation);
  }

  bool AllHaveEnded() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (size_t i = 0; i < in_device_[rank].size(); ++i) {
        if (!HasEnded(rank, static_cast<int>(i))) return false;
      }
    }
    return true;
  }

  // Returns whether every instruction that may run is in the device, so that only the clock can let
  // others run.
  bool StandsStill(size_t rank) {
    std::array<bool, plan::kNumStreamKinds> is_behind = {};  // by stream: an earlier one runs
    const std::vector<plan::Instruction>& instructions = plans_[rank].instructions;
    size_t& first = first_running_[rank];
    while (first < instructions.size() && HasEnded(rank, static_cast<int>(first))) ++first;
    for (size_t i = first; i < instructions.size(); ++i) {
      bool& behind = is_behind[static_cast<size_t>(instructions[i].stream)];
      if (behind || HasEnded(rank, static_cast<int>(i))) continue;
      behind = true;
      const std::vector<int>& needs = instructions[i].depends_on;
      const bool may_run = std::all_of(needs.begin(), needs.end(),
                                       [&](int needed) { return HasEnded(rank, needed); });
      if (may_run && in_device_[rank][i] == nullptr) return false;
    }
    return true;
  }

  // Waits until all ranks stand still; false at the deadline.
  bool AwaitStandstill() {
    std::unique_lock<std::mutex> lock(mutex_);
    return entered_.wait_for(lock, plan::kDeadline, [this] {
      for (size_t rank = 0; rank < plans_.size(); ++rank) {
        if (!StandsStill(rank)) return false;
      }
      return true;
    });
  }

  // Moves the clock to the next end; false if there is none.
  bool MoveClock() {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t next = kUnknown;
    for (const auto& [name, operation] : operations_) {
      if (operation.end > now_ && (next == kUnknown || operation.end < next)) next = operation.end;
    }
    if (next == kUnknown) return false;
    now_ = next;
    for (auto& [name, operation] : operations_) {
      if (operation.end == now_) operation.ended.notify_all();
    }
    return true;
  }

  void GiveUp() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      given_up_ = true;
      for (auto& [name, operation] : operations_) operation.ended.notify_all();
    }
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      if (finishes_[rank]->num_calls() < 1) {
        executors_[rank]->Abort(absl::DeadlineExceededError("everybody waits"));
      }
    }
  }

  const std::vector<plan::RankPlan>& plans_;
  const DurationOf& duration_;
  std::mutex mutex_;
  int64_t now_ = 0;
  bool given_up_ = false;
  StepTime time_;
  std::map<MeetingName, Operation> operations_;
  // By rank, then instruction: its operation; null: the executor has not called the device for it.
  std::vector<std::vector<const Operation*>> in_device_;
  std::vector<size_t> first_running_;  // by rank: all instructions before this one have ended
  std::condition_variable entered_;
  std::vector<std::unique_ptr<plan::Streams>> streams_;
  std::vector<std::unique_ptr<plan::Finish>> finishes_;
  std::vector<std::unique_ptr<plan::Executor>> executors_;
};

}  // namespace megascale::simulate
