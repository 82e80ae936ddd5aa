// Fills the batch ring of one machine, step after step. Which tokens a sample has depends on the
// seed and its global index alone: not on the layout, the machine, or earlier steps.
// Threads: one thread at a time. Blocking: see RunUntil.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/data/batches/batch_ring.h"
#include "runtime/data/samples.h"

namespace megascale::data {

// Place of a sample in a job: sample `index` of a micro-batch of step `step`. Steps count from 1.
// GlobalSample returns its index over the whole job.
struct SamplePosition {
  int64_t step = 1;
  int data_parallel_index = 0;
  int microbatch = 0;
  int index = 0;
};
int64_t GlobalSample(const megascale::job::v1::JobSpec& spec, const SamplePosition& position);

class BatchLoader {
 public:
  // `spec` is resolved. Borrows `samples` and `ring`, which must outlive the loader. `end_token`
  // ends every document; -1: there is no such token. Errors: InvalidArgument - the ring was made
  // for another job.
  static absl::StatusOr<std::unique_ptr<BatchLoader>> Create(
      const megascale::job::v1::JobSpec& spec, const Samples* samples, base::SharedMemory* ring,
      int32_t end_token = -1);

  // Publishes steps up to `last_step`, each as soon as its slot is free. Returns OK when that step
  // is published or `stop` became true (noticed within 100 ms). Errors: as Samples::Read.
  absl::Status RunUntil(const std::atomic<bool>& stop, int64_t last_step);

 private:
  BatchLoader(const megascale::job::v1::JobSpec& spec, const Samples* samples,
              BatchRingWriter writer)
      : spec_(spec), samples_(samples), writer_(std::move(writer)) {}
  absl::Status Fill(int64_t step, const MutableBatchView& batch);

  megascale::job::v1::JobSpec spec_;
  const Samples* samples_;
  BatchRingWriter writer_;
};

}  // namespace megascale::data
