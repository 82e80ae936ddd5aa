// The state of every exchange of a rank, in shared memory that the agent makes and reads: the call
// that runs in each communicator, its progress with each peer, and the calls that ended last. Start
// with ExchangeWriter.
//
// Boards lie at the end of the region that holds the rings of spans. Writing is a few stores
// without a lock. A reader that finds another version after it copied something knows that the copy
// is torn and drops it; it never waits. The process that writes a board may be broken, so the
// reader limits every number and name. In this way a board can only tell wrong things about its own
// rank.
//
// Times: base::Clock::Monotonic in nanoseconds. Ownership: writers and readers borrow the region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/comm/call_progress.h"

namespace megascale::telemetry {

// The number of a rank's communicators that are shown. Further communicators are not shown.
inline constexpr int kExchangeChannels = 32;
// The number of a call's peers that are shown one by one. A call with more peers shows the first of
// them.
inline constexpr int kExchangePeers = 32;
// Bytes of a group's name; the rest is cut off.
inline constexpr size_t kExchangeNameMax = 40;
// The number of ended calls that are kept in shared memory: enough for 10,000 calls a second if
// they are read every 100 ms.
inline constexpr int64_t kCompletedExchanges = 1024;
// No exchange moves more bytes than this; a reader replaces larger numbers by this number.
inline constexpr int64_t kExchangeBytesMax = int64_t{1} << 50;

struct PeerExchange {
  comm::PeerProgress progress;
  int64_t changed_nanos = 0;  // when the last byte moved
};

struct ExchangeRecord {
  std::string group;
  comm::Operation operation = comm::Operation::kBarrier;
  uint64_t sequence = 0;
  uint64_t instruction = 0;  // plan::InstructionId::packed()
  int peer = -1;             // world rank of the other end of a message; -1: a collective
  int64_t payload_bytes = 0;
  int64_t begin_nanos = 0;
  int64_t end_nanos = 0;            // 0: it runs
  bool ok = true;                   // if it has ended
  std::vector<PeerExchange> peers;  // of a running call that has shown them
};

// Returns the size of the boards of `num_ranks` ranks.
size_t ExchangeBytes(int num_ranks);

// Writes the board of one rank. Cost of a call: about 20 stores, and 7 for each peer whenever bytes
// have moved.
class ExchangeWriter : public comm::CallProgress {
 public:
  // Requires: `region` ends with boards for more than `index` ranks and outlives the writer.
  // `now`: monotonic nanoseconds. Effects: empties the board.
  ExchangeWriter(base::SharedMemory* region, int index, std::function<int64_t()> now);

  int Register(absl::string_view group) override;
  void Begin(int channel, const comm::CallEvent& call) override;
  void Update(int channel, absl::Span<const comm::PeerProgress> peers) override;
  void End(int channel, const comm::CallEvent& call) override;

 private:
  struct Board;
  friend class ExchangeReader;
  Board* board_;
  const std::function<int64_t()> now_;
};

// Reads the board of one rank. Threads: one at a time.
class ExchangeReader {
 public:
  // Requires: as ExchangeWriter.
  ExchangeReader(const base::SharedMemory* region, int index);

  // Returns the calls that are running now.
  std::vector<ExchangeRecord> Running() const;
  // Appends the calls that ended since the last call of this function, oldest first. Returns how
  // many were overwritten before they could be read.
  int64_t Drain(std::vector<ExchangeRecord>* ended);

 private:
  const ExchangeWriter::Board* board_;
  int64_t next_ = 0;
};

}  // namespace megascale::telemetry
