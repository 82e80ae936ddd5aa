#include "runtime/data/batches/loader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::data {
namespace {

constexpr absl::Duration kStopInterval = absl::Milliseconds(100);

int64_t BatchPerDataParallelIndex(const job::v1::JobSpec& spec) {
  return spec.train().global_batch_size() / std::max(1, spec.parallel().data_parallel_size());
}

absl::Status CheckShape(const job::v1::JobSpec& spec, const BatchRingShape& shape) {
  const int64_t per_index = int64_t{shape.num_microbatches} * shape.micro_batch_size;
  const auto [lowest, highest] =
      std::minmax_element(shape.data_parallel_indices.begin(), shape.data_parallel_indices.end());
  const int data_parallel_size = std::max(1, spec.parallel().data_parallel_size());
  if (shape.seq_length != spec.train().seq_length() ||
      shape.micro_batch_size != spec.train().micro_batch_size() ||
      per_index != BatchPerDataParallelIndex(spec) || *lowest < 0 ||
      *highest >= data_parallel_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch ring: made for ", shape.num_microbatches, " micro-batches of ",
                     shape.micro_batch_size, " samples of ", shape.seq_length,
                     " tokens per data-parallel index up to ", *highest, "; the job has ",
                     BatchPerDataParallelIndex(spec), " samples in micro-batches of ",
                     spec.train().micro_batch_size(), " of ", spec.train().seq_length(),
                     " tokens and ", data_parallel_size, " data-parallel indices"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t NextSample(const job::v1::JobSpec& spec, int64_t step, int64_t sample_offset) {
  return step * spec.train().global_batch_size() + sample_offset;
}

int64_t GlobalSample(const job::v1::JobSpec& spec, const SamplePosition& position) {
  return NextSample(spec, position.step - 1, position.sample_offset) +
         position.data_parallel_index * BatchPerDataParallelIndex(spec) +
         int64_t{position.microbatch} * spec.train().micro_batch_size() + position.index;
}

absl::StatusOr<std::unique_ptr<BatchLoader>> BatchLoader::Create(const job::v1::JobSpec& spec,
                                                                 const Samples* samples,
                                                                 base::SharedMemory* ring,
                                                                 const LoaderOptions& options) {
  ASSIGN_OR_RETURN(BatchRingWriter writer, BatchRingWriter::Create(ring));
  writer.SetEndToken(options.end_token);
  RETURN_IF_ERROR(CheckShape(spec, writer.shape()));
  return std::unique_ptr<BatchLoader>(
      new BatchLoader(spec, samples, std::move(writer), options.sample_offset));
}

int64_t NumWindows(int64_t num_tokens, int seq_length) {
  return std::max<int64_t>(0, num_tokens - 1) / seq_length;
}

void BatchLoader::PublishEvaluations(const TokenText* held_out, int64_t interval,
                                     int64_t batches_max) {
  held_out_ = held_out;
  evaluation_interval_ = interval;
  evaluation_batches_max_ = batches_max;
}

// The first batch that is not full is the last one, as ranks learn from their exchange of losses.
BatchSequence BatchLoader::SequenceUntil(int64_t last_step) const {
  BatchSequence::Options options = {.first_step = writer_.first_step(), .last_step = last_step};
  if (held_out_ != nullptr) {
    const int64_t windows = NumWindows(held_out_->num_tokens(), spec_.train().seq_length());
    options.interval = evaluation_interval_;
    options.batches =
        std::min(evaluation_batches_max_, windows / spec_.train().global_batch_size() + 1);
  }
  return BatchSequence(options);
}

absl::Status BatchLoader::RunUntil(const std::atomic<bool>& stop, int64_t last_step) {
  const BatchSequence sequence = SequenceUntil(last_step);
  const int64_t first = writer_.first_step();
  while (!stop.load(std::memory_order_relaxed) && writer_.next_step() - first <= sequence.size()) {
    absl::Status published = writer_.Publish(
        [&](int64_t number, const MutableBatchView& batch) {
          return Fill(sequence.At(number - first), batch);
        },
        kStopInterval);
    if (!published.ok() && !absl::IsDeadlineExceeded(published)) return published;
  }
  return absl::OkStatus();
}

absl::Status BatchLoader::ReadWindow(int64_t window, absl::Span<int32_t> out) const {
  const int64_t seq_length = spec_.train().seq_length();
  if (window < NumWindows(held_out_->num_tokens(), spec_.train().seq_length())) {
    return held_out_->Read(window * seq_length, out);
  }
  std::fill(out.begin(), out.end(), kNoToken);
  return absl::OkStatus();
}

absl::Status BatchLoader::Fill(const BatchPlace& place, const MutableBatchView& batch) {
  const bool trains = place.evaluated == BatchPlace::kOfStep;
  const BatchRingShape& shape = batch.shape();
  for (const int data_parallel_index : shape.data_parallel_indices) {
    for (int microbatch = 0; microbatch < shape.num_microbatches; ++microbatch) {
      for (int index = 0; index < shape.micro_batch_size; ++index) {
        // Batches of windows count from 0, steps from 1.
        const int64_t sample =
            GlobalSample(spec_, {trains ? place.step : place.evaluated + 1, data_parallel_index,
                                 microbatch, index, trains ? sample_offset_ : 0});
        const absl::Span<int32_t> out = batch.sample(data_parallel_index, microbatch, index);
        RETURN_IF_ERROR(trains ? samples_->Read(sample, out) : ReadWindow(sample, out));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace megascale::data
