#include "runtime/data/source/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/data/source/text_check.h"

namespace megascale::data {
namespace {

constexpr absl::string_view kGzipMagic("\x1F\x8B", 2);
constexpr absl::string_view kZstdMagic("\x28\xB5\x2F\xFD", 4);
// Frames that ask for a larger window than 128 MiB are refused; `zstd --long` up to 27 is read.
constexpr int kZstdWindowLogMax = 27;

// The second to fourth byte of a zstd frame that decoders skip, as pzstd and seekable files have
// them; the first is 0x50 to 0x5F.
constexpr absl::string_view kSkippableMagic = "\x2A\x4D\x18";

bool IsSkippable(absl::string_view begin) {
  return !begin.empty() && (static_cast<unsigned char>(begin[0]) & 0xF0) == 0x50 &&
         absl::StartsWith(begin.substr(1), kSkippableMagic);
}

bool IsZstd(absl::string_view begin) {
  return absl::StartsWith(begin, kZstdMagic) || IsSkippable(begin);
}

// Returns the bytes of the window that a zstd frame wants, by its header (RFC 8878, section 3.1.1);
// 0: `header` is too short.
uint64_t WindowOfFrame(absl::string_view header) {
  constexpr size_t kDescriptorAt = 4;
  constexpr int kSingleSegment = 0x20;
  constexpr int kWindowLogMin = 10;
  if (header.size() < kDescriptorAt + 2) return 0;
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(header[at]); };
  const int descriptor = byte(kDescriptorAt);
  if ((descriptor & kSingleSegment) == 0) {
    const int window = byte(kDescriptorAt + 1);
    const uint64_t base = uint64_t{1} << (kWindowLogMin + (window >> 3));
    return base + base / 8 * static_cast<uint64_t>(window & 7);
  }
  // The window is the whole content, whose size comes after the dictionary's id.
  constexpr size_t kIdBytes[] = {0, 1, 2, 4};
  constexpr size_t kSizeBytes[] = {1, 2, 4, 8};
  const size_t at = kDescriptorAt + 1 + kIdBytes[descriptor & 3];
  const size_t count = kSizeBytes[descriptor >> 6];
  if (header.size() < at + count) return 0;
  uint64_t size = 0;
  for (size_t i = count; i > 0; --i) size = size << 8 | byte(at + i - 1);
  return size;
}

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
  absl::Status Unsupported(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
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
  absl::string_view begin() const override { return ""; }  // PeekedStream has it
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
      if (!in_member_ && SkipPadding()) continue;
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
        had_member_ = true;
        ::inflateReset(&inflate_);
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        return file_.Damaged("the gzip data is damaged");
      }
      if (room > inflate_.avail_out) return size_t{room - inflate_.avail_out};
    }
  }

 private:
  // Skips zeros after a member, with which tapes and block devices fill their last block. True: all
  // bytes at hand were zeros.
  bool SkipPadding() {
    while (had_member_ && used_ < filled_ && block_[used_] == '\0') ++used_;
    return used_ == filled_;
  }

  z_stream inflate_ = {};
  bool ready_ = false;
  bool in_member_ = false;
  bool had_member_ = false;
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
      if (!in_frame_) header_.clear();
      const size_t missing = kHeaderBytesMax - header_.size();
      header_.append(block_.data() + used_, std::min(missing, filled_ - used_));
      ZSTD_inBuffer in = {block_.data() + used_, filled_ - used_, 0};
      ZSTD_outBuffer unpacked = {out.data(), out.size(), 0};
      const size_t result = ::ZSTD_decompressStream(context_, &unpacked, &in);
      used_ += in.pos;
      if (::ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
        return file_.Unsupported(WindowText());
      }
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
  static constexpr size_t kHeaderBytesMax = 18;

  std::string WindowText() const {
    const uint64_t window = WindowOfFrame(header_);
    const uint64_t most = uint64_t{1} << kZstdWindowLogMax;
    return absl::StrCat(
        "its zstd data wants a window of ",
        window == 0 ? absl::StrCat("more than ", most >> 20) : absl::StrCat(window >> 20),
        " MiB; at most ", most >> 20,
        " MiB are kept: pack it again with `zstd --long=", kZstdWindowLogMax, "`");
  }

  ZSTD_DCtx* const context_;
  bool in_frame_ = false;
  std::string header_;  // the first bytes of the frame
};

// Gives the begin of another stream twice: to look at, then to read.
class PeekedStream : public ByteStream {
 public:
  explicit PeekedStream(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {
    begin_.resize(kBeginBytes);
    size_t filled = 0;
    while (filled < begin_.size()) {
      const auto count = stream_->Read(absl::MakeSpan(&begin_[filled], begin_.size() - filled));
      status_ = count.status();
      if (!count.ok() || *count == 0) break;
      filled += *count;
    }
    begin_.resize(filled);
  }

  absl::StatusOr<size_t> Read(absl::Span<char> out) override {
    if (given_ < begin_.size()) {
      const size_t count = std::min(out.size(), begin_.size() - given_);
      std::copy_n(begin_.data() + given_, count, out.data());
      given_ += count;
      return count;
    }
    if (!status_.ok()) return status_;
    return stream_->Read(out);
  }
  absl::string_view begin() const override { return begin_; }
  int64_t read_bytes() const override { return stream_->read_bytes(); }
  int64_t file_bytes() const override { return stream_->file_bytes(); }

 private:
  const std::unique_ptr<ByteStream> stream_;
  std::string begin_;
  size_t given_ = 0;
  absl::Status status_;  // of the Read after `begin_`
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
  std::unique_ptr<ByteStream> stream;
  if (absl::StartsWith(*magic, kGzipMagic)) {
    stream = std::make_unique<GzipStream>(std::move(file));
  } else if (IsZstd(*magic)) {
    stream = std::make_unique<ZstdStream>(std::move(file));
  } else {
    stream = std::make_unique<PlainStream>(std::move(file));
  }
  return std::make_unique<PeekedStream>(std::move(stream));
}

absl::StatusOr<size_t> SkipByteOrderMark(ByteStream* stream) {
  if (!absl::StartsWith(stream->begin(), kByteOrderMark)) return size_t{0};
  char mark[kByteOrderMark.size()];
  return stream->Read(absl::MakeSpan(mark));  // all of them: they were read ahead
}

bool IsPacked(absl::string_view begin) {
  return absl::StartsWith(begin, kGzipMagic) || IsZstd(begin);
}

}  // namespace megascale::data
