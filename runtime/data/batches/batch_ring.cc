#include "runtime/data/batches/batch_ring.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/process/futex.h"
#include "runtime/base/status.h"

namespace megascale::data {
namespace {

constexpr uint64_t kMagic = 0x3147'4e49'5253'4d00;  // "MSRING1"
constexpr size_t kLine = 64;

// Longest sleep: a process that is killed between a store and its wake-up leaves a sleeper waiting.
constexpr absl::Duration kSleepMax = absl::Milliseconds(50);

size_t RoundUp(size_t size) { return (size + kLine - 1) / kLine * kLine; }

size_t MicrobatchTokens(const BatchRingShape& shape) {
  return static_cast<size_t>(shape.micro_batch_size) * (static_cast<size_t>(shape.seq_length) + 1);
}

size_t SlotBytes(const BatchRingShape& shape) {
  return RoundUp(shape.data_parallel_indices.size() * static_cast<size_t>(shape.num_microbatches) *
                 MicrobatchTokens(shape) * sizeof(int32_t));
}

bool IsSensible(const BatchRingShape& shape) {
  return shape.num_slots >= 1 && !shape.data_parallel_indices.empty() &&
         shape.num_microbatches >= 1 && shape.micro_batch_size >= 1 && shape.seq_length >= 1 &&
         shape.num_readers >= 1;
}

// Sleeps until `word` differs from `seen`, then returns true; false after `until`.
bool SleepOn(std::atomic<uint32_t>* word, uint32_t seen, absl::Duration until) {
  const absl::Duration left = until - base::RealClock().Monotonic();
  if (left <= absl::ZeroDuration()) return false;
  base::FutexWait(word, seen, std::min(left, kSleepMax));
  return true;
}

}  // namespace

// Layout of the region: the header, one line per reader with its released count, the data-parallel
// indices, the slots.
struct BatchRing::Header {
  uint64_t magic;
  int64_t first_step;
  int32_t num_slots;
  int32_t num_indices;
  int32_t num_microbatches;
  int32_t micro_batch_size;
  int32_t seq_length;
  int32_t num_readers;
  int32_t end_token;  // -1: none; written before the first step is published
  alignas(kLine) std::atomic<uint32_t> published;

  struct alignas(kLine) Reader {
    std::atomic<uint32_t> released;
  };
  Reader* readers() { return reinterpret_cast<Reader*>(this + 1); }
  int32_t* indices() { return reinterpret_cast<int32_t*>(readers() + num_readers); }

  static size_t BytesBeforeSlots(const BatchRingShape& shape) {
    return sizeof(Header) + static_cast<size_t>(shape.num_readers) * sizeof(Reader) +
           RoundUp(shape.data_parallel_indices.size() * sizeof(int32_t));
  }

  // Returns the shape without the values of the indices, whose count alone determines the size.
  BatchRingShape Shape() const {
    BatchRingShape shape;
    shape.num_slots = num_slots;
    shape.num_microbatches = num_microbatches;
    shape.micro_batch_size = micro_batch_size;
    shape.seq_length = seq_length;
    shape.num_readers = num_readers;
    if (num_indices > 0) shape.data_parallel_indices.resize(static_cast<size_t>(num_indices));
    return shape;
  }
};

template <typename Token>
absl::Span<Token> BasicBatchView<Token>::microbatch(int data_parallel_index, int microbatch) const {
  const auto& indices = shape_->data_parallel_indices;
  const auto found = std::find(indices.begin(), indices.end(), data_parallel_index);
  MEGASCALE_CHECK(found != indices.end());
  MEGASCALE_CHECK(microbatch >= 0 && microbatch < shape_->num_microbatches);
  const auto place =
      static_cast<size_t>(found - indices.begin()) * static_cast<size_t>(shape_->num_microbatches) +
      static_cast<size_t>(microbatch);
  const size_t size = MicrobatchTokens(*shape_);
  return absl::MakeSpan(tokens_ + place * size, size);
}

template <typename Token>
absl::Span<Token> BasicBatchView<Token>::sample(int data_parallel_index, int microbatch,
                                                int index) const {
  MEGASCALE_CHECK(index >= 0 && index < shape_->micro_batch_size);
  const size_t size = static_cast<size_t>(shape_->seq_length) + 1;
  return this->microbatch(data_parallel_index, microbatch)
      .subspan(static_cast<size_t>(index) * size, size);
}

template class BasicBatchView<const int32_t>;
template class BasicBatchView<int32_t>;

size_t BatchRingBytes(const BatchRingShape& shape) {
  MEGASCALE_CHECK(IsSensible(shape));
  // The header's size does not depend on the token type of the slots.
  constexpr size_t kHeaderBytes = 2 * kLine;
  return kHeaderBytes + static_cast<size_t>(shape.num_readers) * kLine +
         RoundUp(shape.data_parallel_indices.size() * sizeof(int32_t)) +
         static_cast<size_t>(shape.num_slots) * SlotBytes(shape);
}

void FormatBatchRing(base::SharedMemory& region, const BatchRingShape& shape, int64_t first_step) {
  MEGASCALE_CHECK(region.size_bytes() >= BatchRingBytes(shape));
  std::memset(region.data(), 0, BatchRing::Header::BytesBeforeSlots(shape));
  auto* header = reinterpret_cast<BatchRing::Header*>(region.data());
  header->first_step = first_step;
  header->num_slots = shape.num_slots;
  header->num_indices = static_cast<int32_t>(shape.data_parallel_indices.size());
  header->num_microbatches = shape.num_microbatches;
  header->micro_batch_size = shape.micro_batch_size;
  header->seq_length = shape.seq_length;
  header->num_readers = shape.num_readers;
  header->end_token = -1;
  std::copy(shape.data_parallel_indices.begin(), shape.data_parallel_indices.end(),
            header->indices());
  header->magic = kMagic;
}

absl::StatusOr<BatchRing> BatchRing::Open(base::SharedMemory* region) {
  const auto refuse = [region](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch ring of ", region->size_bytes(), " bytes: ", why));
  };
  if (region->size_bytes() < sizeof(Header)) return refuse("too small for a ring");
  BatchRing ring;
  ring.header_ = reinterpret_cast<Header*>(region->data());
  if (ring.header_->magic != kMagic) return refuse("was not formatted");
  BatchRingShape shape = ring.header_->Shape();
  if (!IsSensible(shape)) return refuse("its header makes no sense");
  if (region->size_bytes() < BatchRingBytes(shape)) {
    return refuse(absl::StrCat("its header needs ", BatchRingBytes(shape)));
  }
  std::copy_n(ring.header_->indices(), shape.data_parallel_indices.size(),
              shape.data_parallel_indices.begin());
  ring.shape_ = std::make_shared<const BatchRingShape>(std::move(shape));
  return ring;
}

int64_t BatchRing::first_step() const { return header_->first_step; }

int64_t BatchRing::published() const {
  return first_step() + published_word()->load(std::memory_order_acquire);
}

int64_t BatchRing::released(int reader) const {
  return first_step() + released_word(reader)->load(std::memory_order_acquire);
}

int BatchRing::SlowestReader() const {
  int slowest = 0;
  for (int reader = 1; reader < shape_->num_readers; ++reader) {
    if (released(reader) < released(slowest)) slowest = reader;
  }
  return slowest;
}

std::atomic<uint32_t>* BatchRing::published_word() const {
  static_assert(sizeof(Header) == 2 * kLine && sizeof(Header::Reader) == kLine);
  return &header_->published;
}

std::atomic<uint32_t>* BatchRing::released_word(int reader) const {
  return &header_->readers()[reader].released;
}

int32_t* BatchRing::tokens(int64_t step) const {
  auto* slots = reinterpret_cast<std::byte*>(header_) + Header::BytesBeforeSlots(*shape_);
  const auto slot = static_cast<size_t>(step % shape_->num_slots);
  return reinterpret_cast<int32_t*>(slots + slot * SlotBytes(*shape_));
}

absl::StatusOr<BatchRingWriter> BatchRingWriter::Create(base::SharedMemory* region) {
  ASSIGN_OR_RETURN(BatchRing ring, BatchRing::Open(region));
  return BatchRingWriter(std::move(ring));
}

absl::Status BatchRingWriter::Publish(
    absl::FunctionRef<absl::Status(int64_t step, const MutableBatchView&)> fill,
    absl::Duration timeout) {
  const int64_t step = next_step();
  const int64_t needed = step - shape().num_slots;  // all readers must have released this step
  const absl::Duration until = base::RealClock().Monotonic() + timeout;
  for (;;) {
    const int slowest = ring_.SlowestReader();
    std::atomic<uint32_t>* word = ring_.released_word(slowest);
    const uint32_t seen = word->load(std::memory_order_acquire);
    if (ring_.first_step() + seen >= needed) {
      // This reader was the slowest when it was checked, and counts never decrease; check again.
      if (ring_.released(ring_.SlowestReader()) >= needed) break;
      continue;
    }
    if (!SleepOn(word, seen, until)) {
      return absl::DeadlineExceededError(
          absl::StrCat("batch ring: reader ", slowest, " still holds step ",
                       ring_.first_step() + seen + 1, ", so there is no slot for step ", step));
    }
  }
  RETURN_IF_ERROR(fill(step, MutableBatchView(ring_.shape_, ring_.tokens(step))));
  ring_.published_word()->store(static_cast<uint32_t>(step - ring_.first_step()),
                                std::memory_order_release);
  base::FutexWakeAll(ring_.published_word());
  return absl::OkStatus();
}

// A restarted loader writes the number that is there.
void BatchRingWriter::SetEndToken(int32_t token) { ring_.header_->end_token = token; }

int32_t BatchRingReader::end_token() const { return ring_.header_->end_token; }

absl::StatusOr<BatchRingReader> BatchRingReader::Create(base::SharedMemory* region, int reader) {
  ASSIGN_OR_RETURN(BatchRing ring, BatchRing::Open(region));
  if (reader < 0 || reader >= ring.shape().num_readers) {
    return absl::InvalidArgumentError(absl::StrCat("batch ring: no reader ", reader,
                                                   ", it was made for ", ring.shape().num_readers));
  }
  return BatchRingReader(std::move(ring), reader);
}

absl::StatusOr<BatchView> BatchRingReader::Wait(int64_t step, absl::Duration timeout) const {
  if (step <= ring_.released(reader_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("batch ring: reader ", reader_, " already released step ",
                     ring_.released(reader_), ", asked for ", step));
  }
  const absl::Duration until = base::RealClock().Monotonic() + timeout;
  for (;;) {
    const uint32_t seen = ring_.published_word()->load(std::memory_order_acquire);
    if (ring_.first_step() + seen >= step) break;
    if (!SleepOn(ring_.published_word(), seen, until)) {
      return absl::DeadlineExceededError(absl::StrCat(
          "batch ring: step ", step, " was not published within ", absl::FormatDuration(timeout),
          ", the newest is ", ring_.first_step() + seen, "; see the log of the host process"));
    }
  }
  return BatchView(ring_.shape_, ring_.tokens(step));
}

void BatchRingReader::Release(int64_t step) {
  MEGASCALE_CHECK(step <= ring_.published());
  if (step <= ring_.released(reader_)) return;
  ring_.released_word(reader_)->store(static_cast<uint32_t>(step - ring_.first_step()),
                                      std::memory_order_release);
  base::FutexWakeAll(ring_.released_word(reader_));
}

}  // namespace megascale::data
