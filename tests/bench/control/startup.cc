#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "controlplane/address/address.h"
#include "controlplane/client/job_client.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/redis/testing/test_redis_server.h"
#include "tests/bench/control/benchmarks.h"
#include "tests/bench/control/fleet.h"
#include "tests/bench/control/measures.h"
#include "tests/bench/control/rendezvous.h"
#include "tests/e2e/cluster.h"

namespace megascale::bench {
namespace {

constexpr int kWaitSeconds = 300;
constexpr double kMebibyte = 1 << 20;

struct Times {
  double seconds = 0;  // from the first call of a rank until the last one has all addresses
  double server_cpu = 0;
  double clients_cpu = 0;
  double server_bytes = 0;  // resident, afterwards
};

// Measures from its construction on.
class Watch {
 public:
  explicit Watch(pid_t server) : server_(server), server_before_(UseOf(server)) {}
  Times Read() const {
    const ProcessUse server = UseOf(server_);
    return {.seconds = Now() - begin_,
            .server_cpu = absl::ToDoubleSeconds(server.cpu - server_before_.cpu),
            .clients_cpu = absl::ToDoubleSeconds(UseOf(::getpid()).cpu - clients_before_.cpu),
            .server_bytes = static_cast<double>(server.memory_bytes)};
  }

 private:
  const pid_t server_;
  const ProcessUse server_before_;
  const ProcessUse clients_before_ = UseOf(::getpid());
  const double begin_ = Now();
};

control::v1::SubmitJobRequest JobOf(const StartMesh& mesh) {
  control::v1::SubmitJobRequest request = JobForFleet(mesh.data_size(), mesh.pipeline_size());
  auto* spec = request.mutable_spec();
  spec->mutable_model()->set_num_hidden_layers(8);
  spec->mutable_model()->set_num_attention_heads(8);
  spec->mutable_parallel()->set_tensor_model_parallel_size(kRanksOfAMachine);
  return request;
}

// Returns the place in the mesh of the machine that runs these ranks of the job.
int MachineOf(const agent::v1::DesiredJob& job, const std::string& node_id) {
  for (const auto& placement : job.placements()) {
    if (placement.node_id() == node_id) return placement.rank() / kRanksOfAMachine;
  }
  std::cerr << "node " << node_id << " runs no rank of the job\n";
  std::_Exit(1);
}

// Agents with one gRPC stream each to a real driver, whose ranks meet when all machines have their
// part of the job.
Times ThroughDriver(const StartMesh& mesh) {
  e2e::Cluster cluster;
  cluster.StartDriver();
  client::ClientOptions options;
  options.address = client::ParseAddress(cluster.address()).value();
  const auto client = client::JobClient::Create(options).value();
  Gate gate(mesh.num_machines());
  std::atomic<int> num_done = 0;
  // An agent's messages come one after the other; different agents do not share an element.
  std::vector<std::unique_ptr<RendezvousMachine>> machines(
      static_cast<size_t>(mesh.num_machines()));
  // What stays the same during an attempt comes once, before the phase in which ranks run.
  std::vector<agent::v1::DesiredJob> told(static_cast<size_t>(mesh.num_machines()));
  Fleet* fleet = nullptr;
  Fleet made(
      {.address = cluster.address(),
       .num_agents = mesh.num_machines(),
       .slots = kRanksOfAMachine,
       .on_desired =
           [&](int index, const agent::v1::DesiredState& desired) {
             const auto place = static_cast<size_t>(index);
             for (const auto& job : desired.jobs()) {
               if (!job.as_before()) told[place] = job;
               if (job.phase() != agent::v1::DesiredJob::PHASE_RUN) continue;
               if (machines[place] != nullptr) continue;
               machines[place] = std::make_unique<RendezvousMachine>(
                   mesh, MachineOf(told[place], Fleet::NodeId(index)),
                   [&fleet, index](agent::v1::AgentUp up) { fleet->Send(index, std::move(up)); });
               machines[place]->Start(told[place], desired.store_many_keys(), &gate,
                                      [&num_done] { ++num_done; });
             }
           },
       .on_store =
           [&](int index, const agent::v1::StoreReply& reply) {
             machines[static_cast<size_t>(index)]->OnReply(reply);
           }});
  fleet = &made;
  const bool joined = e2e::WaitUntil(
      [&] {
        const auto nodes = client->Cluster();
        return nodes.ok() && nodes->nodes_size() == mesh.num_machines();
      },
      kWaitSeconds);
  const auto job = client->Submit(JobOf(mesh), {.time = absl::Seconds(30)});
  if (!joined || !job.ok()) std::cerr << "no job: " << job.status() << "\n";
  if (!gate.AwaitAll()) {
    const auto state = client->Get(kFleetJobId);
    std::cerr << "the job's ranks were not started within two minutes: "
              << (state.ok() ? state->message() : state.status().ToString()) << "\n";
    std::_Exit(1);
  }
  const Watch watch(cluster.driver_pid());
  gate.Open();
  e2e::WaitUntil([&] { return num_done == mesh.num_machines(); }, kWaitSeconds);
  return watch.Read();
}

Times ThroughRedis(const StartMesh& mesh) {
  comm::TestRedisServerOptions options;
  options.is_durable = false;
  const comm::TestRedisServer server(options);
  agent::v1::DesiredJob job;
  job.set_job_id("j");
  job.set_attempt(1);
  job.set_secret("s");
  job.mutable_spec()->set_store(server.url());
  Gate gate(mesh.num_machines());
  std::atomic<int> num_done = 0;
  std::vector<std::unique_ptr<RendezvousMachine>> machines;
  for (int i = 0; i < mesh.num_machines(); ++i) {
    machines.push_back(
        std::make_unique<RendezvousMachine>(mesh, i, [](const agent::v1::AgentUp&) {}));
    machines.back()->Start(job, true, &gate, [&num_done] { ++num_done; });
  }
  MEGASCALE_CHECK_MSG(gate.AwaitAll(), "the machines' threads did not start");
  const Watch watch(server.pid());
  gate.Open();
  std::vector<pollfd> entries;
  while (num_done < mesh.num_machines()) {
    entries.clear();
    for (const auto& machine : machines) machine->AddPollEntries(&entries);
    ::poll(entries.data(), entries.size(), 1);
    for (const auto& machine : machines) machine->Drive(base::RealClock().Monotonic());
  }
  return watch.Read();
}

void PrintLine(const StartMesh& mesh, int barrier_ranks_max) {
  const Times driver = ThroughDriver(mesh);
  const Times redis = ThroughRedis(mesh);
  std::string barriers = absl::StrFormat("%9s %9s", "-", "-");
  if (mesh.num_ranks() <= barrier_ranks_max) {
    barriers =
        absl::StrFormat("%9.2f %9.2f", BlockingStoreSeconds(mesh), RedisBarrierSeconds(mesh));
  }
  std::cout << absl::StrFormat("%7d %8d %9d | %7.2f %7.2f %8.2f %6.0f | %7.2f %7.2f %8.2f | %s\n",
                               mesh.num_ranks(), mesh.num_groups(), mesh.NumKeys(), driver.seconds,
                               driver.server_cpu, driver.clients_cpu,
                               driver.server_bytes / kMebibyte, redis.seconds, redis.server_cpu,
                               redis.clients_cpu, barriers);
  std::cout.flush();
}

}  // namespace

void MeasureStartup(const std::vector<int>& num_ranks, int barrier_ranks_max) {
  AllowManyFiles();
  std::cout
      << "The ranks of a job find each other: each publishes an address and waits for those of "
         "the\n"
         "higher members of its data and pipeline groups (tensor 8 on one machine, pipeline 8, "
         "data\n"
         "the rest). Real: LinkStore, the agents' forwarder, their gRPC streams, the driver's\n"
         "process, redis-server. Not opened: engines, workers, and the streams between ranks, but\n"
         "those of the last lines. All clients are one process on this machine. Seconds; cpu: of "
         "the\n"
         "driver or redis-server (with what it does beside the store), and of all clients.\n"
         "With barriers: all ranks wait for each other after each group.\n"
         "                          |  the driver's store              |  Redis                  | "
         " with barriers\n"
         "  ranks   groups      keys |  time     cpu  clients    MiB |  time     cpu  clients | "
         "blocking     Redis\n";
  for (const int count : num_ranks) PrintLine(StartMesh(count), barrier_ranks_max);
  std::cout << absl::StrFormat(
      "The store alone, in one thread, when all wait before anybody publishes, with a limit of %d "
      "MiB\n"
      "for an attempt in place of the driver's %d:\n",
      kStoreAloneBytes >> 20, comm::EmbeddedStoreOptions().attempt_bytes_max >> 20);
  for (const int count : {12288, 98304}) {
    const StartMesh mesh(count);
    const StoreAlone alone = MeasureStoreAlone(mesh);
    std::cout << absl::StrFormat("%7d ranks, %d keys awaited: %.2f s, %.0f MiB\n", count,
                                 mesh.NumKeys(), alone.seconds,
                                 static_cast<double>(alone.memory_bytes) / kMebibyte);
  }
  std::cout << "Streams of one rank, opened and proved over loopback once the addresses are there "
               "(median of 5):\n";
  for (const int peers : {16, 205, 1000}) {
    std::vector<double> seconds;
    for (int i = 0; i < 5; ++i) seconds.push_back(StreamSeconds(peers));
    const double median = Quantile(seconds, 0.5);
    std::cout << absl::StrFormat("%7d peers: %.4f s, %.0f us a peer\n", peers, median,
                                 1e6 * median / peers);
  }
}

}  // namespace megascale::bench
