// Connects the CPU ranks of a job in one attempt: through shared memory within a machine, through
// streams (Unix sockets or TCP) between machines. Each process has one Fabric per attempt, which
// makes the communicators of all groups that the rank belongs to.
//
//   auto fabric = Fabric::Create(options, groups).value();  // attaches to the region
//   RETURN_IF_ERROR(fabric->Connect());                     // meets members on other machines
//   auto data = fabric->Make("data/0").value();             // once per group
//
// A rank waits only for peers that it shares a group with. Both ends of a stream prove that they
// know the attempt's secret before anything else is exchanged; a stream is closed if its other end
// cannot prove this.
//
// Threads: Create, Connect and Make on one thread; Abort on any. If there are streams, the Fabric
// has a thread of its own that moves bytes between sockets and rings. Ownership: communicators must
// be destroyed before the Fabric.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/host/host_communicator.h"
#include "runtime/comm/host/region.h"
#include "runtime/comm/store/store.h"

namespace megascale::comm {

struct FabricOptions {
  int rank = 0;                         // world rank of this process
  std::vector<std::string> placements;  // node id of every world rank; equal ids share a region
  std::string job_id;
  int64_t attempt = 0;
  std::string secret;  // bytes, of the attempt; at least 16 if there are streams
  // Whether ranks prove to which address they connected (handshake.h). False: a rank of an older
  // version, without this proof, takes part; then whoever can change the store can read tensors.
  bool binds_address = true;
  // Memory from which local peers may read large messages directly, without any copy. All of it
  // gets huge pages, but peers map only its first four blocks. Borrowed: must outlive the Fabric.
  // Peers also read other memory of this process, at about half the speed.
  std::vector<const base::SharedMemory*> readable;
  // This node's region, formatted for this attempt. Borrowed: must outlive the Fabric.
  const base::SharedMemory* region = nullptr;
  // Where ranks publish their addresses ("address/<rank>"). Borrowed; used in Connect only, and
  // only if there are streams.
  Store* store = nullptr;
  // If there are streams: exactly one of these. Only the user may have access to the directory
  // (mode 0700), and its path must be short: a socket's path has at most 107 bytes. The address is
  // that of one interface ("10.0.0.5"), never of all interfaces.
  std::string socket_directory;
  std::string tcp_address;
  absl::Duration connect_timeout = absl::Seconds(60);  // for Connect
  // Within it, for peers that have published their addresses: how long their machines may leave a
  // connection unanswered, and how long until these peers have proved themselves. In a call, also
  // for how long a machine may confirm nothing of what is sent there, over TCP: then the call ends
  // with DeadlineExceeded and UnreachedRanks.
  absl::Duration reach_timeout = absl::InfiniteDuration();
  absl::Duration join_timeout = absl::InfiniteDuration();
  absl::Duration default_timeout = absl::Seconds(60);  // for calls that give no timeout
  // How long the destructor tries to send what peers have not taken yet. Only if there was no
  // error.
  absl::Duration close_timeout = absl::Seconds(10);
  // Whether local peers may read large messages in this process's memory. False: all messages go
  // through shared memory, as where the kernel forbids reading. For tests, and to measure the
  // difference.
  bool reads_in_place = true;
  CallObserver observer;  // for all communicators; may be empty
  // Shows how far the calls of all communicators have come. Borrowed: outlives them. Null: nobody
  // wants to know.
  CallProgress* progress = nullptr;
};

class Fabric {
 public:
  // Checks the options and attaches to the region. Errors: InvalidArgument - invalid options or
  // groups; FailedPrecondition - the region belongs to another attempt, or this rank attached to it
  // before.
  static absl::StatusOr<std::unique_ptr<Fabric>> Create(FabricOptions options,
                                                        std::vector<GroupSpec> groups);
  // Calls Close.
  ~Fabric();

  // Connects to the members of this rank's groups on other machines; returns at once if there are
  // none. May be called once. A socket that a peer drops is retried. Errors: Unavailable - a peer
  // is gone; DeadlineExceeded - names the ranks that did not come, or (UnreachedRanks) those that
  // came and whose machines do not answer; Aborted - Abort was called, or a peer belongs to another
  // attempt; PermissionDenied - a peer does not know the secret, somebody has changed its address
  // in the store, or other users have access to the socket directory; ResourceExhausted - this
  // process or its machine has no room for the sockets; no peer is blamed.
  absl::Status Connect();

  // Makes the communicator of a group that this rank belongs to. Requires: Connect returned OK.
  // Once per group. Errors: NotFound - no such group, or this rank is not in it; FailedPrecondition
  // - it was made before, or the Fabric is not connected.
  absl::StatusOr<std::unique_ptr<HostCommunicator>> Make(absl::string_view group);

  // Aborts Connect and every communicator, also those that are made later.
  void Abort(const absl::Status& reason);

  // Sends data that is still queued, then closes; peers that wait for more get Aborted. Blocking,
  // for at most FabricOptions::close_timeout. No communicator may be used afterwards.
  void Close();

 private:
  struct Impl;
  explicit Fabric(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::comm
