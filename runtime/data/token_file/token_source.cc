#include "runtime/data/token_file/token_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::data {
namespace {

constexpr size_t kTokensAtOnce = 1 << 16;

template <typename Stored>
void Widen(const std::vector<char>& bytes, absl::Span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes.data() + i * sizeof(stored), sizeof(stored));
    out[i] = static_cast<int32_t>(stored);
  }
}

}  // namespace

int64_t BytesOf(TokenType type) {
  if (type == TokenType::kUint8) return 1;
  return type == TokenType::kUint16 ? 2 : 4;
}

absl::Status ReadExactly(int fd, const std::string& path, int64_t offset, absl::Span<char> out) {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return base::ErrnoStatus(errno, path);
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": ends at byte ", offset, ", expected more; write it again"));
    }
    out.remove_prefix(static_cast<size_t>(count));
    base::CountWork(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedFile> OpenRegular(const std::string& path) {
  OpenedFile file;
  file.fd = base::UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  if (!file.fd.valid() || ::fstat(file.fd.get(), &info) != 0) {
    return base::ErrnoStatus(errno, path);
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is no regular file"));
  }
  file.size_bytes = info.st_size;
  return file;
}

TokenSource::TokenSource(TokenLayout layout, base::UniqueFd fd, std::vector<int64_t> document_ends)
    : layout_(std::move(layout)), fd_(std::move(fd)), document_ends_(std::move(document_ends)) {
  MEGASCALE_CHECK((document_ends_.empty() ? 0 : document_ends_.back()) == layout_.num_tokens);
}

absl::Status TokenSource::Convert(const std::vector<char>& bytes, int64_t begin,
                                  absl::Span<int32_t> out) const {
  if (layout_.type == TokenType::kUint8) Widen<uint8_t>(bytes, out);
  if (layout_.type == TokenType::kUint16) Widen<uint16_t>(bytes, out);
  if (layout_.type == TokenType::kInt32) Widen<int32_t>(bytes, out);
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] >= 0 && out[i] < layout_.vocabulary_size) continue;
    return absl::DataLossError(
        absl::StrCat(layout_.path, ": token ", begin + static_cast<int64_t>(i), " is ", out[i],
                     ", expected 0 to ", layout_.vocabulary_size - 1, "; write it again"));
  }
  return absl::OkStatus();
}

absl::Status TokenSource::Read(int64_t begin, absl::Span<int32_t> out) const {
  MEGASCALE_CHECK(begin >= 0 && begin <= num_tokens() &&
                  static_cast<int64_t>(out.size()) <= num_tokens() - begin);
  const int64_t token_bytes = BytesOf(layout_.type);
  std::vector<char> bytes;
  while (!out.empty()) {
    const size_t count = std::min(out.size(), kTokensAtOnce);
    bytes.resize(count * static_cast<size_t>(token_bytes));
    RETURN_IF_ERROR(ReadExactly(fd_.get(), layout_.path, layout_.first_byte + begin * token_bytes,
                                absl::MakeSpan(bytes)));
    RETURN_IF_ERROR(Convert(bytes, begin, out.first(count)));
    out.remove_prefix(count);
    begin += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace megascale::data
