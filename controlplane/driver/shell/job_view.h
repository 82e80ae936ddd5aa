// A job as people see it: the state machine's record, joined with the agents' newest reports.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"
#include "controlplane/driver/reports/agent_monitor.h"
#include "controlplane/driver/storage/loss_log.h"
#include "proto/control.pb.h"

namespace megascale::driver {

struct ViewSources {
  const DriverState* state = nullptr;
  const AgentMonitor* monitor = nullptr;
  absl::Time now;  // wall time
  // Steps that the job's time account does not know yet; null: there are none.
  const megascale::driver::v1::StepsTaken* new_steps = nullptr;
  // QueuePositions of the state, for a listing; null: the job's position is looked up.
  const std::map<const JobRecord*, int64_t>* positions = nullptr;
};

// Returns the job as people see it. `loss_log`: this job's; null: it cannot be read.
megascale::control::v1::Job ViewJob(const JobRecord& job, const LossLog* loss_log,
                                    const ViewSources& sources);

// Returns what each rank of the job's attempt said last, in rank order.
std::vector<megascale::control::v1::RankView> ViewRanks(const JobRecord& job,
                                                        const AgentMonitor& monitor);

// Returns the job without the ages in it, which change although nothing else does.
megascale::control::v1::Job WithoutAges(megascale::control::v1::Job job);

megascale::control::v1::NodeView ViewNode(const NodeRecord& node, const ViewSources& sources);

megascale::control::v1::GetClusterResponse ViewCluster(const ViewSources& sources);

}  // namespace megascale::driver
