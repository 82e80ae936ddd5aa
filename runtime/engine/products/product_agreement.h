// How the ranks of a job agree on the algorithms of matrix products
// (runtime/device/product_tuner.h), before the first step of each attempt:
//
//   - If the job has a table, rank 0 reads it and sends it to all. It reads the job's folder, or if
//     the attempt starts from memory, its own snapshot memory. Once an attempt has kept a table,
//     this is so in every later attempt, so a restart never measures anything. A table that is not
//     the one of the job's own checkpoint is refused.
//   - If the job has no table yet, rank 0 sends what is known already: the table of the checkpoint
//     that the job begins from, or an empty table. Ranks for which this table lacks the same
//     products form a set; an all-gather tells every rank all sets. The first rank of each set
//     measures the missing products and sends the result to rank 0. Rank 0 joins the results, keeps
//     the table in the job's folder, and only then sends it to all.
//
// Rank 0 publishes the digest of the job's table in the store, and every rank compares its copy.
// The tables themselves go from rank to rank, because thousands of copies would keep the driver
// busy. A restart of the driver meanwhile changes nothing, because the digest is the only key, one
// rank writes it, and agents repeat it to the new driver.
//
// So no rank computes by a table that is not kept. Measured times, and therefore tables, differ
// from run to run. So a job keeps one table for ever, and its checkpoints have copies of it.
//
// Threads: one. Blocking: on peers, the store, storage and the device.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/agent.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/store/store.h"
#include "runtime/device/product_tuner.h"
#include "runtime/engine/peers/all_ranks.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::engine {

struct ProductAgreementOptions {
  std::string job_id;
  std::string directory;                       // the job's folder, the same on all machines
  megascale::agent::v1::RestorePoint restore;  // where the attempt starts
  // The user allows other algorithms than those of the checkpoint that the job begins from. The
  // job's own checkpoints go on with their table all the same.
  bool may_differ = false;
  const AllRanks* all = nullptr;  // no step may be running
  comm::Store* store = nullptr;
  // This rank's snapshot memory. If it has room for a table, it gets a copy; null: there is no
  // snapshot memory.
  base::SharedMemory* snapshots = nullptr;
  // Limit of each wait for other ranks. Must be longer than the failure detector's limit for a rank
  // that loads, so that a rank that stalls while it measures is blamed before the ranks that wait
  // for it.
  absl::Duration timeout = absl::Minutes(10);
  // Limit of the wait for the digest, which is in the store before the table is sent.
  absl::Duration store_timeout = absl::Minutes(2);
  telemetry::HeartbeatWriter* heartbeat = nullptr;  // null: progress is not shown
};

// Makes the operators of this rank's device compute `calls` by the job's table. Errors, one line
// each: InvalidArgument - the table is damaged or missing, or this device or library cannot run one
// of its algorithms: the user has to act; DeadlineExceeded - other ranks or the digest did not
// come; Aborted - another rank gave up; Internal - the digest is that of another table; else those
// of the store, of storage and of ProductTuner::Measure. Cost: two broadcasts in each attempt, 16
// bytes and the table; in the first attempt as much again, an all-gather of 32 bytes per rank, and
// up to three messages for each set of products, which goes to rank 0 over ranks of common groups.
absl::Status AgreeOnProducts(const ProductAgreementOptions& options,
                             const device::ProductCalls& calls, device::ProductTuner* tuner);

}  // namespace megascale::engine
