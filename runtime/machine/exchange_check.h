// Sends bytes through the loopback network, and writes and reads files.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "runtime/machine/part.h"

namespace megascale::machine {

struct LoopbackOptions {
  size_t block_bytes = size_t{1} << 20;
  absl::Duration budget = absl::Milliseconds(200);  // sends blocks for this long; at least one
  Tamper tamper = {};                               // changes what was received
  // For tests: returns the errno with which sending fails before the first byte; 0, or unset:
  // sending does not fail.
  std::function<int()> fails_to_send = {};
};
// Sends blocks over TCP on 127.0.0.1 and compares them. Fails if a byte differs, if an established
// connection breaks, or if two connections in a row stall. One stall is no failure, because a
// machine may be suspended for a while. If no connection can be established, that is a note.
PartResult CheckLoopback(const LoopbackOptions& options);

struct DirectoryOptions {
  std::string path;
  size_t block_bytes = size_t{4} << 20;
  absl::Duration budget = absl::Milliseconds(300);  // writes blocks for this long; at least one
  size_t size_bytes_max = size_t{256} << 20;
  size_t memory_bytes_max = size_t{256} << 20;  // replaces size_bytes_max if files are in memory
  // Whether the file system is this machine's own. Then wrong bytes and input/output errors are
  // failures of the machine. Otherwise they are notes, because every machine that uses the storage
  // may see them.
  bool is_own = true;
  Tamper tamper = {};  // changes what was read
};
// Writes a file without a name, syncs it, drops it from the page cache and reads it back. The file
// vanishes when the process ends, even if the process is killed. Fails if a byte differs. A problem
// that is no fault of the machine (missing, full, read-only, no rights) is a note. The rate is the
// rate of writing, including the sync.
PartResult CheckDirectory(const DirectoryOptions& options);

}  // namespace megascale::machine
