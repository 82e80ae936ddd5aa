#include "tests/diagnose/injection.h"

#include <algorithm>
#include <map>
#include <random>

#include "runtime/base/check.h"

namespace megascale::injection {
namespace {

enum class Victim {
  kNobody,  // nothing may be named
  kRank,
  kMachine,
  kDriver,  // no rank and no machine may be named
};

struct FaultRow {
  Fault fault;
  const char* name;
  int limit_seconds;  // for the right verdict; calm faults: how long it is asked for
  Victim victim;
  std::vector<std::string> causes;  // that are right
  bool survives = false;            // the job goes on, so that nothing need be named
};

const std::vector<FaultRow>& Rows() {
  static const auto* const rows = new std::vector<FaultRow>{
      {Fault::kStopWorker,
       "stop_worker",
       5,
       Victim::kRank,
       {"stopped_rank", "stuck_in_instruction", "no_trace", "exchange_rank", "stuck_exchange"}},
      {Fault::kLinkDown, "link_down", 5, Victim::kMachine, {"link", "machine_link"}},
      {Fault::kCutQuota, "cut_quota", 30, Victim::kMachine, {"slow_worker", "slow_machine"}},
      {Fault::kStopHost, "stop_host", 12, Victim::kMachine, {"data_wait"}, true},
      {Fault::kSlowLink, "slow_link", 30, Victim::kMachine, {"slow_link", "slow_machine_link"}},
      {Fault::kSlowRank, "slow_rank", 30, Victim::kRank, {"slow_worker"}},
      {Fault::kStopAgent, "stop_agent", 5, Victim::kMachine, {"silent_machine"}},
      {Fault::kBusyMachine, "busy_machine", 30, Victim::kMachine, {"slow_worker", "slow_machine"}},
      {Fault::kBusyLink, "busy_link", 30, Victim::kMachine, {"slow_link", "slow_machine_link"}},
      {Fault::kLateRank, "late_rank", 30, Victim::kRank, {"late_rank"}},
      {Fault::kNothing, "nothing", 20, Victim::kNobody, {}},
      {Fault::kBusyAlike, "busy_alike", 20, Victim::kNobody, {}},
      {Fault::kSlowCopy, "slow_copy", 30, Victim::kRank, {"slow_worker"}},
      {Fault::kFullDisk, "full_disk", 30, Victim::kMachine, {"storage"}},
      {Fault::kSlowStorage, "slow_storage", 30, Victim::kMachine, {"data_wait"}},
      {Fault::kStopKeeper, "stop_keeper", 12, Victim::kMachine, {"silent_keeper"}},
      {Fault::kStopDriver, "stop_driver", 30, Victim::kDriver, {"silent_driver"}},
      {Fault::kSlowSend,
       "slow_send",
       30,
       Victim::kMachine,
       {"slow_link", "slow_machine_link", "late_rank"}},
      {Fault::kStageAFifth, "stage_1.2x", 20, Victim::kMachine, {"slow_machine"}, true},
      {Fault::kStageTwice, "stage_2x", 30, Victim::kMachine, {"slow_machine"}},
      {Fault::kStageTenTimes, "stage_10x", 60, Victim::kMachine, {"slow_machine"}},
  };
  return *rows;
}

const FaultRow& RowOf(Fault fault) {
  const auto& rows = Rows();
  return *std::find_if(rows.begin(), rows.end(),
                       [&](const auto& row) { return row.fault == fault; });
}

}  // namespace

std::string Name(Fault fault) { return RowOf(fault).name; }

bool IsFault(const std::string& name) {
  const auto& rows = Rows();
  return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.name == name; });
}

Fault FaultNamed(const std::string& name) {
  const auto& rows = Rows();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return each.name == name; });
  MEGASCALE_CHECK_MSG(row != rows.end(), name);
  return row->fault;
}

bool HasVictim(Fault fault) { return RowOf(fault).victim != Victim::kNobody; }
bool MustBeNamed(Fault fault) { return HasVictim(fault) && !RowOf(fault).survives; }

bool LoadsMachine(Fault fault) {
  return !HasVictim(fault) || fault == Fault::kBusyMachine || fault == Fault::kBusyLink ||
         fault == Fault::kCutQuota;
}

const std::vector<Layout>& Layouts() {
  static const auto* const layouts = new std::vector<Layout>{
      {"data 4 x pipeline 2",
       {"parallel.data_parallel_size=4", "parallel.pipeline_model_parallel_size=2",
        "train.global_batch_size=32"},
       4},
      {"data 2 x pipeline 4",
       {"parallel.data_parallel_size=2", "parallel.pipeline_model_parallel_size=4",
        "train.global_batch_size=16"},
       1},
      {"tensor 2 x data 2 x pipeline 2",
       {"parallel.tensor_model_parallel_size=2", "parallel.data_parallel_size=2",
        "parallel.pipeline_model_parallel_size=2", "train.global_batch_size=16"},
       4},
  };
  return *layouts;
}

namespace {

constexpr int kLayoutOfStages = 1;  // each stage is on a machine of its own

bool IsOfAStage(Fault fault) {
  return fault == Fault::kStageAFifth || fault == Fault::kStageTwice ||
         fault == Fault::kStageTenTimes;
}

}  // namespace

Injection Draw(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](uint64_t count) { return static_cast<int>(random() % count); };
  Injection injection;
  injection.seed = seed;
  injection.fault = Rows()[seed % kNumFaults].fault;
  injection.layout = static_cast<int>(seed / kNumFaults % Layouts().size());
  injection.rank = pick(8);
  injection.step = 30 + pick(20);
  injection.delay = absl::Milliseconds(pick(1000));
  // In each layout, ranks 0, 1, 6 and 7 are of the first or the last stage.
  if (injection.fault == Fault::kSlowStorage || injection.fault == Fault::kSlowCopy) {
    injection.rank = injection.rank % 2 + (injection.rank < 4 ? 0 : 6);
  }
  if (IsOfAStage(injection.fault)) injection.layout = kLayoutOfStages;
  return injection;
}

std::vector<uint64_t> SoakSeeds(const SoakSize& size) {
  std::map<Fault, int> num_of;  // of each fault of which none need be named
  int num_named = 0;
  std::vector<uint64_t> seeds;
  // Every kNumFaults seeds contain each fault once.
  const int rounds = size.num_named + size.num_survived + size.num_calm;
  const uint64_t end = static_cast<uint64_t>(rounds) * kNumFaults;
  for (uint64_t seed = 0; seed < end; ++seed) {
    const Fault fault = Draw(seed).fault;
    const bool must_be_named = MustBeNamed(fault);
    int& num_taken = must_be_named ? num_named : num_of[fault];
    const int wanted = must_be_named      ? size.num_named
                       : HasVictim(fault) ? size.num_survived
                                          : size.num_calm;
    if (num_taken >= wanted) continue;
    ++num_taken;
    seeds.push_back(seed);
  }
  return seeds;
}

bool BlamesThePlan(const Said& said) { return said.cause == "unequal_stages"; }

Judgement Judge(const Injection& injection, const std::string& node, const Said& said) {
  if (BlamesThePlan(said)) return Judgement::kWrong;
  const FaultRow& row = RowOf(injection.fault);
  const bool names = said.rank >= 0 || !said.node.empty() || said.peer >= 0;
  const bool is_cause =
      std::find(row.causes.begin(), row.causes.end(), said.cause) != row.causes.end();
  switch (row.victim) {
    case Victim::kNobody:
      return names ? Judgement::kWrong : Judgement::kRight;
    case Victim::kDriver:
      if (names) return Judgement::kWrong;
      return is_cause ? Judgement::kRight : Judgement::kNotYet;
    case Victim::kRank:
    case Victim::kMachine:
      break;
  }
  if (!names) return row.survives ? Judgement::kRight : Judgement::kNotYet;
  const bool is_victim = row.victim == Victim::kRank ? said.rank == injection.rank
                                                     : said.node == node || said.peer_node == node;
  if (!is_victim) return Judgement::kWrong;
  return is_cause ? Judgement::kRight : Judgement::kRightVictim;
}

absl::Duration LimitOf(Fault fault) { return absl::Seconds(RowOf(fault).limit_seconds); }

}  // namespace megascale::injection
