#include "runtime/data/source/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::data {
namespace {

constexpr absl::string_view kGzipMagic("\x1F\x8B", 2);
constexpr absl::string_view kZstdMagic("\x28\xB5\x2F\xFD", 4);
// Frames that ask for a larger window than 128 MiB are refused; `zstd --long` up to 27 is read.
constexpr int kZstdWindowLogMax = 27;

// A regular file that is read once.
class File {
 public:
  File(std::string path, base::UniqueFd fd, int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  absl::StatusOr<size_t> Read(absl::Span<char> out) {
    for (;;) {
      const ssize_t count = ::read(fd_.get(), out.data(), out.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return base::ErrnoStatus(errno, path_);
      read_ += count;
      return static_cast<size_t>(count);
    }
  }
  absl::Status Damaged(absl::string_view what) const {
    return absl::DataLossError(
        absl::StrCat(path_, ": ", what, " near byte ", read_, " of ", size_, "; pack it again"));
  }
  absl::Status Rewind() {
    read_ = 0;
    return ::lseek(fd_.get(), 0, SEEK_SET) < 0 ? base::ErrnoStatus(errno, path_) : absl::OkStatus();
  }
  int64_t read_bytes() const { return read_; }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  base::UniqueFd fd_;
  int64_t size_;
  int64_t read_ = 0;
};

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(File file) : file_(std::move(file)) {}
  absl::StatusOr<size_t> Read(absl::Span<char> out) override { return file_.Read(out); }
  int64_t read_bytes() const override { return file_.read_bytes(); }
  int64_t file_bytes() const override { return file_.size(); }

 protected:
  // Reads the next packed bytes if all were used. False at the end of the file.
  absl::StatusOr<bool> Fill() {
    if (used_ < filled_) return true;
    block_.resize(kSourceBlockBytes);
    ASSIGN_OR_RETURN(filled_, file_.Read(absl::MakeSpan(block_)));
    used_ = 0;
    return filled_ > 0;
  }

  File file_;
  std::vector<char> block_;
  size_t used_ = 0;
  size_t filled_ = 0;
};

class GzipStream : public PlainStream {
 public:
  explicit GzipStream(File file) : PlainStream(std::move(file)) {
    constexpr int kGzipWindow = 15 + 16;
    ready_ = ::inflateInit2(&inflate_, kGzipWindow) == Z_OK;
  }
  ~GzipStream() override { ::inflateEnd(&inflate_); }

  absl::StatusOr<size_t> Read(absl::Span<char> out) override {
    if (!ready_) return absl::ResourceExhaustedError("no memory to unpack gzip");
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more) {
        if (in_member_) return file_.Damaged("the gzip data ends too early");
        return size_t{0};
      }
      in_member_ = true;
      inflate_.next_in = reinterpret_cast<Bytef*>(block_.data() + used_);
      inflate_.avail_in = static_cast<uInt>(filled_ - used_);
      inflate_.next_out = reinterpret_cast<Bytef*>(out.data());
      inflate_.avail_out = static_cast<uInt>(std::min(out.size(), kSourceBlockBytes));
      const uInt room = inflate_.avail_out;
      const int result = ::inflate(&inflate_, Z_NO_FLUSH);
      used_ = filled_ - inflate_.avail_in;
      if (result == Z_STREAM_END) {  // another member may follow
        in_member_ = false;
        ::inflateReset(&inflate_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return file_.Damaged("the gzip data is damaged");
      }
      if (room > inflate_.avail_out) return size_t{room - inflate_.avail_out};
    }
  }

 private:
  z_stream inflate_ = {};
  bool ready_ = false;
  bool in_member_ = false;
};

class ZstdStream : public PlainStream {
 public:
  explicit ZstdStream(File file) : PlainStream(std::move(file)), context_(::ZSTD_createDCtx()) {
    ::ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kZstdWindowLogMax);
  }
  ~ZstdStream() override { ::ZSTD_freeDCtx(context_); }

  absl::StatusOr<size_t> Read(absl::Span<char> out) override {
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more && !in_frame_) return size_t{0};
      ZSTD_inBuffer in = {block_.data() + used_, filled_ - used_, 0};
      ZSTD_outBuffer unpacked = {out.data(), out.size(), 0};
      const size_t result = ::ZSTD_decompressStream(context_, &unpacked, &in);
      used_ += in.pos;
      if (::ZSTD_isError(result)) {
        return file_.Damaged(
            absl::StrCat("the zstd data is damaged (", ::ZSTD_getErrorName(result), ")"));
      }
      in_frame_ = result != 0;
      if (unpacked.pos > 0) return unpacked.pos;
      if (!more) return file_.Damaged("the zstd data ends too early");
    }
  }

 private:
  ZSTD_DCtx* const context_;
  bool in_frame_ = false;
};

absl::StatusOr<std::string> ReadMagic(File* file) {
  std::string magic(kZstdMagic.size(), '\0');
  ASSIGN_OR_RETURN(const size_t count, file->Read(absl::MakeSpan(magic.data(), magic.size())));
  magic.resize(count);
  RETURN_IF_ERROR(file->Rewind());
  return magic;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> ByteStream::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO without a writer must not wait.
  base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!fd.valid() || ::fstat(fd.get(), &info) != 0) return base::ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no regular file; expected text, or text packed by gzip or zstd"));
  }
  File file(path, std::move(fd), info.st_size);
  const absl::StatusOr<std::string> magic = ReadMagic(&file);
  if (!magic.ok()) return magic.status();
  if (absl::StartsWith(*magic, kGzipMagic)) return std::make_unique<GzipStream>(std::move(file));
  if (absl::StartsWith(*magic, kZstdMagic)) return std::make_unique<ZstdStream>(std::move(file));
  return std::make_unique<PlainStream>(std::move(file));
}

}  // namespace megascale::data
