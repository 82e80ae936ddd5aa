// The output of one process on disk, bounded: segments NAME.0.log, NAME.1.log … of equal size. The
// newest two are kept. A byte's offset in the output gives its segment, so a reader needs no index,
// and offsets stay valid when older output is dropped. Threads: a LogFile belongs to one thread;
// ReadLog may run at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/base/fd.h"

namespace megascale::launch {

inline constexpr int64_t kLogSegmentBytes = 8 << 20;

struct LogName {
  std::string directory;
  std::string name;                          // "rank-00003"
  int64_t segment_bytes = kLogSegmentBytes;  // tests make it small
};

class LogFile {
 public:
  // Opens the log to append to it; creates the directory.
  static absl::StatusOr<std::unique_ptr<LogFile>> Open(const LogName& name);

  // Appends `data`; drops the oldest segment when a new one begins. Errors: ResourceExhausted - the
  // disk is full: `data` is lost, and later calls may succeed.
  absl::Status Append(absl::string_view data);

  // Returns the last `count` lines of the last 16 KiB, without the final newline.
  std::string LastLines(int count) const;

 private:
  LogFile(LogName name, base::UniqueFd fd, int64_t end)
      : name_(std::move(name)), fd_(std::move(fd)), end_(end) {}

  LogName name_;
  base::UniqueFd fd_;  // of the newest segment
  int64_t end_;        // offset after the last byte
  std::string tail_;   // the last bytes, for LastLines
};

struct LogPiece {
  std::string data;
  int64_t next_offset = 0;
};

// Reads at most `max_bytes` from `offset` on, or from the oldest kept byte if that is later. Empty
// data: there is no more yet. Errors: NotFound - no such log.
absl::StatusOr<LogPiece> ReadLog(const LogName& name, int64_t offset, int64_t max_bytes);

}  // namespace megascale::launch
