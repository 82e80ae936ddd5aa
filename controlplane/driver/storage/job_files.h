// The files that the driver keeps in the folders of jobs, and log.events (counted_log.h). An
// interface with two implementations: real files here; in tests/sim simulated ones, which lose what
// was not synced.
// Threads: one owner per file. Blocking: every call may wait for the disk.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::driver {

// This file in a job's folder has the resolved specification.
inline constexpr char kJobFile[] = "job.json";
// This file marks the folder of a job that the driver has forgotten.
inline constexpr char kForgottenFile[] = "forgotten";

// A file that grows at its end.
class AppendedFile {
 public:
  virtual ~AppendedFile() = default;
  // Appends `data`. It is durable after Sync; a crash before Sync leaves an unknown part of it.
  virtual absl::Status Append(absl::string_view data) = 0;
  virtual absl::Status Sync() = 0;
  // Cuts the file to its first `size_bytes` bytes. Durable.
  virtual absl::Status CutTo(size_t size_bytes) = 0;
  // Returns false if there is no file or another file at the path, because somebody deleted, moved
  // or replaced this file. Then what is appended is lost. Cost: two system calls.
  virtual bool IsAtItsPath() = 0;
};

// Errors: those of the file system, naming the path.
class JobFiles {
 public:
  virtual ~JobFiles() = default;
  // Opens the file, or creates it and its folder. The directory entry is durable.
  virtual absl::StatusOr<std::unique_ptr<AppendedFile>> OpenAppended(const std::string& path) = 0;
  virtual absl::StatusOr<size_t> Size(const std::string& path) = 0;
  // Returns at most `size_bytes` bytes from `offset` on; fewer only where the file ends.
  virtual absl::StatusOr<std::string> ReadAt(const std::string& path, size_t offset,
                                             size_t size_bytes) = 0;
  // Replaces the file atomically: a crash leaves the old or the new content.
  virtual absl::Status WriteDurably(const std::string& path, absl::string_view data) = 0;
  // Creates the file and its folder, or replaces the file, without waiting for the disk. If the
  // machine loses power soon after, the file may be lost or incomplete; the end of this process
  // does no harm.
  virtual absl::Status WriteSoon(const std::string& path, absl::string_view data) = 0;
  virtual bool Exists(const std::string& path) = 0;
};

// Returns the implementation on the machine's file system. Static lifetime; stateless.
JobFiles& RealJobFiles();

}  // namespace megascale::driver
