#include "tests/diagnose/injection.h"

#include <algorithm>
#include <iterator>
#include <random>

namespace megascale::injection {
namespace {

struct FaultRow {
  Fault fault;
  const char* name;
  int limit_seconds;                // for the right verdict; calm faults: how long it is asked for
  bool is_of_rank;                  // else of the whole machine
  std::vector<std::string> causes;  // that are right; none: nothing may be named
  bool survives = false;            // the job goes on, so that nothing need be named
};

const std::vector<FaultRow>& Rows() {
  static const auto* const rows = new std::vector<FaultRow>{
      {Fault::kStopWorker,
       "stop_worker",
       5,
       true,
       {"stopped_rank", "stuck_in_instruction", "no_trace", "exchange_rank", "stuck_exchange"}},
      {Fault::kLinkDown, "link_down", 5, false, {"link", "machine_link"}},
      {Fault::kCutQuota, "cut_quota", 30, false, {"slow_worker", "slow_machine"}},
      {Fault::kStopHost, "stop_host", 12, false, {"data_wait"}, true},
      {Fault::kSlowLink, "slow_link", 30, false, {"slow_link", "slow_machine_link"}},
      {Fault::kSlowRank, "slow_rank", 30, true, {"slow_worker"}},
      {Fault::kStopAgent, "stop_agent", 5, false, {"silent_machine"}},
      {Fault::kBusyMachine, "busy_machine", 30, false, {"slow_worker", "slow_machine"}},
      {Fault::kBusyLink, "busy_link", 30, false, {"slow_link", "slow_machine_link"}},
      {Fault::kLateRank, "late_rank", 30, true, {"late_rank"}},
      {Fault::kNothing, "nothing", 20, false, {}},
      {Fault::kBusyAlike, "busy_alike", 20, false, {}},
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
bool IsCalm(Fault fault) { return RowOf(fault).causes.empty() || RowOf(fault).survives; }

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
  return injection;
}

Judgement Judge(const Injection& injection, const std::string& node, const Said& said) {
  const FaultRow& row = RowOf(injection.fault);
  const bool names = said.rank >= 0 || !said.node.empty() || said.peer >= 0;
  if (row.causes.empty()) return names ? Judgement::kWrong : Judgement::kRight;
  if (!names) return row.survives ? Judgement::kRight : Judgement::kNotYet;
  const bool is_victim =
      row.is_of_rank ? said.rank == injection.rank : said.node == node || said.peer_node == node;
  if (!is_victim) return Judgement::kWrong;
  const bool is_cause =
      std::find(row.causes.begin(), row.causes.end(), said.cause) != row.causes.end();
  return is_cause ? Judgement::kRight : Judgement::kRightVictim;
}

absl::Duration LimitOf(Fault fault) { return absl::Seconds(RowOf(fault).limit_seconds); }

}  // namespace megascale::injection
