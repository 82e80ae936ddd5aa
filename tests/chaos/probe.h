// What a test sees of a running job without the product's help: the heartbeat slots that its agents
// hold in shared memory (opened through /proc, at any moment, within microseconds), and the
// checkpoint directory. Threads: one.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/telemetry.pb.h"
#include "runtime/base/shared_memory.h"
#include "tests/chaos/fault.h"

namespace megascale::chaos {

// The processes of the newest attempt on one agent.
class AgentProbe {
 public:
  explicit AgentProbe(pid_t agent) : agent_(agent) {}

  // The slots of its ranks, in rank order; empty when it holds no attempt. A slot whose process has
  // not begun to write shows pid 0.
  std::vector<telemetry::v1::RankStatus> Ranks();
  // 0: there is none.
  pid_t HostPid();

 private:
  // Looks for the region of the newest attempt; at most every few milliseconds.
  void Refresh();
  int NumSlots() const;

  pid_t agent_;
  std::string inode_;  // of the memfd that is mapped
  std::unique_ptr<base::SharedMemory> heartbeats_;
  absl::Duration refreshed_ = -absl::InfiniteDuration();
};

// True when a rank that shows `status` is at `aim` (one of those that a slot can show).
bool IsAt(Aim aim, const telemetry::v1::RankStatus& status);

// The newest step directory in `checkpoints` has shards and no manifest yet.
bool IsBeingWritten(const std::string& checkpoints);
// The step of the newest complete checkpoint in `checkpoints`; 0: none.
int64_t NewestComplete(const std::string& checkpoints);

}  // namespace megascale::chaos
