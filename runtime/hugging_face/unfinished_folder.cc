#include "runtime/hugging_face/unfinished_folder.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"

namespace megascale::hugging_face {

UnfinishedFolder::~UnfinishedFolder() {
  if (kept_) return;
  std::error_code ignored;
  for (const std::string& name : names_) std::filesystem::remove(PathOf(name), ignored);
  if (is_new_) std::filesystem::remove(path_, ignored);  // fails if it is not empty
}

absl::StatusOr<base::UniqueFd> UnfinishedFolder::Create(absl::string_view name) {
  const std::string path = PathOf(name);
  base::UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file.valid()) return base::ErrnoStatus(errno, absl::StrCat("create ", path));
  names_.emplace_back(name);
  return file;
}

absl::Status UnfinishedFolder::Write(absl::string_view name, absl::string_view text) {
  names_.emplace_back(name);  // after an error it may be there
  return base::WriteFileDurably(PathOf(name), text);
}

std::string UnfinishedFolder::PathOf(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

}  // namespace megascale::hugging_face
