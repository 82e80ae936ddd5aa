// Checks the results of the preflights of a job's nodes against each other and the job. Pure.
#pragma once

#include <string>

#include "controlplane/driver/core/driver_state.h"

namespace megascale::driver {

struct PreflightRefusal {
  std::string node_id;  // the node that differs; empty: no single node is at fault
  std::string message;  // for people; empty: the job may start
};

// Returns the first reason to refuse the job. Requires: every node passed its own preflight.
PreflightRefusal JudgePreflights(const JobRecord& job);

}  // namespace megascale::driver
