#include "runtime/checkpoint/place_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::checkpoint {

absl::Status RenamePath(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return base::ErrnoStatus(errno, absl::StrCat("rename ", from, " to ", to));
}

absl::Status MakeFileOnce(const std::string& directory, absl::string_view name,
                          absl::string_view mine, absl::string_view data) {
  const std::string path = absl::StrCat(directory, "/", name);
  const std::string temporary = absl::StrCat(path, ".", mine);
  RETURN_IF_ERROR(base::WriteFileDurably(temporary, data));
  // Unlike a rename, a link never replaces a file.
  int error = ::link(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
  const bool has_links = error != EPERM && error != EOPNOTSUPP && error != ENOSYS;
  if (!has_links) error = ::access(path.c_str(), F_OK) == 0 ? EEXIST : 0;
  if (!has_links && error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  ::unlink(temporary.c_str());
  if (error != 0 && error != EEXIST) return base::ErrnoStatus(error, path);
  return base::SyncDirectory(directory);
}

}  // namespace megascale::checkpoint
