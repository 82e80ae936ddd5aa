#include "runtime/plan/execute/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <new>
#include <numeric>
#include <random>

#include "runtime/device/testing/strict_device.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/check/happens_before.h"
#include "runtime/plan/execute/testing/test_streams.h"
#include "runtime/plan/plan_options.h"

namespace {
std::atomic<int64_t> num_allocations = 0;
}  // namespace

// Counts every allocation of this program.
[[gnu::noinline]] void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace megascale::plan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Opened once. (Not absl::Notification: ThreadSanitizer does not see into the installed abseil.)
class Gate {
 public:
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  bool Await() {
    std::unique_lock<std::mutex> lock(mutex_);
    return opened_.wait_for(lock, kDeadline, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

Instruction Hand(OpKind kind, int microbatch, StreamKind stream, std::vector<int> depends_on) {
  const bool shard = stream == StreamKind::kDataParallel || stream == StreamKind::kOptimizer;
  return {.id = InstructionId(kind, 0, microbatch),
          .stream = stream,
          .owner = shard ? Owner::kShard : Owner::kStage,
          .depends_on = std::move(depends_on)};
}

RankPlan HandPlan(std::vector<Instruction> instructions) {
  RankPlan plan;
  plan.instructions = std::move(instructions);
  return plan;
}

RankPlan TrainPlan(int pipeline, int num_microbatches, int rank) {
  PlanOptions options;
  options.mesh = Mesh::Create({.data = 1, .pipeline = pipeline}).value();
  options.num_microbatches = num_microbatches;
  return BuildTrainPlan(options, rank).value();
}

TEST(Executor, RunsATrainPlanInAnOrderThatItsDependenciesAllow) {
  const RankPlan plan = TrainPlan(3, 6, 1);
  Streams streams;
  std::mutex mutex;
  std::map<uint64_t, std::pair<int, int>> spans;  // begin, end
  int now = 0;
  const auto handler = [](const Instruction&, const StepContext& context) {
    EXPECT_EQ(context, (StepContext{.attempt = 2, .step = 9}));
    return absl::OkStatus();
  };
  Observer observer;
  observer.begin = [&](const Instruction& instruction, const StepContext&, absl::Duration) {
    std::lock_guard<std::mutex> lock(mutex);
    spans[instruction.id.packed()].first = ++now;
  };
  observer.end = [&](const Instruction& instruction, const StepContext&, absl::Duration,
                     const absl::Status&) {
    std::lock_guard<std::mutex> lock(mutex);
    spans[instruction.id.packed()].second = ++now;
  };
  Finish finish;
  const auto executor = Executor::Create({.plan = plan,
                                          .streams = streams.by_kind(),
                                          .handlers = ForAll(handler),
                                          .observer = observer,
                                          .step_ended = finish.StepEnded()})
                            .value();
  const StepContext context = {.attempt = 2, .step = 9};
  ASSERT_TRUE(executor->Launch(Owner::kShard, context).ok());
  ASSERT_TRUE(executor->Launch(Owner::kStage, context).ok());
  finish.Await(1);
  EXPECT_TRUE(finish.last_error().ok());
  ASSERT_EQ(spans.size(), plan.instructions.size());
  const HappensBefore order = HappensBefore::Create(plan).value();
  for (size_t i = 0; i < plan.instructions.size(); ++i) {
    for (size_t j = 0; j < plan.instructions.size(); ++j) {
      if (!order.Before(i, j)) continue;
      EXPECT_LT(spans[plan.instructions[i].id.packed()].second,
                spans[plan.instructions[j].id.packed()].first);
    }
  }
}

// On a device an instruction begins and ends when its work does, however early the host issued it.
TEST(Executor, BeginsAndEndsAreThoseOfTheDevicesWork) {
  constexpr int64_t kCopies = 3;  // of an instruction
  const auto device = device::StrictDevice::Create();
  const auto memory = device->Allocate("test", 2 * sizeof(float)).value();
  auto* const floats = static_cast<float*>(memory->data());
  const std::vector<StreamKind> kinds = {StreamKind::kCompute, StreamKind::kSendGradient,
                                         StreamKind::kDataParallel};
  std::vector<std::unique_ptr<stream::Stream>> owned;
  std::map<StreamKind, stream::Stream*> streams;
  for (const StreamKind kind : kinds) {
    owned.push_back(device->MakeStream(std::string(Name(kind))).value());
    streams[kind] = owned.back().get();
  }
  const auto handler = [&](const Instruction& instruction, const StepContext&) {
    for (int64_t i = 0; i < kCopies; ++i) {
      streams.at(instruction.stream)->Copy(floats + 1, floats, sizeof(float));
    }
    return absl::OkStatus();
  };
  std::mutex mutex;
  std::map<std::string, int64_t> work;  // of the device at each begin and end
  const auto note = [&](const char* what, const Instruction& instruction) {
    const std::lock_guard<std::mutex> lock(mutex);
    work[what + instruction.id.ToString()] = device->num_work();
  };
  Observer observer;
  observer.begin = [&](const Instruction& i, const StepContext&, absl::Duration) {
    note("begin ", i);
  };
  observer.end = [&](const Instruction& i, const StepContext&, absl::Duration,
                     const absl::Status&) { note("end ", i); };
  Finish finish;
  const auto executor =
      Executor::Create(
          {.plan = HandPlan({Hand(OpKind::kForward, 0, StreamKind::kCompute, {}),
                             Hand(OpKind::kBackward, 0, StreamKind::kSendGradient, {0}),
                             Hand(OpKind::kReduceNorm, 0, StreamKind::kDataParallel, {1})}),
           .streams = streams,
           .handlers = ForAll(handler),
           .observer = observer,
           .step_ended = finish.StepEnded()})
          .value();
  device->Hold();
  ASSERT_TRUE(executor->Launch(Owner::kStage, {}).ok());
  ASSERT_TRUE(executor->Launch(Owner::kShard, {}).ok());
  for (const auto& stream : owned) stream->RunAndWait([] {});
  {
    const std::lock_guard<std::mutex> lock(mutex);
    EXPECT_TRUE(work.empty()) << "the host has issued all, and the device has done nothing";
  }
  EXPECT_EQ(finish.num_calls(), 0);
  device->Release();
  finish.Await(1);
  const std::map<std::string, int64_t> expected = {
      {"begin F.c0.m0", 0},         {"end F.c0.m0", kCopies},       {"begin B.c0.m0", kCopies},
      {"end B.c0.m0", 2 * kCopies}, {"begin N.c0.m0", 2 * kCopies}, {"end N.c0.m0", 3 * kCopies}};
  EXPECT_EQ(work, expected);
}

// Runs `plan` on an executor; each instruction computes a value from those of its dependencies.
std::map<uint64_t, uint64_t> Compute(const RankPlan& plan, Streams& streams, Owner first) {
  std::map<uint64_t, uint64_t> values;
  for (const Instruction& instruction : plan.instructions) values[instruction.id.packed()] = 0;
  const auto handler = [&](const Instruction& instruction, const StepContext&) {
    uint64_t value = instruction.id.packed();
    for (const int producer : instruction.depends_on) {
      value = value * 6364136223846793005u + values.at(plan.instructions[producer].id.packed());
    }
    values.at(instruction.id.packed()) = value;
    return absl::OkStatus();
  };
  Finish finish;
  const auto executor = Executor::Create({.plan = plan,
                                          .streams = streams.by_kind(),
                                          .handlers = ForAll(handler),
                                          .step_ended = finish.StepEnded()})
                            .value();
  const Owner second = first == Owner::kStage ? Owner::kShard : Owner::kStage;
  EXPECT_TRUE(executor->Launch(first, {}).ok());
  EXPECT_TRUE(executor->Launch(second, {}).ok());
  finish.Await(1);
  return values;
}

// Returns the instructions in a random order in which each comes after its dependencies.
RankPlan Shuffled(const RankPlan& plan, std::mt19937& random) {
  std::vector<int> left(plan.instructions.size());
  std::iota(left.begin(), left.end(), 0);
  std::vector<int> moved_to(left.size(), -1);
  RankPlan shuffled = plan;
  shuffled.instructions.clear();
  while (!left.empty()) {
    std::vector<int> ready;
    std::copy_if(left.begin(), left.end(), std::back_inserter(ready), [&](int index) {
      const std::vector<int>& producers = plan.instructions[index].depends_on;
      return std::all_of(producers.begin(), producers.end(),
                         [&](int producer) { return moved_to[producer] >= 0; });
    });
    const int index = ready[random() % ready.size()];
    left.erase(std::find(left.begin(), left.end(), index));
    moved_to[index] = static_cast<int>(shuffled.instructions.size());
    shuffled.instructions.push_back(plan.instructions[index]);
    for (int& producer : shuffled.instructions.back().depends_on) producer = moved_to[producer];
  }
  return shuffled;
}

TEST(Executor, GivesEqualResultsInEveryLegalOrderAndForEitherFirstLaunch) {
  std::mt19937 random(7);
  std::vector<Instruction> instructions;
  const std::vector<StreamKind> kinds = {StreamKind::kCompute, StreamKind::kSendGradient,
                                         StreamKind::kDataParallel, StreamKind::kOptimizer};
  for (int i = 0; i < 60; ++i) {
    std::vector<int> producers;
    for (int j = 0; j < i; ++j) {
      if (random() % 12 == 0) producers.push_back(j);
    }
    instructions.push_back(
        Hand(OpKind::kForward, i, kinds[random() % kinds.size()], std::move(producers)));
  }
  const RankPlan plan = HandPlan(std::move(instructions));
  Streams streams;
  const std::map<uint64_t, uint64_t> expected = Compute(plan, streams, Owner::kStage);
  for (int i = 0; i < 50; ++i) {
    const RankPlan shuffled = Shuffled(plan, random);
    EXPECT_EQ(Compute(shuffled, streams, i % 2 == 0 ? Owner::kStage : Owner::kShard), expected);
  }
}

TEST(Executor, AThousandStepsAllocateNothing) {
  Streams streams;
  std::atomic<int64_t> num_run = 0;
  const auto handler = [&](const Instruction&, const StepContext&) {
    ++num_run;
    return absl::OkStatus();
  };
  Finish finish;
  const RankPlan plan = TrainPlan(4, 8, 1);
  const auto executor = Executor::Create({.plan = plan,
                                          .streams = streams.by_kind(),
                                          .handlers = ForAll(handler),
                                          .step_ended = finish.StepEnded()})
                            .value();
  const int64_t before = num_allocations;
  for (int step = 1; step <= 1000; ++step) {
    const Owner first = step % 2 == 0 ? Owner::kStage : Owner::kShard;
    const Owner second = step % 2 == 0 ? Owner::kShard : Owner::kStage;
    const bool launched = executor->Launch(first, {.attempt = 1, .step = step}).ok() &&
                          executor->Launch(second, {.attempt = 1, .step = step}).ok();
    if (!launched) FAIL() << "step " << step;
    finish.Await(step);
  }
  EXPECT_EQ(num_allocations - before, 0);
  EXPECT_EQ(num_run, static_cast<int64_t>(1000 * plan.instructions.size()));
  EXPECT_TRUE(finish.last_error().ok());
}

TEST(Executor, TheEndOfAStepMayLaunchTheNextOne) {
  Streams streams;
  std::vector<int64_t> steps;
  const auto handler = [&](const Instruction&, const StepContext& context) {
    steps.push_back(context.step);
    return absl::OkStatus();
  };
  Gate finished;
  Executor* launcher = nullptr;
  const auto step_ended = [&](const StepContext& context, const absl::Status&) {
    if (context.step == 100) return finished.Open();
    const absl::Status launched =
        launcher->Launch(Owner::kStage, {.attempt = 1, .step = context.step + 1});
    EXPECT_TRUE(launched.ok()) << launched;
  };
  const auto executor =
      Executor::Create({.plan = HandPlan({Hand(OpKind::kForward, 0, StreamKind::kCompute, {})}),
                        .streams = streams.by_kind(),
                        .handlers = ForAll(handler),
                        .step_ended = step_ended})
          .value();
  launcher = executor.get();
  ASSERT_TRUE(executor->Launch(Owner::kStage, {.attempt = 1, .step = 1}).ok());
  ASSERT_TRUE(finished.Await());
  ASSERT_EQ(steps.size(), 100u);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
}

// The shard's last instruction waits for the stage's, and the stage's for nothing of the shard: as
// in a train plan, where the exchange of norms goes on after the last backward.
TEST(Executor, AnOwnerThatFinishesFirstEndsNoStep) {
  Streams streams;
  Finish finish;
  std::atomic<int> ends_seen = 0;
  const auto handler = [&](const Instruction& instruction, const StepContext& context) {
    // The stage has finished its part when the shard's instruction begins: the stage's stream
    // records that only after the instruction's end was counted.
    if (instruction.owner == Owner::kShard) {
      ends_seen += finish.num_calls() - static_cast<int>(context.step - 1);
    }
    return absl::OkStatus();
  };
  const auto executor =
      Executor::Create(
          {.plan = HandPlan({Hand(OpKind::kBackward, 0, StreamKind::kCompute, {}),
                             Hand(OpKind::kReduceNorm, 0, StreamKind::kDataParallel, {0})}),
           .streams = streams.by_kind(),
           .handlers = ForAll(handler),
           .step_ended = finish.StepEnded()})
          .value();
  for (int step = 1; step <= 10; ++step) {
    ASSERT_TRUE(executor->Launch(Owner::kStage, {.attempt = 1, .step = step}).ok());
    ASSERT_TRUE(executor->Launch(Owner::kShard, {.attempt = 1, .step = step}).ok());
    finish.Await(step);
    EXPECT_EQ(finish.num_calls(), step) << "a step ends once, not once for each owner";
  }
  EXPECT_EQ(ends_seen, 0) << "a step ended while an instruction of it was still to run";
}

TEST(Executor, FirstErrorSkipsTheRestOfItsStepAndEveryLaterOne) {
  Streams streams;
  std::mutex mutex;
  std::vector<std::string> run;
  const auto handler = [&](const Instruction& instruction, const StepContext& context) {
    std::lock_guard<std::mutex> lock(mutex);
    // The gather runs in parallel with the load.
    if (instruction.kind() != OpKind::kGatherParameters) run.push_back(instruction.id.ToString());
    if (context.step == 2 && instruction.kind() == OpKind::kBackward) {
      absl::Status error = absl::DataLossError("checksum differs");
      error.SetPayload("type", absl::Cord("payload"));
      return error;
    }
    return absl::OkStatus();
  };
  Finish finish;
  const auto executor = Executor::Create({.plan = TrainPlan(1, 2, 0),
                                          .streams = streams.by_kind(),
                                          .handlers = ForAll(handler),
                                          .step_ended = finish.StepEnded()})
                            .value();
  for (int step = 1; step <= 3; ++step) {
    if (step == 2) run.clear();
    ASSERT_TRUE(executor->Launch(Owner::kStage, {.attempt = 1, .step = step}).ok());
    ASSERT_TRUE(executor->Launch(Owner::kShard, {.attempt = 1, .step = step}).ok());
    finish.Await(step);
    EXPECT_EQ(finish.num_calls(), step);
    EXPECT_EQ(finish.last_error().ok(), step == 1);
  }
  EXPECT_THAT(run, ElementsAre("L.c0", "F.c0.m0", "B.c0.m0"));
  const absl::Status error = finish.last_error();
  EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(error.GetPayload("type"), absl::Cord("payload"));
  EXPECT_EQ(error.message(), "rank 0: step 2: B.c0.m0: checksum differs");
}

// The instruction's copy never ends, nor does its step.
TEST(Executor, AHandlersErrorIsToldWhileTheDeviceHangs) {
  const auto device = device::StrictDevice::Create();
  const auto memory = device->Allocate("test", 2 * sizeof(float)).value();
  const auto compute = device->MakeStream("compute").value();
  const auto handler = [&](const Instruction&, const StepContext&) {
    auto* const floats = static_cast<float*>(memory->data());
    compute->Copy(floats + 1, floats, sizeof(float));
    return absl::InternalError("the device hangs");
  };
  Gate failed;
  absl::Status told;
  Finish finish;
  const auto executor =
      Executor::Create({.plan = HandPlan({Hand(OpKind::kForward, 0, StreamKind::kCompute, {}),
                                          Hand(OpKind::kForward, 1, StreamKind::kCompute, {})}),
                        .streams = {{StreamKind::kCompute, compute.get()}},
                        .handlers = ForAll(handler),
                        .instruction_failed =
                            [&](const StepContext& context, const absl::Status& error) {
                              EXPECT_EQ(context.step, 7);
                              told = error;
                              failed.Open();
                            },
                        .step_ended = finish.StepEnded()})
          .value();
  device->Hold();
  ASSERT_TRUE(executor->Launch(Owner::kStage, {.attempt = 1, .step = 7}).ok());
  EXPECT_TRUE(failed.Await());
  EXPECT_EQ(finish.num_calls(), 0);
  device->Release();
  finish.Await(1);
  EXPECT_EQ(told, absl::InternalError("rank 0: step 7: F.c0.m0: the device hangs"));
  EXPECT_EQ(finish.last_error(), told);
}

TEST(Executor, AnAbortedStepEndsOnceBothOwnersLaunchedIt) {
  Streams streams;
  Finish finish;
  const auto never = [](const Instruction& instruction, const StepContext&) {
    if (instruction.kind() != OpKind::kGatherParameters) {  // the gather waits for nothing
      ADD_FAILURE() << instruction.id.ToString() << " ran";
    }
    return absl::OkStatus();
  };
  const auto executor = Executor::Create({.plan = TrainPlan(1, 2, 0),
                                          .streams = streams.by_kind(),
                                          .handlers = ForAll(never),
                                          .step_ended = finish.StepEnded()})
                            .value();
  ASSERT_TRUE(executor->Launch(Owner::kShard, {}).ok());
  executor->Abort(absl::AbortedError("the attempt ended"));
  executor->Abort(absl::InternalError("later"));
  EXPECT_EQ(finish.num_calls(), 0);
  ASSERT_TRUE(executor->Launch(Owner::kStage, {}).ok());
  finish.Await(1);
  EXPECT_EQ(finish.last_error(), absl::AbortedError("the attempt ended"));
}

TEST(Executor, DestructorEndsAStepThatAnOwnerNeverLaunched) {
  Streams streams;
  Finish finish;
  const auto handler = [](const Instruction&, const StepContext&) { return absl::OkStatus(); };
  auto executor = Executor::Create({.plan = TrainPlan(1, 2, 0),
                                    .streams = streams.by_kind(),
                                    .handlers = ForAll(handler),
                                    .step_ended = finish.StepEnded()})
                      .value();
  ASSERT_TRUE(executor->Launch(Owner::kShard, {}).ok());
  executor.reset();
  EXPECT_EQ(finish.num_calls(), 1);
  EXPECT_EQ(finish.last_error(), absl::AbortedError("the executor was destroyed"));
}

TEST(Executor, DestructorWaitsForWhatHasBegunAndEndsTheStep) {
  Streams streams;
  Finish finish;
  Gate begun;
  Gate go;
  const auto handler = [&](const Instruction& instruction, const StepContext&) {
    EXPECT_EQ(instruction.id.microbatch(), 0);
    begun.Open();
    EXPECT_TRUE(go.Await());
    return absl::OkStatus();
  };
  auto executor =
      Executor::Create({.plan = HandPlan({Hand(OpKind::kForward, 0, StreamKind::kCompute, {}),
                                          Hand(OpKind::kForward, 1, StreamKind::kCompute, {})}),
                        .streams = streams.by_kind(),
                        .handlers = ForAll(handler),
                        .step_ended = finish.StepEnded()})
          .value();
  ASSERT_TRUE(executor->Launch(Owner::kStage, {}).ok());
  ASSERT_TRUE(begun.Await());
  executor->Abort(absl::AbortedError("stop"));
  go.Open();
  executor.reset();
  EXPECT_EQ(finish.num_calls(), 1);
  EXPECT_EQ(finish.last_error(), absl::AbortedError("stop"));
}

// Instruction 0 is free to run at once; the others come one after another, on streams of their own.
TEST(Executor, RunsHandlersInTheLaunchOrderAcrossStreams) {
  const RankPlan plan =
      HandPlan({Hand(OpKind::kForward, 0, StreamKind::kCompute, {}),
                Hand(OpKind::kLoadBatch, 0, StreamKind::kLoadBatch, {}),
                Hand(OpKind::kOptimizerStep, 0, StreamKind::kOptimizer, {1}),
                Hand(OpKind::kReduceGradients, 0, StreamKind::kDataParallel, {2})});
  Streams streams;
  std::mutex mutex;
  std::vector<OpKind> launched;
  Finish finish;
  const auto executor =
      Executor::Create({.plan = plan,
                        .streams = streams.by_kind(),
                        .handlers = ForAll([&](const Instruction& instruction, const StepContext&) {
                          const std::lock_guard<std::mutex> lock(mutex);
                          launched.push_back(instruction.kind());
                          return absl::OkStatus();
                        }),
                        .launch_order = {3, 0},
                        .step_ended = finish.StepEnded()})
          .value();
  for (int step = 1; step <= 100; ++step) {
    launched.clear();
    ASSERT_TRUE(executor->Launch(Owner::kStage, {.attempt = 1, .step = step}).ok());
    ASSERT_TRUE(executor->Launch(Owner::kShard, {.attempt = 1, .step = step}).ok());
    finish.Await(step);
    ASSERT_THAT(launched, ElementsAre(OpKind::kLoadBatch, OpKind::kOptimizerStep,
                                      OpKind::kReduceGradients, OpKind::kForward));
  }
}

// The shard never launches its part, so the turn before the forward's never ends.
TEST(Executor, AnAbortFreesAHandlerThatAwaitsItsTurn) {
  Streams streams;
  Finish finish;
  const auto executor =
      Executor::Create(
          {.plan = HandPlan({Hand(OpKind::kForward, 0, StreamKind::kCompute, {}),
                             Hand(OpKind::kReduceGradients, 0, StreamKind::kDataParallel, {})}),
           .streams = streams.by_kind(),
           .handlers =
               ForAll([](const Instruction&, const StepContext&) { return absl::OkStatus(); }),
           .launch_order = {1, 0},
           .step_ended = finish.StepEnded()})
          .value();
  ASSERT_TRUE(executor->Launch(Owner::kStage, {.attempt = 1, .step = 1}).ok());
  executor->Abort(absl::AbortedError("enough"));
  ASSERT_TRUE(executor->Launch(Owner::kShard, {.attempt = 1, .step = 1}).ok());
  finish.Await(1);
  EXPECT_EQ(finish.last_error(), absl::AbortedError("enough"));
}

TEST(Executor, RefusesLaunchesThatDoNotFit) {
  Streams streams;
  Finish finish;
  const auto handler = [](const Instruction&, const StepContext&) { return absl::OkStatus(); };
  // The shard waits for the stage, which waits for nothing.
  Instruction step = Hand(OpKind::kOptimizerStep, 0, StreamKind::kOptimizer, {0});
  step.owner = Owner::kShard;
  const auto executor =
      Executor::Create(
          {.plan = HandPlan({Hand(OpKind::kForward, 0, StreamKind::kCompute, {}), step}),
           .streams = streams.by_kind(),
           .handlers = ForAll(handler),
           .step_ended = finish.StepEnded()})
          .value();
  const auto refused = [&](Owner owner, StepContext context) {
    const absl::Status status = executor->Launch(owner, context);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  ASSERT_TRUE(executor->Launch(Owner::kShard, {.attempt = 1, .step = 5}).ok());
  EXPECT_THAT(refused(Owner::kShard, {.attempt = 1, .step = 6}), HasSubstr("step 5 is not over"));
  EXPECT_THAT(refused(Owner::kStage, {.attempt = 1, .step = 6}), HasSubstr("launched step 5"));
  EXPECT_THAT(refused(Owner::kStage, {.attempt = 2, .step = 5}), HasSubstr("of attempt 2"));
  ASSERT_TRUE(executor->Launch(Owner::kStage, {.attempt = 1, .step = 5}).ok());
  finish.Await(1);
  ASSERT_TRUE(executor->Launch(Owner::kStage, {.attempt = 1, .step = 6}).ok());
  EXPECT_THAT(refused(Owner::kStage, {.attempt = 1, .step = 7}), HasSubstr("step 6 is not over"));

  const auto stage_only =
      Executor::Create({.plan = HandPlan({Hand(OpKind::kForward, 0, StreamKind::kCompute, {})}),
                        .streams = streams.by_kind(),
                        .handlers = ForAll(handler),
                        .step_ended = finish.StepEnded()})
          .value();
  EXPECT_EQ(stage_only->Launch(Owner::kShard, {}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(finish.num_calls(), 1) << "a refused launch ends no step";
}

TEST(Executor, RefusesPlansThatCannotRunAndNamesTheInstruction) {
  Streams streams;
  const auto handler = [](const Instruction&, const StepContext&) { return absl::OkStatus(); };
  const auto refusal = [&](std::vector<Instruction> instructions, ExecutorOptions options) {
    options.plan = HandPlan(std::move(instructions));
    const absl::Status status = Executor::Create(std::move(options)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const ExecutorOptions all = {.streams = streams.by_kind(),
                               .handlers = ForAll(handler),
                               .step_ended = [](const StepContext&, const absl::Status&) {}};
  const Instruction forward = Hand(OpKind::kForward, 0, StreamKind::kCompute, {1});
  const Instruction backward = Hand(OpKind::kBackward, 0, StreamKind::kSendGradient, {0});
  EXPECT_THAT(refusal({forward, backward}, all),
              AllOf(HasSubstr("cycle"), HasSubstr("F.c0.m0 waits for B.c0.m0 waits for F.c0.m0")));
  EXPECT_THAT(refusal({forward}, all), HasSubstr("F.c0.m0 depends on instruction 1"));
  EXPECT_THAT(refusal({}, all), HasSubstr("empty"));
  const Instruction load = Hand(OpKind::kLoadBatch, 0, StreamKind::kLoadBatch, {});
  ExecutorOptions lacking = all;
  lacking.handlers.erase(OpKind::kLoadBatch);
  EXPECT_THAT(refusal({load}, lacking), HasSubstr("L.c0.m0: no handler"));
  lacking = all;
  lacking.streams.erase(StreamKind::kLoadBatch);
  EXPECT_THAT(refusal({load}, lacking), HasSubstr("L.c0.m0: no stream load-batch"));
}

// Values on their way between ranks, by (channel, sender, receiver): a send waits until its value
// is taken.
class Wire {
 public:
  absl::Status Send(const std::string& link, int64_t value) {
    std::unique_lock<std::mutex> lock(mutex_);
    values_[link].push_back(value);
    changed_.notify_all();
    return Wait(lock, [&] { return values_[link].empty(); });
  }
  absl::Status Receive(const std::string& link, int64_t& value) {
    std::unique_lock<std::mutex> lock(mutex_);
    absl::Status arrived = Wait(lock, [&] { return !values_[link].empty(); });
    if (!arrived.ok()) return arrived;
    value = values_[link].front();
    values_[link].pop_front();
    changed_.notify_all();
    return absl::OkStatus();
  }

 private:
  template <typename Condition>
  absl::Status Wait(std::unique_lock<std::mutex>& lock, Condition condition) {
    if (changed_.wait_for(lock, kDeadline, condition)) return absl::OkStatus();
    return absl::DeadlineExceededError("nobody at the other end");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::deque<int64_t>> values_;
};

// One rank of a pipeline whose chunk c maps x to 3x + c; backward does the same, starting from
// -output.
class ToyRank {
 public:
  ToyRank(RankPlan plan, Wire& wire) : plan_(std::move(plan)), wire_(wire) {
    values_.resize(plan_.slots[0]);
    gradients_.resize(plan_.slots[0]);
    executor_ =
        Executor::Create(
            {.plan = plan_,
             .streams = streams_.by_kind(),
             .handlers = ForAll([this](const Instruction& instruction, const StepContext& context) {
               return Do(instruction, context);
             }),
             .step_ended = finish_.StepEnded()})
            .value();
  }
  void Launch(const StepContext& context) {
    for (const Owner owner : {Owner::kStage, Owner::kShard}) {
      EXPECT_TRUE(executor_->Launch(owner, context).ok());
    }
  }
  Finish& finish() { return finish_; }
  int64_t gradient_sum() const { return gradient_sum_; }

 private:
  absl::Status Do(const Instruction& instruction, const StepContext& context) {
    const int slot = instruction.activation_slot;
    const int chunk = instruction.id.chunk();
    const int me = plan_.stage();
    const auto link = [&](int from, int to) {
      return instruction.channel + ":" + std::to_string(from) + ">" + std::to_string(to);
    };
    switch (instruction.kind()) {
      case OpKind::kReceiveActivation:
        return wire_.Receive(link(instruction.peer, me), values_[slot]);
      case OpKind::kReceiveGradient:
        return wire_.Receive(link(instruction.peer, me), gradients_[slot]);
      case OpKind::kSendActivation:
        return wire_.Send(link(me, instruction.peer), values_[slot]);
      case OpKind::kSendGradient:
        return wire_.Send(link(me, instruction.peer), gradients_[slot]);
      case OpKind::kForward:
        if (chunk == 0) values_[slot] = 100 * context.step + instruction.id.microbatch();
        values_[slot] = 3 * values_[slot] + chunk;
        break;
      case OpKind::kBackward:
        if (chunk == plan_.num_chunks - 1) gradients_[slot] = -values_[slot];
        gradients_[slot] = 3 * gradients_[slot] + chunk;
        gradient_sum_ += gradients_[slot];
        break;
      default:
        break;
    }
    return absl::OkStatus();
  }

  const RankPlan plan_;
  Wire& wire_;
  Streams streams_;
  std::vector<int64_t> values_;     // by activation slot
  std::vector<int64_t> gradients_;  // by activation slot
  int64_t gradient_sum_ = 0;
  Finish finish_;
  std::unique_ptr<Executor> executor_;
};

TEST(Executor, StagesPassEveryMicrobatchAlongARealPipeline) {
  constexpr int kStages = 4;
  constexpr int kMicrobatches = 7;
  constexpr int kSteps = 20;
  Wire wire;
  std::vector<std::unique_ptr<ToyRank>> ranks;
  for (int rank = 0; rank < kStages; ++rank) {
    ranks.push_back(std::make_unique<ToyRank>(TrainPlan(kStages, kMicrobatches, rank), wire));
  }
  std::vector<int64_t> expected(kStages, 0);
  for (int step = 1; step <= kSteps; ++step) {
    for (const auto& rank : ranks) rank->Launch({.attempt = 1, .step = step});
    for (const auto& rank : ranks) rank->finish().Await(step);
    for (int microbatch = 0; microbatch < kMicrobatches; ++microbatch) {
      int64_t value = 100 * step + microbatch;
      for (int chunk = 0; chunk < kStages; ++chunk) value = 3 * value + chunk;
      int64_t gradient = -value;
      for (int chunk = kStages - 1; chunk >= 0; --chunk) {
        gradient = 3 * gradient + chunk;
        expected[chunk] += gradient;
      }
    }
  }
  for (int rank = 0; rank < kStages; ++rank) {
    EXPECT_TRUE(ranks[rank]->finish().last_error().ok()) << ranks[rank]->finish().last_error();
    EXPECT_EQ(ranks[rank]->gradient_sum(), expected[rank]) << "stage " << rank;
  }
}

}  // namespace
}  // namespace megascale::plan
