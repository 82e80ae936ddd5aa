#include "runtime/data/source/documents.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/source/json_line.h"
#include "runtime/data/source/text_check.h"

namespace megascale::data {
namespace {

bool IsBlank(absl::string_view line) {
  return std::all_of(line.begin(), line.end(), [](char c) { return c == ' ' || c == '\t'; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Documents>> Documents::Open(const std::string& path,
                                                           const DocumentOptions& options) {
  ASSIGN_OR_RETURN(auto stream, ByteStream::Open(path));
  const TextForm form = options.json_field.empty() ? TextForm::kPlain : TextForm::kJsonLines;
  RETURN_IF_ERROR(base::Annotate(CheckTextBegin(stream->begin(), form), path));
  RETURN_IF_ERROR(SkipByteOrderMark(stream.get()).status());
  return std::unique_ptr<Documents>(new Documents(path, options, std::move(stream)));
}

Documents::Documents(std::string path, DocumentOptions options, std::unique_ptr<ByteStream> stream)
    : path_(std::move(path)),
      options_(std::move(options)),
      stream_(std::move(stream)),
      block_(kSourceBlockBytes) {}

std::string Documents::Place() const {
  return options_.json_field.empty() ? path_ : absl::StrCat(path_, ":", line_);
}

absl::Status Documents::CheckSize(size_t size_bytes) const {
  if (size_bytes <= options_.document_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(Place(), ": a document has more than ",
                                                   options_.document_bytes_max,
                                                   " bytes; split it into several"));
}

absl::StatusOr<bool> Documents::Fill() {
  if (used_ < filled_) return true;
  ASSIGN_OR_RETURN(filled_, stream_->Read(absl::MakeSpan(block_)));
  used_ = 0;
  return filled_ > 0;
}

absl::StatusOr<bool> Documents::NextLine(std::string* line) {
  line->clear();
  ++line_;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) return !line->empty();
    const absl::string_view rest(block_.data() + used_, filled_ - used_);
    const size_t end = rest.find('\n');
    const size_t taken = std::min(end, rest.size());
    RETURN_IF_ERROR(CheckSize(line->size() + taken));
    line->append(rest.data(), taken);
    base::CountWork(taken + 1);
    used_ += taken;
    if (end == absl::string_view::npos) continue;
    ++used_;
    if (absl::EndsWith(*line, "\r")) line->pop_back();
    return true;
  }
}

absl::StatusOr<bool> Documents::NextFile(std::string* document) {
  document->clear();
  if (std::exchange(file_done_, true)) return false;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) break;
    RETURN_IF_ERROR(CheckSize(document->size() + filled_ - used_));
    document->append(block_.data() + used_, filled_ - used_);
    base::CountWork(filled_ - used_);
    used_ = filled_;
  }
  if (base::IsUtf8(*document)) return true;
  if (options_.skip_bad) {
    ++num_skipped_;
    return false;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path_, ": is not UTF-8; convert it, or leave it out with --skip-bad"));
}

absl::StatusOr<bool> Documents::Next(std::string* document) {
  if (options_.json_field.empty()) return NextFile(document);
  std::string line;
  for (;;) {
    ASSIGN_OR_RETURN(const bool more, NextLine(&line));
    if (!more) return false;
    if (IsBlank(line)) continue;
    const absl::Status status = ReadJsonLine(line, options_.json_field, document);
    if (status.ok()) return true;
    if (!options_.skip_bad) return base::Annotate(status, Place());
    ++num_skipped_;
  }
}

}  // namespace megascale::data
