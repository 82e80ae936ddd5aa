// The shared memory that the agent holds for one job, and functions that read it. Private to this
// folder. Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/agent/evidence/last_attempts.h"
#include "controlplane/agent/evidence/recent_exchanges.h"
#include "controlplane/agent/evidence/recent_spans.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/layout/node_memory.h"

namespace megascale::agent {

// The first message on a link, with the descriptors that are sent with it. The agent still owns the
// descriptors.
template <typename Message>
struct Introduction {
  Message message;
  std::vector<int> fds;
};

class JobMemory {
 public:
  // Each attempt gets a new socket directory that begins with `socket_directory_prefix`. It is
  // created here and removed when the attempt ends.
  JobMemory(std::string node_id, std::string socket_directory_prefix)
      : node_id_(std::move(node_id)), socket_prefix_(std::move(socket_directory_prefix)) {}
  ~JobMemory();

  // Replaces the regions of the attempt before by the regions of this attempt. Keeps the snapshots
  // of ranks that are still here. Errors: ResourceExhausted; those of the file system.
  absl::Status Prepare(const v1::DesiredJob& job);

  // Return the first message to a worker or host. Requires: Prepare succeeded for this attempt; a
  // preflight does not need it.
  Introduction<link::v1::ToWorker> IntroduceWorker(const v1::DesiredJob& job, int rank) const;
  Introduction<link::v1::ToHost> IntroduceHost(const v1::DesiredJob& job,
                                               bool preflight_only) const;

  // Returns the status in the heartbeat slot of a rank (or kHostRank), if the process `pid` already
  // writes it. `recent` is filled for a rank without progress.
  telemetry::v1::RankStatus ReadStatus(int rank, int pid, absl::Duration now) const;
  // Returns a function that reads the slot of the local rank, as ReadStatus without `recent`, until
  // the function is deleted, in any thread; null: the rank has no slot.
  using ReadSlot = std::function<telemetry::v1::RankStatus(absl::Duration now)>;
  ReadSlot SlotOf(int rank) const;
  // Reads the ranks' new spans from their rings; call often.
  void DrainSpans();
  // Returns RecentSpans::SharesOf the rank; zeros for the host.
  RecentSpans::Shares SharesOf(int rank, int64_t begin_nanos, int64_t end_nanos) const;
  // Returns RecentExchanges::TakeShares of the rank; nullopt for the host.
  std::optional<RecentExchanges::Shares> TakeExchangeShares(int rank);
  // Returns the tokens that a rank takes through its chunks in one forward pass of a chunk: those
  // of a micro-batch divided by the number of its chunks.
  double TokensOfForward() const { return tokens_of_forward_; }
  // Returns RecentSpans::Describe of the rank; "" for the host.
  std::string DescribeSpans(int rank, absl::Duration now) const;
  // Reads the rank's new spans and returns all kept spans of `first_step` and later steps.
  // Errors: NotFound - the rank does not run here in that attempt.
  absl::StatusOr<v1::SpanChunk> ReadSpans(int64_t attempt, int rank, int64_t first_step);
  // Reads the ranks' calls that have ended, and samples those that run; call every 100 ms.
  void DrainExchanges(absl::Duration now);
  // Returns the running and the newest ended calls of the rank's communicators. Errors: as
  // ReadSpans.
  absl::StatusOr<telemetry::v1::Evidence> ReadExchanges(int64_t attempt, int rank,
                                                        absl::Duration now);
  // Returns what is known of the attempt that is in memory, without samples of the machine.
  LastAttempt ReadLast(absl::Duration now);
  // Returns the sealed snapshots of all ranks here.
  std::vector<checkpoint::SealedSnapshot> ListSnapshots() const;
  void MarkPersisted(const checkpoint::SealedSnapshot& snapshot);
  // Returns the newest step in the batch ring; 0: the ring is empty or missing.
  int64_t PublishedStep() const;

 private:
  void RemoveSocketDirectory();
  void FillNonce(const v1::DesiredJob& job, link::v1::HostAssignment* assignment) const;
  const layout::LocalRank* FindRank(int rank) const;

  const std::string node_id_;
  const std::string socket_prefix_;
  std::string socket_directory_;
  std::optional<layout::AttemptMemory> attempt_;
  int64_t attempt_number_ = 0;  // of attempt_
  double tokens_of_forward_ = 0;
  std::map<int, RecentSpans> spans_;  // by rank; of attempt_
  std::map<int, RecentExchanges> exchanges_;
  std::map<int, std::unique_ptr<base::SharedMemory>> snapshots_;
};

}  // namespace megascale::agent
