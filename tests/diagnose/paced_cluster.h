// Four machines (machines.h) with a driver, an agent on each, and one job of paced workers; and the
// faults that befall a machine or one of its ranks from outside.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/diagnose/injection.h"
#include "tests/diagnose/machines.h"
#include "tests/e2e/cluster.h"

namespace megascale::injection {

class PacedCluster {
 public:
  static constexpr int kMachines = 4;

  PacedCluster() : machines_(kMachines) {}

  // What the machines lack; OK: they are there, and each blow so far has struck.
  const absl::Status& status() const { return machines_.status(); }
  Machines& machines() { return machines_; }
  e2e::Cluster& cluster() { return cluster_; }

  // Starts all processes, with a link of limited rate for each machine, and submits job "job".
  void Start(int slots, const std::vector<std::string>& fields);
  // Limits each machine to half a core from now on.
  void LimitCores();

  // Strikes a machine, or the rank of it with this local number; `slow_mbit`: of a slow link.
  // Returns false for a fault that is not done to one machine from outside.
  bool Strike(Fault fault, int machine, int local_rank, double slow_mbit);

 private:
  int slots_ = 0;  // of each machine
  Machines machines_;
  e2e::Cluster cluster_;  // ends before its machines: their groups are empty then
};

}  // namespace megascale::injection
