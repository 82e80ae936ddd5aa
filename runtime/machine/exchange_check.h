// Sends bytes through the loopback network, and writes and reads files.
#pragma once

#include <cstddef>
#include <string>

#include "absl/time/time.h"
#include "runtime/machine/part.h"

namespace megascale::machine {

struct LoopbackOptions {
  size_t block_bytes = size_t{1} << 20;
  absl::Duration budget = absl::Milliseconds(200);  // sends blocks for this long; at least one
  Tamper tamper = {};                               // changes what was received
};
// Sends blocks over TCP on 127.0.0.1 and compares them. Fails if a byte differs or a connection
// that was made breaks or stalls; that none can be made is a note.
PartResult CheckLoopback(const LoopbackOptions& options);

struct DirectoryOptions {
  std::string path;
  size_t block_bytes = size_t{4} << 20;
  absl::Duration budget = absl::Milliseconds(300);  // writes blocks for this long; at least one
  size_t size_bytes_max = size_t{256} << 20;
  bool is_own = true;  // of this machine: its input/output errors are failures. Else: notes
  Tamper tamper = {};  // changes what was read
};
// Writes a file, syncs it, drops it from the page cache, reads it back and removes it. Fails if a
// byte differs. What is no fault of the machine (missing, full, read-only, no rights) is a note.
// The rate is that of writing with the sync.
PartResult CheckDirectory(const DirectoryOptions& options);

}  // namespace megascale::machine
