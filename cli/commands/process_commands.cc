// worker and host: processes that an agent starts.
#include <memory>

#include "actors/host_main.h"
#include "actors/worker_main.h"
#include "cli/commands.h"

namespace megascale::cli {

void AddProcessCommands(CommandLine* line) {
  auto link_fd = std::make_shared<int64_t>(-1);
  Command* worker = line->Add("worker", "one rank of one attempt; started by an agent");
  worker->Integer("--link-fd", link_fd.get(), "inherited socket to the agent");
  worker->Hide();
  worker->Runs([link_fd] { return actors::RunWorker(static_cast<int>(*link_fd)); });
  Command* host = line->Add("host", "data and storage of one machine; started by an agent");
  host->Integer("--link-fd", link_fd.get(), "inherited socket to the agent");
  host->Hide();
  host->Runs([link_fd] { return actors::RunHost(static_cast<int>(*link_fd)); });
}

}  // namespace megascale::cli
