#include "tests/bench/paced_step.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/base/status.h"
#include "runtime/comm/testing/test_world.h"
#include "runtime/plan/build/channels.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/execute/testing/test_streams.h"
#include "runtime/plan/plan_options.h"

namespace megascale::bench {
namespace {

using plan::Instruction;

constexpr int64_t kNanosPerSecond = 1'000'000'000;
constexpr size_t kRingBytes = 4096;  // messages are short

int64_t NowNanos() {
  timespec now = {};
  MEGASCALE_CHECK(::clock_gettime(CLOCK_MONOTONIC, &now) == 0);
  return now.tv_sec * kNanosPerSecond + now.tv_nsec;
}

void SleepUntil(int64_t nanos) {
  const timespec until = {.tv_sec = nanos / kNanosPerSecond, .tv_nsec = nanos % kNanosPerSecond};
  int error = EINTR;
  while (error == EINTR) error = ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  MEGASCALE_CHECK(error == 0);
}

std::string NameOf(const plan::Channel& channel, const plan::Mesh& mesh, int rank) {
  return absl::StrCat(mesh.GroupName(channel.group, rank), "/", channel.name);
}

std::vector<plan::Channel> ChannelsOf(const plan::PlanOptions& options) {
  return plan::ChannelsOf(options.mesh, {.chunks_per_stage = options.chunks_per_stage,
                                         .has_trust_ratios = options.has_trust_ratios,
                                         .has_tied_ends = options.has_tied_ends});
}

comm::WorldSpec WorldOf(const plan::PlanOptions& options) {
  const plan::Mesh& mesh = options.mesh;
  comm::WorldSpec world;
  world.placements.assign(static_cast<size_t>(mesh.world_size()), "node");
  for (const plan::Channel& channel : ChannelsOf(options)) {
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      if (mesh.IndexInGroup(channel.group, rank) != 0) continue;
      world.groups.push_back({.name = NameOf(channel, mesh, rank),
                              .ranks = mesh.GroupOf(channel.group, rank).ranks,
                              .ring_bytes = kRingBytes});
    }
  }
  return world;
}

// When a rank began and ended a step, in nanoseconds.
struct Ran {
  int64_t begin = 0;
  int64_t end = 0;
};

// One rank's process.
class PacedRank {
 public:
  PacedRank(const PacedOptions& options, plan::RankPlan plan)
      : options_(options), plan_(std::move(plan)) {}

  // Runs all steps and writes their times, the first step's included.
  absl::Status Run(comm::Fabric& fabric, Ran* steps) {
    // Threads inherit it: the default lets each sleep last 50 us longer.
    MEGASCALE_CHECK(::prctl(PR_SET_TIMERSLACK, 1UL) == 0);
    for (const plan::Channel& channel : ChannelsOf(options_.plan)) {
      ASSIGN_OR_RETURN((communicators_[{channel.group, channel.name}]),
                       fabric.Make(NameOf(channel, plan_.mesh, plan_.rank)));
    }
    plan::Streams streams;
    plan::Finish finish;
    ASSIGN_OR_RETURN(const std::unique_ptr<plan::Executor> executor,
                     plan::Executor::Create({.plan = plan_,
                                             .streams = streams.by_kind(),
                                             .handlers = plan::ForAll(
                                                 [this](const auto& i, auto&) { return Pace(i); }),
                                             .step_ended = finish.StepEnded()}));
    for (int step = 0; step <= options_.num_steps; ++step) {
      steps[step].begin = NowNanos();
      for (const plan::Owner owner : {plan::Owner::kStage, plan::Owner::kShard}) {
        RETURN_IF_ERROR(executor->Launch(owner, {.attempt = 1, .step = step + 1}));
      }
      finish.Await(step + 1);
      RETURN_IF_ERROR(finish.last_error());
      steps[step].end = NowNanos();
    }
    return absl::OkStatus();
  }

 private:
  // The message of a member to the others.
  struct Part {
    double ready = 0;     // nanoseconds of the machine's clock; exact for a hundred days
    double duration = 0;  // as it was stated to this member
  };

  absl::Status Pace(const Instruction& instruction) {
    Part part = {.ready = static_cast<double>(NowNanos()),
                 .duration = static_cast<double>(options_.duration(plan_, instruction))};
    if (instruction.group != plan::GroupKind::kNone) {
      ASSIGN_OR_RETURN(part, Meet(instruction, part));
    }
    SleepUntil(static_cast<int64_t>(part.ready + part.duration));
    return absl::OkStatus();
  }

  // Returns when the last member was ready, and the longest stated time.
  absl::StatusOr<Part> Meet(const Instruction& instruction, Part mine) {
    comm::HostCommunicator& communicator =
        *communicators_.at({instruction.group, instruction.channel});
    const comm::CallInfo info = {.instruction_id = instruction.id.MessageId().packed()};
    std::vector<Part> parts(static_cast<size_t>(communicator.size()));
    if (plan::IsTransfer(instruction.kind())) {
      Part& theirs = parts.front();
      const auto tell = [&] {
        return communicator.Send(instruction.peer,
                                 {reinterpret_cast<const std::byte*>(&mine), sizeof(mine)}, info);
      };
      const auto hear = [&] {
        return communicator.Recv(instruction.peer,
                                 {reinterpret_cast<std::byte*>(&theirs), sizeof(theirs)}, info);
      };
      const bool sends = instruction.id == instruction.id.MessageId();
      RETURN_IF_ERROR(sends ? tell() : hear());
      RETURN_IF_ERROR(sends ? hear() : tell());
    } else {
      RETURN_IF_ERROR(communicator.AllGather(
          tensor::HostVector::OfBytes(absl::MakeSpan(&mine, 1), tensor::DType::kF64),
          tensor::HostVector::OfBytes(absl::MakeSpan(parts), tensor::DType::kF64), info));
    }
    for (const Part& part : parts) {
      mine.ready = std::max(mine.ready, part.ready);
      mine.duration = std::max(mine.duration, part.duration);
    }
    return mine;
  }

  const PacedOptions& options_;
  const plan::RankPlan plan_;
  std::map<std::pair<plan::GroupKind, std::string>, std::unique_ptr<comm::HostCommunicator>>
      communicators_;
};

}  // namespace

absl::StatusOr<std::vector<absl::Duration>> RunPaced(const PacedOptions& options) {
  const int world_size = options.plan.mesh.world_size();
  const auto num_steps = static_cast<size_t>(options.num_steps) + 1;
  std::vector<plan::RankPlan> plans;
  for (int rank = 0; rank < world_size; ++rank) {
    ASSIGN_OR_RETURN(plans.emplace_back(), plan::BuildTrainPlan(options.plan, rank));
  }
  ASSIGN_OR_RETURN(
      const std::unique_ptr<base::SharedMemory> memory,
      base::SharedMemory::Create("paced-steps", plans.size() * num_steps * sizeof(Ran)));
  const auto steps_of = [&](int rank) {
    return reinterpret_cast<Ran*>(memory->data()) + static_cast<size_t>(rank) * num_steps;
  };
  comm::ProcessWorld world(WorldOf(options.plan));
  world.Start([&](comm::Fabric& fabric, comm::RankBoard&, int rank) {
    return PacedRank(options, plans[static_cast<size_t>(rank)]).Run(fabric, steps_of(rank));
  });
  for (int rank = 0; rank < world_size; ++rank) RETURN_IF_ERROR(world.Result(rank));
  std::vector<absl::Duration> durations;
  for (size_t step = 1; step < num_steps; ++step) {
    Ran all = steps_of(0)[step];
    for (int rank = 1; rank < world_size; ++rank) {
      all.begin = std::min(all.begin, steps_of(rank)[step].begin);
      all.end = std::max(all.end, steps_of(rank)[step].end);
    }
    durations.push_back(absl::Nanoseconds(all.end - all.begin));
  }
  return durations;
}

}  // namespace megascale::bench
