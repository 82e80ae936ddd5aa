#include "controlplane/launch/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"

namespace megascale::launch {
namespace {

constexpr size_t kTailBytes = 16 << 10;

std::string SegmentPath(const LogName& name, int64_t segment) {
  return absl::StrCat(name.directory, "/", name.name, ".", segment, ".log");
}

// The numbers of the segments on disk, in order.
std::vector<int64_t> Segments(const LogName& name) {
  std::vector<int64_t> segments;
  const std::string prefix = absl::StrCat(name.name, ".");
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(name.directory, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    const std::string file = it->path().filename().string();
    absl::string_view number = file;
    int64_t segment = 0;
    if (absl::ConsumePrefix(&number, prefix) && absl::ConsumeSuffix(&number, ".log") &&
        absl::SimpleAtoi(number, &segment)) {
      segments.push_back(segment);
    }
  }
  std::sort(segments.begin(), segments.end());
  return segments;
}

absl::StatusOr<base::UniqueFd> OpenSegment(const LogName& name, int64_t segment, int flags) {
  const std::string path = SegmentPath(name, segment);
  base::UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, 0600));
  if (!fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("open log ", path));
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogFile>> LogFile::Open(const LogName& name) {
  RETURN_IF_ERROR(base::MakeDirectories(name.directory));
  const std::vector<int64_t> segments = Segments(name);
  const int64_t newest = segments.empty() ? 0 : segments.back();
  ASSIGN_OR_RETURN(base::UniqueFd fd, OpenSegment(name, newest, O_WRONLY | O_CREAT | O_APPEND));
  const int64_t size = ::lseek(fd.get(), 0, SEEK_END);
  const int64_t end = newest * name.segment_bytes + std::min(size, name.segment_bytes);
  return std::unique_ptr<LogFile>(new LogFile(name, std::move(fd), end));
}

absl::Status LogFile::Append(absl::string_view data) {
  tail_.append(data.data(), data.size());
  if (tail_.size() > 2 * kTailBytes) {
    tail_.erase(0, tail_.size() - kTailBytes);
    tail_.erase(0, tail_.find('\n') + 1);  // whole lines; one that is longer stays as it is
  }
  while (!data.empty()) {
    const int64_t in_segment = end_ % name_.segment_bytes;
    if (in_segment == 0 && end_ > 0) {
      const int64_t segment = end_ / name_.segment_bytes;
      ASSIGN_OR_RETURN(fd_, OpenSegment(name_, segment, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND));
      ::unlink(SegmentPath(name_, segment - 2).c_str());
    }
    const auto size = std::min<size_t>(data.size(), name_.segment_bytes - in_segment);
    const ssize_t written = ::write(fd_.get(), data.data(), size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return base::ErrnoStatus(errno, absl::StrCat("write log ", name_.directory, "/", name_.name));
    }
    end_ += written;
    data.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

std::string LogFile::LastLines(int count) const {
  absl::string_view tail = tail_;
  absl::ConsumeSuffix(&tail, "\n");
  size_t begin = tail.size();
  for (int lines = 0; lines < count && begin != 0; ++lines) {
    const size_t newline = tail.rfind('\n', begin - 1);
    begin = newline == absl::string_view::npos ? 0 : newline;
    if (newline == absl::string_view::npos) break;
  }
  tail.remove_prefix(begin);
  absl::ConsumePrefix(&tail, "\n");
  return std::string(tail);
}

absl::StatusOr<LogPiece> ReadLog(const LogName& name, int64_t offset, int64_t max_bytes) {
  const std::vector<int64_t> segments = Segments(name);
  if (segments.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no log ", name.name, " in ", name.directory, " (nothing was written yet?)"));
  }
  LogPiece piece;
  piece.next_offset = std::max(offset, segments.front() * name.segment_bytes);
  for (const int64_t segment : segments) {
    const int64_t begin = segment * name.segment_bytes;
    if (piece.next_offset < begin || piece.next_offset >= begin + name.segment_bytes) continue;
    const absl::StatusOr<base::UniqueFd> fd = OpenSegment(name, segment, O_RDONLY);
    if (!fd.ok()) break;  // dropped meanwhile: the caller goes on from next_offset
    std::string buffer(
        static_cast<size_t>(std::min(max_bytes - static_cast<int64_t>(piece.data.size()),
                                     begin + name.segment_bytes - piece.next_offset)),
        '\0');
    const ssize_t got = ::pread(fd->get(), buffer.data(), buffer.size(), piece.next_offset - begin);
    if (got <= 0) break;
    piece.data.append(buffer, 0, static_cast<size_t>(got));
    piece.next_offset += got;
    if (static_cast<int64_t>(piece.data.size()) >= max_bytes) break;
  }
  return piece;
}

}  // namespace megascale::launch
