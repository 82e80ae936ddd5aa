// The exchanges of one rank: those that run, and the newest that have ended. Private to this
// folder's users in the agent. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "proto/telemetry.pb.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/telemetry/exchange_board.h"

namespace megascale::agent {

class RecentExchanges {
 public:
  // The number of calls that have ended and are kept. Each takes about 150 bytes here and less in a
  // message, so that a message stays well below 1 MiB.
  static constexpr size_t kHistoryCalls = 4096;

  // Requires: `region` outlives the object and ends with a board `index`.
  RecentExchanges(const base::SharedMemory* region, int index) : reader_(region, index) {}

  // Reads the calls that ended since the last call; call often.
  void Drain();
  // Returns what runs now, one entry for each peer of a call, and what has ended. Drain() first.
  telemetry::v1::Evidence Read() const;

 private:
  telemetry::ExchangeReader reader_;
  std::vector<telemetry::ExchangeRecord> drained_;  // scratch
  std::deque<telemetry::ExchangeRecord> ended_;
  int64_t num_lost_ = 0;
};

}  // namespace megascale::agent
