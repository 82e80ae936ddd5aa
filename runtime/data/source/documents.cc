#include "runtime/data/source/documents.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::data {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Takes the value of one member of the outermost object, and keeps nothing else: memory is that of
// one string, whatever the line holds.
class FieldFinder : public nlohmann::json_sax<Json> {
 public:
  FieldFinder(const std::string& field, std::string* text) : field_(field), text_(text) {}

  bool null() override { return Other(); }
  bool boolean(bool) override { return Other(); }
  bool number_integer(number_integer_t) override { return Other(); }
  bool number_unsigned(number_unsigned_t) override { return Other(); }
  bool number_float(number_float_t, const string_t&) override { return Other(); }
  bool binary(binary_t&) override { return Other(); }
  bool string(string_t& value) override {
    if (!IsTheField()) return Other();
    *text_ = std::move(value);
    found_ = true;
    at_field_ = false;
    return true;
  }
  bool start_object(size_t) override {
    if (depth_ == 0) is_object_ = true;
    return Open();
  }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    at_field_ = depth_ == 1 && name == field_;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    mistake_ = position;
    return false;
  }

  absl::Status Result() const {
    const auto refuse = [](auto... words) {
      return absl::InvalidArgumentError(absl::StrCat(words...));
    };
    if (mistake_ > 0) return refuse("is not JSON: mistake at byte ", mistake_);
    const std::string name = base::Printable(field_, 60);
    if (!is_object_) return refuse("is no JSON object; expected one with a field '", name, "'");
    if (other_type_) return refuse("the field '", name, "' is not a string; expected text");
    if (!found_) return refuse("has no field '", name, "'; expected one with the text");
    return absl::OkStatus();
  }

 private:
  static constexpr int kDepthMax = 100;

  bool IsTheField() const { return at_field_ && depth_ == 1; }
  bool Other() {
    if (IsTheField()) other_type_ = true;
    at_field_ = false;
    return true;
  }
  bool Open() {
    Other();
    if (++depth_ > kDepthMax) mistake_ = 1;
    return depth_ <= kDepthMax;
  }
  bool Close() {
    --depth_;
    return true;
  }

  const std::string& field_;
  std::string* text_;
  int depth_ = 0;
  bool at_field_ = false;
  bool is_object_ = false;
  bool found_ = false;
  bool other_type_ = false;
  size_t mistake_ = 0;
};

bool IsBlank(absl::string_view line) {
  return std::all_of(line.begin(), line.end(), [](char c) { return c == ' ' || c == '\t'; });
}

}  // namespace

absl::Status ReadJsonLine(absl::string_view line, const std::string& field, std::string* text) {
  FieldFinder finder(field, text);
  Json::sax_parse(line.begin(), line.end(), &finder);
  return finder.Result();
}

absl::StatusOr<std::unique_ptr<Documents>> Documents::Open(const std::string& path,
                                                           const DocumentOptions& options) {
  ASSIGN_OR_RETURN(auto stream, ByteStream::Open(path));
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
    absl::string_view rest = line;
    if (line_ == 1) absl::ConsumePrefix(&rest, kByteOrderMark);
    if (IsBlank(rest)) continue;
    const absl::Status status = ReadJsonLine(rest, options_.json_field, document);
    if (status.ok()) return true;
    if (!options_.skip_bad) return base::Annotate(status, Place());
    ++num_skipped_;
  }
}

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (absl::StartsWith(name, ".") || !entry->is_regular_file(ignored)) continue;
    files.push_back(entry->path().string());
  }
  if (error) return base::ErrnoStatus(error.value(), path);
  std::sort(files.begin(), files.end());
  if (!files.empty()) return files;
  // As a file that is missing: nothing may be mounted there.
  return base::WithErrno(
      absl::InvalidArgumentError(absl::StrCat(path, ": is a folder without files")), ENOENT);
}

}  // namespace megascale::data
