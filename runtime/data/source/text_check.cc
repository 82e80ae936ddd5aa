#include "runtime/data/source/text_check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/text/printable.h"

namespace megascale::data {
namespace {

using absl::string_view;

struct Format {
  size_t at;  // of `magic` in the file
  string_view magic;
  string_view words;
  bool is_word = false;  // a text may begin so, too, but without a control character soon
};

constexpr string_view kToText = "; write its text as JSON Lines or as plain text";
constexpr string_view kPack = "; unpack it, or pack its text by gzip or zstd";

constexpr Format kFormats[] = {
    {0, "version https://git-lfs.github.com/spec/",
     "is a Git LFS pointer, which stands for the file; fetch the file with `git lfs pull`"},
    {0, "PAR1", "is a Parquet file", true},
    {0, "ARROW1", "is an Arrow file", true},
    {0, "FEA1", "is a Feather file", true},
    {0, "Obj\x01", "is an Avro file"},
    {0, "\x93NUMPY", "is a NumPy array (.npy)"},
    {0, "\x89HDF\r\n", "is an HDF5 file"},
    {0, "SQLite format 3", "is an SQLite database", true},
    {0, "%PDF-", "is a PDF document"},
    {0, "\x89PNG\r\n", "is a PNG picture"},
    {0, "\xFF\xD8\xFF", "is a JPEG picture"},
    {0,
     "\x7F"
     "ELF",
     "is a program (ELF)"},
    {0, "GGUF", "is a file of weights (GGUF)", true},
    {0, "PK\x03\x04", "is a zip archive (as .npz and .pt files are)"},
    {0,
     "\xFD"
     "7zXZ",
     "is packed by xz"},
    {0, "7z\xBC\xAF\x27\x1C", "is a 7z archive"},
    {0, "Rar!\x1A\x07", "is a rar archive"},
    {0, "\x04\x22\x4D\x18", "is packed by lz4"},
    {0, "\xFF\x06", "is packed by snappy"},
    {0, "\x1F\x9D", "is packed by compress"},
    {0, "LZIP", "is packed by lzip", true},
    {257, "ustar", "is a tar archive", true},
    {0, "MMIDIDX", "is an index of Megatron-LM (.idx); name its .bin"},
    {0, "MSTOKENS", "is a token file; name it in data.files of a job with its tokenizer"},
};

bool HasControl(string_view begin) {
  constexpr size_t kSoon = 512;
  constexpr string_view kOfText = "\t\n\v\f\r\b\x1B";
  begin = begin.substr(0, kSoon);
  return std::any_of(begin.begin(), begin.end(), [&](char c) {
    return static_cast<unsigned char>(c) < 0x20 && !absl::StrContains(kOfText, c);
  });
}

// What to do with a format whose words do not say it.
string_view Advice(string_view words) {
  if (absl::StrContains(words, ';')) return "";
  if (absl::StrContains(words, "packed by") || absl::StrContains(words, "archive")) return kPack;
  return kToText;
}

bool IsBzip2(string_view begin) {
  return begin.size() >= 10 && absl::StartsWith(begin, "BZh") && absl::ascii_isdigit(begin[3]) &&
         begin.substr(4, 6) == "1AY&SY";
}

bool IsPickle(string_view begin) {
  constexpr uint8_t kLowestProtocol = 2;
  constexpr uint8_t kHighestProtocol = 5;
  return begin.size() >= 3 && begin[0] == '\x80' && begin[1] >= kLowestProtocol &&
         begin[1] <= kHighestProtocol;
}

// Its header's length, in eight bytes, and the header's begin.
bool IsSafetensors(string_view begin) {
  constexpr size_t kLengthBytes = 8;
  return begin.size() > kLengthBytes + 1 && begin[kLengthBytes - 1] == '\0' &&
         begin[kLengthBytes - 2] == '\0' && absl::StartsWith(begin.substr(kLengthBytes), "{\"");
}

std::string Utf16(string_view name) {
  return absl::StrCat("is in ", name, "; convert it with `iconv -f ", name, " -t UTF-8`");
}

// Returns the encoding of two or four bytes for each character; empty: it is none.
string_view WideEncoding(string_view begin) {
  if (absl::StartsWith(begin, string_view("\xFF\xFE\0\0", 4))) return "UTF-32";
  if (absl::StartsWith(begin, string_view("\0\0\xFE\xFF", 4))) return "UTF-32";
  if (absl::StartsWith(begin, "\xFF\xFE") || absl::StartsWith(begin, "\xFE\xFF")) return "UTF-16";
  // Without a mark: most characters of a western text are ASCII, with a NUL as their higher byte.
  size_t nuls[2] = {0, 0};
  size_t num_ascii = 0;
  for (size_t i = 0; i < begin.size(); ++i) {
    const auto c = static_cast<unsigned char>(begin[i]);
    nuls[i % 2] += c == 0 ? 1 : 0;
    num_ascii += absl::ascii_isprint(c) || absl::ascii_isspace(c) ? 1 : 0;
  }
  const size_t half = begin.size() / 2;
  constexpr size_t kFewest = 8;
  const auto is_most = [&](size_t count) { return half >= kFewest && count * 10 > half * 7; };
  if (!is_most(num_ascii)) return "";
  if (nuls[0] == 0 && is_most(nuls[1])) return "UTF-16LE";
  if (nuls[1] == 0 && is_most(nuls[0])) return "UTF-16BE";
  return "";
}

// Returns how many bytes belong to no character. The last character may be cut.
size_t CountNotUtf8(string_view begin) {
  constexpr size_t kCharacterBytesMax = 4;
  size_t bad = 0;
  while (!begin.empty()) {
    const size_t length = base::Utf8Length(begin);
    if (length == 0 && begin.size() < kCharacterBytesMax) break;
    bad += length == 0 ? 1 : 0;
    begin.remove_prefix(std::max<size_t>(length, 1));
  }
  return bad;
}

// Errors: the bytes are too far from text to read the rest as text.
absl::Status CheckEncoding(string_view begin) {
  const string_view wide = WideEncoding(begin);
  if (!wide.empty()) return absl::InvalidArgumentError(Utf16(wide));
  const auto nuls = static_cast<size_t>(std::count(begin.begin(), begin.end(), '\0'));
  const auto refuse = [&](size_t count, string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " of its first ", begin.size(), " bytes ", what));
  };
  constexpr size_t kShare = 100;  // at most every 100th byte may be a NUL
  if (nuls * kShare > begin.size()) {
    return refuse(nuls,
                  "are NUL: it is binary; expected text in UTF-8 (token ids need an index beside "
                  "them: a .idx of Megatron-LM, or a token file of `megascale tokenizer encode`)");
  }
  constexpr size_t kBadShare = 10;
  constexpr size_t kFewBytes = 20;  // of which a share says nothing
  const size_t bad = CountNotUtf8(begin);
  if (begin.size() >= kFewBytes && bad * kBadShare > begin.size()) {
    return refuse(bad,
                  "are not UTF-8: it is binary, or text in another encoding; expected text in "
                  "UTF-8, into which `iconv` converts other encodings");
  }
  return absl::OkStatus();
}

absl::Status CheckJsonForm(string_view begin) {
  begin = absl::StripLeadingAsciiWhitespace(begin);
  constexpr string_view kExpected = "; expected one JSON object in each line (JSON Lines)";
  if (absl::StartsWith(begin, "<")) {
    return absl::InvalidArgumentError(
        absl::StrCat(absl::StartsWithIgnoreCase(begin, "<!doctype html") ||
                             absl::StartsWithIgnoreCase(begin, "<html")
                         ? "is an HTML page, perhaps one that a server sent in the file's place"
                         : "begins with <, as XML and HTML do",
                     kExpected));
  }
  if (absl::StartsWith(begin, "[")) {
    return absl::InvalidArgumentError(
        absl::StrCat("begins with [, as a JSON array", kExpected, "; `jq -c '.[]'` makes them"));
  }
  const string_view first = absl::StripTrailingAsciiWhitespace(begin.substr(0, begin.find('\n')));
  if (first == "{" && first.size() < begin.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("begins with an object that goes on in the next line", kExpected,
                     "; `jq -c .` makes them"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string NameOfFormat(string_view begin) {
  const bool is_binary = HasControl(begin);
  for (const Format& format : kFormats) {
    const bool is_here =
        begin.size() > format.at && absl::StartsWith(begin.substr(format.at), format.magic);
    if (is_here && (is_binary || !format.is_word)) {
      return absl::StrCat(format.words, Advice(format.words));
    }
  }
  if (IsBzip2(begin)) return absl::StrCat("is packed by bzip2", kPack);
  if (IsPickle(begin)) return absl::StrCat("is a pickle of Python", kToText);
  if (IsSafetensors(begin)) return "is a file of weights (safetensors)";
  return "";
}

absl::Status CheckTextBegin(string_view begin, TextForm form) {
  const std::string format = NameOfFormat(begin);
  if (!format.empty()) return absl::InvalidArgumentError(format);
  if (absl::Status encoding = CheckEncoding(begin); !encoding.ok()) return encoding;
  if (form == TextForm::kPlain) return absl::OkStatus();
  absl::ConsumePrefix(&begin, kByteOrderMark);
  return CheckJsonForm(begin);
}

}  // namespace megascale::data
