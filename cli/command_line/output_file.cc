#include "cli/command_line/report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::cli {

bool IsStandardOutput(const std::string& path) {
  if (path == "-") return true;
  struct stat named = {};
  struct stat output = {};
  return !path.empty() && ::stat(path.c_str(), &named) == 0 &&
         ::fstat(STDOUT_FILENO, &output) == 0 && named.st_dev == output.st_dev &&
         named.st_ino == output.st_ino;
}

absl::Status WriteOutputFile(const std::string& path, absl::string_view data) {
  if (IsStandardOutput(path)) {
    std::fflush(stdout);
    return base::Annotate(base::WriteAll(STDOUT_FILENO, data), "standard output");
  }
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) {
    return base::WriteFileDurably(path, data);
  }
  const int create = S_ISLNK(info.st_mode) ? O_CREAT : 0;  // a link may lead to nothing yet
  const base::UniqueFd file(
      ::open(path.c_str(), O_WRONLY | create | O_TRUNC | O_NOCTTY | O_CLOEXEC, 0600));
  if (!file.valid()) return base::ErrnoStatus(errno, absl::StrCat("open ", path));
  return base::Annotate(base::WriteAll(file.get(), data), path);
}

}  // namespace megascale::cli
