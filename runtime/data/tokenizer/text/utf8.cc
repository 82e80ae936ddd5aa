#include "runtime/data/tokenizer/text/utf8.h"

#include <cstring>

namespace megascale::tokenizer {
namespace {

enum class Sequence { kValid, kInvalid, kUnfinished };

struct Parsed {
  Sequence kind;
  size_t length;  // of the character, or of the part to replace
};

bool IsWithin(unsigned char byte, unsigned char low, unsigned char high) {
  return byte >= low && byte <= high;
}

// Reads one character of more than one byte. The second byte has limits that depend on the first:
// no overlong forms, no surrogates, nothing above U+10FFFF.
Parsed ParseMultibyte(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (!IsWithin(lead, 0xC2, 0xF4)) return {Sequence::kInvalid, 1};
  const size_t length = CharacterLength(text[0]);
  unsigned char low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Sequence::kUnfinished, i};
    if (!IsWithin(static_cast<unsigned char>(text[i]), low, high)) return {Sequence::kInvalid, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Sequence::kValid, length};
}

}  // namespace

CodePoint ReadLastCodePoint(absl::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return ReadCodePoint(text.data() + begin);
}

void AppendCodePoint(uint32_t code_point, std::string* out) {
  const auto tail = [&](int shift) {
    out->push_back(static_cast<char>(0x80 | (code_point >> shift & 0x3F)));
  };
  if (code_point < 0x80) {
    out->push_back(static_cast<char>(code_point));
    return;
  }
  if (code_point < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code_point >> 6));
  } else {
    if (code_point < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | code_point >> 12));
    } else {
      out->push_back(static_cast<char>(0xF0 | code_point >> 18));
      tail(12);
    }
    tail(6);
  }
  tail(0);
}

size_t ValidPrefix(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const Parsed parsed = ParseMultibyte(text.substr(at));
    if (parsed.kind != Sequence::kValid) return at;
    at += parsed.length;
  }
  return at;
}

void Utf8Repair::Push(absl::string_view bytes, std::string* out) {
  std::string joined;
  if (!held_.empty()) {
    joined = held_;
    joined.append(bytes.data(), bytes.size());
    held_.clear();
    bytes = joined;
  }
  while (!bytes.empty()) {
    const size_t valid = ValidPrefix(bytes);
    out->append(bytes.data(), valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) return;
    const Parsed parsed = ParseMultibyte(bytes);
    if (parsed.kind == Sequence::kUnfinished) {
      held_.assign(bytes.data(), bytes.size());
      return;
    }
    out->append(kReplacementCharacter.data(), kReplacementCharacter.size());
    bytes.remove_prefix(parsed.length);
  }
}

void Utf8Repair::Finish(std::string* out) {
  if (!held_.empty()) out->append(kReplacementCharacter.data(), kReplacementCharacter.size());
  held_.clear();
}

std::string RepairUtf8(absl::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  Utf8Repair repair;
  repair.Push(text, &repaired);
  repair.Finish(&repaired);
  return repaired;
}

}  // namespace megascale::tokenizer
