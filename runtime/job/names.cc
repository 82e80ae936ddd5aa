#include "runtime/job/names.h"

#include <algorithm>
#include <climits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/text/printable.h"

namespace megascale::job {
namespace {

constexpr size_t kJobIdBytesMax = 128;
constexpr size_t kShownBytesMax = 100;

}  // namespace

absl::Status CheckJobId(absl::string_view job_id) {
  const bool good = !job_id.empty() && job_id.size() <= kJobIdBytesMax && job_id[0] != '.' &&
                    job_id[0] != '-' && std::all_of(job_id.begin(), job_id.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                             c == '_' || c == '.';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "job id '", base::Printable(job_id, kShownBytesMax), "'",
      job_id.size() > kJobIdBytesMax ? absl::StrCat(" of ", job_id.size(), " bytes") : "",
      ": expected 1 to ", kJobIdBytesMax,
      " letters, digits, '-', '_' and '.', beginning with a letter, digit or '_'; "
      "`megascale list` shows the ids of all jobs"));
}

absl::Status CheckPath(absl::string_view field, absl::string_view path) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": '", base::Printable(path, kShownBytesMax), "' ", why));
  };
  if (path.size() >= PATH_MAX) {
    return refuse(absl::StrCat("has ", path.size(), " bytes; a path has at most ", PATH_MAX - 1));
  }
  if (!base::IsUtf8(path)) return refuse("is not UTF-8; expected a path that is, rename the file");
  if (std::any_of(path.begin(), path.end(),
                  [](unsigned char c) { return absl::ascii_iscntrl(c); })) {
    return refuse("has control characters; expected a path without, rename the file");
  }
  const size_t scheme = path.find("://");
  if (scheme != absl::string_view::npos && scheme + 1 == path.find('/')) {
    return refuse(
        absl::StrCat("begins with ", path.substr(0, scheme),
                     "://, which is not supported; expected a path in a mounted file system"));
  }
  if (!absl::StartsWith(path, "/")) return refuse("is not an absolute path");
  return absl::OkStatus();
}

}  // namespace megascale::job
