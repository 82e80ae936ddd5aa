// The sockets between the members of an emulated NCCL communicator, and the transfers over them.
// Members may be threads of one process or processes of one machine.
//
// Threads: Connect and Exchange on one thread at a time; Abort on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gpu/emulator/nccl/nccl_events.h"
#include "runtime/base/fd.h"

namespace megascale::emulator {

// A socket that listens under a name that the kernel chose.
struct NcclListener {
  base::UniqueFd fd;
  std::string name;  // of an abstract Unix socket
};
NcclListener ListenForNccl();

enum class NcclOutcome { kDone, kAborted, kPeerGone, kMismatch };

// Values that must be equal at both ends of a transfer.
struct NcclLabel {
  uint64_t operation = 0;  // NcclOperation
  uint64_t bytes = 0;      // of the transfer
  uint64_t dtype = 0;
  uint64_t root = 0;

  friend bool operator==(const NcclLabel&, const NcclLabel&) = default;
};

struct NcclTransfer {
  int peer = 0;  // may be the own rank
  bool is_send = false;
  std::byte* data = nullptr;
  NcclLabel label;
  void* event = nullptr;  // of the call (nccl_events.h)
};

class NcclMesh {
 public:
  NcclMesh(int rank, int size);

  // Meets all members: rank 0 listens at `root`, and the others connect to `root`'s name.
  NcclOutcome Connect(NcclListener root);

  // Does all transfers at the same time; transfers between the same two ranks keep their order.
  // Reports the transfers to `events`.
  NcclOutcome Exchange(absl::Span<const NcclTransfer> transfers, NcclEvents& events);

  // Ends every Connect and Exchange, now and later.
  void Abort();
  // Waits for Abort.
  void AwaitAbort() const;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Closes the sockets, which the peers notice. Requires: Connect and Exchange have ended.
  void Disconnect() { links_.clear(); }

  // Returns the text of the mismatch after kMismatch.
  const std::string& mismatch() const { return mismatch_; }

 private:
  struct Progress;

  NcclOutcome ConnectAsRoot(const NcclListener& root);
  NcclOutcome ConnectAsMember(const std::string& root);
  // Waits for `events` of `fd`; false: aborted.
  bool Await(int fd, short events) const;
  NcclOutcome Read(int fd, void* data, size_t bytes) const;
  NcclOutcome Write(int fd, const void* data, size_t bytes) const;
  NcclOutcome Accept(int listener, base::UniqueFd* accepted) const;
  NcclOutcome Move(Progress& progress);

  const int rank_;
  const int size_;
  base::UniqueFd abort_;               // an event: readable once Abort was called
  std::vector<base::UniqueFd> links_;  // by peer
  std::string mismatch_;
};

}  // namespace megascale::emulator
