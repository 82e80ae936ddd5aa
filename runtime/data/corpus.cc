#include "runtime/data/corpus.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"
#include "runtime/data/source/byte_stream.h"
#include "runtime/data/source/file_list.h"
#include "runtime/data/source/text_check.h"

namespace megascale::data {
namespace {

constexpr double kHeldOutFractionDefault = 0.1;
// A process may have 1024 descriptors; a directory may have more files.
constexpr size_t kOpenFilesMax = 128;

// O_NONBLOCK: opening a FIFO without a writer must not wait.
base::UniqueFd OpenToRead(const std::string& path) {
  return base::UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

absl::Status CannotRead(const std::string& path, int error) {
  absl::Status status = base::ErrnoStatus(error, absl::StrCat("data file ", path));
  if (error != EACCES && error != ENOENT) return status;
  return base::WithErrno(
      absl::Status(status.code(),
                   absl::StrCat(status.message(), "; expected a file that user ", ::geteuid(),
                                " can read on every machine of the job")),
      error);
}

absl::StatusOr<struct stat> StatFile(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return CannotRead(path, errno);
  return info;
}

// Returns the kind of a file that is not regular; "" for a regular one.
std::string KindOf(mode_t mode) {
  if (S_ISREG(mode)) return "";
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "of an unknown kind";
}

absl::Status CheckRegular(const std::string& path, const struct stat& info) {
  const std::string kind = KindOf(info.st_mode);
  if (kind.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data file ", path, ": is ", kind,
                   "; expected a regular file, which can be read again at any place"));
}

}  // namespace

absl::Status CorpusPart::Read(int64_t begin, absl::Span<uint8_t> out) const {
  MEGASCALE_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= size_bytes_);
  return corpus_->Read(begin_ + begin, out);
}

absl::StatusOr<std::unique_ptr<Corpus>> Corpus::Open(const job::v1::DataSpec& spec,
                                                     int seq_length) {
  if (spec.files().empty()) {
    return absl::InvalidArgumentError("data.files: is empty, expected at least one text file");
  }
  std::unique_ptr<Corpus> corpus(new Corpus);
  for (const std::string& path : spec.files()) {
    ASSIGN_OR_RETURN(const struct stat info, StatFile(path));
    RETURN_IF_ERROR(S_ISDIR(info.st_mode) ? corpus->AppendDirectory(path) : corpus->Append(path));
  }
  const double fraction =
      spec.held_out_fraction() == 0 ? kHeldOutFractionDefault : spec.held_out_fraction();
  if (!(fraction > 0 && fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.held_out_fraction: is ", fraction, ", expected between 0 and 1"));
  }
  corpus->held_out_bytes_ =
      static_cast<int64_t>(static_cast<double>(corpus->total_bytes_) * fraction);
  if (corpus->train().size_bytes() <= seq_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.files: ", spec.files(0), spec.files_size() > 1 ? " and the others have " : " has ",
        corpus->train().size_bytes(), " bytes for training (of ", corpus->total_bytes_,
        "), expected at least train.seq_length + 1 = ", int64_t{seq_length} + 1));
  }
  return corpus;
}

absl::Status Corpus::Append(const std::string& path) {
  // Checked before opening, since opening a device can have effects, and again afterwards.
  ASSIGN_OR_RETURN(struct stat info, StatFile(path));
  RETURN_IF_ERROR(CheckRegular(path, info));
  File file;
  file.path = path;
  file.fd = OpenToRead(path);
  if (!file.fd.valid() || ::fstat(file.fd.get(), &info) != 0) return CannotRead(path, errno);
  RETURN_IF_ERROR(CheckRegular(path, info));
  if (info.st_size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data file ", path, ": is empty; expected a file with text in it"));
  }
  file.begin = total_bytes_;
  file.size_bytes = info.st_size;
  total_bytes_ += info.st_size;
  if (files_.size() >= kOpenFilesMax) file.fd.reset();
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Corpus::AppendDirectory(const std::string& path) {
  absl::StatusOr<FileList> list = ListFiles(path);
  if (!list.ok()) return base::Annotate(list.status(), "data directory");
  for (const std::string& file : list->files) RETURN_IF_ERROR(Append(file));
  folders_.push_back(absl::StrCat("data.files: ", list->Line(path)));
  return absl::OkStatus();
}

std::vector<std::string> Corpus::paths() const {
  std::vector<std::string> paths;
  for (const File& file : files_) paths.push_back(file.path);
  return paths;
}

absl::Status Corpus::Read(int64_t begin, absl::Span<uint8_t> out) const {
  auto file = std::upper_bound(files_.begin(), files_.end(), begin,
                               [](int64_t at, const File& file) { return at < file.begin; });
  for (--file; !out.empty(); ++file) {
    const int64_t offset = begin - file->begin;
    const auto count = std::min(out.size(), static_cast<size_t>(file->size_bytes - offset));
    RETURN_IF_ERROR(ReadFrom(*file, offset, out.first(count)));
    out.remove_prefix(count);
    begin += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

absl::Status Corpus::ReadFrom(const File& file, int64_t offset, absl::Span<uint8_t> out) {
  base::UniqueFd opened;
  if (!file.fd.valid()) opened = OpenToRead(file.path);
  const int fd = file.fd.valid() ? file.fd.get() : opened.get();
  if (fd < 0) return base::ErrnoStatus(errno, absl::StrCat("data file ", file.path));
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return base::ErrnoStatus(errno, absl::StrCat("data file ", file.path));
    if (count == 0) {
      return absl::DataLossError(absl::StrCat("data file ", file.path, ": ends at byte ", offset,
                                              ", it had ", file.size_bytes,
                                              " when the job began; restore it"));
    }
    out.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Corpus::WarningsOfBinary() const {
  std::vector<std::string> warnings;
  for (const File& file : files_) {
    std::string begin(std::min(static_cast<size_t>(file.size_bytes), kBeginBytes), '\0');
    RETURN_IF_ERROR(
        ReadFrom(file, 0, absl::MakeSpan(reinterpret_cast<uint8_t*>(begin.data()), begin.size())));
    std::string what = NameOfFormat(begin);
    if (IsPacked(begin)) what = "is packed by gzip or zstd; it is unpacked for a tokenizer alone";
    const size_t nul = begin.find('\0');
    if (what.empty() && nul != std::string::npos) {
      what = absl::StrCat("byte ", nul, " is NUL, as in binary files");
    }
    if (what.empty()) continue;
    warnings.push_back(absl::StrCat("data.files: ", file.path, ": ", what,
                                    "; every byte is a token, so it is trained on as it is"));
  }
  return warnings;
}

absl::StatusOr<checkpoint::v1::DataFingerprint> Corpus::Fingerprint() const {
  checkpoint::v1::DataFingerprint fingerprint;
  for (const File& file : files_) {
    ASSIGN_OR_RETURN(std::string sha256, base::Sha256OfFile(file.path));
    fingerprint.add_file_sha256(std::move(sha256));
  }
  fingerprint.set_total_bytes(total_bytes_);
  fingerprint.set_held_out_bytes(held_out_bytes_);
  fingerprint.set_tokenizer("bytes");
  return fingerprint;
}

}  // namespace megascale::data
