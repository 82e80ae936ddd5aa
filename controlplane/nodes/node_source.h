// Where machines come from: a site's manager, such as Slurm. A source has three calls; what to ask
// for is decided by fleet.h. Threads: one.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace megascale::nodes {

enum class MachineState {
  kAsked,     // the manager has not granted it yet
  kStarting,  // granted; its agent does not run yet
  kPresent,
  kLeaving,  // the manager takes it away: drained, failing, at its end
  kGone,     // the manager has no such machine any more, or it has failed
};

struct Machine {
  std::string node_id;  // its name in the driver and in the source; empty: not granted yet
  std::string
      request;  // the id of the request that asked for it; empty: it was there from the start
  std::string handle;  // what the source needs to give it back
  MachineState state = MachineState::kAsked;
  bool returnable = true;  // false: it leaves only with the whole launch
  std::string why;         // one line for people: why it is asked still, leaves, or is gone
};

struct Request {
  std::string id;  // the same id is the same request
  std::set<std::string> exclude;
};

class NodeSource {
 public:
  virtual ~NodeSource() = default;

  // Returns all machines of this launch, asked ones included. Errors: Unavailable - the manager
  // does not answer, so nothing is known.
  virtual absl::StatusOr<std::vector<Machine>> Observe() = 0;
  // Asks for one machine. A request that the manager has already is not made again. Errors:
  // Unavailable - unknown whether it was made: repeat it; others - the manager refuses it.
  virtual absl::Status Ask(const Request& request) = 0;
  // Gives a machine back. One that was asked for when it was observed is given back only if it has
  // not been granted since. Idempotent.
  virtual absl::Status GiveBack(const Machine& machine) = 0;
};

}  // namespace megascale::nodes
