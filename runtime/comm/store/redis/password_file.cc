#include "runtime/comm/store/redis/password_file.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::comm {
namespace {
constexpr size_t kFileBytesMax = 1 << 16;
}  // namespace

absl::StatusOr<std::string> FindPassword(const std::string& path, const RedisAddress& address) {
  const std::string where = absl::StrCat("--store-passwords ", path);
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return absl::FailedPreconditionError(base::ErrnoStatus(errno, where).message());
  }
  if ((info.st_mode & S_IRWXO) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": every user may read it; make it private: chmod 600 ", path));
  }
  const absl::StatusOr<std::string> text = base::ReadFile(path, kFileBytesMax);
  if (!text.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(where, ": ", text.status().message()));
  }
  RedisAddress wanted = address;
  wanted.database = 0;
  int number = 0;
  for (const absl::string_view whole : absl::StrSplit(*text, '\n')) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(whole);
    if (line.empty() || line[0] == '#') continue;
    const size_t end = line.find_first_of(" \t");
    absl::StatusOr<RedisAddress> named = ParseRedisAddress(line.substr(0, end));
    if (!named.ok() || end == absl::string_view::npos) {
      return absl::FailedPreconditionError(absl::StrCat(
          where, ":", number,
          ": expected an address, a space and a password, such as redis://10.0.0.5:6379 secret"));
    }
    named->database = 0;
    if (*named == wanted) return std::string(absl::StripAsciiWhitespace(line.substr(end)));
  }
  return std::string();
}

}  // namespace megascale::comm
