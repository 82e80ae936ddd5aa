#include "runtime/data/dataset/text_chunks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "runtime/base/status.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::data {
namespace {

constexpr size_t kCharacterBytesMax = 4;

bool IsLetter(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)); }
bool IsGraphic(char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); }

// Returns `at`, or the begin of the next character if `at` lies within one.
size_t AtCharacter(absl::string_view text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return std::min(at, text.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextChunks>> TextChunks::Open(TextChunkOptions options) {
  std::unique_ptr<TextChunks> chunks(new TextChunks(std::move(options)));
  const TextChunkOptions& kept = chunks->options_;
  if (kept.json_field.empty()) {
    ASSIGN_OR_RETURN(chunks->plain_, PlainText::Open(kept.path, {.skip_bad = kept.skip_bad}));
  } else {
    ASSIGN_OR_RETURN(chunks->documents_, Documents::Open(kept.path, {.json_field = kept.json_field,
                                                                     .skip_bad = kept.skip_bad}));
  }
  return chunks;
}

int64_t TextChunks::num_skipped() const {
  return documents_ != nullptr ? documents_->num_skipped() : plain_->num_skipped();
}

const ByteStream& TextChunks::stream() const {
  return documents_ != nullptr ? documents_->stream() : plain_->stream();
}

// Appends the wanted part of the next piece of plain text.
absl::Status TextChunks::Fill() {
  std::string piece;
  ASSIGN_OR_RETURN(const bool more, plain_->Next(&piece));
  const auto size = static_cast<int64_t>(piece.size());
  const auto place = [&](int64_t wanted) {
    return AtCharacter(piece,
                       static_cast<size_t>(std::clamp<int64_t>(wanted - position_, 0, size)));
  };
  const size_t begin = place(options_.begin);
  held_.append(piece, begin, place(options_.end) - begin);
  position_ += size;
  base::CountWork(piece.size());
  text_ended_ = !more || position_ >= options_.end;
  return absl::OkStatus();
}

// True if a chunk is complete: `end` is its size. Looks at no byte twice.
bool TextChunks::Ready(size_t* end) {
  *end = held_.size();
  const auto wanted = static_cast<size_t>(options_.chunk_bytes);
  const size_t most = 2 * wanted;
  if (text_ended_ && held_.size() <= wanted) return true;
  const size_t first = std::max(wanted, scanned_);
  base::CountWork(std::min(held_.size(), most) - std::min({held_.size(), most, first}) + 1);
  for (size_t at = first; at + 1 < held_.size() && at < most; ++at) {
    if (held_[at] != '\n' || !IsGraphic(held_[at - 1]) || !IsLetter(held_[at + 1])) continue;
    *end = at + 1;
    scanned_ = 0;
    return true;
  }
  if (held_.size() > most + kCharacterBytesMax) {
    *end = AtCharacter(held_, most);
    scanned_ = 0;
    return true;
  }
  scanned_ = held_.empty() ? 0 : held_.size() - 1;
  return text_ended_;
}

absl::StatusOr<bool> TextChunks::Next(TextChunk* chunk) {
  if (documents_ != nullptr) {
    chunk->begins_document = chunk->ends_document = true;
    return documents_->Next(&chunk->text);
  }
  if (done_) return false;
  size_t end = 0;
  while (!Ready(&end)) RETURN_IF_ERROR(Fill());
  chunk->text = held_.substr(0, end);
  base::CountWork(held_.size());
  held_.erase(0, end);
  chunk->begins_document = !std::exchange(given_any_, true);
  done_ = text_ended_ && held_.empty();
  chunk->ends_document = done_;
  return true;
}

}  // namespace megascale::data
