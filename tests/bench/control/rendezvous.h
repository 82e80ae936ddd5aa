// How the ranks of a job find each other, without their engines: each publishes an address and
// waits for those of the higher members of its data and pipeline groups on other machines, as
// runtime/comm/host/connect.h does. Tensor peers share a machine of eight ranks. Parts of the
// benchmark `control_benchmark startup`.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/agent/service/store_forwarder.h"
#include "proto/agent.pb.h"
#include "runtime/comm/store/link_store.h"

namespace megascale::bench {

inline constexpr int kRanksOfAMachine = 8;

// A mesh of tensor 8, pipeline 8 (1 below 64 ranks) and data-parallel ranks for the rest.
class StartMesh {
 public:
  explicit StartMesh(int num_ranks);

  int num_ranks() const { return num_ranks_; }
  int num_machines() const { return num_ranks_ / kRanksOfAMachine; }
  int data_size() const { return data_; }
  int pipeline_size() const { return pipeline_; }
  // The members of the rank's data and pipeline groups, but itself; all on other machines.
  std::vector<int> Peers(int rank) const;
  // The keys for which a rank waits.
  std::vector<std::string> Keys(int rank) const;
  int64_t NumKeys() const;  // of all ranks
  int num_groups() const;   // of all kinds

 private:
  int num_ranks_;
  int pipeline_;
  int data_;
};

// Holds all ranks until every machine is there.
class Gate {
 public:
  explicit Gate(int count) : count_(count) {}
  void Arrive();
  // Returns whether all have come within two minutes.
  bool AwaitAll();
  void Open();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_;
  bool open_ = false;
};

// One machine: the production forwarder of its agent, and a production LinkStore for each rank. A
// thread makes the ranks' calls one after the other, first what they publish.
class RendezvousMachine {
 public:
  using SendToDriver = std::function<void(agent::v1::AgentUp)>;

  RendezvousMachine(const StartMesh& mesh, int machine, SendToDriver send);
  ~RendezvousMachine();

  // Begins once the gate is open; `done` is called after the last rank has all its addresses. The
  // job's store is a Redis server, or empty: the driver.
  void Start(const agent::v1::DesiredJob& job, bool many_keys, Gate* gate,
             std::function<void()> done);
  void OnReply(const agent::v1::StoreReply& reply);
  // For a Redis server: see StoreForwarder.
  void AddPollEntries(std::vector<pollfd>* entries);
  absl::Duration NextWake();
  void Drive(absl::Duration now);

 private:
  void Run(const std::function<void()>& done);

  const StartMesh& mesh_;
  const int machine_;
  std::mutex mutex_;  // of the forwarder
  agent::StoreForwarder forwarder_;
  std::vector<std::unique_ptr<comm::LinkStore>> stores_;
  std::thread thread_;
};

// --- what the start is compared with -----------------------------------------------------------

// Seconds in which ranks make the groups of a mesh in turn, each with a barrier of all ranks: on a
// store that answers one request at a time, as PyTorch's TCPStore, and on a Redis server.
double BlockingStoreSeconds(const StartMesh& mesh);
double RedisBarrierSeconds(const StartMesh& mesh);

// Seconds in which a rank opens and proves its streams to `num_peers` higher ranks that one thread
// plays, once their addresses are in the store; over TCP on loopback.
double StreamSeconds(int num_peers);

// The embedded store alone, without agents and network. It may hold this for an attempt; the driver
// holds less (EmbeddedStoreOptions), which ends below 98,304 ranks that all wait before any of them
// publishes.
inline constexpr size_t kStoreAloneBytes = size_t{4} << 30;
struct StoreAlone {
  double seconds = 0;
  int64_t memory_bytes = 0;
};
StoreAlone MeasureStoreAlone(const StartMesh& mesh);

}  // namespace megascale::bench
