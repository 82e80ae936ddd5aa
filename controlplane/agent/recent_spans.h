// The last instructions of one rank: drains its ring of spans and keeps the newest ones, to say
// what it did before it died or stood still. Private to this folder. Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runtime/base/shared_memory.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::agent {

class RecentSpans {
 public:
  // Requires: `region` outlives the object and has a ring `index`.
  RecentSpans(const base::SharedMemory* region, int index) : reader_(region, index) {}

  // Call now and then, so that few are overwritten before they were read.
  void Drain();

  // One line: what runs, since when, and what was completed last, newest first; "" where nothing
  // was ever begun. Drain() first.
  std::string Describe(absl::Duration now) const;

  int64_t num_seen() const { return num_seen_; }
  int64_t num_lost() const { return num_lost_; }  // overwritten before they could be read

 private:
  telemetry::SpanReader reader_;
  std::vector<telemetry::Span> drained_;  // scratch
  std::vector<telemetry::Span> newest_;   // by end, newest first
  int64_t num_seen_ = 0;
  int64_t num_lost_ = 0;
};

}  // namespace megascale::agent
