#include "runtime/checkpoint/shared_directory.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"

namespace megascale::checkpoint {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(50);
constexpr size_t kNonceBytesMax = 4096;

std::string PathOf(const std::string& directory) {
  return absl::StrCat(directory, "/", kNonceFile);
}

bool IsThere(const NonceWait& wait) {
  // Opening the directory asks the server; checking the name alone might use a cache.
  std::error_code error;
  for (std::filesystem::directory_iterator entry(wait.directory, error), end;
       !error && entry != end; entry.increment(error)) {
    if (entry->path().filename() != kNonceFile) continue;
    const auto found = base::ReadFile(PathOf(wait.directory), kNonceBytesMax);
    return found.ok() && *found == wait.nonce;
  }
  return false;
}

}  // namespace

absl::Status WriteNonce(const std::string& directory, const std::string& nonce) {
  return base::WriteFileDurably(PathOf(directory), nonce);
}

absl::Status WaitForNonce(const NonceWait& wait) {
  const absl::Duration end = base::RealClock().Monotonic() + wait.timeout;
  for (;;) {
    if (IsThere(wait)) return absl::OkStatus();
    if (base::RealClock().Monotonic() >= end) break;
    absl::SleepFor(kLookInterval);
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint.directory: node ", wait.node_id, " does not see in ", wait.directory,
      " what node ", wait.writer_node_id, " wrote there (looked for ",
      absl::FormatDuration(wait.timeout),
      "); every machine needs the same directory: mount one shared file system there"));
}

void RemoveNonce(const std::string& directory) { ::unlink(PathOf(directory).c_str()); }

}  // namespace megascale::checkpoint
