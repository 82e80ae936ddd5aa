// How the CPU ranks of a job reach each other in one attempt: shared memory within a machine,
// streams (Unix sockets or TCP) across. One Fabric per process and attempt makes the communicators
// of all groups that the rank belongs to.
//
//   auto fabric = Fabric::Create(options, groups).value();   // checks, attaches the region,
//   listens to nobody yet RETURN_IF_ERROR(fabric->Connect());                      // meets the
//   members of its own groups on other machines auto data = fabric->Make("data/0").value(); // once
//   per group
//
// There is no global barrier: a rank waits only for peers that it shares a group with. Both ends of
// a stream prove that they know the attempt's secret before anything else is exchanged; a stranger
// is dropped.
//
// Threads: Create, Connect and Make on one thread; Abort on any. One thread of its own moves bytes
// between sockets and rings while there are streams. Ownership: communicators must be gone before
// the Fabric is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "runtime/base/shared_memory.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/region.h"
#include "runtime/comm/store.h"

namespace megascale::comm {

struct FabricOptions {
  int rank = 0;                         // world rank of this process
  std::vector<std::string> placements;  // node id of every world rank; equal ids share a region
  std::string job_id;
  int64_t attempt = 0;
  std::string secret;  // bytes, of the attempt; at least 16 where there are streams
  // Memory from which large messages are read by local peers without any copy on the way: of the
  // first four, which get huge pages. Not owned; outlives the Fabric. Other memory is read too, at
  // about half the speed.
  std::vector<const base::SharedMemory*> readable;
  // This node's region, formatted for this attempt. Not owned; outlives the Fabric.
  const base::SharedMemory* region = nullptr;
  // Where addresses are found ("address/<rank>"). Not owned; used in Connect only, and only where
  // there are streams.
  Store* store = nullptr;
  // Exactly one of these where there are streams. The directory must belong to the user alone (mode
  // 0700) and be short: a socket's path has at most 107 bytes. The address is of one interface
  // ("10.0.0.5"), never of all.
  std::string socket_directory;
  std::string tcp_address;
  absl::Duration connect_timeout = absl::Seconds(60);  // of Connect
  absl::Duration default_timeout = absl::Seconds(60);  // of calls that give none
  // How long the destructor tries to get rid of what peers have not taken yet. Only after a calm
  // end.
  absl::Duration close_timeout = absl::Seconds(10);
  // Local peers read large messages in this process's memory. False: all goes through shared
  // memory, as where the kernel forbids reading; for tests and to measure what that costs.
  bool reads_in_place = true;
  CallObserver observer;  // of all communicators; may be empty
};

class Fabric {
 public:
  // Errors: InvalidArgument - options or groups make no sense; FailedPrecondition - the region
  // belongs to another attempt, or this rank attached to it before.
  static absl::StatusOr<std::unique_ptr<Fabric>> Create(FabricOptions options,
                                                        std::vector<GroupSpec> groups);
  // Close.
  ~Fabric();

  // Connects to the members of this rank's groups on other machines; returns at once when there are
  // none. Once. Errors: DeadlineExceeded - names the ranks that did not come; PermissionDenied - a
  // peer does not know the secret, or the socket directory is open to others; FailedPrecondition -
  // a peer belongs to another attempt; Aborted - Abort was called.
  absl::Status Connect();

  // The communicator of a group that this rank belongs to. After Connect; once per group.
  // Errors: NotFound - no such group, or this rank is not in it; FailedPrecondition - made before,
  // or not connected.
  absl::StatusOr<std::unique_ptr<Communicator>> Make(absl::string_view group);

  // Aborts every communicator, made or not yet made, and Connect.
  void Abort(const absl::Status& reason);

  // Sends what is still under way, then closes: peers that wait for more get Aborted. Blocking, for
  // FabricOptions::close_timeout at most. No communicator may be used any more.
  void Close();

 private:
  struct Impl;
  explicit Fabric(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::comm
