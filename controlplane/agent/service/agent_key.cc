#include "controlplane/agent/service/agent_key.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/socket/own_socket.h"
#include "runtime/base/status.h"

namespace megascale::agent {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr size_t kFileBytesMax = 1 << 10;

bool IsKey(absl::string_view text) {
  return text.size() == 2 * kKeyBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isxdigit(c); });
}

absl::StatusOr<std::string> MakeKey() {
  std::array<char, kKeyBytes> random = {};
  // getrandom returns either all of so few bytes or an error.
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return base::ErrnoStatus(errno, "getrandom for the agent's key");
  }
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

}  // namespace

absl::StatusOr<std::string> LoadOrMakeKey(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kAgentKeyFile);
  const absl::Status checked = base::CheckSecretFile(
      path, "if this agent did not write it, remove it: the agent makes another key");
  if (!absl::IsNotFound(checked)) RETURN_IF_ERROR(checked);
  const absl::StatusOr<std::string> kept = base::ReadFile(path, kFileBytesMax);
  std::string key;
  if (absl::IsNotFound(kept.status())) {
    ASSIGN_OR_RETURN(key, MakeKey());
    RETURN_IF_ERROR(base::WriteFileDurably(path, key + "\n"));
  } else {
    RETURN_IF_ERROR(kept.status());
    key = std::string(absl::StripAsciiWhitespace(*kept));
  }
  if (!IsKey(key)) {
    return absl::DataLossError(absl::StrCat(
        path, ": expected ", 2 * kKeyBytes,
        " hexadecimal digits; remove the file: the agent makes another key, and the driver accepts "
        "it once the agent with the old key has been silent for the driver's --node-timeout"));
  }
  return base::Sha256Hex(key);
}

}  // namespace megascale::agent
