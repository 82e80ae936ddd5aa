// A job of one rank in this process. Its steps run on the production engine (plan, executor,
// streams, norm exchange, heartbeat and spans), fed by the production loader, as a worker process
// runs them. What a worker has besides is left out: kLeftOut.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/link_store.h"
#include "runtime/data/dataset/dataset.h"
#include "runtime/device/cpu_device.h"
#include "runtime/engine/rank_engine.h"
#include "runtime/layout/node_memory.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::bench {

inline constexpr char kLeftOut[] =
    "left out of a step: the messages between a worker's actors, its report to the agent, and "
    "snapshots; the loader is a thread of this process";

class OneRankJob {
 public:
  // Prepares the job up to its first step. `make_ops`: see engine::EngineOptions. Errors:
  // InvalidArgument - the specification cannot be run or is not of one rank; those of the engine.
  static absl::StatusOr<std::unique_ptr<OneRankJob>> Create(
      const job::v1::JobSpec& spec, engine::EngineOptions::MakeOps make_ops);
  ~OneRankJob();
  OneRankJob(const OneRankJob&) = delete;
  OneRankJob& operator=(const OneRankJob&) = delete;

  struct Step {
    double seconds = 0;  // from the launch to the end, as the worker measures them
    telemetry::v1::StepRecord record;
  };
  // Takes the next step. Errors: those of the step; the job is then over.
  absl::StatusOr<Step> TakeStep();

 private:
  OneRankJob() = default;
  absl::Status Prepare(const job::v1::JobSpec& spec, engine::EngineOptions::MakeOps make_ops);
  absl::Status WriteText();

  job::v1::JobSpec spec_;
  std::string directory_;
  std::unique_ptr<data::Dataset> dataset_;
  layout::AttemptMemory memory_;
  std::unique_ptr<base::SharedMemory> snapshots_;
  comm::EmbeddedStore store_;
  std::unique_ptr<comm::LinkStore> link_;
  std::optional<telemetry::HeartbeatWriter> heartbeat_;
  std::optional<telemetry::SpanWriter> spans_;
  std::atomic<bool> stop_ = false;
  std::thread loader_;
  std::unique_ptr<device::Device> device_ = device::MakeCpuDevice();
  std::shared_ptr<engine::RankEngine> engine_;
  int64_t step_ = 0;

  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<absl::StatusOr<engine::StepResult>> result_;  // of the step that just ended
};

}  // namespace megascale::bench
