// Worlds of ranks for tests and the benchmark: threads of one process, or forked processes that may
// be killed. Regions, sockets and the store are real; the store requests of a forked rank go over a
// socket pair, as a worker's do.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/host/fabric.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/link_store.h"

namespace megascale::comm {

struct WorldSpec {
  std::vector<std::string> placements;
  std::vector<GroupSpec> groups;
  bool uses_tcp = false;  // on loopback; false: Unix sockets
  int64_t attempt = 7;
  bool reads_in_place = true;
};

// Returns a world of `num_ranks` ranks, dealt out in turn to `num_nodes` nodes, in one group "all".
WorldSpec OneGroup(int num_ranks, int num_nodes, size_t ring_bytes);

// The regions and the socket directory of a world; shared by all its ranks.
class WorldMemory {
 public:
  explicit WorldMemory(WorldSpec spec);
  ~WorldMemory();

  const WorldSpec& spec() const { return spec_; }
  int num_ranks() const { return static_cast<int>(spec_.placements.size()); }
  const std::string& socket_directory() const { return socket_directory_; }
  FabricOptions OptionsOf(int rank, Store* store) const;

 private:
  const WorldSpec spec_;
  std::string socket_directory_;
  std::map<std::string, std::unique_ptr<base::SharedMemory>> regions_;  // by node
};

class ThreadWorld {
 public:
  explicit ThreadWorld(WorldSpec spec);

  FabricOptions OptionsOf(int rank) { return memory_.OptionsOf(rank, stores_[rank].get()); }
  const std::string& socket_directory() const { return memory_.socket_directory(); }
  // Runs `body` for every rank on a thread of its own and waits for all.
  void Run(const std::function<void(int rank)>& body);
  // The same, with a connected Fabric for each rank.
  void RunConnected(const std::function<void(int rank, Fabric& fabric)>& body);

 private:
  WorldMemory memory_;
  EmbeddedStore core_;
  std::vector<std::unique_ptr<LinkStore>> stores_;
};

// Memory through which a forked rank and its parent communicate.
struct RankBoard {
  std::atomic<uint32_t> num_entered;  // calls entered, counted by the observer
  std::atomic<uint32_t> num_left;
  std::atomic<uint32_t> may_go_on;  // set by the parent
  std::atomic<uint32_t> is_done;    // `code` and `text` are valid
  int32_t code;
  uint32_t blamed_ranks;  // one bit per rank
  char text[1000];

  // Polls until `word` is at least `value`; false after ten seconds.
  static bool Await(const std::atomic<uint32_t>& word, uint32_t value);
};

class ProcessWorld {
 public:
  explicit ProcessWorld(WorldSpec spec);
  // The ranks of `spec` can also join the attempt `next`, possibly under other rank numbers.
  ProcessWorld(WorldSpec spec, WorldSpec next);
  // Kills and reaps the processes that are left.
  ~ProcessWorld();

  // Memory that a rank's Fabric makes readable. Call MakeReadable before Start, so that each rank
  // inherits its own.
  const base::SharedMemory* readable(int rank) const { return readable_[rank].get(); }
  void MakeReadable(size_t num_bytes);
  // Forks a process for every rank, which runs `body` with its connected Fabric and ends. Requires:
  // this process has no other threads.
  void Start(const std::function<absl::Status(Fabric& fabric, RankBoard& board, int rank)>& body);
  // In a rank's process: returns its connected Fabric in the next attempt, where it is `next_rank`.
  absl::StatusOr<std::unique_ptr<Fabric>> JoinNext(int next_rank);
  RankBoard& board(int rank) { return boards_[rank]; }
  void Signal(int rank, int signal);
  // Waits until the rank's body has returned, and returns its status; DeadlineExceeded after 30
  // seconds.
  absl::Status Result(int rank);

 private:
  absl::Status RunRank(int rank, const std::function<absl::Status(Fabric&, RankBoard&, int)>& body);

  WorldMemory memory_;
  WorldMemory next_memory_;
  LinkStore* next_store_ = nullptr;  // in a rank's process
  std::vector<std::unique_ptr<base::SharedMemory>> readable_;
  std::unique_ptr<base::SharedMemory> board_memory_;
  RankBoard* boards_ = nullptr;
  EmbeddedStore core_;
  std::vector<std::pair<base::UniqueFd, base::UniqueFd>>
      links_;  // of each rank: parent's end, child's end
  std::vector<pid_t> processes_;
  std::vector<std::thread> servers_;
};

}  // namespace megascale::comm
