#include "runtime/data/token_file/token_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::data {
namespace {

constexpr char kMagic[] = {'M', 'S', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kTwoByteVocabulary = 1 << 16;
constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kDigestBytes = 32;

struct Header {
  char magic[sizeof(kMagic)];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t num_tokens;
  uint64_t num_documents;
  uint64_t vocabulary_size;
  char tokenizer_digest[kDigestBytes];
  char content_digest[kDigestBytes];
  char zero[24];
};
static_assert(sizeof(Header) == 128);

uint64_t PaddedTo8(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

std::string Hexadecimal(const char (&digest)[kDigestBytes]) {
  return absl::BytesToHexString(absl::string_view(digest, kDigestBytes));
}

template <typename Stored>
void AppendAs(absl::Span<const int32_t> ids, std::string* out) {
  for (const int32_t id : ids) {
    const auto stored = static_cast<Stored>(id);
    out->append(reinterpret_cast<const char*>(&stored), sizeof(stored));
  }
}

bool IsDigest(const std::string& digits) {
  return digits.size() == 2 * kDigestBytes && std::all_of(digits.begin(), digits.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

// Checks what the header says of itself and of the file's size.
absl::Status CheckHeader(const std::string& path, const Header& header, int64_t size_bytes) {
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no token file; expected one from `megascale tokenizer encode`"));
  }
  if (header.version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has version ", header.version,
                                                   ", expected ", kVersion,
                                                   "; write it again with this program"));
  }
  const auto size = static_cast<uint64_t>(size_bytes);
  const bool sane = (header.token_bytes == 2 || header.token_bytes == 4) &&
                    header.vocabulary_size > 0 && header.vocabulary_size <= INT32_MAX &&
                    header.num_tokens <= size && header.num_documents <= size;
  const uint64_t expected = !sane ? 0
                                  : sizeof(Header) +
                                        PaddedTo8(header.num_tokens * header.token_bytes) +
                                        header.num_documents * sizeof(uint64_t);
  if (sane && expected == size) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path, ": has ", size_bytes, " bytes, but its header says ", header.num_tokens, " tokens of ",
      header.token_bytes, " bytes in ", header.num_documents, " documents; write it again"));
}

struct OpenedTokens {
  OpenedFile file;
  Header header;
};

absl::StatusOr<OpenedTokens> OpenHeader(const std::string& path) {
  OpenedTokens opened;
  ASSIGN_OR_RETURN(opened.file, OpenRegular(path));
  if (opened.file.size_bytes < static_cast<int64_t>(sizeof(Header))) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", opened.file.size_bytes, " bytes, too few for a token file"));
  }
  RETURN_IF_ERROR(
      ReadExactly(opened.file.fd.get(), path, 0,
                  absl::MakeSpan(reinterpret_cast<char*>(&opened.header), sizeof(Header))));
  RETURN_IF_ERROR(CheckHeader(path, opened.header, opened.file.size_bytes));
  return opened;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFileWriter>> TokenFileWriter::Create(Options options) {
  if (!IsDigest(options.tokenizer_sha256)) {
    return absl::InvalidArgumentError("tokenizer_sha256: expected 64 hexadecimal digits");
  }
  MEGASCALE_CHECK(options.vocabulary_size > 0 && options.vocabulary_size <= INT32_MAX);
  struct stat info = {};
  if (::lstat(options.path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.path, ": is no regular file; expected the path of one, or of none yet"));
  }
  const std::string partial = absl::StrCat(options.path, ".tmp");
  base::UniqueFd fd(::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return base::ErrnoStatus(errno, absl::StrCat("open ", partial));
  std::string digest = absl::HexStringToBytes(options.tokenizer_sha256);
  std::unique_ptr<TokenFileWriter> writer(
      new TokenFileWriter(std::move(options), std::move(digest), std::move(fd)));
  const Header empty = {};
  RETURN_IF_ERROR(base::Annotate(
      base::WriteAll(writer->fd_.get(), {reinterpret_cast<const char*>(&empty), sizeof(empty)}),
      partial));
  return writer;
}

TokenFileWriter::TokenFileWriter(Options options, std::string tokenizer_digest, base::UniqueFd fd)
    : options_(std::move(options)),
      tokenizer_digest_(std::move(tokenizer_digest)),
      partial_path_(absl::StrCat(options_.path, ".tmp")),
      two_bytes_(options_.vocabulary_size <= kTwoByteVocabulary),
      fd_(std::move(fd)) {}

TokenFileWriter::~TokenFileWriter() {
  if (!finished_) ::unlink(partial_path_.c_str());
}

absl::Status TokenFileWriter::Append(absl::Span<const int32_t> ids) {
  for (const int32_t id : ids) MEGASCALE_CHECK(id >= 0 && id < options_.vocabulary_size);
  if (two_bytes_) {
    AppendAs<uint16_t>(ids, &buffer_);
  } else {
    AppendAs<int32_t>(ids, &buffer_);
  }
  num_tokens_ += static_cast<int64_t>(ids.size());
  document_ends_.push_back(static_cast<uint64_t>(num_tokens_));
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status TokenFileWriter::Flush() {
  content_.Update(buffer_);
  const absl::Status status = base::WriteAll(fd_.get(), buffer_);
  buffer_.clear();
  return base::Annotate(status, partial_path_);
}

absl::Status TokenFileWriter::Finish() {
  RETURN_IF_ERROR(Flush());
  const uint64_t bytes = static_cast<uint64_t>(num_tokens_) * (two_bytes_ ? 2 : 4);
  const absl::string_view ends(reinterpret_cast<const char*>(document_ends_.data()),
                               document_ends_.size() * sizeof(uint64_t));
  content_.Update(ends);
  RETURN_IF_ERROR(base::Annotate(
      base::WriteAll(fd_.get(), absl::StrCat(std::string(PaddedTo8(bytes) - bytes, '\0'), ends)),
      partial_path_));
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.token_bytes = two_bytes_ ? 2 : 4;
  header.num_tokens = static_cast<uint64_t>(num_tokens_);
  header.num_documents = document_ends_.size();
  header.vocabulary_size = static_cast<uint64_t>(options_.vocabulary_size);
  std::memcpy(header.tokenizer_digest, tokenizer_digest_.data(), kDigestBytes);
  const std::string content = absl::HexStringToBytes(content_.Finish());
  std::memcpy(header.content_digest, content.data(), kDigestBytes);
  const ssize_t written = ::pwrite(fd_.get(), &header, sizeof(header), 0);
  if (written != static_cast<ssize_t>(sizeof(header)) || ::fsync(fd_.get()) != 0 ||
      ::rename(partial_path_.c_str(), options_.path.c_str()) != 0) {
    return base::ErrnoStatus(errno, options_.path);
  }
  finished_ = true;
  const size_t slash = options_.path.rfind('/');
  return base::SyncDirectory(slash == std::string::npos ? "." : options_.path.substr(0, slash + 1));
}

absl::StatusOr<TokenFile> OpenTokenFile(const std::string& path) {
  ASSIGN_OR_RETURN(OpenedTokens opened, OpenHeader(path));
  const Header& header = opened.header;
  std::vector<int64_t> ends(header.num_documents);
  const uint64_t index = sizeof(Header) + PaddedTo8(header.num_tokens * header.token_bytes);
  RETURN_IF_ERROR(ReadExactly(
      opened.file.fd.get(), path, static_cast<int64_t>(index),
      absl::MakeSpan(reinterpret_cast<char*>(ends.data()), ends.size() * sizeof(uint64_t))));
  const auto num_tokens = static_cast<int64_t>(header.num_tokens);
  if (!std::is_sorted(ends.begin(), ends.end()) || (!ends.empty() && ends.front() < 0) ||
      (ends.empty() ? 0 : ends.back()) != num_tokens) {
    return absl::DataLossError(absl::StrCat(path, ": its index of documents does not ascend to ",
                                            num_tokens, "; write it again"));
  }
  TokenLayout layout;
  layout.path = path;
  layout.type = header.token_bytes == 2 ? TokenType::kUint16 : TokenType::kInt32;
  layout.first_byte = sizeof(Header);
  layout.num_tokens = num_tokens;
  layout.vocabulary_size = static_cast<int64_t>(header.vocabulary_size);
  return TokenFile{
      std::make_unique<TokenSource>(std::move(layout), std::move(opened.file.fd), std::move(ends)),
      Hexadecimal(header.tokenizer_digest), Hexadecimal(header.content_digest)};
}

absl::Status VerifyTokenFile(const std::string& path) {
  ASSIGN_OR_RETURN(const OpenedTokens opened, OpenHeader(path));
  const uint64_t token_bytes = opened.header.num_tokens * opened.header.token_bytes;
  base::Sha256 content;
  std::string block;
  const auto update = [&](uint64_t begin, uint64_t end) -> absl::Status {
    for (uint64_t at = begin; at < end; at += block.size()) {
      block.resize(std::min<uint64_t>(kBufferBytes, end - at));
      RETURN_IF_ERROR(ReadExactly(opened.file.fd.get(), path, static_cast<int64_t>(at),
                                  absl::MakeSpan(block.data(), block.size())));
      content.Update(block);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(update(sizeof(Header), sizeof(Header) + token_bytes));
  RETURN_IF_ERROR(update(sizeof(Header) + PaddedTo8(token_bytes),
                         static_cast<uint64_t>(opened.file.size_bytes)));
  if (content.Finish() == Hexadecimal(opened.header.content_digest)) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, ": its content differs from the digest in it; write it again"));
}

}  // namespace megascale::data
