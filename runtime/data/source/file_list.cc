#include "runtime/data/source/file_list.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <set>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::data {
namespace {

using FileId = std::pair<dev_t, ino_t>;

struct Folder {
  std::string path;
  std::vector<FileId> chain;  // of this folder and of those that it was reached through
  bool is_linked = false;     // reached through a symbolic link
};

struct FoundFile {
  std::string path;
  int64_t size_bytes = 0;
  FileId id;
  bool is_linked = false;
};

class FolderReader {
 public:
  absl::StatusOr<FileList> Read(const std::string& path, const struct stat& info) {
    list_.is_folder = true;
    left_.push_back({path, {{info.st_dev, info.st_ino}}, false});
    while (!left_.empty()) {
      const Folder folder = std::move(left_.front());
      left_.pop_front();
      if (read_.insert(folder.chain.back()).second) {
        RETURN_IF_ERROR(ReadOne(folder));
      } else {
        ++list_.num_repeated;
      }
    }
    Finish();
    if (!list_.files.empty()) return std::move(list_);
    const std::string left_out = list_.LeftOut();
    // As a file that is missing: nothing may be mounted there.
    return base::WithErrno(
        absl::InvalidArgumentError(
            absl::StrCat(path, ": is a folder that has no text file",
                         left_out.empty() ? "" : absl::StrCat(" (left out: ", left_out, ")"))),
        ENOENT);
  }

 private:
  absl::Status ReadOne(const Folder& folder) {
    DIR* directory = ::opendir(folder.path.c_str());
    if (directory == nullptr) return base::ErrnoStatus(errno, folder.path);
    const auto close = absl::MakeCleanup([directory] { ::closedir(directory); });
    const bool slash = absl::EndsWith(folder.path, "/");
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(directory);
      if (entry == nullptr && errno != 0) return base::ErrnoStatus(errno, folder.path);
      if (entry == nullptr) return absl::OkStatus();
      const absl::string_view name = entry->d_name;
      base::CountWork(1);
      if (name == "." || name == "..") continue;
      if (absl::StartsWith(name, ".")) {
        ++list_.num_hidden;
        continue;
      }
      RETURN_IF_ERROR(Take(absl::StrCat(folder.path, slash ? "" : "/", name), folder));
    }
  }

  absl::Status Take(std::string path, const Folder& folder) {
    struct stat own = {};
    struct stat info = {};
    if (::lstat(path.c_str(), &own) != 0) return base::ErrnoStatus(errno, path);
    const bool is_link = S_ISLNK(own.st_mode);
    if (::stat(path.c_str(), &info) != 0) {
      return base::ErrnoStatus(
          errno, is_link ? absl::StrCat(path, ": a symbolic link that leads nowhere") : path);
    }
    const FileId id = {info.st_dev, info.st_ino};
    const bool is_linked = folder.is_linked || is_link;
    if (S_ISDIR(info.st_mode)) {
      if (std::find(folder.chain.begin(), folder.chain.end(), id) != folder.chain.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": leads back to a folder that it is in; expected folders without a cycle"));
      }
      Folder inner = {std::move(path), folder.chain, is_linked};
      inner.chain.push_back(id);
      // Links come last: a folder that has a name without one is read by that name.
      if (is_linked) {
        left_.push_back(std::move(inner));
      } else {
        left_.push_front(std::move(inner));
      }
    } else if (!S_ISREG(info.st_mode)) {
      ++list_.num_irregular;
    } else if (absl::EndsWith(path, ".dat")) {
      ++list_.num_indexes;
    } else if (info.st_size == 0) {
      ++list_.num_empty;
    } else {
      found_.push_back({std::move(path), info.st_size, id, is_linked});
    }
    return absl::OkStatus();
  }

  // A file with several names is read by the first of those that lead through no symbolic link.
  void Finish() {
    std::sort(found_.begin(), found_.end(), [](const FoundFile& a, const FoundFile& b) {
      return std::tie(a.is_linked, a.path) < std::tie(b.is_linked, b.path);
    });
    std::set<FileId> seen;
    for (FoundFile& file : found_) {
      if (!seen.insert(file.id).second) {
        ++list_.num_repeated;
        continue;
      }
      list_.num_bytes += file.size_bytes;
      list_.files.push_back(std::move(file.path));
    }
    std::sort(list_.files.begin(), list_.files.end());
  }

  FileList list_;
  std::deque<Folder> left_;
  std::set<FileId> read_;  // folders: a tree of links to the same ones is read once
  std::vector<FoundFile> found_;
};

}  // namespace

std::string FileList::LeftOut() const {
  std::vector<std::string> parts;
  const auto add = [&parts](int64_t count, absl::string_view what) {
    if (count > 0) parts.push_back(absl::StrCat(count, " ", what));
  };
  add(num_hidden, "hidden");
  add(num_indexes, "*.dat");
  add(num_empty, "empty");
  add(num_irregular, "neither file nor folder");
  add(num_repeated, num_repeated == 1 ? "further name of the same" : "further names of the same");
  return absl::StrJoin(parts, ", ");
}

std::string FileList::Line(absl::string_view path) const {
  if (!is_folder) return "";
  const std::string left_out = LeftOut();
  return absl::StrCat(path, ": ", base::Counted(static_cast<int64_t>(files.size()), "file"), ", ",
                      base::Counted(num_bytes, "byte"),
                      left_out.empty() ? "" : absl::StrCat("; left out: ", left_out));
}

absl::StatusOr<FileList> ListFiles(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return FolderReader().Read(path, info);
  }
  FileList list;
  list.files = {path};
  return list;
}

}  // namespace megascale::data
