// evict and uncordon: free a node of ranks by hand, and let it take ranks again. The names are
// those of Kubernetes: the driver evicts jobs, and `uncordon` ends that. (Slurm's word, "resume",
// is what jobs do here.)
#include <cstdio>
#include <memory>
#include <string>

#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"

namespace megascale::cli {
namespace {

struct NodeFlags {
  ConnectionFlags connection;
  std::string node_id;
  std::string reason;
  std::string format = "text";
};

int Show(const absl::StatusOr<control::v1::NodeView>& node, const NodeFlags& flags) {
  if (!node.ok()) return ReportCallError(node.status(), flags.connection);
  if (flags.format == "json") {
    PrintJson(*node, JsonLayout::kPretty);
  } else {
    std::printf("%s  %s, %d of %d slots used\n", node->node_id().c_str(),
                NodeStateText(*node).c_str(), node->num_slots_used(), node->num_slots());
  }
  return kExitGood;
}

int Evict(const NodeFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  control::v1::EvictNodeRequest request;
  request.set_node_id(flags.node_id);
  request.set_reason(flags.reason);
  return Show((*client)->Evict(request), flags);
}

int Uncordon(const NodeFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  return Show((*client)->Uncordon(flags.node_id), flags);
}

}  // namespace

void AddEvictCommand(CommandLine* line) {
  auto flags = std::make_shared<NodeFlags>();
  Command* command = line->Add(
      "evict", "frees a node: its jobs make a checkpoint, leave and are placed again elsewhere");
  command->Positional("NODE", &flags->node_id, "the node's id, as `megascale status` shows it");
  command->Text("--reason", &flags->reason, "one line for people, shown with the node");
  AddOutputOption(command, &flags->format);
  AddConnectionOptions(command, &flags->connection);
  command->Examples(
      "megascale evict n3 --reason memory-errors\n"
      "megascale status\n"
      "megascale uncordon n3");
  command->Runs([flags] { return Evict(*flags); });
}

void AddUncordonCommand(CommandLine* line) {
  auto flags = std::make_shared<NodeFlags>();
  Command* command = line->Add(
      "uncordon", "ends an eviction or a quarantine, or names a new node: the node may get ranks");
  command->Positional("NODE", &flags->node_id, "the node's id, as `megascale status` shows it");
  AddOutputOption(command, &flags->format);
  AddConnectionOptions(command, &flags->connection);
  command->Examples("megascale uncordon n3");
  command->Runs([flags] { return Uncordon(*flags); });
}

}  // namespace megascale::cli
