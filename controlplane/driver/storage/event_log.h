// The driver's durable log: events in order, and sometimes a snapshot of the state after them. An
// interface with two implementations that keep one contract (log_store_contract_test.cc): RocksDB,
// and a simulated disk for tests and the simulator (simulated_disk.h).
// Threads: one owner. Blocking: Append and WriteSnapshot wait for the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controlplane/driver/core/driver_state.h"
#include "runtime/base/serialize.h"

namespace rocksdb {
class FileSystem;
}

namespace megascale::driver {

// The contents of a log: the state after the first state.num_events() events, and the later events.
struct LogContents {
  DriverState state;
  std::vector<Event> events;
};

// Returns how many events a log has had since it began.
inline int64_t NumEvents(const LogContents& log) {
  return log.state.num_events() + static_cast<int64_t>(log.events.size());
}

class EventLog {
 public:
  virtual ~EventLog() = default;

  // Returns everything that was appended and acknowledged. Errors: DataLoss - an event cannot be
  // read.
  virtual absl::StatusOr<LogContents> ReadAll() = 0;

  // Appends the events with one write and one sync. `num_before`: number of events that the log has
  // had since it began. After an error it is unknown how many of the events are durable, and this
  // process must not write the log any more. ResourceExhausted - an event is too large to be
  // written, and nothing was written.
  virtual absl::Status Append(int64_t num_before, const std::vector<Event>& events) = 0;

  // Replaces the events up to state.num_events() by the state, atomically. Errors:
  // ResourceExhausted - a record of the state is too large to be written; the log is as before.
  virtual absl::Status WriteSnapshot(const DriverState& state) = 0;
};

// Opens the log in `directory`, which is created (owner-only) if it does not exist. A log of an
// older program is upgraded, in one write. Errors: FailedPrecondition - another driver has it open,
// or a newer program wrote it (the message says which); DataLoss - it is corrupt, and the message
// says where; PermissionDenied …
absl::StatusOr<std::unique_ptr<EventLog>> OpenRocksDbLog(const std::string& directory);
// As above, over another file system. Only tests pass a smaller limit on the size of a record.
absl::StatusOr<std::unique_ptr<EventLog>> OpenRocksDbLog(
    const std::string& directory, const std::shared_ptr<rocksdb::FileSystem>& files,
    size_t record_bytes_max = base::kMessageBytesMax);

// Reads the log in `directory` without opening it for writing, so that a driver that has it open is
// not disturbed. Errors: NotFound - there is no log; DataLoss; FailedPrecondition - a newer program
// wrote it.
absl::StatusOr<LogContents> ReadRocksDbLog(const std::string& directory);

}  // namespace megascale::driver
