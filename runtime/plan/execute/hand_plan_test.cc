// Hand-written plans, which no builder makes, run with real operators on real buffers: every order
// that is accepted gives the same bits, and an impossible order is refused with the name of an
// instruction.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "runtime/ops/ops.h"
#include "runtime/ops/testing/test_numbers.h"
#include "runtime/plan/check/validate_step.h"
#include "runtime/plan/execute/executor.h"
#include "runtime/plan/execute/testing/test_streams.h"

namespace megascale::plan {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kSide = 8;
using Buffer = std::vector<float>;  // [kSide, kSide]

tensor::Matrix View(Buffer& buffer) {
  return {buffer.data(), tensor::DType::kF32, kSide, kSide, kSide};
}
tensor::Vector FlatView(Buffer& buffer) {
  return {buffer.data(), tensor::DType::kF32, kSide * kSide};
}

// Values between -0.5 and 0.5 that follow from `seed`.
Buffer Seeded(uint64_t seed) {
  Buffer buffer(kSide * kSide);
  for (float& value : buffer) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(seed >> 40) / static_cast<float>(1 << 24) - 0.5f;
  }
  return buffer;
}

std::vector<uint32_t> Bits(const Buffer& buffer) {
  std::vector<uint32_t> bits(buffer.size());
  std::memcpy(bits.data(), buffer.data(), buffer.size() * sizeof(float));
  return bits;
}

// A separate operator object for each stream.
class OpsByStream {
 public:
  OpsByStream() {
    for (int i = 0; i < kNumStreamKinds; ++i) {
      ops_[static_cast<StreamKind>(i)] = ops::MakeCpuOps(tensor::DType::kF32, 1);
    }
  }
  ops::Ops& of(StreamKind kind) { return *ops_.at(kind); }

 private:
  std::map<StreamKind, std::unique_ptr<ops::Ops>> ops_;
};

// --- one rank: each instruction multiplies the sum of what it depends on ---

Instruction Hand(OpKind kind, int microbatch, StreamKind stream, std::vector<int> depends_on) {
  return {.id = InstructionId(kind, 0, microbatch),
          .stream = stream,
          .owner = Owner::kStage,
          .depends_on = std::move(depends_on)};
}

// Two diamonds that share two corners, over three streams.
RankPlan Diamonds() {
  RankPlan plan;
  plan.instructions = {
      Hand(OpKind::kLoadBatch, 0, StreamKind::kLoadBatch, {}),
      Hand(OpKind::kForward, 0, StreamKind::kCompute, {0}),
      Hand(OpKind::kSendGradient, 0, StreamKind::kSendGradient, {0}),
      Hand(OpKind::kForward, 1, StreamKind::kCompute, {2}),
      Hand(OpKind::kLoadBatch, 1, StreamKind::kLoadBatch, {2}),
      Hand(OpKind::kSendGradient, 1, StreamKind::kSendGradient, {4, 3}),
      Hand(OpKind::kBackward, 1, StreamKind::kCompute, {5, 1, 4}),
  };
  return plan;
}

RankPlan Permuted(const RankPlan& plan, const std::vector<int>& order) {
  std::vector<int> moved_to(order.size());
  for (size_t i = 0; i < order.size(); ++i) moved_to[order[i]] = static_cast<int>(i);
  RankPlan permuted = plan;
  permuted.instructions.clear();
  for (const int from : order) {
    permuted.instructions.push_back(plan.instructions[from]);
    for (int& producer : permuted.instructions.back().depends_on) producer = moved_to[producer];
  }
  return permuted;
}

using Results = std::map<std::string, std::vector<uint32_t>>;

// Runs a plan once; an error means that it was refused.
class Graph {
 public:
  absl::StatusOr<Results> Run(const RankPlan& plan) {
    std::map<uint64_t, Buffer> values;
    std::map<uint64_t, Buffer> sums;
    std::map<uint64_t, Buffer> weights;
    for (const Instruction& instruction : plan.instructions) {
      const uint64_t id = instruction.id.packed();
      // poison, which shows a value used before it is made
      values[id] = Buffer(kSide * kSide, -1e30f);
      sums[id] = Seeded(id);
      weights[id] = Seeded(id + 1);
    }
    const auto handler = [&](const Instruction& instruction, const StepContext&) {
      ops::Ops& ops = ops_.of(instruction.stream);
      const uint64_t id = instruction.id.packed();
      const tensor::Matrix sum = View(sums.at(id));
      for (const int producer : instruction.depends_on) {
        ops.Add(sum, View(values.at(plan.instructions[producer].id.packed())), sum);
      }
      ops.MatMul({.a = sum, .b = View(weights.at(id)), .c = View(values.at(id)), .bias = {}});
      return absl::OkStatus();
    };
    Finish finish;
    auto executor = Executor::Create({.plan = plan,
                                      .streams = streams_.by_kind(),
                                      .handlers = ForAll(handler),
                                      .step_ended = finish.StepEnded()});
    if (!executor.ok()) return executor.status();
    EXPECT_TRUE((*executor)->Launch(Owner::kStage, {.attempt = 1, .step = 1}).ok());
    finish.Await(1);
    EXPECT_TRUE(finish.last_error().ok()) << finish.last_error();
    Results results;
    for (const auto& [id, value] : values) {
      results[InstructionId::FromPacked(id).ToString()] = Bits(value);
    }
    return results;
  }

 private:
  Streams streams_;
  OpsByStream ops_;
};

TEST(HandPlan, EveryPermutationOfTwoDiamondsGivesTheSameBitsOrIsRefusedByName) {
  const RankPlan plan = Diamonds();
  Graph graph;
  const Results expected = graph.Run(plan).value();
  std::vector<int> order(plan.instructions.size());
  std::iota(order.begin(), order.end(), 0);
  int num_run = 0;
  int num_refused = 0;
  do {
    const auto results = graph.Run(Permuted(plan, order));
    if (results.ok()) {
      ++num_run;
      ASSERT_EQ(*results, expected) << "order " << ::testing::PrintToString(order);
    } else {
      ++num_refused;
      ASSERT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_THAT(std::string(results.status().message()),
                  AllOf(HasSubstr("cycle"), AnyOf(HasSubstr("L.c0.m"), HasSubstr("F.c0.m"),
                                                  HasSubstr("SG.c0.m"), HasSubstr("B.c0.m"))));
    }
  } while (std::next_permutation(order.begin(), order.end()));
  // An order is legal if each stream's own order is. F.c0.m0 and F.c0.m1 do not depend on each
  // other; all other orders on a stream are forced: 2 of 3! * 2! * 2! in all 7!.
  EXPECT_EQ(num_run, 420);
  EXPECT_EQ(num_refused, 5040 - 420);
}

// --- two ranks with two chunks each, and transfers between them ---

constexpr int kChunks = 4;
constexpr int kMicrobatches = 2;
constexpr int kSteps = 3;

// A pass of the compute stream.
struct Pass {
  OpKind kind;
  int chunk;
  int microbatch;
};
constexpr OpKind kF = OpKind::kForward;
constexpr OpKind kB = OpKind::kBackward;

// Writes one rank's plan for a given order of its passes; transfers come in the same order.
class PlanWriter {
 public:
  explicit PlanWriter(int rank) {
    plan_.mesh = Mesh::Create({.pipeline = 2}).value();
    plan_.rank = rank;
    plan_.num_chunks = kChunks;
    plan_.num_microbatches = kMicrobatches;
    plan_.slots = {kMicrobatches, kMicrobatches};
    plan_.gradient_buffers = 2;
  }

  RankPlan Write(const std::vector<Pass>& passes) {
    const int loading = plan_.rank == 0 ? 0 : kChunks - 1;
    Add({.id = InstructionId(OpKind::kLoadBatch, loading), .stream = StreamKind::kLoadBatch}, {});
    for (const int chunk : {plan_.rank, plan_.rank + 2}) {
      Add(OfShard(InstructionId(OpKind::kGatherParameters, chunk), GroupKind::kData), {});
    }
    for (const Pass& pass : passes) pass.kind == kF ? Forward(pass) : Backward(pass);
    WriteShard();
    return plan_;
  }

 private:
  using Ids = std::vector<InstructionId>;

  void Add(Instruction instruction, const Ids& producers) {
    const OpKind kind = instruction.kind();
    const int chunk = instruction.id.chunk();
    if (kind == kB || kind == OpKind::kReduceGradients || (kind == kF && chunk == kChunks - 1)) {
      instruction.gradient_buffer = plan_.IndexOfChunk(chunk);
      instruction.begins_sum =
          kind == OpKind::kReduceGradients || has_gradients_.insert(chunk).second;
    }
    if (kind == kB) instruction.num_buckets = 1;
    for (const InstructionId id : producers) {
      instruction.depends_on.push_back(index_.at(id.packed()));
    }
    index_[instruction.id.packed()] = static_cast<int>(plan_.instructions.size());
    plan_.instructions.push_back(std::move(instruction));
  }
  void AddOfPass(OpKind kind, StreamKind stream, const Pass& pass, const Ids& producers) {
    Instruction instruction{.id = InstructionId(kind, pass.chunk, pass.microbatch),
                            .stream = stream};
    instruction.activation_slot = pass.microbatch;
    if (kind != kF && kind != kB) {
      const bool up = kind == OpKind::kReceiveActivation || kind == OpKind::kSendGradient;
      const bool activation =
          stream == StreamKind::kSendActivation || stream == StreamKind::kReceiveActivation;
      instruction.group = GroupKind::kPipeline;
      instruction.peer = 1 - plan_.rank;
      instruction.channel =
          (activation ? "activation." : "gradient.") + std::to_string(pass.chunk - (up ? 1 : 0));
      instruction.bytes = kSide * kSide * sizeof(float);
    }
    Add(std::move(instruction), producers);
  }
  void Forward(const Pass& pass) {
    const auto id = [&](OpKind kind) { return InstructionId(kind, pass.chunk, pass.microbatch); };
    Ids needs = {InstructionId(OpKind::kGatherParameters, pass.chunk)};
    if (pass.chunk == 0 || pass.chunk == kChunks - 1) {
      needs.push_back(InstructionId(OpKind::kLoadBatch, pass.chunk));
    }
    if (pass.chunk > 0) {
      AddOfPass(OpKind::kReceiveActivation, StreamKind::kReceiveActivation, pass, {});
      needs.push_back(id(OpKind::kReceiveActivation));
    }
    AddOfPass(kF, StreamKind::kCompute, pass, needs);
    if (pass.chunk == kChunks - 1) return;
    AddOfPass(OpKind::kSendActivation, StreamKind::kSendActivation, pass, {id(kF)});
  }
  void Backward(const Pass& pass) {
    const auto id = [&](OpKind kind) { return InstructionId(kind, pass.chunk, pass.microbatch); };
    Ids needs = {id(kF)};
    if (pass.chunk < kChunks - 1) {
      AddOfPass(OpKind::kReceiveGradient, StreamKind::kReceiveGradient, pass, {id(kF)});
      needs.push_back(id(OpKind::kReceiveGradient));
    }
    AddOfPass(kB, StreamKind::kCompute, pass, needs);
    if (pass.chunk == 0) return;
    AddOfPass(OpKind::kSendGradient, StreamKind::kSendGradient, pass, {id(kB)});
  }
  void WriteShard() {
    Ids reduced;
    for (const int chunk : {plan_.rank + 2, plan_.rank}) {
      Ids backwards;
      for (int m = 0; m < kMicrobatches; ++m) backwards.push_back(InstructionId(kB, chunk, m));
      reduced.push_back(InstructionId(OpKind::kReduceGradients, chunk));
      Add(OfShard(reduced.back(), GroupKind::kData), backwards);
    }
    const InstructionId norm(OpKind::kReduceNorm);
    const InstructionId of_replicas(OpKind::kGatherDataNorms);
    Add(OfShard(of_replicas, GroupKind::kData), reduced);
    Add(OfShard(norm, GroupKind::kPipeline), {of_replicas});
    for (const int chunk : {plan_.rank, plan_.rank + 2}) {
      const InstructionId step(OpKind::kOptimizerStep, chunk);
      Instruction instruction = OfShard(step, GroupKind::kNone);
      instruction.stream = StreamKind::kOptimizer;
      Add(std::move(instruction), {norm});
    }
  }
  static Instruction OfShard(InstructionId id, GroupKind group) {
    return {.id = id,
            .stream = StreamKind::kDataParallel,
            .owner = Owner::kShard,
            .group = group,
            .channel = group == GroupKind::kNone ? "" : "shard"};
  }

  RankPlan plan_;
  std::map<uint64_t, int> index_;
  std::set<int> has_gradients_;  // chunks
};

std::vector<RankPlan> PlansOf(const std::vector<std::vector<Pass>>& passes) {
  return {PlanWriter(0).Write(passes[0]), PlanWriter(1).Write(passes[1])};
}

// Chunk after chunk, all forward, then all back.
std::vector<std::vector<Pass>> ByChunk() {
  return {{{kF, 0, 0},
           {kF, 0, 1},
           {kF, 2, 0},
           {kF, 2, 1},
           {kB, 2, 0},
           {kB, 2, 1},
           {kB, 0, 0},
           {kB, 0, 1}},
          {{kF, 1, 0},
           {kF, 1, 1},
           {kF, 3, 0},
           {kF, 3, 1},
           {kB, 3, 0},
           {kB, 3, 1},
           {kB, 1, 0},
           {kB, 1, 1}}};
}
// The first micro-batch through all chunks and back, before the second on the last stage.
std::vector<std::vector<Pass>> ByMicrobatch() {
  return {{{kF, 0, 0},
           {kF, 2, 0},
           {kF, 0, 1},
           {kB, 2, 0},
           {kB, 0, 0},
           {kF, 2, 1},
           {kB, 2, 1},
           {kB, 0, 1}},
          {{kF, 1, 0},
           {kF, 3, 0},
           {kB, 3, 0},
           {kB, 1, 0},
           {kF, 1, 1},
           {kF, 3, 1},
           {kB, 3, 1},
           {kB, 1, 1}}};
}

// One chunk of a model whose chunks multiply by a matrix; the loss is half the sum of squares.
struct ToyChunk {
  explicit ToyChunk(int chunk) : weight(Seeded(77 + static_cast<uint64_t>(chunk))) {}
  Buffer weight;
  Buffer gradient = Buffer(kSide * kSide);
  Buffer exp_avg = Buffer(kSide * kSide);
  Buffer exp_avg_sq = Buffer(kSide * kSide);
  std::vector<Buffer> inputs = std::vector<Buffer>(kMicrobatches, Buffer(kSide* kSide));
  std::vector<Buffer> outputs = inputs;
  std::vector<Buffer> d_outputs = inputs;
  std::vector<Buffer> d_inputs = inputs;

  void Forward(ops::Ops& ops, int m) {
    ops.MatMul({.a = View(inputs[m]), .b = View(weight), .c = View(outputs[m]), .bias = {}});
  }
  void Backward(ops::Ops& ops, int m) {
    ops.MatMul({.a = View(inputs[m]),
                .b = View(d_outputs[m]),
                .c = View(gradient),
                .transpose_a = ops::Transpose::kYes,
                .accumulate = m > 0,
                .bias = {}});
    ops.MatMul({.a = View(d_outputs[m]),
                .b = View(weight),
                .c = View(d_inputs[m]),
                .transpose_b = ops::Transpose::kYes,
                .bias = {}});
  }
  void Step(ops::Ops& ops, int64_t step) {
    ops::TestStepNumbers numbers(1e-2, step);
    const ops::AdamWArgs args = {.master = FlatView(weight),
                                 .exp_avg = FlatView(exp_avg),
                                 .exp_avg_sq = FlatView(exp_avg_sq),
                                 .grad = FlatView(gradient),
                                 .compute_copy = {},
                                 .step_numbers = numbers.vector()};
    ops.AdamW({&args, 1});
  }
};

Buffer BatchOf(int64_t step, int m) { return Seeded(static_cast<uint64_t>(1000 * step + m)); }

std::vector<std::vector<uint32_t>> WeightsOf(const std::vector<ToyChunk*>& chunks) {
  std::vector<std::vector<uint32_t>> weights;
  for (const ToyChunk* chunk : chunks) weights.push_back(Bits(chunk->weight));
  return weights;
}

// The same training in plain loops, without plan, stream or executor.
std::vector<std::vector<uint32_t>> TrainInLoops() {
  const auto ops = ops::MakeCpuOps(tensor::DType::kF32, 1);
  std::vector<ToyChunk> chunks;
  for (int c = 0; c < kChunks; ++c) chunks.emplace_back(c);
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (int m = 0; m < kMicrobatches; ++m) {
      for (int c = 0; c < kChunks; ++c) {
        chunks[c].inputs[m] = c == 0 ? BatchOf(step, m) : chunks[c - 1].outputs[m];
        chunks[c].Forward(*ops, m);
      }
      for (int c = kChunks - 1; c >= 0; --c) {
        chunks[c].d_outputs[m] =
            c == kChunks - 1 ? chunks[c].outputs[m] : chunks[c + 1].d_inputs[m];
        chunks[c].Backward(*ops, m);
      }
    }
    for (ToyChunk& chunk : chunks) chunk.Step(*ops, step);
  }
  std::vector<ToyChunk*> all;
  for (ToyChunk& chunk : chunks) all.push_back(&chunk);
  return WeightsOf(all);
}

// Buffers under way, by channel.
class Wire {
 public:
  void Send(const std::string& channel, const Buffer& value) {
    const std::lock_guard<std::mutex> lock(mutex_);
    values_[channel].push_back(value);
    changed_.notify_all();
  }
  absl::Status Receive(const std::string& channel, Buffer* value) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto arrived = [&] { return !values_[channel].empty(); };
    if (!changed_.wait_for(lock, kDeadline, arrived)) {
      return absl::DeadlineExceededError("nothing came on " + channel);
    }
    *value = std::move(values_[channel].front());
    values_[channel].pop_front();
    return absl::OkStatus();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::deque<Buffer>> values_;
};

class ToyRank {
 public:
  ToyRank(RankPlan plan, Wire& wire)
      : plan_(std::move(plan)),
        wire_(wire),
        chunks_{ToyChunk(plan_.rank), ToyChunk(plan_.rank + 2)} {
    const auto handler = [this](const Instruction& instruction, const StepContext& context) {
      return Do(instruction, context);
    };
    executor_ = Executor::Create({.plan = plan_,
                                  .streams = streams_.by_kind(),
                                  .handlers = ForAll(handler),
                                  .step_ended = finish_.StepEnded()})
                    .value();
  }
  void Launch(const StepContext& context) {
    for (const Owner owner : {Owner::kShard, Owner::kStage}) {
      EXPECT_TRUE(executor_->Launch(owner, context).ok());
    }
  }
  Finish& finish() { return finish_; }
  ToyChunk* chunk(int index) { return &chunks_[index]; }

 private:
  absl::Status Do(const Instruction& instruction, const StepContext& context) {
    ops::Ops& ops = ops_.of(instruction.stream);
    const InstructionId id = instruction.id;
    const int m = id.microbatch();
    ToyChunk& chunk = chunks_[id.chunk() == InstructionId::kNoChunk ? 0 : id.chunk() / 2];
    switch (instruction.kind()) {
      case OpKind::kReceiveActivation:
        return wire_.Receive(instruction.channel, &chunk.inputs[m]);
      case OpKind::kReceiveGradient:
        return wire_.Receive(instruction.channel, &chunk.d_outputs[m]);
      case OpKind::kSendActivation:
        wire_.Send(instruction.channel, chunk.outputs[m]);
        break;
      case OpKind::kSendGradient:
        wire_.Send(instruction.channel, chunk.d_inputs[m]);
        break;
      case OpKind::kForward:
        if (id.chunk() == 0) chunk.inputs[m] = BatchOf(context.step, m);
        chunk.Forward(ops, m);
        if (id.chunk() == kChunks - 1) chunk.d_outputs[m] = chunk.outputs[m];
        break;
      case OpKind::kBackward:
        chunk.Backward(ops, m);
        break;
      case OpKind::kOptimizerStep:
        chunk.Step(ops, context.step);
        break;
      default:  // one replica has nothing to reduce or to gather
        break;
    }
    return absl::OkStatus();
  }

  const RankPlan plan_;
  Wire& wire_;
  std::vector<ToyChunk> chunks_;  // chunk `rank`, then chunk `rank + 2`
  Streams streams_;
  OpsByStream ops_;
  Finish finish_;
  std::unique_ptr<Executor> executor_;
};

std::vector<std::vector<uint32_t>> TrainWith(const std::vector<RankPlan>& plans) {
  Wire wire;
  ToyRank first(plans[0], wire);
  ToyRank second(plans[1], wire);
  for (int step = 1; step <= kSteps; ++step) {
    for (ToyRank* rank : {&first, &second}) rank->Launch({.attempt = 1, .step = step});
    for (ToyRank* rank : {&first, &second}) rank->finish().Await(step);
  }
  EXPECT_TRUE(first.finish().last_error().ok()) << first.finish().last_error();
  EXPECT_TRUE(second.finish().last_error().ok()) << second.finish().last_error();
  return WeightsOf({first.chunk(0), second.chunk(0), first.chunk(1), second.chunk(1)});
}

TEST(HandPlan, TwoChunksPerRankTrainToTheBitsOfPlainLoopsInBothOrders) {
  const auto expected = TrainInLoops();
  for (const auto& passes : {ByChunk(), ByMicrobatch()}) {
    const std::vector<RankPlan> plans = PlansOf(passes);
    ASSERT_EQ(ValidatePlans(plans), absl::OkStatus());
    EXPECT_EQ(TrainWith(plans), expected);
  }
}

TEST(HandPlan, IndependentInstructionsInReverseOrderGiveTheSameBits) {
  std::vector<RankPlan> plans = PlansOf(ByMicrobatch());
  for (RankPlan& plan : plans) {
    // The shard's instructions first; transfers and passes of each stream keep their order.
    std::vector<int> order(plan.instructions.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return plan.instructions[a].stream > plan.instructions[b].stream;
    });
    plan = Permuted(plan, order);
  }
  ASSERT_EQ(ValidatePlans(plans), absl::OkStatus());
  EXPECT_EQ(TrainWith(plans), TrainInLoops());
}

std::string Refusal(const std::vector<RankPlan>& plans) {
  const absl::Status status = ValidatePlans(plans);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

Instruction& At(RankPlan& plan, const std::string& id) {
  for (Instruction& instruction : plan.instructions) {
    if (instruction.id.ToString() == id) return instruction;
  }
  ADD_FAILURE() << id << " is not in the plan";
  return plan.instructions[0];
}

TEST(HandPlan, IllegalOnesAreRefusedByTheInstructionsName) {
  const std::vector<RankPlan> good = PlansOf(ByMicrobatch());

  std::vector<RankPlan> plans = good;  // a receive without its send
  At(plans[0], "SA.c2.m1").channel = "activation.9";
  EXPECT_THAT(Refusal(plans), HasSubstr("has no"));
  EXPECT_THAT(Refusal(plans), AnyOf(HasSubstr("RA.c3.m1"), HasSubstr("SA.c2.m1")));

  plans = good;  // used before it is made
  At(plans[1], "F.c3.m0").depends_on.pop_back();
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: F.c3.m0 uses what RA.c3.m0 makes"));

  plans = good;  // sent before it is made
  At(plans[1], "SG.c1.m1").depends_on.clear();
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: SG.c1.m1 uses what B.c1.m1 makes"));

  plans = good;  // a cycle
  const auto last = static_cast<int>(plans[0].instructions.size()) - 1;
  At(plans[0], "F.c0.m0").depends_on.push_back(last);
  EXPECT_THAT(Refusal(plans), AllOf(HasSubstr("cycle"), HasSubstr("F.c0.m0")));

  plans = good;  // a dependency that does not exist
  At(plans[1], "B.c1.m0").depends_on.push_back(last + 1000);
  EXPECT_THAT(Refusal(plans), HasSubstr("rank 1: B.c1.m0 depends on instruction"));
}

TEST(HandPlan, OrdersThatWaitForEachOtherAcrossRanksAreRefusedByName) {
  std::vector<std::vector<Pass>> passes = ByMicrobatch();
  // Rank 1 goes back through chunk 3 with both micro-batches before it goes back through chunk 1;
  // rank 0 takes the gradients in another order.
  passes[0] = {{kF, 0, 0}, {kF, 2, 0}, {kF, 0, 1}, {kF, 2, 1},
               {kB, 2, 0}, {kB, 0, 0}, {kB, 2, 1}, {kB, 0, 1}};
  passes[1] = {{kF, 1, 0}, {kF, 3, 0}, {kB, 3, 0}, {kF, 1, 1},
               {kF, 3, 1}, {kB, 3, 1}, {kB, 1, 0}, {kB, 1, 1}};
  EXPECT_THAT(Refusal(PlansOf(passes)),
              AllOf(HasSubstr("a deadlock: "), HasSubstr("SG.c3.m1"), HasSubstr("RG.c0.m0")));
}

}  // namespace
}  // namespace megascale::plan
