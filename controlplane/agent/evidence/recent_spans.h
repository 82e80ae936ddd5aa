// The newest instructions of one rank. Drains its ring of spans and keeps the newest ones, for
// traces and to say what the rank did before it died or stalled. Private to this folder. Threads:
// one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::agent {

// At most this many spans or exchanges count as lost, because a broken rank may claim to have
// written any number of them, again and again.
inline constexpr int64_t kLostMax = int64_t{1} << 61;

class RecentSpans {
 public:
  // The number of instruction spans that are kept: enough for 10 steps of a rank that takes 64
  // micro-batches through 4 chunks (about 6 instructions for each), or 250 steps with 10
  // micro-batches and one chunk. A span has 56 bytes, so a rank needs at most 0.9 MB, and a message
  // has less than 1 MiB. The same number of exchanges between tensor ranks is kept apart, because
  // these are far more frequent and would push the instructions out.
  static constexpr size_t kHistorySpans = 16384;

  // Requires: `region` outlives the object and has a ring `index`.
  RecentSpans(const base::SharedMemory* region, int index) : reader_(region, index) {}

  // Reads new spans from the ring. Call often, so that few are overwritten before they are read.
  void Drain();

  // Returns one line: the running instructions, since when they run, and the last completed ones,
  // newest first; "": the rank has begun no instruction. Drain() first.
  std::string Describe(absl::Duration now) const;

  // Returns the kept spans of step `first_step` and later steps: first those that have ended, each
  // lane in order, then those that run. Drain() first.
  std::vector<telemetry::Span> Since(int64_t first_step) const;

  // How a rank spent a stretch of time: the share in which it computed, and the share in which it
  // waited for other ranks without computing. Evaluations of held-out text are neither, because
  // they are no part of a step. Also the number of forward passes of steps that ended in this time,
  // each of one micro-batch through one chunk.
  struct Shares {
    double compute = 0;
    double wait = 0;
    int64_t num_forwards = 0;
  };
  // Requires: `end` is after `begin`, in monotonic nanoseconds. Drain() first.
  Shares SharesOf(int64_t begin, int64_t end) const;

  int64_t num_lost() const { return num_lost_; }  // overwritten before they could be read

 private:
  telemetry::SpanReader reader_;
  std::vector<telemetry::Span> drained_;  // scratch
  std::vector<telemetry::Span> newest_;   // by end, newest first
  // As drained, at most kHistorySpans each.
  std::deque<telemetry::Span> instructions_;
  std::deque<telemetry::Span> exchanges_;
  int64_t num_lost_ = 0;
};

}  // namespace megascale::agent
