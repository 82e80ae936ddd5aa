// The files that the driver keeps in the folders of jobs. A seam: real ones here, simulated ones
// that lose what was not synced in tests/sim.
// Threads: one owner per file. Blocking: every call may wait for the disk.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace megascale::driver {

// In the folder of a job that the driver has forgotten.
inline constexpr char kForgottenFile[] = "forgotten";

// A file that grows at its end.
class AppendedFile {
 public:
  virtual ~AppendedFile() = default;
  // Durable after Sync; a crash before it leaves any part of it.
  virtual absl::Status Append(absl::string_view data) = 0;
  virtual absl::Status Sync() = 0;
  // Cuts the file to its first `size_bytes` bytes. Durable.
  virtual absl::Status CutTo(size_t size_bytes) = 0;
};

// Errors: those of the file system, naming the path.
class JobFiles {
 public:
  virtual ~JobFiles() = default;
  // Opens or makes the file and its folder; its name is durable.
  virtual absl::StatusOr<std::unique_ptr<AppendedFile>> OpenAppended(const std::string& path) = 0;
  virtual absl::StatusOr<std::string> Read(const std::string& path) = 0;
  // Replaces the file: a crash leaves the old or the new content.
  virtual absl::Status WriteDurably(const std::string& path, absl::string_view data) = 0;
  // Makes the file and its folder, or replaces the file. Nobody waits for the disk: a machine that
  // loses power soon after may lose the file or leave a part of it; a process that ends does not.
  virtual absl::Status WriteSoon(const std::string& path, absl::string_view data) = 0;
  virtual bool Exists(const std::string& path) = 0;
};

// The machine's. Lives for ever; stateless.
JobFiles& RealJobFiles();

}  // namespace megascale::driver
