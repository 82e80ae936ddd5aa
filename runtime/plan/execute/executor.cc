#include "runtime/plan/execute/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/plan/check/validate_rank.h"

namespace megascale::plan {
absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(ExecutorOptions options) {
  std::unique_ptr<Executor> executor(new Executor(std::move(options)));
  RETURN_IF_ERROR(executor->Resolve());
  return executor;
}

Executor::~Executor() {
  Abort(absl::AbortedError("the executor was destroyed"));
  for (const auto& [kind, stream] : options_.streams) stream->Synchronize().IgnoreError();
  if (running_) EndStep();
}

absl::Status Executor::Resolve() {
  const RankPlan& plan = options_.plan;
  // Set only at the end, so that the destructor of a refused executor synchronizes no stream.
  std::map<StreamKind, stream::Stream*> streams = std::exchange(options_.streams, {});
  MEGASCALE_CHECK(options_.step_ended != nullptr);
  RETURN_IF_ERROR(ValidateRankPlan(plan));
  tasks_.resize(plan.instructions.size());
  std::map<stream::Stream*, size_t> num_queued;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const Instruction& instruction = plan.instructions[i];
    const auto context = [&] { return absl::StrCat(instruction.id.ToString(), ": "); };
    const auto handler = options_.handlers.find(instruction.kind());
    if (handler == options_.handlers.end() || !handler->second) {
      return absl::InvalidArgumentError(
          absl::StrCat(context(), "no handler for operation ", Letters(instruction.kind())));
    }
    const auto stream = streams.find(instruction.stream);
    if (stream == streams.end() || stream->second == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(context(), "no stream ", Name(instruction.stream)));
    }
    tasks_[i].handler = &handler->second;
    tasks_[i].stream = stream->second;
    StateOf(instruction.owner).tasks.push_back(static_cast<int>(i));
    num_queued[stream->second] += 2 + instruction.depends_on.size();
  }
  for (size_t i = 0; i < tasks_.size(); ++i) {
    for (const int producer : plan.instructions[i].depends_on) {
      Task& from = tasks_[producer];
      if (plan.instructions[producer].stream == plan.instructions[i].stream) continue;
      if (from.ended == nullptr) from.ended = events_.emplace_back(from.stream->MakeEvent()).get();
      tasks_[i].waits.push_back(from.ended);
    }
  }
  RETURN_IF_ERROR(ResolveTurns());
  // Room for two steps: the end of a step may still be queued when the next one is launched.
  for (const auto& [stream, count] : num_queued) stream->Reserve(2 * count);
  options_.streams = std::move(streams);
  return absl::OkStatus();
}

absl::Status Executor::ResolveTurns() {
  int turn = 0;
  for (const int index : options_.launch_order) {
    if (index < 0 || index >= static_cast<int>(tasks_.size()) || tasks_[index].turn != kNoTurn) {
      return absl::InvalidArgumentError(absl::StrCat("the launch order has index ", index,
                                                     " twice, or beyond the plan's ", tasks_.size(),
                                                     " instructions"));
    }
    tasks_[index].turn = turn++;
  }
  return absl::OkStatus();
}

absl::Status Executor::CheckLaunch(Owner owner, const StepContext& context) const {
  const OwnerState& mine = owners_[static_cast<size_t>(owner)];
  const auto refused = [&](const auto&... why) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", options_.plan.rank,
                                                      ": launch of step ", context.step, " by ",
                                                      Name(owner), ": ", why...));
  };
  if (mine.tasks.empty()) {
    return refused("it has no instructions");
  }
  if (!running_) return absl::OkStatus();
  if (mine.generation == generation_) {
    return refused("its step ", context_.step, " is not over");
  }
  if (context_ == context) return absl::OkStatus();
  return refused("the other owner launched step ", context_.step, " of attempt ", context_.attempt,
                 ", this is of attempt ", context.attempt);
}

absl::Status Executor::Launch(Owner owner, const StepContext& context) {
  OwnerState& mine = StateOf(owner);
  uint64_t generation = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    RETURN_IF_ERROR(CheckLaunch(owner, context));
    if (!running_) {
      running_ = true;
      ++generation_;
      context_ = context;
      next_turn_ = 0;
      MEGASCALE_CHECK(remaining_.load() == 0);
      remaining_.store(static_cast<int>(tasks_.size()));
    }
    generation = mine.generation = generation_;
  }
  // Only this owner uses these streams, so their order is the plan's, whatever the other owner does
  // at the same time.
  for (const int index : mine.tasks) {
    const Task& task = tasks_[index];
    for (stream::Event* event : task.waits) event->Wait(*task.stream, generation);
    task.stream->Enqueue([this, index](stream::Stream&) { Run(index); });
    if (task.ended != nullptr) task.ended->Record(*task.stream, generation);
  }
  return absl::OkStatus();
}

void Executor::AwaitTurn(int turn) {
  std::unique_lock<std::mutex> lock(mutex_);
  turn_ended_.wait(lock, [&] { return next_turn_ == turn || failed_.load(); });
}

void Executor::EndTurn() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ++next_turn_;
  }
  turn_ended_.notify_all();
}

void Executor::Run(int index) {
  Task& task = tasks_[index];
  if (task.turn != kNoTurn) AwaitTurn(task.turn);
  if (failed_.load()) {
    // Behind the work of earlier instructions: a step ends after all of it.
    task.stream->Notify([this](const absl::Status& /*late*/) {
      if (remaining_.fetch_sub(1) == 1) EndStep();
    });
    return;
  }
  task.stream->Notify([this, index](const absl::Status& /*none: no work since the last*/) {
    if (options_.observer.begin) {
      options_.observer.begin(options_.plan.instructions[index], context_,
                              tasks_[index].stream->NotifiedAt());
    }
  });
  task.handled = (*task.handler)(options_.plan.instructions[index], context_);
  // At once: what the handler issued never ends on a device that hangs.
  if (!task.handled.ok()) FailInstruction(index, task.handled);
  if (task.turn != kNoTurn) EndTurn();
  task.stream->Notify([this, index](const absl::Status& work) { End(index, work); });
}

void Executor::End(int index, const absl::Status& work) {
  const Instruction& instruction = options_.plan.instructions[index];
  const absl::Status handled = std::exchange(tasks_[index].handled, absl::OkStatus());
  if (options_.observer.end) {
    options_.observer.end(instruction, context_, tasks_[index].stream->NotifiedAt(),
                          handled.ok() ? work : handled);
  }
  if (handled.ok() && !work.ok()) FailInstruction(index, work);
  if (remaining_.fetch_sub(1) == 1) EndStep();
}

// Requires: the instruction still counts as running, so that its step does not end meanwhile.
void Executor::FailInstruction(int index, const absl::Status& status) {
  absl::Status error =
      base::Annotate(status, absl::StrCat("rank ", options_.plan.rank, ": step ", context_.step,
                                          ": ", options_.plan.instructions[index].id.ToString()));
  if (options_.instruction_failed) options_.instruction_failed(context_, error);
  Fail(std::move(error));
}

void Executor::Abort(absl::Status reason) {
  MEGASCALE_CHECK(!reason.ok());
  Fail(std::move(reason));
}

void Executor::Fail(absl::Status error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed_.load()) return;
    first_error_ = std::move(error);
    failed_.store(true);
  }
  // Nothing more will run, so no task has to wait: an owner must not hang on one that never
  // launches.
  for (const auto& event : events_) event->Release();
  turn_ended_.notify_all();
}

void Executor::EndStep() {
  StepContext context;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    MEGASCALE_CHECK(running_);
    running_ = false;
    remaining_.store(0);
    context = context_;
    status = first_error_;
  }
  options_.step_ended(context, std::move(status));
}

}  // namespace megascale::plan
