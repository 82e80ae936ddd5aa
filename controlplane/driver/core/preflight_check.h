// Whether what the preflights of a job's nodes found fits together. Pure.
#pragma once

#include <string>

#include "controlplane/driver/driver_state.h"

namespace megascale::driver {

struct PreflightRefusal {
  std::string node_id;  // where it shows; empty: of no node
  std::string message;  // for people; empty: the job may start
};

// Requires: every node passed its own preflight.
PreflightRefusal JudgePreflights(const JobRecord& job);

}  // namespace megascale::driver
