// Whether several machines see one and the same checkpoint directory: one of them writes a nonce
// into it, and each of the others must see it there. A directory of the same name on each machine's
// own disk would pass every other check, and lose the checkpoint. Threads: plain functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace megascale::checkpoint {

// The nonce's file in the directory; a later one replaces it.
inline constexpr char kNonceFile[] = ".nonce";

// Writes and syncs the nonce. Errors: those of storage, naming the file.
absl::Status WriteNonce(const std::string& directory, const std::string& nonce);

struct NonceWait {
  std::string directory;
  std::string nonce;           // that is expected; another one is of another attempt
  std::string node_id;         // who looks, and
  std::string writer_node_id;  // who writes: for the message
  // A shared file system may show a new file late: NFS after a minute.
  absl::Duration timeout;
};

// Waits until the nonce can be read. The directory is listed again and again, because a file system
// over the network may remember for a while that a name was not there. Blocking.
// Errors: FailedPrecondition - it did not come: the machines see different directories.
absl::Status WaitForNonce(const NonceWait& wait);

// Once every machine has seen it. Nothing happens where there is none.
void RemoveNonce(const std::string& directory);

}  // namespace megascale::checkpoint
