#include "runtime/diagnose/byte_stream.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace megascale::diagnose {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 16;
constexpr size_t kMagicBytes = 2;         // by which gzip is known
constexpr int kGzipWindowBits = 15 + 16;  // the largest window; +16: gzip's header and trailer

bool IsGzip(const std::vector<char>& file, size_t size) {
  return size >= kMagicBytes && file[0] == '\x1f' && file[1] == '\x8b';
}

}  // namespace

struct ByteStream::Inflater {
  z_stream stream = {};
  bool is_open = false;    // inflateInit2 succeeded
  bool in_member = false;  // a member of the file has begun and not ended
  bool file_ended = false;

  ~Inflater() {
    if (is_open) inflateEnd(&stream);
  }
};

ByteStream::ByteStream(const ReadBytes& read, int64_t bytes_max)
    : read_(read), bytes_max_(bytes_max), file_(kBufferBytes), text_(kBufferBytes) {}

ByteStream::~ByteStream() = default;

size_t ByteStream::ReadFile(size_t offset) {
  const size_t free = file_.size() - offset;
  absl::StatusOr<size_t> size = read_(file_.data() + offset, free);
  if (size.ok()) return std::min(*size, free);
  status_ = std::move(size).status();
  return 0;
}

size_t ByteStream::ReadBeginning() {
  size_t size = 0;
  while (size < kMagicBytes) {
    const size_t more = ReadFile(size);
    if (more == 0) break;
    size += more;
  }
  return size;
}

bool ByteStream::Refill() {
  if (!status_.ok()) return false;
  num_before_ += static_cast<int64_t>(text_end_);
  next_ = 0;
  text_end_ = 0;
  if (!has_begun_) {
    has_begun_ = true;
    const size_t size = ReadBeginning();
    if (IsGzip(file_, size)) {
      inflater_ = std::make_unique<Inflater>();
      inflater_->is_open = inflateInit2(&inflater_->stream, kGzipWindowBits) == Z_OK;
      inflater_->stream.next_in = reinterpret_cast<Bytef*>(file_.data());
      inflater_->stream.avail_in = static_cast<uInt>(size);
      text_end_ = Inflate();
    } else {
      text_.swap(file_);
      text_end_ = size;
    }
  } else if (inflater_ != nullptr) {
    text_end_ = Inflate();
  } else {
    text_end_ = ReadFile();
    text_.swap(file_);
  }
  if (text_end_ > 0 && num_before_ + static_cast<int64_t>(text_end_) > bytes_max_) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("the trace has more than ", bytes_max_, " bytes of JSON; record fewer steps"));
  }
  return status_.ok() && text_end_ > 0;
}

size_t ByteStream::Inflate() {
  z_stream& stream = inflater_->stream;
  if (!inflater_->is_open) {
    status_ = absl::ResourceExhaustedError("no memory to decompress the trace");
    return 0;
  }
  stream.next_out = reinterpret_cast<Bytef*>(text_.data());
  stream.avail_out = static_cast<uInt>(text_.size());
  while (stream.avail_out == text_.size()) {
    if (stream.avail_in == 0 && !inflater_->file_ended) {
      stream.next_in = reinterpret_cast<Bytef*>(file_.data());
      stream.avail_in = static_cast<uInt>(ReadFile());
      inflater_->file_ended = stream.avail_in == 0;
      if (!status_.ok()) return 0;
    }
    if (inflater_->file_ended) {
      if (inflater_->in_member) {
        status_ = absl::InvalidArgumentError(
            "the gzip data end in the middle; expected a whole file: copy it again");
      }
      return 0;
    }
    inflater_->in_member = true;
    const int result = inflate(&stream, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      inflater_->in_member = false;
      inflateReset(&stream);  // a file may have several members
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("the gzip data are damaged after ", num_before_,
                       " bytes of JSON; expected a whole file: copy it again"));
      return 0;
    }
  }
  return text_.size() - stream.avail_out;
}

}  // namespace megascale::diagnose
