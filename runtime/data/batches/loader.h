// Fills the batch ring of one machine, step after step. Which tokens a sample has depends on the
// seed and its global index alone: not on the layout, the machine, or earlier steps. The batches of
// an evaluation have the windows of the held-out text from its beginning, the same in every
// evaluation; the order of windows is that of samples.
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
#include "runtime/data/batches/batch_sequence.h"
#include "runtime/data/samples.h"

namespace megascale::data {

// Returns the global index of the first sample that the first `step` steps of a job have not
// trained on. `sample_offset` is not 0 in a job that began from a checkpoint whose steps had other
// batches: RestorePoint in proto/agent.proto.
int64_t NextSample(const megascale::job::v1::JobSpec& spec, int64_t step, int64_t sample_offset);

// Place of a sample in a job: sample `index` of a micro-batch of step `step`. Steps count from 1.
// GlobalSample returns its index over the whole job.
struct SamplePosition {
  int64_t step = 1;
  int data_parallel_index = 0;
  int microbatch = 0;
  int index = 0;
  int64_t sample_offset = 0;  // as in NextSample
};
int64_t GlobalSample(const megascale::job::v1::JobSpec& spec, const SamplePosition& position);

struct LoaderOptions {
  int32_t end_token = -1;     // ends every document; -1: there is no such token
  int64_t sample_offset = 0;  // as in NextSample
};

// Fills a window for which the held-out text is too short. Readers do not count such a window.
inline constexpr int32_t kNoToken = -1;

// Returns the number of windows in a held-out text of this many tokens. A window has seq_length
// tokens, and the next one as its last target.
int64_t NumWindows(int64_t num_tokens, int seq_length);

class BatchLoader {
 public:
  // `spec` is resolved. Borrows `samples` and `ring`, which must outlive the loader. Errors:
  // InvalidArgument - the ring was made for another job.
  static absl::StatusOr<std::unique_ptr<BatchLoader>> Create(
      const megascale::job::v1::JobSpec& spec, const Samples* samples, base::SharedMemory* ring,
      const LoaderOptions& options = {});

  // Also publishes the batches of evaluations: after every `interval` steps and after the last one,
  // at most `batches_max`, up to the first batch that the windows do not fill. Borrows `held_out`.
  // Call it before RunUntil. Requires: interval >= 0; 0: never.
  void PublishEvaluations(const TokenText* held_out, int64_t interval, int64_t batches_max);

  // Publishes steps up to `last_step`, each as soon as its slot is free. Returns OK when that step
  // is published or `stop` became true (noticed within 100 ms). Errors: as Samples::Read.
  absl::Status RunUntil(const std::atomic<bool>& stop, int64_t last_step);

 private:
  BatchLoader(const megascale::job::v1::JobSpec& spec, const Samples* samples,
              BatchRingWriter writer, int64_t sample_offset)
      : spec_(spec), samples_(samples), writer_(std::move(writer)), sample_offset_(sample_offset) {}
  BatchSequence SequenceUntil(int64_t last_step) const;
  absl::Status Fill(const BatchPlace& place, const MutableBatchView& batch);
  absl::Status ReadWindow(int64_t window, absl::Span<int32_t> out) const;

  megascale::job::v1::JobSpec spec_;
  const Samples* samples_;
  BatchRingWriter writer_;
  int64_t sample_offset_;
  const TokenText* held_out_ = nullptr;  // null: there are no evaluations
  int64_t evaluation_interval_ = 0;
  int64_t evaluation_batches_max_ = 0;
};

}  // namespace megascale::data
