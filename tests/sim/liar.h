// An agent that lies: with one certificate of its own it connects under made-up node ids, takes the
// ids of others, and offers slots without end. What it is let have, StrangerChecker checks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/sim/agent_node.h"
#include "tests/sim/driver_node.h"
#include "tests/sim/network.h"
#include "tests/sim/rng.h"
#include "tests/sim/world.h"

namespace megascale::sim {

class Liar {
 public:
  // The arguments outlive this object. `rng`: its own, so that other draws stay what they are.
  Liar(const Cluster& cluster, const DriverNode& driver, Rng rng)
      : world_(*cluster.world), network_(*cluster.network), driver_(driver), rng_(rng) {}

  // Lies until `until`.
  void Start(absl::Duration until);

 private:
  void Lie();

  World& world_;
  Network& network_;
  const DriverNode& driver_;
  Rng rng_;
  absl::Duration until_;
  int64_t num_lies_ = 0;
};

}  // namespace megascale::sim
