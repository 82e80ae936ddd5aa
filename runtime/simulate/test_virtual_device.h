// Runs all ranks of a step on real streams under the production executor, with a virtual clock.
//
// An instruction begins at the virtual time when the executor calls the device for it, whatever
// waits the plan lists. A transfer or collective begins when its last member has come. The call
// returns when the clock has reached the instruction's end. The clock advances to the next end only
// while every stream of every rank is blocked: in the device, at an event, or without work. So an
// executor that delays an instruction for a reason that the plan does not name takes longer, and
// times are equal in every run, however threads are scheduled.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
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
    standing_.resize(plans.size());
    for (const plan::RankPlan& plan : plans) {
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
        EXPECT_TRUE(executors_[rank]
                        ->Launch(owner, {.attempt = 1, .step = 1}, finishes_[rank]->Done())
                        .ok());
      }
    }
    while (AwaitStandstill() && MoveClock()) {
    }
    // Ends instructions that have not ended; usually there are none.
    GiveUp();
    for (const auto& finish : finishes_) {
      finish->Await(2);
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
                                   .handlers = plan::ForAll(handler)})
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
    Operation*& standing = standing_[rank][static_cast<size_t>(instruction.stream)];
    standing = &operation;
    operation.ended.wait(lock, [&] { return given_up_ || HasEnded(operation); });
    standing = nullptr;
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

  // Returns the number of tasks that each stream has run; nullopt if any stream can continue.
  std::optional<std::vector<uint64_t>> NumRunIfBlocked() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<uint64_t> num_run;
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (const auto& [kind, stream] : streams_[rank]->by_kind()) {
        const stream::Standing standing = stream->standing();
        const Operation* in_device = standing_[rank][static_cast<size_t>(kind)];
        if (in_device != nullptr ? HasEnded(*in_device) : !standing.blocked) return std::nullopt;
        num_run.push_back(standing.num_run);
      }
    }
    return num_run;
  }

  // Waits until all streams are blocked; false at the deadline. It looks twice: if both looks find
  // each stream blocked at the same task, then all were blocked at once when the first look ended,
  // because only another stream or this thread can unblock a stream.
  bool AwaitStandstill() {
    const auto deadline = std::chrono::steady_clock::now() + plan::kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      const auto first = NumRunIfBlocked();
      if (first.has_value() && first == NumRunIfBlocked()) return true;
      std::this_thread::yield();
    }
    return false;
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
      if (finishes_[rank]->num_calls() < 2) {
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
  // By rank, then stream: the operation that the stream's thread waits for in the device.
  std::vector<std::array<Operation*, plan::kNumStreamKinds>> standing_;
  std::vector<std::unique_ptr<plan::Streams>> streams_;
  std::vector<std::unique_ptr<plan::Finish>> finishes_;
  std::vector<std::unique_ptr<plan::Executor>> executors_;
};

}  // namespace megascale::simulate
