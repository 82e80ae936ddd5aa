#include "controlplane/nodes/slurm/slurm_source.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status.h"

namespace megascale::nodes {
namespace {

void ApplyNode(const SlurmNode& node, Machine* machine) {
  const std::string why = absl::StrCat(node.state, node.reason.empty() ? "" : ": ", node.reason);
  if (node.state == "draining" || node.state == "drained" || node.state == "failing") {
    machine->state = MachineState::kLeaving;
    machine->why = why;
  } else if (node.state == "down" || node.state == "fail") {
    machine->state = MachineState::kGone;
    machine->why = why;
  }
}

}  // namespace

std::string MachineJobName(const std::string& launch_name) {
  return absl::StrCat(launch_name, "-machine");
}

absl::Status SlurmSource::AddMachines(const SlurmJob& job, std::vector<Machine>* machines) {
  const bool is_first = job.id == launch_.job_id;
  Machine machine;
  machine.handle = job.id;
  machine.returnable = !is_first;
  if (!is_first) machine.request = job.comment;
  if (job.state == "PD") {
    machine.why = job.reason;
    machines->push_back(std::move(machine));
    return absl::OkStatus();
  }
  if (job.state == "CG") return absl::OkStatus();  // its agents have been ended
  machine.state = job.state == "CF" ? MachineState::kStarting : MachineState::kPresent;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, slurm_->NamesIn(job.node_list));
  for (const std::string& name : names) {
    machine.node_id = name;
    machines->push_back(machine);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Machine>> SlurmSource::Observe() {
  const std::string machine_name = MachineJobName(launch_.name);
  ASSIGN_OR_RETURN(const std::vector<SlurmJob> jobs, slurm_->Jobs({launch_.name, machine_name}));
  std::vector<Machine> machines;
  std::vector<std::string> lists;
  for (const SlurmJob& job : jobs) {
    if (job.id == launch_.job_id) {
      time_left_ = job.time_left;
      node_list_ = job.node_list;
    } else if (job.name != machine_name) {
      continue;  // the successor
    }
    RETURN_IF_ERROR(AddMachines(job, &machines));
    if (job.state != "PD" && !job.node_list.empty()) lists.push_back(job.node_list);
  }
  ASSIGN_OR_RETURN(const auto nodes, slurm_->Nodes(absl::StrJoin(lists, ",")));
  for (Machine& machine : machines) {
    const auto node = nodes.find(machine.node_id);
    if (node != nodes.end()) ApplyNode(node->second, &machine);
  }
  return machines;
}

absl::Status SlurmSource::Ask(const Request& request) {
  const std::string name = MachineJobName(launch_.name);
  ASSIGN_OR_RETURN(const std::vector<SlurmJob> jobs, slurm_->Jobs({name}));
  for (const SlurmJob& job : jobs) {
    if (job.comment == request.id) return absl::OkStatus();
  }
  std::vector<std::string> options = launch_.options;
  options.insert(options.end(), {"--nodes=1", "--ntasks=1", absl::StrCat("--job-name=", name),
                                 absl::StrCat("--comment=", request.id),
                                 absl::StrCat("--output=", launch_.log), "--no-requeue"});
  if (!request.exclude.empty()) {
    options.push_back(absl::StrCat("--exclude=", absl::StrJoin(request.exclude, ",")));
  }
  return slurm_->Submit(options, launch_.machine_script).status();
}

absl::Status SlurmSource::GiveBack(const Machine& machine) {
  return slurm_->Cancel(machine.handle, machine.state == MachineState::kAsked);
}

absl::Status SlurmSource::EndMachines(bool terminate) {
  ASSIGN_OR_RETURN(const std::vector<SlurmJob> jobs, slurm_->Jobs({MachineJobName(launch_.name)}));
  absl::Status worst;
  for (const SlurmJob& job : jobs) {
    const absl::Status ended = terminate && job.state != "PD"
                                   ? slurm_->Terminate(job.id, /*batch=*/true)
                                   : slurm_->Cancel(job.id, /*pending_only=*/false);
    if (!ended.ok()) worst = ended;
  }
  return worst;
}

}  // namespace megascale::nodes
