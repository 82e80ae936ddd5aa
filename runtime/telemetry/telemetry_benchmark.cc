// Measures the cost of telemetry: a span, a heartbeat and the state of an exchange in the training
// process, and reading spans and heartbeats in the agent, as shares of a step.
//   bazel run //runtime/telemetry:telemetry_benchmark -- --step-seconds=0.1 --ranks=64
// All times are CPU time of this thread, the best of several rounds. An instruction costs one span
// (begin and end, each with a reading of the clock) and one update of the heartbeat slot (progress
// and the id of the running instruction, at begin and end), as engine::InstructionReporter writes
// them. An exchange costs its begin, its end, and an update for each time that bytes move or the
// rank waits: here kUpdates, towards --peers peers.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "runtime/base/clock.h"
#include "runtime/comm/call_progress.h"
#include "runtime/engine/instruction_reporter.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/exchange_board.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::telemetry {
namespace {

constexpr int kRounds = 7;
constexpr int kWritesPerRound = 200000;
constexpr double kShareMax = 0.005;
// Small messages are moved at once; large ones in some pieces.
constexpr int kUpdates = 8;
// How often an agent drains its rings and reports at most: see the heartbeat interval in
// proto/job.proto. It also does so when a child sends a message, usually once a step.
constexpr double kReportsPerSecond = 1;

struct Flags {
  double step_seconds = 0.1;
  int ranks = 64;  // on one agent
  int stages = 4;
  int microbatches = 8;
  int peers = 7;  // of an exchange
};

// CPU nanoseconds of one call of `body`, called `count` times a round.
template <typename Body>
double NanosPerCall(int count, const Body& body) {
  const auto now = [] {
    timespec time = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
  };
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const double start = now();
    for (int i = 0; i < count; ++i) body(i);
    best = std::min(best, (now() - start) / count);
  }
  return best;
}

int64_t MonotonicNanos() { return absl::ToInt64Nanoseconds(base::RealClock().Monotonic()); }

plan::RankPlan TypicalPlan(const Flags& flags) {
  plan::PlanOptions options;
  options.mesh = plan::Mesh::Create({.data = 2, .pipeline = flags.stages}).value();
  options.num_microbatches = flags.microbatches;
  // A stage that sends and receives in both directions has the most instructions.
  const int rank = options.mesh.RankOf({.data = 0, .pipeline = flags.stages / 2});
  return plan::BuildTrainPlan(options, rank).value();
}

// Returns the nanoseconds of one exchange, from its begin to its end.
double MeasureExchange(int num_peers) {
  const auto region = base::SharedMemory::Create("benchmark-exchanges", ExchangeBytes(1));
  ExchangeWriter writer(region->get(), 0, MonotonicNanos);
  const int channel = writer.Register("data/0");
  std::vector<comm::PeerProgress> peers(static_cast<size_t>(num_peers));
  comm::CallEvent call;
  call.operation = comm::Operation::kReduceScatter;
  call.payload_bytes = 1 << 20;
  return NanosPerCall(kWritesPerRound / kUpdates, [&](int i) {
    call.kind = comm::CallEvent::Kind::kEntered;
    call.sequence = static_cast<uint64_t>(i);
    writer.Begin(channel, call);
    for (int update = 1; update <= kUpdates; ++update) {
      for (int peer = 0; peer < num_peers; ++peer) {
        const int64_t moved = call.payload_bytes / kUpdates * update;
        peers[static_cast<size_t>(peer)] = {peer, 1 << 20, moved, moved, 1 << 20, moved};
      }
      writer.Update(channel, peers);
    }
    call.kind = comm::CallEvent::Kind::kLeft;
    writer.End(channel, call);
  });
}

struct WorkerCost {
  double span_nanos = 0;
  double heartbeat_nanos = 0;    // the slot's share of one instruction
  double alive_nanos = 0;        // one tick of the timer thread
  double instruction_nanos = 0;  // span and slot together
};

WorkerCost MeasureWorker(const plan::RankPlan& plan) {
  const auto heartbeats = base::SharedMemory::Create("benchmark-heartbeats", HeartbeatBytes(1));
  const auto spans = base::SharedMemory::Create("benchmark-spans", SpanBytes(1));
  FormatHeartbeats(**heartbeats);
  HeartbeatWriter heartbeat(heartbeats->get(), 0);
  SpanWriter writer(spans->get(), 0);
  engine::InstructionReporter both(&heartbeat, &writer);
  engine::InstructionReporter slot_only(&heartbeat, nullptr);
  const auto& instructions = plan.instructions;
  const auto run = [&](engine::InstructionReporter& reporter, int i) {
    const plan::Instruction& instruction = instructions[i % instructions.size()];
    const auto now = [] { return base::RealClock().Monotonic(); };
    reporter.Begin(instruction, {.attempt = 1, .step = i}, now());
    reporter.End(instruction, now(), absl::OkStatus());
  };
  WorkerCost cost;
  cost.span_nanos = NanosPerCall(kWritesPerRound, [&](int i) {
    const plan::Instruction& instruction = instructions[i % instructions.size()];
    Span span;
    span.begin_nanos = MonotonicNanos();
    span.instruction = instruction.id.packed();
    span.step = i;
    span.lane = static_cast<uint8_t>(instruction.stream);
    writer.Begin(span);
    writer.End(span.lane, MonotonicNanos(), 0);
  });
  cost.heartbeat_nanos = NanosPerCall(kWritesPerRound, [&](int i) { run(slot_only, i); });
  cost.instruction_nanos = NanosPerCall(kWritesPerRound, [&](int i) { run(both, i); });
  cost.alive_nanos =
      NanosPerCall(kWritesPerRound, [&](int) { heartbeat.Alive(base::RealClock().Monotonic()); });
  return cost;
}

// Returns the CPU nanoseconds to read all slots and drain all rings, with `spans_per_rank` new
// spans in each.
double MeasureAgent(const Flags& flags, const plan::RankPlan& plan, int spans_per_rank) {
  const auto heartbeats =
      base::SharedMemory::Create("benchmark-heartbeats", HeartbeatBytes(flags.ranks));
  const auto spans = base::SharedMemory::Create("benchmark-spans", SpanBytes(flags.ranks));
  FormatHeartbeats(**heartbeats);
  std::vector<SpanWriter> writers;
  std::vector<SpanReader> readers;
  for (int rank = 0; rank < flags.ranks; ++rank) {
    HeartbeatWriter heartbeat(heartbeats->get(), rank);
    heartbeat.Start(rank + 1);
    heartbeat.SetDoing(
        {.activity = v1::ACTIVITY_INSTRUCTION, .instruction = plan.instructions[0].id});
    writers.emplace_back(spans->get(), rank);
    readers.emplace_back(spans->get(), rank);
  }
  std::vector<Span> drained;
  double best = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    for (SpanWriter& writer : writers) {
      for (int i = 0; i < spans_per_rank; ++i) {
        const plan::Instruction& next = plan.instructions[i % plan.instructions.size()];
        writer.Begin({.begin_nanos = i + 1,
                      .instruction = next.id.packed(),
                      .lane = static_cast<uint8_t>(next.stream)});
        writer.End(static_cast<int>(next.stream), i + 2, 0);
      }
    }
    timespec begin = {};
    timespec end = {};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    const absl::Duration now = base::RealClock().Monotonic();
    int64_t lost = 0;
    for (int rank = 0; rank < flags.ranks; ++rank) {
      ReadHeartbeat(**heartbeats, rank, now);
      drained.clear();
      lost += readers[static_cast<size_t>(rank)].Drain(&drained);
    }
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    if (lost > 0) std::printf("  %ld spans were overwritten before they were read\n", lost);
    best = std::min(best, static_cast<double>(end.tv_sec - begin.tv_sec) * 1e9 +
                              static_cast<double>(end.tv_nsec - begin.tv_nsec));
  }
  return best;
}

int Run(const Flags& flags) {
  const plan::RankPlan plan = TypicalPlan(flags);
  const auto spans_per_step = static_cast<int>(plan.instructions.size());
  const WorkerCost worker = MeasureWorker(plan);
  const double alive_per_second = worker.alive_nanos / absl::ToDoubleSeconds(kAliveInterval) * 1e-9;
  const auto exchanges_per_step = static_cast<int>(
      std::count_if(plan.instructions.begin(), plan.instructions.end(),
                    [](const auto& instruction) { return plan::NeedsPeers(instruction.id); }));
  const double exchange_nanos = MeasureExchange(flags.peers);
  const double worker_share =
      (spans_per_step * worker.instruction_nanos + exchanges_per_step * exchange_nanos) * 1e-9 /
          flags.step_seconds +
      alive_per_second;
  const double reports_per_second = std::max(kReportsPerSecond, 1 / flags.step_seconds);
  const auto spans_per_report =
      static_cast<int>(spans_per_step / (flags.step_seconds * reports_per_second));
  const double agent_share =
      MeasureAgent(flags, plan, spans_per_report) * reports_per_second * 1e-9;
  const double per_rank_share = agent_share / flags.ranks;
  std::printf("one span                         %8.1f ns\n", worker.span_nanos);
  std::printf("one instruction's heartbeat      %8.1f ns\n", worker.heartbeat_nanos);
  std::printf("one instruction, both            %8.1f ns\n", worker.instruction_nanos);
  std::printf("one exchange, %d peers            %8.1f ns, %d in a step\n", flags.peers,
              exchange_nanos, exchanges_per_step);
  std::printf("one tick of the timer thread     %8.1f ns, %.0f a second\n", worker.alive_nanos,
              1 / absl::ToDoubleSeconds(kAliveInterval));
  std::printf("instructions of a step           %8d    (stage %d of %d, %d micro-batches)\n",
              spans_per_step, flags.stages / 2, flags.stages, flags.microbatches);
  std::printf("share of a step of %.4g s        %9.4f %% of the rank's thread\n",
              flags.step_seconds, 100 * worker_share);
  std::printf("agent, %d ranks, %.4g reads/s     %9.4f %% of one core, %.4f %% per rank\n",
              flags.ranks, reports_per_second, 100 * agent_share, 100 * per_rank_share);
  const double sum = worker_share + per_rank_share;
  std::printf("sum per rank                     %9.4f %%, limit %.1f %%: %s\n", 100 * sum,
              100 * kShareMax, sum < kShareMax ? "kept" : "EXCEEDED");
  return sum < kShareMax ? 0 : 1;
}

bool Parse(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    const auto integer = [&](absl::string_view name, int* value) {
      return absl::ConsumePrefix(&argument, name) && absl::SimpleAtoi(argument, value) &&
             *value > 0;
    };
    if (integer("--ranks=", &flags->ranks) || integer("--stages=", &flags->stages) ||
        integer("--microbatches=", &flags->microbatches) || integer("--peers=", &flags->peers)) {
      continue;
    }
    if (absl::ConsumePrefix(&argument, "--step-seconds=") &&
        absl::SimpleAtod(argument, &flags->step_seconds) && flags->step_seconds > 0) {
      continue;
    }
    std::fprintf(stderr,
                 "unknown or bad flag %s; there are --step-seconds=0.1 --ranks=64 --stages=4 "
                 "--microbatches=8 --peers=7\n",
                 argv[i]);
    return false;
  }
  return true;
}

}  // namespace
}  // namespace megascale::telemetry

// Returns the exit status: 0 below the limit, 1 above it, 2 for bad flags.
int main(int argc, char** argv) {
  megascale::telemetry::Flags flags;
  if (!megascale::telemetry::Parse(argc, argv, &flags)) return 2;
  return megascale::telemetry::Run(flags);
}
