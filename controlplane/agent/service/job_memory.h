// The shared memory that the agent holds for one job, and what is read from it. Private to this
// folder. Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/agent/recent_spans.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/base/shared_memory.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/job/node_memory.h"

namespace megascale::agent {

// The first message of a link with the descriptors that travel beside it; they stay the agent's.
template <typename Message>
struct Introduction {
  Message message;
  std::vector<int> fds;
};

class JobMemory {
 public:
  // `socket_directory`: new in each attempt, made here and removed with it.
  JobMemory(std::string node_id, std::string socket_directory_prefix)
      : node_id_(std::move(node_id)), socket_prefix_(std::move(socket_directory_prefix)) {}
  ~JobMemory();

  // Makes the regions of the attempt in place of those of the one before. Snapshots of ranks that
  // are still here stay. Errors: ResourceExhausted; of the file system.
  absl::Status Prepare(const v1::DesiredJob& job);

  // Requires: Prepare succeeded for this attempt, except for a preflight.
  Introduction<link::v1::ToWorker> IntroduceWorker(const v1::DesiredJob& job, int rank) const;
  Introduction<link::v1::ToHost> IntroduceHost(const v1::DesiredJob& job,
                                               bool preflight_only) const;

  // What the heartbeat slot of a rank (or kHostRank) shows, if the process `pid` writes it already.
  // `recent` is filled for a rank that stands still.
  telemetry::v1::RankStatus ReadStatus(int rank, int pid, absl::Duration now) const;
  // Takes what the ranks wrote of spans; call often.
  void DrainSpans();
  // What the rank does and completed last, as RecentSpans::Describe says it; "" of the host.
  std::string DescribeSpans(int rank, absl::Duration now) const;
  // Takes what the rank wrote of spans, and gives those it has of `first_step` and later ones.
  // Errors: NotFound - the rank does not run here in that attempt.
  absl::StatusOr<v1::SpanChunk> ReadSpans(int64_t attempt, int rank, int64_t first_step);
  // Sealed snapshots of all ranks here.
  std::vector<checkpoint::SealedSnapshot> ListSnapshots() const;
  void MarkPersisted(const checkpoint::SealedSnapshot& snapshot);
  // Newest step in the batch ring; 0: there is none.
  int64_t PublishedStep() const;

 private:
  void RemoveSocketDirectory();
  void FillNonce(const v1::DesiredJob& job, link::v1::HostAssignment* assignment) const;
  const job::LocalRank* FindRank(int rank) const;

  const std::string node_id_;
  const std::string socket_prefix_;
  std::string socket_directory_;
  std::optional<job::AttemptMemory> attempt_;
  int64_t attempt_number_ = 0;        // of attempt_
  std::map<int, RecentSpans> spans_;  // by rank; of attempt_
  std::map<int, std::unique_ptr<base::SharedMemory>> snapshots_;
};

}  // namespace megascale::agent
