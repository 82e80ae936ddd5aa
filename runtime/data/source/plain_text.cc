#include "runtime/data/source/plain_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/source/text_check.h"

namespace megascale::data {
namespace {

constexpr size_t kCharacterBytesMax = 4;

// Returns how many bytes at the beginning of `text` are whole characters.
size_t WholeCharacters(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t length = base::Utf8Length(text.substr(at));
    if (length == 0) break;
    at += length;
  }
  return at;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PlainText>> PlainText::Open(const std::string& path,
                                                           const PlainTextOptions& options) {
  ASSIGN_OR_RETURN(auto stream, ByteStream::Open(path));
  RETURN_IF_ERROR(base::Annotate(CheckTextBegin(stream->begin(), TextForm::kPlain), path));
  ASSIGN_OR_RETURN(const size_t mark, SkipByteOrderMark(stream.get()));
  std::unique_ptr<PlainText> text(new PlainText(path, options, std::move(stream)));
  text->num_bytes_ = static_cast<int64_t>(mark);
  return text;
}

PlainText::PlainText(std::string path, PlainTextOptions options, std::unique_ptr<ByteStream> stream)
    : path_(std::move(path)), options_(options), stream_(std::move(stream)) {}

absl::StatusOr<bool> PlainText::Next(std::string* piece) {
  piece->clear();
  if (has_ended_) return false;
  const size_t held = bytes_.size();
  bytes_.resize(held + options_.block_bytes);
  ASSIGN_OR_RETURN(const size_t count,
                   stream_->Read(absl::MakeSpan(&bytes_[held], options_.block_bytes)));
  bytes_.resize(held + count);
  has_ended_ = count == 0;
  absl::string_view rest = bytes_;
  for (;;) {
    const size_t good = WholeCharacters(rest);
    piece->append(rest.data(), good);
    base::CountWork(good + 1);
    num_bytes_ += static_cast<int64_t>(good);
    line_ += std::count(rest.begin(), rest.begin() + good, '\n');
    rest.remove_prefix(good);
    // Few bytes may be the begin of a character whose end comes later.
    if (rest.empty() || (rest.size() < kCharacterBytesMax && !has_ended_)) break;
    if (!options_.skip_bad) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ":", line_, ": is not UTF-8 at byte ", num_bytes_,
                       " of the file; convert it, or leave such bytes out with --skip-bad"));
    }
    rest.remove_prefix(1);
    ++num_bytes_;
    ++num_skipped_;
  }
  bytes_.erase(0, bytes_.size() - rest.size());
  return true;
}

}  // namespace megascale::data
