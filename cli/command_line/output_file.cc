#include "cli/command_line/report.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::cli {
namespace {

constexpr int kPollMilliseconds = 50;
constexpr int kPollsMax = 100;

// Returns whether a program has opened the pipe `fd` to write, or has written, within a few
// seconds. Takes nothing out of the pipe.
absl::StatusOr<bool> AwaitWriter(int fd) {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return base::ErrnoStatus(errno, "pipe");
  const base::UniqueFd read_end(ends[0]);
  const base::UniqueFd write_end(ends[1]);
  for (int i = 0; i < kPollsMax; ++i) {
    // 0: there is no data and no writer.
    if (::tee(fd, write_end.get(), 1, SPLICE_F_NONBLOCK) != 0) return true;
    ::poll(nullptr, 0, kPollMilliseconds);
  }
  return false;
}

}  // namespace

bool IsStandardOutput(const std::string& path) {
  if (path == "-") return true;
  struct stat named = {};
  struct stat output = {};
  return !path.empty() && ::stat(path.c_str(), &named) == 0 &&
         ::fstat(STDOUT_FILENO, &output) == 0 && named.st_dev == output.st_dev &&
         named.st_ino == output.st_ino;
}

absl::StatusOr<base::UniqueFd> OpenInputFile(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer for ever.
  base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) return base::ErrnoStatus(errno, "open");
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return base::ErrnoStatus(errno, "stat");
  if (S_ISFIFO(info.st_mode)) {
    ASSIGN_OR_RETURN(const bool has_writer, AwaitWriter(file.get()));
    if (!has_writer) return absl::DeadlineExceededError("is a pipe that no process writes to");
  }
  const int flags = ::fcntl(file.get(), F_GETFL);
  if (::fcntl(file.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
    return base::ErrnoStatus(errno, "fcntl");
  }
  return file;
}

absl::Status CheckKeepsInputs(const std::string& option, const std::string& output,
                              const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!std::filesystem::equivalent(output, input, error) || error) continue;
    if (!std::filesystem::is_regular_file(output, error)) continue;  // a terminal, a pipe
    return absl::InvalidArgumentError(absl::StrCat(
        option, ": ", output, " is an input, which would be overwritten; expected another file"));
  }
  return absl::OkStatus();
}

OutputKind KindThatBegins(std::string name, const std::string& begin) {
  const auto begins = [begin](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string head(begin.size(), '\0');
    return file.read(head.data(), static_cast<std::streamsize>(head.size())) && head == begin;
  };
  return {std::move(name), begins};
}

OutputKind SvgPicture() { return KindThatBegins("an SVG picture", "<svg "); }

OutputKind PerfettoFile() {
  return KindThatBegins("a trace", R"({"displayTimeUnit":"ms","traceEvents":[)");
}

void AddForceOption(Command* command, bool* force) {
  command->Flag("--force", force, "replaces whatever file the output goes to");
}

namespace {

bool HoldsSomething(const std::string& path) {
  struct stat info = {};
  return !path.empty() && !IsStandardOutput(path) && ::stat(path.c_str(), &info) == 0 &&
         S_ISREG(info.st_mode) && info.st_size > 0;
}

}  // namespace

absl::Status CheckReplaces(const std::string& option, const std::string& path,
                           const OutputKind& kind, bool force) {
  if (force || !HoldsSomething(path) || kind.is_of_kind(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", path, " exists and is not ", kind.name,
                   "; choose another file, or give --force to replace it"));
}

absl::Status CheckIsNew(const std::string& option, const std::string& path, bool force) {
  if (force || !HoldsSomething(path)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      option, ": ", path, " exists; choose another file, or give --force to replace it"));
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
