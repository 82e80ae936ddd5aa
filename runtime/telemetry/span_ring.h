// Spans: one fixed-size record for every instruction that a rank's executor runs, in a ring in
// shared memory that the agent makes and reads. Start with SpanWriter.
//
// A ring has a lane for each stream of the rank, and a lane has one writing thread at a time, so
// that writing is a few stores without a lock or contention. Every record has its sequence number.
// A reader that finds another number before or after it copied the record knows that the record is
// not written yet, was overwritten, or is torn; it never waits. So the complete records of a writer
// stay readable even if the writer is killed in the middle of a write.
//
// Times: base::Clock::Monotonic in nanoseconds, comparable between the processes of one machine.
// Ownership: writers and readers borrow the region.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/process/shared_memory.h"

namespace megascale::telemetry {

inline constexpr int kSpanLanes = 9;
// Number of records in a lane. With 4096 and 4,000 spans a second, a reader that drains once a
// second loses nothing.
inline constexpr int64_t kSpansPerLane = 4096;

struct Span {
  int64_t begin_nanos = 0;
  int64_t end_nanos = 0;  // 0: it has not ended
  uint64_t instruction =
      0;  // plan::InstructionId::packed(): operation, chunk, micro-batch, bucket, piece
  int64_t step = 0;
  int64_t bytes = 0;  // moved
  int32_t attempt = 0;
  uint8_t lane = 0;  // number of the stream
  uint8_t code = 0;  // absl::StatusCode of its end
  // For a pass that has ended: how long it waited for exchanges of tensor-parallel ranks.
  int64_t exchange_nanos = 0;
  bool operator==(const Span&) const = default;
};

// Returns the size of a region with a ring for each of `num_ranks` ranks.
size_t SpanBytes(int num_ranks);

// Writes the ring of one rank.
// Threads: one at a time for each lane. Cost: about as many stores as a Span has fields.
class SpanWriter {
 public:
  // Requires: `region` has SpanBytes(more than `index`) and outlives the writer; no other process
  // writes this ring. Effects: empties the ring.
  SpanWriter(base::SharedMemory* region, int index);

  // Begins the next span of `span.lane`; ignores the fields that are known only at its end.
  void Begin(const Span& span);
  // Ends the span that was begun last in `lane`. Requires: a span has begun in `lane`.
  void End(int lane, int64_t end_nanos, int code, int64_t exchange_nanos = 0);

 private:
  struct Lane;
  struct Record;
  friend class SpanReader;
  Lane* lanes_;
};

// Reads the ring of one rank, beginning with the oldest record that is still in the ring. Threads:
// one at a time. Never waits for the writer.
class SpanReader {
 public:
  // Requires: `region` outlives the reader and has a ring `index`.
  SpanReader(const base::SharedMemory* region, int index);

  // Appends the spans that ended since the last call, lane by lane, in their order in each lane.
  // Returns how many were overwritten before they could be read.
  int64_t Drain(std::vector<Span>* spans);
  // Returns the spans that have begun and not ended, by lane.
  std::vector<Span> Open() const;

 private:
  bool Read(int lane, int64_t number, uint64_t sequence, Span* span) const;

  const SpanWriter::Lane* lanes_;
  std::array<int64_t, kSpanLanes> next_ = {};
};

}  // namespace megascale::telemetry
