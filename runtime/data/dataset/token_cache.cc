#include "runtime/data/dataset/token_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/data/source/byte_stream.h"
#include "runtime/data/source/text_check.h"
#include "runtime/data/token_file/token_file.h"

namespace megascale::data {
namespace {

constexpr absl::string_view kVersion = "2";
constexpr size_t kCompleteBytesMax = 100;
constexpr absl::Duration kLockInterval = absl::Milliseconds(500);

// `had_mark`: the text begins with a byte order mark, which earlier versions took for text.
std::string DigestOf(const EncodeRequest& request, bool had_mark) {
  const TextChunkOptions& text = request.text;
  std::vector<std::string> parts = {std::string(kVersion),
                                    request.text_sha256,
                                    request.tokenizer->sha256(),
                                    absl::StrCat(request.end_token),
                                    absl::StrCat(text.json_field.size()),
                                    text.json_field,
                                    absl::StrCat(text.skip_bad),
                                    absl::StrCat(text.begin),
                                    absl::StrCat(text.end),
                                    absl::StrCat(text.chunk_bytes),
                                    absl::StrCat(request.piece_bytes, had_mark ? " no mark" : "")};
  // Only where they matter, so that other tokens keep their place.
  const tokenizer::Tokenizer& tokenizer = *request.tokenizer;
  if (!tokenizer.begin_ids().empty() || !tokenizer.end_ids().empty()) parts.push_back("once");
  if (tokenizer.vocabulary_size() > request.num_rows) {
    parts.push_back(absl::StrCat("below ", request.num_rows));
  }
  return base::Sha256Hex(absl::StrJoin(parts, "\n"));
}

// What the file `complete` says.
struct Complete {
  int64_t num_pieces = 0;
  int64_t num_skipped = 0;
  int64_t num_repeated = 0;
};

std::optional<Complete> ReadComplete(const std::string& path) {
  const auto content = base::ReadFile(path, kCompleteBytesMax);
  if (!content.ok()) return std::nullopt;
  const std::vector<std::string> words = absl::StrSplit(*content, ' ');
  Complete complete;
  // Files of older versions lack the last word.
  const bool good = (words.size() == 2 || words.size() == 3) &&
                    absl::SimpleAtoi(words[0], &complete.num_pieces) &&
                    absl::SimpleAtoi(words[1], &complete.num_skipped) &&
                    (words.size() == 2 || absl::SimpleAtoi(words[2], &complete.num_repeated));
  if (good) return complete;
  return std::nullopt;
}

// Encodes one text into its folder, after the pieces that are there.
class Encoder {
 public:
  Encoder(const EncodeRequest& request, std::string folder, const OnProgress& on_progress)
      : request_(request), folder_(std::move(folder)), on_progress_(on_progress) {}

  absl::StatusOr<EncodedText> Run() {
    EncodedText encoded;
    // A piece that is whole in its header and in its content is kept.
    int64_t num_chunks = 0;
    for (;;) {
      const std::string path = PathOf(encoded.pieces.size());
      if (!VerifyTokenFile(path).ok()) break;
      ASSIGN_OR_RETURN(TokenFile file, OpenTokenFile(path));
      num_chunks += file.source->num_documents();
      encoded.pieces.push_back(std::move(file.source));
    }
    const std::string complete_path = absl::StrCat(folder_, "/complete");
    const auto complete = ReadComplete(complete_path);
    if (complete && complete->num_pieces == static_cast<int64_t>(encoded.pieces.size())) {
      encoded.num_skipped = complete->num_skipped;
      encoded.num_repeated = complete->num_repeated;
      return encoded;
    }
    ASSIGN_OR_RETURN(chunks_, TextChunks::Open(request_.text));
    RETURN_IF_ERROR(Skip(num_chunks));
    while (more_) {
      ASSIGN_OR_RETURN(auto piece, WritePiece(encoded.pieces.size()));
      encoded.pieces.push_back(std::move(piece));
    }
    RETURN_IF_ERROR(CheckUnchanged(encoded.pieces.size()));
    encoded.num_skipped = chunks_->num_skipped();
    encoded.num_repeated = num_repeated_;
    RETURN_IF_ERROR(base::WriteFileDurably(
        complete_path,
        absl::StrCat(encoded.pieces.size(), " ", encoded.num_skipped, " ", num_repeated_)));
    return encoded;
  }

 private:
  std::string PathOf(size_t piece) const {
    return absl::StrFormat("%s/%05d.tokens", folder_, static_cast<int>(piece));
  }

  // The pieces are found by the digest of the text, so they go if it is no longer that text.
  absl::Status CheckUnchanged(size_t num_pieces) const {
    const std::string& path = request_.text.path;
    ASSIGN_OR_RETURN(const std::string digest, base::Sha256OfFile(path));
    if (digest == request_.text_sha256) return absl::OkStatus();
    for (size_t i = 0; i < num_pieces; ++i) {
      std::error_code ignored;
      std::filesystem::remove(PathOf(i), ignored);
    }
    return absl::DataLossError(absl::StrCat(path, ": changed while it was encoded"));
  }

  // Reads the next chunk ahead, so that the end is known when a piece ends.
  absl::Status Advance() {
    ASSIGN_OR_RETURN(more_, chunks_->Next(&chunk_));
    if (more_ && chunk_.begins_document) ++num_documents_;
    const ByteStream& stream = chunks_->stream();
    if (on_progress_ && more_) {
      on_progress_(absl::StrCat("tokenizing ", request_.text.path), stream.read_bytes(),
                   stream.file_bytes());
    }
    return absl::OkStatus();
  }

  absl::Status Skip(int64_t num_chunks) {
    RETURN_IF_ERROR(Advance());
    for (int64_t i = 0; i < num_chunks && more_; ++i) RETURN_IF_ERROR(Advance());
    return absl::OkStatus();
  }

  absl::Status EncodeChunk() {
    const tokenizer::Tokenizer& tokenizer = *request_.tokenizer;
    const bool repeated = tokenizer.EncodeDocument({.text = chunk_.text,
                                                    .begins_document = chunk_.begins_document,
                                                    .ends_document = chunk_.ends_document},
                                                   &ids_);
    if (repeated) ++num_repeated_;
    const bool needs_end = ids_.empty() || ids_.back() != request_.end_token;
    if (chunk_.ends_document && needs_end) ids_.push_back(request_.end_token);
    const auto beyond = tokenizer.FindBeyond(ids_, request_.num_rows);
    if (!beyond) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("data.files: ", request_.text.path, ": document ", num_documents_,
                     " has the token ", tokenizer.NameOf(ids_[*beyond]), ", which a model of ",
                     request_.num_rows, " tokens does not have; leave it out of the text"));
  }

  absl::StatusOr<std::unique_ptr<TokenSource>> WritePiece(size_t index) {
    const std::string path = PathOf(index);
    ASSIGN_OR_RETURN(const auto writer,
                     TokenFileWriter::Create({path, request_.tokenizer->vocabulary_size(),
                                              request_.tokenizer->sha256()}));
    int64_t bytes = 0;
    while (more_ && bytes < request_.piece_bytes) {
      RETURN_IF_ERROR(EncodeChunk());
      RETURN_IF_ERROR(writer->Append(ids_));
      bytes += static_cast<int64_t>(chunk_.text.size());
      RETURN_IF_ERROR(Advance());
    }
    RETURN_IF_ERROR(writer->Finish());
    ASSIGN_OR_RETURN(TokenFile file, OpenTokenFile(path));
    return std::move(file.source);
  }

  const EncodeRequest& request_;
  const std::string folder_;
  const OnProgress& on_progress_;
  std::unique_ptr<TextChunks> chunks_;
  TextChunk chunk_;
  bool more_ = false;
  std::vector<int32_t> ids_;
  int64_t num_documents_ = 0;  // that were read
  int64_t num_repeated_ = 0;
};

}  // namespace

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder,
                                            const std::function<void()>& on_wait) {
  RETURN_IF_ERROR(base::Annotate(base::MakeDirectories(folder), "data.token_cache"));
  const std::string path = absl::StrCat(folder, "/lock");
  base::UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return base::ErrnoStatus(errno, path);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return base::ErrnoStatus(errno, path);
    on_wait();
    absl::SleepFor(kLockInterval);
  }
  return FolderLock(std::move(fd));
}

TokenCache::TokenCache(std::string folder)
    : folder_(folder.empty() ? absl::StrCat(base::UserStateDirectory(), "/tokens")
                             : std::move(folder)) {}

absl::StatusOr<EncodedText> TokenCache::Encode(const EncodeRequest& request,
                                               const OnProgress& on_progress) {
  ASSIGN_OR_RETURN(const auto stream, ByteStream::Open(request.text.path));
  const bool had_mark =
      request.text.json_field.empty() && absl::StartsWith(stream->begin(), kByteOrderMark);
  const std::string digest = DigestOf(request, had_mark);
  const std::string folder = absl::StrCat(folder_, "/", digest);
  const auto waits = [&] {
    if (on_progress) on_progress(absl::StrCat("waiting for tokens of ", request.text.path), 0, 0);
  };
  ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(folder, waits));
  absl::StatusOr<EncodedText> encoded = Encoder(request, folder, on_progress).Run();
  if (encoded.ok()) encoded->sha256 = digest;
  return encoded;
}

}  // namespace megascale::data
