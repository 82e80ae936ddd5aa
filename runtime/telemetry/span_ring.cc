#include "runtime/telemetry/span_ring.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "runtime/base/check.h"

namespace megascale::telemetry {
namespace {

constexpr size_t kWords = 7;
using SpanWords = std::array<uint64_t, kWords>;

SpanWords Pack(const Span& span) {
  const uint64_t small = static_cast<uint64_t>(static_cast<uint32_t>(span.attempt)) |
                         static_cast<uint64_t>(span.lane) << 32 |
                         static_cast<uint64_t>(span.code) << 40;
  return {static_cast<uint64_t>(span.begin_nanos),
          static_cast<uint64_t>(span.end_nanos),
          span.instruction,
          static_cast<uint64_t>(span.step),
          static_cast<uint64_t>(span.bytes),
          small,
          static_cast<uint64_t>(span.exchange_nanos)};
}

Span Unpack(const SpanWords& words) {
  Span span;
  span.begin_nanos = static_cast<int64_t>(words[0]);
  span.end_nanos = static_cast<int64_t>(words[1]);
  span.instruction = words[2];
  span.step = static_cast<int64_t>(words[3]);
  span.bytes = static_cast<int64_t>(words[4]);
  span.attempt = static_cast<int32_t>(static_cast<uint32_t>(words[5]));
  span.lane = static_cast<uint8_t>(words[5] >> 32);
  span.code = static_cast<uint8_t>(words[5] >> 40);
  span.exchange_nanos = static_cast<int64_t>(words[6]);
  return span;
}

// The sequence of a record whose span, number `number` of its lane, has begun or has ended. 0 marks
// a record that is being overwritten.
constexpr uint64_t SequenceOfBegun(int64_t number) { return 2 * static_cast<uint64_t>(number) + 1; }
constexpr uint64_t SequenceOfEnded(int64_t number) { return SequenceOfBegun(number) + 1; }

// No rank writes more spans; a broken one may claim any number.
constexpr int64_t kSpansMax = int64_t{1} << 56;

int64_t NumberIn(const std::atomic<int64_t>& num_begun) {
  return std::clamp<int64_t>(num_begun.load(std::memory_order_acquire), 0, kSpansMax);
}

constexpr size_t kEndWord = 1;
constexpr size_t kCodeWord = 5;
constexpr size_t kExchangeWord = 6;

}  // namespace

struct alignas(64) SpanWriter::Record {
  std::atomic<uint64_t> sequence;
  std::array<std::atomic<uint64_t>, kWords> words;
};

struct alignas(64) SpanWriter::Lane {
  std::atomic<int64_t> num_begun;
  std::array<Record, kSpansPerLane> records;
};

size_t SpanBytes(int num_ranks) {
  // A lane is its head, on a cache line of its own, and its records.
  return static_cast<size_t>(num_ranks) * kSpanLanes * 64 * (1 + kSpansPerLane);
}

SpanWriter::SpanWriter(base::SharedMemory* region, int index)
    : lanes_(reinterpret_cast<Lane*>(region->data()) + static_cast<ptrdiff_t>(index) * kSpanLanes) {
  static_assert(sizeof(Record) == 64);
  static_assert(sizeof(Lane) == 64 * (1 + kSpansPerLane));
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  static_assert(std::has_single_bit(static_cast<uint64_t>(kSpansPerLane)));
  MEGASCALE_CHECK(index >= 0 && SpanBytes(index + 1) <= region->size_bytes());
  for (int lane = 0; lane < kSpanLanes; ++lane) {
    for (Record& record : lanes_[lane].records) {
      record.sequence.store(0, std::memory_order_relaxed);
    }
    lanes_[lane].num_begun.store(0, std::memory_order_release);
  }
}

void SpanWriter::Begin(const Span& span) {
  Lane& lane = lanes_[span.lane];
  const int64_t number = lane.num_begun.load(std::memory_order_relaxed);
  Record& record = lane.records[number % kSpansPerLane];
  record.sequence.store(0, std::memory_order_relaxed);
  // A reader that sees a word written below also sees that the record is being overwritten.
  std::atomic_thread_fence(std::memory_order_release);
  Span begun = span;
  begun.end_nanos = 0;
  begun.code = 0;
  begun.exchange_nanos = 0;
  const SpanWords words = Pack(begun);
  for (size_t i = 0; i < kWords; ++i) record.words[i].store(words[i], std::memory_order_relaxed);
  record.sequence.store(SequenceOfBegun(number), std::memory_order_release);
  lane.num_begun.store(number + 1, std::memory_order_release);
}

void SpanWriter::End(int lane_index, int64_t end_nanos, int code, int64_t exchange_nanos) {
  Lane& lane = lanes_[lane_index];
  const int64_t number = lane.num_begun.load(std::memory_order_relaxed) - 1;
  MEGASCALE_CHECK(number >= 0);
  Record& record = lane.records[number % kSpansPerLane];
  MEGASCALE_CHECK(record.sequence.load(std::memory_order_relaxed) == SequenceOfBegun(number));
  const uint64_t small = record.words[kCodeWord].load(std::memory_order_relaxed);
  record.words[kEndWord].store(static_cast<uint64_t>(end_nanos), std::memory_order_relaxed);
  record.words[kCodeWord].store(small | static_cast<uint64_t>(code & 0xff) << 40,
                                std::memory_order_relaxed);
  record.words[kExchangeWord].store(static_cast<uint64_t>(exchange_nanos),
                                    std::memory_order_relaxed);
  record.sequence.store(SequenceOfEnded(number), std::memory_order_release);
}

SpanReader::SpanReader(const base::SharedMemory* region, int index)
    : lanes_(reinterpret_cast<const SpanWriter::Lane*>(region->data()) +
             static_cast<ptrdiff_t>(index) * kSpanLanes) {
  MEGASCALE_CHECK(index >= 0 && SpanBytes(index + 1) <= region->size_bytes());
}

bool SpanReader::Read(int lane, int64_t number, uint64_t sequence, Span* span) const {
  const SpanWriter::Record& record = lanes_[lane].records[number % kSpansPerLane];
  if (record.sequence.load(std::memory_order_acquire) != sequence) return false;
  SpanWords words;
  for (size_t i = 0; i < kWords; ++i) words[i] = record.words[i].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (record.sequence.load(std::memory_order_relaxed) != sequence) return false;
  *span = Unpack(words);
  return true;
}

int64_t SpanReader::Drain(std::vector<Span>* spans) {
  int64_t num_lost = 0;
  for (int lane = 0; lane < kSpanLanes; ++lane) {
    int64_t& next = next_[static_cast<size_t>(lane)];
    const int64_t end = NumberIn(lanes_[lane].num_begun);
    if (end < next) next = 0;  // a new writer emptied the ring
    const int64_t first = std::max<int64_t>(next, end - kSpansPerLane);
    num_lost += first - next;
    for (next = first; next < end; ++next) {
      Span span;
      if (Read(lane, next, SequenceOfEnded(next), &span)) {
        spans->push_back(span);
      } else if (next == end - 1) {
        break;  // it is running, just ending, or just being overwritten: the next call decides
      } else {
        ++num_lost;
      }
    }
  }
  return num_lost;
}

std::vector<Span> SpanReader::Open() const {
  std::vector<Span> open;
  for (int lane = 0; lane < kSpanLanes; ++lane) {
    const int64_t number = NumberIn(lanes_[lane].num_begun) - 1;
    Span span;
    if (number < 0 || !Read(lane, number, SequenceOfBegun(number), &span)) continue;
    span.end_nanos = 0;  // not ended yet, even if its writer is just writing the end
    span.code = 0;
    span.exchange_nanos = 0;
    open.push_back(span);
  }
  return open;
}

}  // namespace megascale::telemetry
