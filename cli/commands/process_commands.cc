// worker, host, machine-test and read-stacks: processes that an agent starts.
#include <memory>
#include <string>

#include "actors/host_main.h"
#include "actors/worker_main.h"
#include "cli/commands/commands.h"
#include "runtime/machine/machine_check.h"
#include "runtime/telemetry/stack/process_stacks.h"

namespace megascale::cli {

void AddProcessCommands(CommandLine* line, const actors::MakeDevice& make_device,
                        const machine::MakeDevices& make_tested_devices) {
  auto link_fd = std::make_shared<int64_t>(-1);
  auto of = std::make_shared<std::string>();  // for the list of processes
  Command* worker = line->Add("worker", "one rank of one attempt; started by an agent");
  worker->Integer("--link-fd", link_fd.get(), "inherited socket to the agent");
  worker->Text("--of", of.get(), "job, attempt and rank: what the list of processes shows");
  worker->Hide();
  worker->Runs([link_fd, of, make_device] {
    return actors::RunWorker(static_cast<int>(*link_fd), make_device);
  });
  Command* host = line->Add("host", "data and storage of one machine; started by an agent");
  host->Integer("--link-fd", link_fd.get(), "inherited socket to the agent");
  host->Text("--of", of.get(), "job and attempt: what the list of processes shows");
  host->Hide();
  host->Runs([link_fd, of, make_device] {
    return actors::RunHost(static_cast<int>(*link_fd), make_device);
  });
  Command* test = line->Add("machine-test", "tests this machine; started by an agent");
  test->Integer("--link-fd", link_fd.get(), "inherited socket to the agent");
  test->Text("--of", of.get(), "which test: what the list of processes shows");
  test->Hide();
  test->Runs([link_fd, make_tested_devices] {
    return machine::RunCheckProcess(static_cast<int>(*link_fd), make_tested_devices);
  });
  Command* stacks = line->Add("read-stacks", "reads what a process executes; started by an agent");
  stacks->Integer("--link-fd", link_fd.get(), "inherited socket to the agent");
  stacks->Text("--of", of.get(), "what the list of processes shows");
  stacks->Hide();
  stacks->Runs([link_fd] { return telemetry::RunStackProcess(static_cast<int>(*link_fd)); });
}

}  // namespace megascale::cli
