// nodes and spares: the machines with their pools, and which of them wait to replace others.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "cli/view/gpu_summary.h"
#include "controlplane/driver/exchanges/exchanges.h"
#include "runtime/base/process/resource_limit.h"

namespace megascale::cli {
namespace {

struct NodesFlags {
  ConnectionFlags connection;
  std::vector<std::string> add;
  std::vector<std::string> remove;
  std::string format = "text";
};

std::string PoolName(control::v1::Pool pool) {
  switch (pool) {
    case control::v1::POOL_SPARE:
      return "spare";
    case control::v1::POOL_QUARANTINED:
      return "quarantined";
    default:
      return "active";
  }
}

// Says since when and why a node is quarantined, or who waits to be named.
std::string Evidence(const control::v1::NodeView& node) {
  if (!node.has_quarantined_at()) {
    if (!node.unnamed()) return "";
    return absl::StrCat(node.certificate().empty()
                            ? std::string("no certificate")
                            : absl::StrCat("certificate '", node.certificate(), "'"),
                        node.address().empty() ? "" : absl::StrCat(" at ", node.address()),
                        "; `megascale uncordon ", node.node_id(), "` names it");
  }
  const absl::Time since = absl::FromUnixSeconds(node.quarantined_at().seconds());
  return absl::StrCat("since ", absl::FormatTime("%Y-%m-%d %H:%M", since, absl::LocalTimeZone()),
                      ": ", node.quarantine_evidence());
}

// Says how the newest test of the machine went.
std::string TestText(const agent::v1::MachineTest& test) {
  switch (test.state()) {
    case agent::v1::MachineTest::STATE_RUNNING:
      return "is tested";
    case agent::v1::MachineTest::STATE_PASSED:
      return test.kind() == agent::v1::TEST_KIND_FULL ? "passed" : "passed (quick)";
    case agent::v1::MachineTest::STATE_FAILED:
      return "failed";
    default:
      return "-";
  }
}

// Says how its exchange with many machines at once went: "8 at once 1.1 GiB/s".
std::string RoundText(const control::v1::ExchangeResult& round) {
  const std::string name = absl::StrCat(round.node_ids_size() + 1, " at once ");
  switch (driver::Judge(round)) {
    case driver::ExchangeVerdict::kPassed:
      return absl::StrCat(name, driver::RateText(round.bytes_per_second()));
    case driver::ExchangeVerdict::kFailed:
      return absl::StrCat(name, round.failure().empty() ? "slow" : "failed");
    default:
      return absl::StrCat(name, "not tested");
  }
}

// Says how its exchanges with other machines went: "2 passed, at most 1.2 GiB/s, 8 at once 1.1
// GiB/s".
std::string ExchangeText(const control::v1::NodeView& node) {
  if (!node.exchanges_with().empty()) return absl::StrCat("with ", node.exchanges_with());
  int num_passed = 0;
  int num_failed = 0;
  double best = 0;
  for (const control::v1::ExchangeResult& result : node.exchanges()) {
    const driver::ExchangeVerdict verdict = driver::Judge(result);
    num_passed += verdict == driver::ExchangeVerdict::kPassed ? 1 : 0;
    num_failed += verdict == driver::ExchangeVerdict::kFailed ? 1 : 0;
    best = std::max(best, result.bytes_per_second());
  }
  std::vector<std::string> words;
  if (num_passed > 0) words.push_back(absl::StrCat(num_passed, " passed"));
  if (num_failed > 0) words.push_back(absl::StrCat(num_failed, " failed"));
  if (words.empty()) return "-";
  if (best > 0) words.push_back(absl::StrCat("at most ", driver::RateText(best)));
  if (node.has_exchange_round()) words.push_back(RoundText(node.exchange_round()));
  return absl::StrJoin(words, ", ");
}

GpuSummary GpusOf(const control::v1::NodeView& node) {
  std::vector<const telemetry::v1::GpuSample*> gpus;
  for (const telemetry::v1::GpuSample& gpu : node.gpus()) gpus.push_back(&gpu);
  return SummaryOf(gpus);
}

// A cluster without GPUs has no columns for them, and one without evidence none for that.
void PrintNodes(const control::v1::GetClusterResponse& cluster, const ConnectionFlags& flags) {
  const bool has_gpus =
      std::any_of(cluster.nodes().begin(), cluster.nodes().end(),
                  [](const control::v1::NodeView& node) { return !node.gpus().empty(); });
  const bool has_evidence =
      std::any_of(cluster.nodes().begin(), cluster.nodes().end(),
                  [](const control::v1::NodeView& node) { return !Evidence(node).empty(); });
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](std::vector<std::string> row, const std::vector<std::string>& of_gpus,
                       const std::string& evidence) {
    if (has_gpus) row.insert(row.end(), of_gpus.begin(), of_gpus.end());
    if (has_evidence) row.push_back(evidence);
    rows.push_back(std::move(row));
  };
  add({"NODE", "POOL", "STATE", "SLOTS", "USED", "TEST", "EXCHANGES"}, GpuColumns(), "EVIDENCE");
  for (const control::v1::NodeView& node : cluster.nodes()) {
    add({node.node_id(), PoolName(node.pool()), NodeStateText(node), absl::StrCat(node.num_slots()),
         absl::StrCat(node.num_slots_used()), TestText(node.machine_test()), ExchangeText(node)},
        GpuCells(GpusOf(node)), CompleteCommands(Evidence(node), flags));
  }
  std::printf("%s", FitTable(std::move(rows), OutputWidth(), LongText::kWrapped).c_str());
}

int ShowNodes(const NodesFlags& flags, bool only_spares) {
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  auto cluster = (*client)->Cluster();
  if (!cluster.ok()) return ReportCallError(cluster.status(), flags.connection);
  control::v1::GetClusterResponse shown;
  shown.set_version(cluster->version());
  shown.set_exchange_rate_min(cluster->exchange_rate_min());
  for (control::v1::NodeView& node : *cluster->mutable_nodes()) {
    if (!only_spares || node.pool() == control::v1::POOL_SPARE) {
      *shown.add_nodes() = std::move(node);
    }
  }
  if (flags.format == "json") {
    PrintJson(shown, JsonLayout::kPretty);
  } else {
    PrintNodes(shown, flags.connection);
  }
  return kExitGood;
}

absl::Status SetSpares(client::JobClient* client, const NodesFlags& flags) {
  for (const bool spare : {true, false}) {
    for (const std::string& node_id : spare ? flags.add : flags.remove) {
      control::v1::SetSpareRequest request;
      request.set_node_id(node_id);
      request.set_spare(spare);
      if (const auto node = client->SetSpare(request); !node.ok()) return node.status();
    }
  }
  return absl::OkStatus();
}

int ChangeSpares(const NodesFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  if (const absl::Status changed = SetSpares(client->get(), flags); !changed.ok()) {
    return ReportCallError(changed, flags.connection);
  }
  return ShowNodes(flags, /*only_spares=*/true);
}

}  // namespace

void AddNodesCommand(CommandLine* line) {
  auto flags = std::make_shared<NodesFlags>();
  Command* command =
      line->Add("nodes", "lists the machines: active, spare or quarantined, and why");
  AddOutputOption(command, &flags->format);
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "An active machine gets ranks of any job. A spare gets them only when a recovering job finds "
      "no other slots, and stays a spare. A quarantined one is at fault and gets none, "
      "until `megascale uncordon`. With a driver's `--join known` a new machine waits to be named, "
      "also with `megascale uncordon`: EVIDENCE shows its certificate and address. Where machines "
      "have GPUs, columns show them as they were a few seconds ago; with -o json each GPU is "
      "there.");
  command->Examples("megascale nodes\nmegascale nodes -o json");
  command->Runs([flags] {
    if (!CheckOutputFormat(flags->format)) return static_cast<int>(kExitUsage);
    return ShowNodes(*flags, /*only_spares=*/false);
  });
}

void AddSparesCommand(CommandLine* line) {
  auto flags = std::make_shared<NodesFlags>();
  Command* command = line->Add("spares", "lists the spare machines, and adds or removes some");
  command->Repeated("--add", &flags->add, "makes this node a spare; ranks that run there stay");
  command->Repeated("--remove", &flags->remove, "makes this node active again");
  AddOutputOption(command, &flags->format);
  AddConnectionOptions(command, &flags->connection);
  command->Examples(
      "megascale spares\n"
      "megascale spares --add n6 --add n7\n"
      "megascale spares --remove n7");
  command->Runs([flags] { return ChangeSpares(*flags); });
}

}  // namespace megascale::cli
