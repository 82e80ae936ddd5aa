// A job as people see it: what the state machine knows, joined with what agents last reported.
#pragma once

#include "absl/time/time.h"
#include "controlplane/driver/driver_state.h"
#include "controlplane/driver/failure_detector.h"
#include "controlplane/driver/storage/loss_log.h"
#include "proto/control.pb.h"

namespace megascale::driver {

struct ViewSources {
  const DriverState* state = nullptr;
  const FailureDetector* detector = nullptr;
  absl::Time now;  // wall time
};

// `loss_log`: of this job; null where it cannot be read.
megascale::control::v1::Job ViewJob(const JobRecord& job, const LossLog* loss_log,
                                    const ViewSources& sources);

megascale::control::v1::NodeView ViewNode(const NodeRecord& node, const ViewSources& sources);

megascale::control::v1::GetClusterResponse ViewCluster(const ViewSources& sources);

}  // namespace megascale::driver
