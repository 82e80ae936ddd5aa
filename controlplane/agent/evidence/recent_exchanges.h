// The exchanges of one rank: those that run, samples of how far they had come, and the newest that
// have ended. Private to this folder's users in the agent. Threads: one at a time.
//
// Retention: the newest kHistoryCalls calls that have ended, which is 40 s at 100 calls a second;
// and the newest kInFlightSamples samples of running calls, at most one for each peer in 100 ms. A
// sample is kept if bytes have moved since the sample before, or after 1 s. So if one call stalls,
// its samples reach back for minutes; if bytes move to one peer all the time, about 50 s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
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

  static constexpr size_t kInFlightSamples = 512;  // about 200 bytes each
  // A call whose bytes do not move is sampled again after this time.
  static constexpr int64_t kStillNanos = 1'000'000'000;

  // Requires: `region` outlives the object and ends with a board `index`.
  RecentExchanges(const base::SharedMemory* region, int index) : reader_(region, index) {}

  // Reads the calls that ended since the last call, and samples those that run; call every 100 ms.
  // `now_nanos`: the machine's monotonic clock.
  void Drain(int64_t now_nanos);

  // How the rank's collectives spent a stretch of time, as ProcessSample defines these shares.
  struct Shares {
    double awaiting = 0;
    double transfer = 0;
  };
  // Returns the shares since this was called last; zeros if Drain was not called since then.
  Shares TakeShares();

  // Returns what runs now, one entry for each peer of a call, and what has ended. Drain() first.
  telemetry::v1::Evidence Read() const;

 private:
  void Sample(int64_t now_nanos);

  telemetry::ExchangeReader reader_;
  std::vector<telemetry::ExchangeRecord> drained_;  // scratch
  std::deque<telemetry::ExchangeRecord> ended_;
  int64_t num_lost_ = 0;
  int num_looks_ = 0;  // since TakeShares
  Shares sums_;        // of these looks
  std::deque<telemetry::v1::InFlightSample> in_flight_;
  // The last sample of each running call and peer.
  std::map<std::tuple<std::string, uint64_t, int>, telemetry::v1::InFlightSample> last_;
};

}  // namespace megascale::agent
