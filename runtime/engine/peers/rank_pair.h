// A stream between two ranks on different machines that share no communicator, opened for one use.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/host/fabric.h"
#include "runtime/comm/host/host_communicator.h"

namespace megascale::engine {

class RankPair {
 public:
  // Meets `peer`, which calls this with the same `name`: unique in the attempt, part of the keys of
  // the store in which the two publish their addresses. `fabric`: as of the rank's own; what it
  // borrows outlives the pair. Blocking: until the peer has come. Errors: as
  // comm::Fabric::Connect.
  static absl::StatusOr<std::unique_ptr<RankPair>> Connect(comm::FabricOptions fabric, int peer,
                                                           const std::string& name);
  ~RankPair();

  // Its members are the two ranks; the lower one is member 0.
  comm::HostCommunicator& communicator() { return *communicator_; }
  int peer() const { return 1 - communicator_->rank(); }

 private:
  class KeyedStore;
  RankPair() = default;

  std::unique_ptr<comm::Store> store_;
  std::unique_ptr<base::SharedMemory> region_;
  std::unique_ptr<comm::Fabric> fabric_;
  std::unique_ptr<comm::HostCommunicator> communicator_;
};

// Opens a pair with another rank of the job.
using ConnectPair =
    std::function<absl::StatusOr<std::unique_ptr<RankPair>>(int peer, const std::string& name)>;

}  // namespace megascale::engine
