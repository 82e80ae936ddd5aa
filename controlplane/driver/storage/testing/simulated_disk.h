// The driver's disk in memory, for tests and the simulator. It keeps synced data and may lose any
// other data in a crash. It outlives the drivers that open it, one after the other; call Crash
// between two of them.
//
// Before each effect it asks `fate`, so that a test can end the driver before and after every write
// and every sync, and can make any of them fail. Threads: one.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "controlplane/driver/storage/event_log.h"
#include "controlplane/driver/storage/job_files.h"

namespace megascale::driver {

class SimulatedDisk : public JobFiles {
 public:
  enum class Fate {
    kDone,
    kFails,  // an error; part of the data may have been written
    kDies,   // the process ends before the effect: an error, and nothing happened
  };
  // Decides the fate of the named effect ("append to the log", "sync /jobs/j/metrics.jsonl" …).
  using FateOf = std::function<Fate(absl::string_view effect)>;
  // How much of `unsynced` (bytes of a file, events of the log) a crash leaves: 0 to `unsynced`.
  using Remainder = std::function<size_t(size_t unsynced)>;

  // Sets the faults. By default every effect is done, and a crash leaves no unsynced data.
  void SetFaults(FateOf fate, Remainder remainder);
  // From now on every effect whose name contains `part` fails; "" repairs everything.
  void FailOn(const std::string& part);
  // From now on an event, a job or a node of more bytes cannot be written to the log.
  void SetRecordBytesMax(size_t bytes_max) { record_bytes_max_ = bytes_max; }

  // Opens the log. A log that was opened before must not be used any more.
  std::unique_ptr<EventLog> OpenLog();
  // Replaces the log by a copy that was kept. Call between two drivers.
  void ReplaceLog(LogContents contents);
  // The contents that a log opened now would read, were it not damaged.
  const LogContents& durable_log() const { return log_; }

  enum class LogDamage {
    kLostMiddle,  // an event is missing
    kFlipped,     // an event cannot be read
    kLostEnd,     // the last events are missing; it reads as a log that a crash tore
    kOlderCopy,   // the log is one that KeepCopyOfLog kept
  };
  // Damages the log, as a bad disk or a person does, until MendLog. The other files stay, also what
  // was not synced: the machine goes on. Call between two drivers. Returns false if nothing was
  // lost: there are too few events, or no copy. `choice`: any number; it says which event.
  bool DamageLog(LogDamage damage, size_t choice);
  void KeepCopyOfLog() { copy_ = log_; }
  // Puts the log back as it was before the damage. What was written meanwhile is lost.
  void MendLog();
  bool is_log_damaged() const { return undamaged_.has_value(); }

  // Replaces a part of what the file has on the disk, as a bad sector does. Bytes beyond its end
  // are left out.
  void Corrupt(const std::string& path, size_t offset, absl::string_view bytes);
  // Replaces a file, as a person does who puts a copy in its place.
  void ReplaceFile(const std::string& path, absl::string_view content);

  // Deletes a file, as a person does. Who has it open goes on with a file that has no path.
  void DeleteFile(const std::string& path) { files_.erase(path); }

  // Drops unsynced data, except for the part at its beginning that `remainder` keeps.
  void Crash();

  absl::StatusOr<std::unique_ptr<AppendedFile>> OpenAppended(const std::string& path) override;
  absl::StatusOr<size_t> Size(const std::string& path) override;
  absl::StatusOr<std::string> ReadAt(const std::string& path, size_t offset,
                                     size_t size_bytes) override;
  absl::Status WriteDurably(const std::string& path, absl::string_view data) override;
  absl::Status WriteSoon(const std::string& path, absl::string_view data) override;
  bool Exists(const std::string& path) override { return files_.count(path) > 0; }

 private:
  class Log;
  class OpenFile;
  struct File {
    std::string content;
    size_t synced = 0;  // bytes
  };

  absl::Status Do(const std::string& effect);

  // Checks that no record is larger than the log takes.
  template <typename Records>
  absl::Status CheckSizes(const Records& records) const;

  FateOf fate_;
  Remainder remainder_;
  size_t record_bytes_max_ = base::kMessageBytesMax;
  LogContents log_;
  std::vector<Event> unsynced_;           // written after log_
  std::optional<LogContents> undamaged_;  // set: the log is damaged
  absl::Status log_error_;                // what reading the damaged log returns
  std::optional<LogContents> copy_;
  std::map<std::string, std::shared_ptr<File>> files_;
};

}  // namespace megascale::driver
