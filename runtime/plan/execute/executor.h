// Runs a rank's plan, step after step. Puts each instruction on its stream, after waits for the
// instructions on which it depends. Handlers implement the operations.
//
//   ASSIGN_OR_RETURN(auto executor, Executor::Create({.plan = plan, .streams = …, .handlers = …,
//                                                     .step_ended = tell_worker}));
//   RETURN_IF_ERROR(executor->Launch(Owner::kShard, {.attempt = 1, .step = 7}));
//   RETURN_IF_ERROR(executor->Launch(Owner::kStage, {.attempt = 1, .step = 7}));
//
// Every owner that has instructions must launch a step, in any order. An instruction that does not
// depend on the other owner runs at once. The executor alone detects the end of a step: it calls
// `step_ended` once, when the last instruction of all owners has ended or was skipped. Only then
// may the next step be launched. An instruction ends when the work that its handler issued to the
// device has ended (stream::Stream::Notify), which may be long after the handler.
//
// Failure: after the first error the executor runs nothing more. Instructions that have not begun
// are skipped, in this step and in later steps; a step still ends only after every owner has
// launched it. `step_ended` gets the first error, with its payloads; rank, step and instruction are
// prefixed to its message. An error of the device's work fails the instruction that issued the
// work. A failed step ends only after the device's work has ended, and never if the device hangs.
// So `instruction_failed` gets a handler's error at once. To continue an attempt, create a new
// executor.
//
// Threads: any thread may call any method. Handlers run on the streams' threads; observers,
// instruction_failed and step_ended run on these threads or on a thread of the device. If the
// executor is destroyed during a step, step_ended may run on the destroying thread. Cost: a launch
// allocates nothing.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/plan/rank_plan.h"
#include "runtime/stream/stream.h"

namespace megascale::plan {

// Identifies the step that an instruction belongs to. Handlers get the context passed to Launch.
struct StepContext {
  int64_t attempt = 0;
  int64_t step = 0;
  int64_t batch = 0;  // of an evaluation of the weights after `step`
  bool operator==(const StepContext&) const = default;
};

// Issues the work of one instruction to its stream, or does the work itself. Runs on the stream's
// thread. Must end by itself, by a deadline or because its communicator is aborted.
using Handler = std::function<absl::Status(const Instruction&, const StepContext&)>;
using HandlerMap = std::map<OpKind, Handler>;

// Called for each instruction that runs: `begin` when its stream begins its work, `end` when this
// work has ended or its handler has failed. `at` is the time of this event on the monotonic clock,
// as the device measured it. `begin` and `end` may run on any thread. For the instructions of one
// stream they run in order, and never two at once. They must neither block nor issue work, and may
// be empty.
struct Observer {
  std::function<void(const Instruction&, const StepContext&, absl::Duration at)> begin = nullptr;
  std::function<void(const Instruction&, const StepContext&, absl::Duration at,
                     const absl::Status&)>
      end = nullptr;
};

struct ExecutorOptions {
  RankPlan plan = {};
  // Every stream that the plan uses. Borrowed: the streams must outlive the executor.
  std::map<StreamKind, stream::Stream*> streams = {};
  HandlerMap handlers = {};  // for all operations in the plan
  Observer observer = {};
  // Indices of instructions whose handlers run one at a time and in this order, whatever their
  // streams (check/launch_order.h). This does not apply to the device's work, which still overlaps.
  // Empty: only streams and dependencies order the handlers.
  std::vector<int> launch_order = {};
  // Called with the error of each instruction that fails, with the same prefix as for `step_ended`.
  // It is called as soon as the error is known and before the step's end, while other instructions
  // may still run. It must neither block nor issue work. May be empty.
  std::function<void(const StepContext&, const absl::Status&)> instruction_failed = nullptr;
  // Called once for each step, after the last instruction of the step, with OK or the executor's
  // first error. No instruction is running at that time, so `step_ended` may read what instructions
  // wrote, and may launch the next step. It must neither block nor issue work. Not empty.
  std::function<void(const StepContext&, absl::Status)> step_ended = nullptr;
};

class Executor {
 public:
  // Errors: InvalidArgument - ValidateRankPlan refuses the plan, or a stream or handler is missing;
  // the message names the instruction.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(ExecutorOptions options);

  // Skips instructions that have not begun, as Abort does, waits for instructions that have begun,
  // and ends a step that an owner never launched. Requires: not called from a stream's thread.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Launches `owner`'s part of a step. Errors: FailedPrecondition - the previous step is not over,
  // the other owner launched another step, or this owner has no instructions; nothing was launched.
  absl::Status Launch(Owner owner, const StepContext& context);

  // Makes `reason` (not OK) the first error, unless there was an error before. Does not interrupt
  // handlers that are running, so abort their communicators, too.
  void Abort(absl::Status reason);

  const RankPlan& plan() const { return options_.plan; }

 private:
  // An instruction with its handler, stream and events looked up.
  static constexpr int kNoTurn = -1;
  struct Task {
    const Handler* handler = nullptr;
    stream::Stream* stream = nullptr;
    std::vector<stream::Event*> waits;  // ends of instructions on other streams
    stream::Event* ended = nullptr;     // null: no other stream waits for it
    int turn = kNoTurn;                 // its place in the launch order
    absl::Status handled = {};          // the handler's status, until the end
  };
  struct OwnerState {
    std::vector<int> tasks;   // in the plan's order
    uint64_t generation = 0;  // of the step that it launched last
  };

  explicit Executor(ExecutorOptions options) : options_(std::move(options)) {}
  absl::Status Resolve();
  absl::Status ResolveTurns();
  // Waits until all earlier instructions of the launch order were launched, or the executor failed.
  void AwaitTurn(int turn);
  void EndTurn();
  absl::Status CheckLaunch(Owner owner, const StepContext& context) const;
  void Run(int index);
  void End(int index, const absl::Status& work);
  void FailInstruction(int index, const absl::Status& status);
  void Fail(absl::Status error);
  void EndStep();
  OwnerState& StateOf(Owner owner) { return owners_[static_cast<size_t>(owner)]; }

  ExecutorOptions options_;
  std::vector<Task> tasks_;  // indexed like the plan's instructions
  std::vector<std::unique_ptr<stream::Event>> events_;
  std::array<OwnerState, kNumOwners> owners_;
  // Number of instructions of the running step, of all owners, that have not ended. 0 ends the
  // step.
  std::atomic<int> remaining_ = 0;
  mutable std::mutex mutex_;  // guards all below but failed_, and generation of owners_
  bool running_ = false;      // from an owner's first launch to the step's end
  uint64_t generation_ = 0;   // steps begun so far
  StepContext context_;       // of the running step; constant while it runs
  int next_turn_ = 0;         // of the running step
  std::condition_variable turn_ended_;
  absl::Status first_error_;
  std::atomic<bool> failed_ = false;
};

}  // namespace megascale::plan
