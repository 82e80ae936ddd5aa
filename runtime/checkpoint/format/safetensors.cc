#include "runtime/checkpoint/format/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr char kMetadata[] = "__metadata__";
constexpr int64_t kDataAlignment = 64;
constexpr int64_t kHeaderBytesMax = 100'000'000;  // the limit of the reference implementation

static_assert(std::endian::native == std::endian::little,
              "lengths and numbers are written as they lie");

constexpr int64_t kBitsOfByte = 8;

struct DtypeSize {
  absl::string_view name;
  int64_t bits;
};
// All types of the format. Only the first four hold numbers that this program reads.
constexpr DtypeSize kDtypes[] = {
    {"F64", 64},    {"F32", 32},        {"F16", 16},        {"BF16", 16},   {"I64", 64},
    {"I32", 32},    {"I16", 16},        {"I8", 8},          {"U64", 64},    {"U32", 32},
    {"U16", 16},    {"U8", 8},          {"BOOL", 8},        {"C64", 64},    {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"F4", 4}};

// A name as messages show it, so that the reason stays in sight.
std::string Shown(absl::string_view name) { return base::Printable(name, 120); }

// Returns 0 if it is not a type of the format.
int64_t BitsOf(absl::string_view dtype) {
  for (const DtypeSize& known : kDtypes) {
    if (known.name == dtype) return known.bits;
  }
  return 0;
}

// Parses a header and adds the file's name to errors.
class HeaderParser {
 public:
  HeaderParser(absl::string_view file, int64_t file_bytes) : file_(file), file_bytes_(file_bytes) {}

  absl::Status Wrong(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(file_, ": bad safetensors header: ", what));
  }

  absl::StatusOr<SafetensorsHeader> Parse(absl::string_view text, int64_t data_begin) const {
    ASSIGN_OR_RETURN(const Json json, ParseJson(text));
    SafetensorsHeader header;
    header.data_begin = data_begin;
    for (const auto& [key, value] : json.items()) {
      base::CountWork(key.size());
      if (key == kMetadata && value.is_null()) continue;
      if (!value.is_object()) return Wrong(absl::StrCat("\"", Shown(key), "\" is not an object"));
      if (key == kMetadata) {
        RETURN_IF_ERROR(ParseMetadata(value, &header));
      } else {
        ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(key, value));
        header.entries.push_back(std::move(entry));
      }
    }
    RETURN_IF_ERROR(CheckTiling(&header));
    return header;
  }

 private:
  absl::StatusOr<Json> ParseJson(absl::string_view text) const {
    base::CountWork(text.size());
    // For repeated keys the library would silently keep one.
    std::vector<std::set<std::string>> keys;
    bool has_twice = false;
    const auto watch = [&](int, Json::parse_event_t event, Json& value) {
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
      if (event == Json::parse_event_t::key && !keys.empty()) {
        has_twice |= !keys.back().insert(value.get<std::string>()).second;
      }
      return true;
    };
    Json json = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
    if (json.is_discarded()) return Wrong("it is no JSON");
    if (!json.is_object()) return Wrong("it is no JSON object");
    if (has_twice) return Wrong("it has a key twice");
    return json;
  }

  absl::Status ParseMetadata(const Json& json, SafetensorsHeader* header) const {
    for (const auto& [key, value] : json.items()) {
      if (!value.is_string())
        return Wrong(absl::StrCat("metadata \"", Shown(key), "\" is not a string"));
      header->metadata[key] = value.get<std::string>();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& key, const Json& json) const {
    const auto wrong = [&](absl::string_view what) {
      return Wrong(absl::StrCat("tensor \"", Shown(key), "\" ", what));
    };
    if (!json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
        !json.contains("data_offsets")) {
      return wrong("has not dtype, shape and data_offsets");
    }
    SafetensorsEntry entry;
    entry.key = key;
    entry.dtype = json["dtype"].get<std::string>();
    const int64_t element_bits = BitsOf(entry.dtype);
    if (element_bits == 0) {
      return absl::DataLossError(absl::StrCat(
          file_, ": tensor \"", Shown(key), "\" has the type ", base::Printable(entry.dtype, 80),
          ", which this version does not know; save it in another type, such as F32"));
    }
    std::vector<int64_t> offsets;
    if (!ParseIntegers(json["shape"], &entry.shape) ||
        !ParseIntegers(json["data_offsets"], &offsets) || offsets.size() != 2 ||
        offsets[0] > offsets[1]) {
      return wrong("has an absurd shape or data_offsets");
    }
    entry.begin = offsets[0];
    entry.size_bytes = offsets[1] - offsets[0];
    int64_t bits = element_bits;
    for (const int64_t dim : entry.shape) {
      if (__builtin_mul_overflow(bits, dim, &bits)) return wrong("has an absurd shape");
    }
    const int64_t bytes = bits / kBitsOfByte;
    if (bits % kBitsOfByte != 0) return wrong("does not fill its last byte");
    if (bytes != entry.size_bytes) {
      return wrong(absl::StrCat("has ", entry.size_bytes, " bytes, its shape needs ", bytes));
    }
    return entry;
  }

  static bool ParseIntegers(const Json& json, std::vector<int64_t>* values) {
    if (!json.is_array()) return false;
    base::CountWork(json.size());
    for (const Json& value : json) {
      if (!value.is_number_unsigned()) return false;
      const auto number = value.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) return false;
      values->push_back(static_cast<int64_t>(number));
    }
    return true;
  }

  // Sorts the entries and checks that they cover the data exactly once, to its last byte.
  absl::Status CheckTiling(SafetensorsHeader* header) const {
    std::sort(header->entries.begin(), header->entries.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.size_bytes) < std::pair(b.begin, b.size_bytes);
    });
    int64_t end = 0;
    base::CountWork(header->entries.size());
    for (const SafetensorsEntry& entry : header->entries) {
      if (entry.begin != end) {
        return Wrong(absl::StrCat("tensor \"", Shown(entry.key), "\" begins at ", entry.begin,
                                  ", the one before it ends at ", end));
      }
      if (__builtin_add_overflow(end, entry.size_bytes, &end)) return Wrong("absurd offsets");
    }
    if (end != file_bytes_ - header->data_begin) {
      return Wrong(absl::StrCat("tensors have ", end, " bytes, the file has ",
                                file_bytes_ - header->data_begin, " after its header"));
    }
    return absl::OkStatus();
  }

  absl::string_view file_;
  int64_t file_bytes_;
};

}  // namespace

absl::StatusOr<int64_t> DtypeBytes(absl::string_view dtype) {
  const int64_t bits = BitsOf(dtype);
  if (bits > 0 && bits % kBitsOfByte == 0) return bits / kBitsOfByte;
  if (bits > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", dtype, ": its elements are not whole bytes"));
  }
  return absl::InvalidArgumentError(absl::StrCat("dtype ", dtype, ": is no type of safetensors"));
}

namespace {

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

// Entries are written by hand: a plan of a large job's memory asks for tens of thousands of
// headers.
std::string SerializeSafetensorsHeader(const SafetensorsHeader& header) {
  std::map<std::string, std::string> members;
  if (!header.metadata.empty()) members[kMetadata] = JsonText(header.metadata);
  for (const SafetensorsEntry& entry : header.entries) {
    members[entry.key] =
        absl::StrCat("{\"data_offsets\":[", entry.begin, ",", entry.begin + entry.size_bytes,
                     "],\"dtype\":", JsonText(entry.dtype), ",\"shape\":[",
                     absl::StrJoin(entry.shape, ","), "]}");
  }
  std::string text(kHeaderLengthBytes, '\0');
  absl::StrAppend(&text, "{",
                  absl::StrJoin(members, ",",
                                [](std::string* out, const auto& member) {
                                  absl::StrAppend(out, JsonText(member.first), ":", member.second);
                                }),
                  "}");
  text.resize((text.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment, ' ');
  const uint64_t length = text.size() - kHeaderLengthBytes;
  std::memcpy(text.data(), &length, sizeof(length));
  return text;
}

absl::StatusOr<int64_t> SafetensorsDataBegin(absl::string_view start, int64_t file_bytes,
                                             absl::string_view file) {
  const HeaderParser parser(file, file_bytes);
  if (start.size() < kHeaderLengthBytes || file_bytes < kHeaderLengthBytes) {
    return parser.Wrong(absl::StrCat("the file has only ", file_bytes, " bytes"));
  }
  uint64_t length;
  std::memcpy(&length, start.data(), sizeof(length));
  if (length > static_cast<uint64_t>(kHeaderBytesMax)) {
    return parser.Wrong(absl::StrCat("its length is ", length, ", at most ", kHeaderBytesMax));
  }
  const int64_t data_begin = kHeaderLengthBytes + static_cast<int64_t>(length);
  if (data_begin > file_bytes) {
    return parser.Wrong(absl::StrCat("it ends at byte ", data_begin, ", the file at ", file_bytes));
  }
  return data_begin;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view start,
                                                         int64_t file_bytes,
                                                         absl::string_view file) {
  ASSIGN_OR_RETURN(const int64_t data_begin, SafetensorsDataBegin(start, file_bytes, file));
  const HeaderParser parser(file, file_bytes);
  if (static_cast<int64_t>(start.size()) < data_begin) {
    return parser.Wrong(absl::StrCat("only ", start.size(), " of its bytes could be read"));
  }
  return parser.Parse(
      start.substr(kHeaderLengthBytes, static_cast<size_t>(data_begin - kHeaderLengthBytes)),
      data_begin);
}

}  // namespace megascale::checkpoint
