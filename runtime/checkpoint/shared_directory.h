// Checks that several machines see the same checkpoint directory: one of them writes a nonce into
// it, and each of the others must read it there. A directory of the same name on each machine's own
// disk would pass every other check, and lose the checkpoint. Threads: plain functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace megascale::checkpoint {

// The nonce's file in the directory; a later nonce replaces it.
inline constexpr char kNonceFile[] = ".nonce";

// Writes and syncs the nonce. Errors: those of storage, naming the file.
absl::Status WriteNonce(const std::string& directory, const std::string& nonce);

struct NonceWait {
  std::string directory;
  std::string nonce;           // expected value; another attempt's nonce differs
  std::string node_id;         // the machine that reads, for messages
  std::string writer_node_id;  // the machine that writes, for messages
  // A shared file system may show a new file late: NFS after up to a minute.
  absl::Duration timeout;
};

// Waits until the nonce can be read. Lists the directory each time, because a network file system
// may cache that a name does not exist. Blocking. Errors: FailedPrecondition - the nonce did not
// appear: the machines see different directories.
absl::Status WaitForNonce(const NonceWait& wait);

// Removes the nonce once every machine has seen it. Does nothing if there is none.
void RemoveNonce(const std::string& directory);

}  // namespace megascale::checkpoint
