// One member's end of a group: its connections to all peers, waiting for them, and failing.
// HostCommunicator turns calls into exchanges; an Endpoint carries them out. Threads: Run on the
// owner's thread; Abort and failure on any.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/comm/host/exchange.h"
#include "runtime/comm/host/region.h"

namespace megascale::comm {

class Endpoint {
 public:
  // `slot`: this member's own. `peers`: by group index; this member's own entry has only its rank
  // and window. Run meets the processes of peers on this machine (PeerProcess) once they have
  // attached. `unconfirmed_max`: the machine of a peer may leave what was sent unconfirmed for this
  // long (Stream::UnconfirmedFor).
  Endpoint(std::string name, int index, MemberSlot* slot, std::vector<Peer> peers,
           absl::Duration unconfirmed_max = absl::InfiniteDuration())
      : name_(std::move(name)),
        index_(index),
        slot_(slot),
        peers_(std::move(peers)),
        unconfirmed_max_(unconfirmed_max) {}

  const std::string& name() const { return name_; }
  int index() const { return index_; }
  int size() const { return static_cast<int>(peers_.size()); }
  // Whether Exchange::SendToAll may be used: all members are on this machine, and there are
  // several.
  bool has_windows() const { return static_cast<bool>(peers_[index_].window); }
  int WorldRank(int index) const { return peers_[index].world_rank; }

  // Carries out `exchange` by `deadline` (monotonic time). Any error is final: see
  // HostCommunicator.
  absl::Status Run(Exchange& exchange, absl::Duration deadline);

  // Shows the progress of calls from now on. Call before the first Run.
  void ReportTo(CallProgress* progress, int channel);

  // Ends the endpoint with Aborted and tells the peers. Only the first reason counts.
  void Abort(const absl::Status& reason);

  // Returns OK, or why the endpoint failed or was aborted.
  absl::Status failure() const;

  // Returns OK, or the error with which a call that needs all peers would end at once: `failure()`,
  // or that a peer gave up, closed its end, or has ended (the kernel is asked if `asks_kernel`).
  // Changes nothing. Threads: any, once a call that needs all peers has ended.
  absl::Status FindFailure(bool asks_kernel) const;
  // Whether the next message of a peer has this instruction id. Threads: any, while Run is not
  // running.
  bool HasCall(uint64_t instruction_id) const;

 private:
  absl::Status RunToEnd(Exchange& exchange, absl::Duration deadline);
  void Report(const Exchange& exchange, bool waits);
  absl::Status Fail(absl::Status status);
  void MeetPeers();
  // `asks_kernel`: also check whether peers' processes have ended.
  // `exchange`: a peer that closed its end or ended counts only if the exchange needs it; null: it
  // always counts.
  absl::Status FindGonePeer(const Exchange* exchange, bool asks_kernel) const;
  // Finds peers that this exchange needs, and whose machines confirm nothing.
  absl::Status FindSilentMachine(const Exchange& exchange);
  absl::Status DeadlineError(const Exchange& exchange) const;
  std::string Context(const Exchange& exchange) const;
  std::vector<int> WorldRanks(const std::vector<int>& indices) const;

  const std::string name_;
  const int index_;
  MemberSlot* const slot_;
  std::vector<Peer> peers_;  // constant except for `process` and what `stream` notes
  const absl::Duration unconfirmed_max_;
  bool has_met_all_ = false;
  CallProgress* progress_ = nullptr;  // null: nobody wants to know
  int channel_ = -1;
  std::vector<PeerProgress> shown_;  // scratch, so that a call takes no heap memory
  std::vector<PeerProgress> others_;

  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  absl::Status failure_;
};

}  // namespace megascale::comm
