#include "runtime/data/source/json_line.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::data {
namespace {

using absl::string_view;
using Json = nlohmann::json;

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

  // The number of bytes up to the mistake, it included; 0: there is none.
  size_t mistake() const { return mistake_; }

  absl::Status Result() const {
    const auto refuse = [](auto... words) {
      return absl::InvalidArgumentError(absl::StrCat(words...));
    };
    if (too_deep_) {
      return refuse("is nested more than ", kJsonDepthMax, " levels deep; expected fewer");
    }
    const std::string name = base::Printable(field_, 60);
    if (!is_object_) return refuse("is no JSON object; expected one with a field '", name, "'");
    if (other_type_) return refuse("the field '", name, "' is not a string; expected text");
    if (!found_) return refuse("has no field '", name, "'; expected one with the text");
    return absl::OkStatus();
  }

 private:
  bool IsTheField() const { return at_field_ && depth_ == 1; }
  bool Other() {
    if (IsTheField()) other_type_ = true;
    at_field_ = false;
    return true;
  }
  bool Open() {
    Other();
    too_deep_ = ++depth_ > kJsonDepthMax;
    return !too_deep_;
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
  bool too_deep_ = false;
  size_t mistake_ = 0;
};

// Returns how many bytes at the begin of `rest` are a number that JSON does not have, but other
// writers of JSON have: NaN, Infinity, -Infinity, 1e999. 0: none.
size_t ForeignNumber(string_view rest) {
  for (const string_view name : {"NaN", "Infinity", "-Infinity"}) {
    if (absl::StartsWith(rest, name)) return name.size();
  }
  size_t size = 0;
  bool has_exponent = false;
  while (size < rest.size() && (absl::ascii_isalnum(static_cast<unsigned char>(rest[size])) ||
                                absl::StrContains("+-.", rest[size]))) {
    has_exponent = has_exponent || rest[size] == 'e' || rest[size] == 'E';
    ++size;
  }
  double value = 0;
  const bool is_number = size > 0 && has_exponent &&
                         !absl::ascii_isalpha(static_cast<unsigned char>(rest[0])) &&
                         absl::SimpleAtod(rest.substr(0, size), &value);
  return is_number && std::isinf(value) ? size : 0;
}

// Returns the line with a 0 in place of each number that JSON does not have; nullopt: it has none.
// Positions stay. Looks at each byte once, or twice within a number.
std::optional<std::string> WithoutForeignNumbers(string_view line) {
  std::string changed;
  bool is_quoted = false;
  for (size_t at = 0; at < line.size();) {
    const char c = line[at];
    if (is_quoted) {
      at += c == '\\' ? 2 : 1;
      is_quoted = c != '"';
      continue;
    }
    is_quoted = c == '"';
    const bool begins = at > 0 && absl::StrContains(":,[ \t", line[at - 1]);
    const size_t size = begins ? ForeignNumber(line.substr(at)) : 0;
    base::CountWork(size);
    if (size > 0) {
      if (changed.empty()) changed = std::string(line);
      changed.replace(at, size, size, ' ');
      changed[at] = '0';
    }
    at += std::max<size_t>(size, 1);
  }
  if (changed.empty()) return std::nullopt;
  return changed;
}

// Says why a line is not JSON: `mistake` bytes of it were read, the wrong one included.
absl::Status NotJson(string_view line, size_t mistake) {
  const string_view first = absl::StripLeadingAsciiWhitespace(line);
  constexpr string_view kExpected = "; expected one object in each line (JSON Lines)";
  if (mistake > line.size() && (absl::StartsWith(first, "{") || absl::StartsWith(first, "["))) {
    return absl::InvalidArgumentError(absl::StrCat("is not JSON: the line ends before its ",
                                                   first[0] == '{' ? "object" : "array", " does",
                                                   kExpected));
  }
  const size_t at = std::min(std::max<size_t>(mistake, 1) - 1, line.size());
  constexpr size_t kShownBytesMax = 20;
  return absl::InvalidArgumentError(absl::StrCat("is not JSON: mistake at byte ", mistake, ", '",
                                                 base::Printable(line.substr(at), kShownBytesMax),
                                                 "'"));
}

}  // namespace

absl::Status ReadJsonLine(string_view line, const std::string& field, std::string* text) {
  FieldFinder finder(field, text);
  base::CountWork(line.size());
  Json::sax_parse(line.begin(), line.end(), &finder);
  if (finder.mistake() == 0) return finder.Result();
  base::CountWork(2 * line.size());
  const std::optional<std::string> changed = WithoutForeignNumbers(line);
  if (!changed.has_value()) return NotJson(line, finder.mistake());
  FieldFinder again(field, text);
  Json::sax_parse(changed->begin(), changed->end(), &again);
  return again.mistake() == 0 ? again.Result() : NotJson(line, again.mistake());
}

}  // namespace megascale::data
