#include "runtime/engine/state/snapshot_taker.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/engine/state/snapshot_shard.h"
#include "runtime/layout/snapshot_layout.h"

namespace megascale::engine {

absl::StatusOr<std::unique_ptr<SnapshotTaker>> SnapshotTaker::Create(SnapshotTakerOptions options) {
  MEGASCALE_CHECK(!options.state.empty());
  auto taker = absl::WrapUnique(new SnapshotTaker(std::move(options)));
  const SnapshotTakerOptions& given = taker->options_;
  ASSIGN_OR_RETURN(taker->layout_, layout::SnapshotLayoutOf(given.rank, given.state));
  ASSIGN_OR_RETURN(taker->stream_, given.device->MakeStream("snapshots"));
  taker->copied_ = taker->stream_->MakeEvent();
  ASSIGN_OR_RETURN(taker->copy_, device::StagedCopy::Create(given.device, taker->stream_.get(),
                                                            given.state.front().data));
  return taker;
}

absl::Status SnapshotTaker::Open(base::SharedMemory* region, int64_t attempt,
                                 int64_t restored_step) {
  ASSIGN_OR_RETURN(writer_, checkpoint::SnapshotWriter::Open(region, attempt, restored_step));
  return absl::OkStatus();
}

// Slow storage is not a failure of this rank or a peer: the rank waits, and keeps its heartbeat
// alive.
absl::StatusOr<absl::Span<std::byte>> SnapshotTaker::AcquireBuffer() {
  const absl::Duration end = base::RealClock().Monotonic() + options_.storage_timeout;
  for (;;) {
    RETURN_IF_ERROR(options_.abort_reason());
    auto payload = writer_->Acquire(absl::Seconds(1));
    if (!absl::IsDeadlineExceeded(payload.status())) return payload;
    const absl::Duration now = base::RealClock().Monotonic();
    if (now > end) {
      return absl::UnknownError(
          absl::StrCat("checkpoint storage is behind: no snapshot buffer for ",
                       absl::FormatDuration(options_.storage_timeout),
                       "; see the host's log and checkpoint.directory"));
    }
    if (options_.heartbeat != nullptr) {
      options_.heartbeat->Progress(now);
      options_.heartbeat->SetDoing({.activity = telemetry::v1::ACTIVITY_WAIT_FOR_STORAGE});
    }
  }
}

absl::Status SnapshotTaker::Begin(const checkpoint::ShardMoment& moment) {
  MEGASCALE_CHECK(writer_.has_value());
  ASSIGN_OR_RETURN(const absl::Span<std::byte> payload, AcquireBuffer());
  moment_ = moment;
  payload_ = payload.subspan(0, static_cast<size_t>(layout_->size_bytes()));
  ++num_begun_;
  stream_->Enqueue([this](stream::Stream& stream) {
    copied_status_ = CopyStateOut(*layout_, options_.state, moment_, copy_.get(), payload_);
    // After a failure as well: the step's stream must not wait for ever.
    copied_->RecordNow(stream, num_begun_.load());
  });
  return absl::OkStatus();
}

void SnapshotTaker::AwaitCopied(stream::Stream& stream) {
  const uint64_t last = num_begun_.load();
  if (last > 0) copied_->WaitNow(stream, last);
}

absl::StatusOr<int> SnapshotTaker::Finish() {
  RETURN_IF_ERROR(stream_->Synchronize());
  RETURN_IF_ERROR(copied_status_);
  return writer_->Seal(moment_.step, layout_->size_bytes());
}

}  // namespace megascale::engine
