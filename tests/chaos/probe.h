// Observes a running job without the product's help: through the heartbeat slots that its agents
// hold in shared memory (opened through /proc, at any moment, within microseconds), and the
// checkpoint directory. Threads: one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/telemetry.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "tests/chaos/fault.h"

namespace megascale::chaos {

// The processes of the newest attempt on one agent.
class AgentProbe {
 public:
  explicit AgentProbe(pid_t agent) : agent_(agent) {}

  // Returns the slots of the agent's ranks, in rank order; empty: the agent has no attempt. A slot
  // whose process has not begun to write has pid 0.
  std::vector<telemetry::v1::RankStatus> Ranks();
  // Returns the pid of the host process; 0: there is no host process.
  pid_t HostPid();

 private:
  // Looks for the region of the newest attempt; at most every few milliseconds.
  void Refresh();
  int NumSlots() const;

  pid_t agent_;
  std::string inode_;  // inode of the mapped memfd
  std::unique_ptr<base::SharedMemory> heartbeats_;
  absl::Duration refreshed_ = -absl::InfiniteDuration();
};

// True when a rank with `status` is at `aim`. Requires: a heartbeat slot can show `aim`.
bool IsAt(Aim aim, const telemetry::v1::RankStatus& status);

// True when the newest step directory in `checkpoints` has shards and no manifest yet.
bool IsBeingWritten(const std::string& checkpoints);
// Returns the step of the newest complete checkpoint in `checkpoints`; 0: there is no checkpoint.
int64_t NewestComplete(const std::string& checkpoints);

}  // namespace megascale::chaos
