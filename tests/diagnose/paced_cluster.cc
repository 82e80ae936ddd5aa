#include "tests/diagnose/paced_cluster.h"

#include "absl/strings/str_cat.h"

namespace megascale::injection {
namespace {

constexpr double kQuotaPercent = 50;  // of a core, for each machine
constexpr double kCutPercent = 3;
constexpr double kLinkMbit = 100;
constexpr double kTrafficMbit = 130;
constexpr double kCopySecondsPerByte = 1e-4;
constexpr double kReadSeconds = 0.1;

}  // namespace

void PacedCluster::Start(int slots, const std::vector<std::string>& fields) {
  slots_ = slots;
  cluster_.UseProgram(e2e::Runfile("tests/diagnose/paced_program"));
  cluster_.StartDriver();
  for (int i = 0; i < kMachines; ++i) {
    machines_.LimitLink(i, kLinkMbit);
    cluster_.RunAgentsUnder(machines_.Prefix(i));
    cluster_.SetAgentFlags({"--interface", machines_.Address(i)});
    cluster_.StartAgent(i, slots);
  }
  cluster_.Submit("job", fields);
}

void PacedCluster::LimitCores() {
  for (int i = 0; i < kMachines; ++i) machines_.LimitCores(i, kQuotaPercent);
}

bool PacedCluster::Strike(Fault fault, int machine, int local_rank, double slow_mbit) {
  const auto set = [&](const char* name, const std::string& text) {
    machines_.SetSwitch(machine, absl::StrCat(name, "-", local_rank), text);
  };
  const auto slow_all = [&](const char* times) {
    for (int rank = 0; rank < slots_; ++rank) {
      machines_.SetSwitch(machine, absl::StrCat("slow-", rank), times);
    }
    return true;
  };
  switch (fault) {
    case Fault::kLinkDown:
      machines_.CutLink(machine);
      return true;
    case Fault::kSlowLink:
      machines_.LimitLink(machine, slow_mbit);
      return true;
    case Fault::kBusyLink:
      machines_.StartTraffic(machine, e2e::Runfile("tests/diagnose/traffic"), kTrafficMbit);
      return true;
    case Fault::kCutQuota:
      machines_.LimitCores(machine, kCutPercent);
      return true;
    case Fault::kBusyMachine:
      machines_.StartLoad(machine, 3);
      return true;
    case Fault::kSlowRank:
      set("slow", "3");
      return true;
    case Fault::kStageAFifth:
      return slow_all("1.2");
    case Fault::kStageTwice:
      return slow_all("2");
    case Fault::kStageTenTimes:
      return slow_all("10");
    case Fault::kLateRank:
      set("late", "0.3 0.1");
      return true;
    case Fault::kSlowSend:
      set("send", "0.1 0.1");
      return true;
    case Fault::kSlowCopy:
      set("copy", absl::StrCat(kCopySecondsPerByte));
      return true;
    case Fault::kSlowStorage:
      machines_.SetSwitch(machine, "slow-storage", absl::StrCat(kReadSeconds));
      return true;
    case Fault::kFullDisk:
      machines_.FillDisk(cluster_.agent_pid(machine), cluster_.checkpoints("job"));
      return true;
    default:
      return false;
  }
}

}  // namespace megascale::injection
