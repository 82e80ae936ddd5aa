// The last instructions of one rank: drains its ring of spans and keeps the newest ones, to say
// what it did before it died or stood still, and for traces. Private to this folder. Threads: one
// at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/shared_memory.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::agent {

class RecentSpans {
 public:
  // Spans that are kept: 10 steps of a rank that takes 64 micro-batches through 4 chunks (about 6
  // instructions for each), 250 of one with 10 micro-batches and one chunk. As they are 56 bytes
  // each, at most 0.9 MB a rank; as a message, less than 1 MiB. As many exchanges of tensor ranks
  // within passes are kept beside them: these are many more, and must not drive a step's
  // instructions out.
  static constexpr size_t kHistorySpans = 16384;

  // Requires: `region` outlives the object and has a ring `index`.
  RecentSpans(const base::SharedMemory* region, int index) : reader_(region, index) {}

  // Call now and then, so that few are overwritten before they were read.
  void Drain();

  // One line: what runs, since when, and what was completed last, newest first; "" where nothing
  // was ever begun. Drain() first.
  std::string Describe(absl::Duration now) const;

  // Those kept of step `first_step` and later ones: what has ended, each lane in its order, then
  // what runs. Drain() first.
  std::vector<telemetry::Span> Since(int64_t first_step) const;

  int64_t num_seen() const { return num_seen_; }
  int64_t num_lost() const { return num_lost_; }  // overwritten before they could be read

 private:
  telemetry::SpanReader reader_;
  std::vector<telemetry::Span> drained_;  // scratch
  std::vector<telemetry::Span> newest_;   // by end, newest first
  // As drained, at most kHistorySpans each.
  std::deque<telemetry::Span> instructions_;
  std::deque<telemetry::Span> exchanges_;
  int64_t num_seen_ = 0;
  int64_t num_lost_ = 0;
};

}  // namespace megascale::agent
