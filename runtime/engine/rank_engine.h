// One rank's computing and communication in one attempt: the step plan with its executor, the
// pipeline chunks, the optimizer shards, streams and communicators. It uses no actors, RPCs or
// processes, so tests run several engines in one process. Start at Create, then TellStepEnds, Join,
// ChooseProducts, Load, and in each step Launch once for the stage actor's instructions and once
// for the shard actor's (plan::Owner). Between two steps Evaluate may measure the loss on held-out
// text.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/agent.pb.h"
#include "proto/job.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/call_progress.h"
#include "runtime/comm/store/store.h"
#include "runtime/device/device.h"
#include "runtime/ops/ops.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"
#include "runtime/tensor/tensor.h"

namespace megascale::engine {

struct EngineOptions {
  megascale::job::v1::JobSpec spec;  // resolved
  std::string job_id;
  int64_t attempt = 1;
  int rank = 0;
  std::vector<megascale::agent::v1::Placement> placements;  // of all ranks
  std::string node_id;                                      // this rank's
  std::string secret;                                       // of the attempt
  bool binds_address = true;                                // as in comm::FabricOptions
  std::string socket_directory;                             // for tensor sockets to other agents
  // address to listen on for other machines, instead of a socket file; empty: use a socket file
  std::string interface;
  base::SharedMemory* comm_region = nullptr;
  base::SharedMemory* batch_ring = nullptr;  // null where the rank reads no batches
  int batch_reader = 0;
  base::SharedMemory* snapshots = nullptr;
  comm::Store* store = nullptr;
  telemetry::HeartbeatWriter* heartbeat = nullptr;  // null: not written
  telemetry::SpanWriter* spans = nullptr;           // null: not written
  comm::CallProgress* exchanges = nullptr;          // null: not written
  device::Device* device = nullptr;                 // where this rank computes
  // The folder of the job's checkpoints, which also keeps its table of matrix products
  // (products/product_agreement.h). Empty: each product takes the algorithm that the device's
  // library names first.
  std::string job_directory;
  bool products_may_differ = false;  // from those of the checkpoint that the job begins from
  // Replaces Device::MakeOps, so that benchmarks can measure a CPU's operators. Empty: `device`
  // makes the operators.
  using MakeOps = std::function<std::unique_ptr<ops::Ops>(tensor::DType compute, int num_threads)>;
  MakeOps make_ops = nullptr;
};

// Whether a rank was asked to stop at the end of a step. When ranks differ, the highest value wins.
enum class StopFlag : uint8_t { kNone = 0, kStop = 1, kStopWithCheckpoint = 2 };

// The result of one step; equal on every rank.
struct StepResult {
  megascale::telemetry::v1::StepRecord record;
  StopFlag stop = StopFlag::kNone;  // the highest of all ranks
};

class RankEngine {
 public:
  // Plans, allocates all memory and starts the streams. Errors: InvalidArgument - the specification
  // cannot be run; ResourceExhausted - no memory.
  static absl::StatusOr<std::shared_ptr<RankEngine>> Create(EngineOptions options);
  virtual ~RankEngine() = default;

  // Connects this rank's groups. Blocking. Errors: as comm::Fabric::Connect.
  virtual absl::Status Join() = 0;

  // Agrees with the other ranks on the algorithms of matrix products, where the device has several
  // (products/product_agreement.h). Blocking: on the store, storage and the device. Requires: after
  // Join, before Load. It overwrites memory of this rank that Load fills later. Errors: as
  // AgreeOnProducts.
  virtual absl::Status ChooseProducts(const megascale::agent::v1::RestorePoint& restore) = 0;

  // Creates initial weights, reads those of another model (`model.from`), or reads the restore
  // point from the snapshot region or from storage; if this machine cannot read it, a rank on
  // another machine does (restore_with_peers.h). Fills only this rank's shards; the next step
  // gathers the other ranks' weights. Blocking: on storage; on several machines also until every
  // rank has read its part of the checkpoint. Returns a warning for people; empty: nothing was
  // wrong. Errors: as RestoreState of snapshot_shard.h, or as RestoreWithPeers.
  virtual absl::StatusOr<std::string> Load(const megascale::agent::v1::RestorePoint& restore) = 0;

  // The end of a step: its result, or the error that ended the attempt for this rank.
  using StepEnded = std::function<void(int64_t step, absl::StatusOr<StepResult>)>;
  // Sets a function that is called once for each step, from a stream's thread, after the last
  // instruction of both owners has ended. Only this function gets a step's result. If the device
  // hangs, the function is called at once, with an error for which device::IsHang is true, and is
  // not called again. At that time instructions that were launched may not have ended, and the
  // destructor waits for the device. Requires: called once, before Join.
  virtual void TellStepEnds(StepEnded step_ended) = 0;

  // Launches the instructions of `owner` for `step` (from 1). Both owners must be launched for each
  // step, and the step before must have ended. Errors: FailedPrecondition - as
  // plan::Executor::Launch; nothing was launched.
  virtual absl::Status Launch(plan::Owner owner, int64_t step) = 0;

  // The end of an evaluation: the mean loss in nats of the tokens of its windows, equal on every
  // rank; nothing: there was no window; or the error that ended the attempt for this rank.
  using EvaluationEnded =
      std::function<void(int64_t step, absl::StatusOr<std::optional<double>> loss)>;
  // As TellStepEnds, for evaluations. Requires: called once, before the first Evaluate.
  virtual void TellEvaluationEnds(EvaluationEnded evaluation_ended) = 0;

  // Begins to measure the loss of the weights after `step` on windows of held-out text, on as many
  // batches as job::EvaluationBatches says. Every rank must do so after the same steps. Changes
  // nothing that the training computes with. Requires: no step and no snapshot is running; the next
  // step is launched after the evaluation's end. Errors: FailedPrecondition - as Launch.
  virtual absl::Status Evaluate(int64_t step) = 0;

  // Begins to copy the shard's state after `step` into a free snapshot buffer. When it returns the
  // next step may be launched; its optimizer waits for the copy. Blocking: until storage has freed
  // a buffer. Requires: no step is running, and FinishSnapshot was called for the snapshot before.
  // Errors: Unknown - storage is too far behind; Aborted - Abort was called.
  virtual absl::Status BeginSnapshot(int64_t step) = 0;
  // Waits for the copy that BeginSnapshot began, seals the buffer and returns its index. Blocking.
  // Threads: that of BeginSnapshot. Errors: Internal - the device failed.
  virtual absl::StatusOr<int> FinishSnapshot() = 0;

  // Raises this rank's stop flag; the next step's result shows it on every rank. Threads: any.
  virtual void RequestStop(StopFlag flag) = 0;

  // Sends data that is still queued to slower peers, and leaves the groups; for a process that is
  // about to end. Blocking, for seconds at most. Requires: no step is running, and none will be
  // launched.
  virtual void Leave() = 0;

  // Ends all waits with Aborted. Threads: any.
  virtual void Abort(const absl::Status& why) = 0;
};

}  // namespace megascale::engine
