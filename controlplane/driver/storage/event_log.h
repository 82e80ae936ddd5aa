// The driver's durable log: events in order, and now and then the state that they make. A seam with
// two implementations that keep one contract (log_store_contract_test.cc): RocksDB, and the
// simulated disk for what stands on it (simulated_disk.h).
// Threads: one owner. Blocking: Append and WriteSnapshot wait for the disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controlplane/driver/driver_state.h"

namespace rocksdb {
class FileSystem;
}

namespace megascale::driver {

// What a log holds: the state after the first state.num_events() events, and those after them.
struct LogContents {
  DriverState state;
  std::vector<Event> events;
};

class LogStore {
 public:
  virtual ~LogStore() = default;

  // Everything that was appended and acknowledged. Errors: DataLoss - an event cannot be read.
  virtual absl::StatusOr<LogContents> ReadAll() = 0;

  // Adds the events after the `num_before` that the log has had since it began: one write, one
  // sync for all. On an error none or some of them are durable, and the log must not be written
  // any more by this process.
  virtual absl::Status Append(int64_t num_before, const std::vector<Event>& events) = 0;

  // Replaces the events up to state.num_events() by the state, in one step.
  virtual absl::Status WriteSnapshot(const DriverState& state) = 0;
};

// Keeps the log in `directory`, which is made (owner-only) where it does not exist.
// What an older program wrote is upgraded, in one write.
// Errors: FailedPrecondition - another driver has it open, or a newer program wrote it (the message
// says which); DataLoss - it is corrupt, the message names what; PermissionDenied …
absl::StatusOr<std::unique_ptr<LogStore>> OpenRocksDbLog(const std::string& directory);
// The same over another file system.
absl::StatusOr<std::unique_ptr<LogStore>> OpenRocksDbLog(
    const std::string& directory, const std::shared_ptr<rocksdb::FileSystem>& files);

}  // namespace megascale::driver
