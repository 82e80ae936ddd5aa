// How the ranks of a job agree on the algorithms of matrix products
// (runtime/device/product_tuner.h), before the first step of each attempt:
//
//   - The job's folder has a table: rank 0 reads it and publishes it in the store. This is so in
//     each attempt but the first: a restart never measures anything. A table that is not the one of
//     the job's own checkpoint is refused.
//   - It has none: the job starts. Rank 0 publishes what is known already, which is the table of
//     the checkpoint that the job begins from, or nothing. The ranks whose products it lacks form
//     sets of equal products; of each set the rank that is first at the store measures them and
//     publishes its part. Rank 0 joins the parts, keeps the table in the job's folder, and only
//     then publishes it.
//
// So no rank computes by a table that is not kept. Measured times differ from run to run, and
// therefore tables do; a job has one table for ever, and its checkpoints have copies.
//
// Threads: one. Blocking: on the store, storage and the device.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "runtime/comm/store/store.h"
#include "runtime/device/product_tuner.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::engine {

struct ProductAgreementOptions {
  std::string job_id;
  std::string directory;                       // the job's folder, the same on all machines
  megascale::agent::v1::RestorePoint restore;  // where the attempt starts
  // The user allows other algorithms than those of the checkpoint that the job begins from. The
  // job's own checkpoints go on with their table all the same.
  bool may_differ = false;
  int rank = 0;
  int num_ranks = 1;
  comm::Store* store = nullptr;
  // Limit of each wait for other ranks. Longer than the failure detector's limit for a rank that
  // loads: a rank that stalls while it measures is then blamed before the ranks that wait for it.
  absl::Duration timeout = absl::Minutes(10);
  telemetry::HeartbeatWriter* heartbeat = nullptr;  // null: progress is not shown
};

// Makes the operators of this rank's device compute `calls` by the job's table. Errors, one line
// each: InvalidArgument - the table is damaged or missing, or this device or library cannot run one
// of its algorithms: the user has to act; DeadlineExceeded - other ranks did not come; else those
// of the store, of storage and of ProductTuner::Measure. Cost: two additions at the store per rank
// in the first attempt, one wait per rank in each.
absl::Status AgreeOnProducts(const ProductAgreementOptions& options,
                             const device::ProductCalls& calls, device::ProductTuner* tuner);

}  // namespace megascale::engine
