#include "runtime/data/tokenizer/text/byte_alphabet.h"

#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

constexpr uint32_t kFirstSubstitute = 0x100;
constexpr int kNumBytes = 256;
constexpr int kNumSubstitutes = 68;

bool IsItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  uint32_t letter[kNumBytes];
  int byte[kFirstSubstitute + kNumSubstitutes];  // -1: not in the alphabet

  Alphabet() {
    for (int& value : byte) value = -1;
    uint32_t next = kFirstSubstitute;
    for (int value = 0; value < kNumBytes; ++value) {
      letter[value] = IsItself(value) ? static_cast<uint32_t>(value) : next++;
      byte[letter[value]] = value;
    }
  }
};

const Alphabet& TheAlphabet() {
  static const auto* const alphabet = new Alphabet;
  return *alphabet;
}

}  // namespace

uint32_t LetterOfByte(uint8_t byte) { return TheAlphabet().letter[byte]; }

bool BytesOfToken(absl::string_view token, std::string* bytes) {
  const Alphabet& alphabet = TheAlphabet();
  bytes->clear();
  while (!token.empty()) {
    const CodePoint read = ReadCodePoint(token.data());
    if (read.value >= kFirstSubstitute + kNumSubstitutes) return false;
    if (alphabet.byte[read.value] < 0) return false;
    bytes->push_back(static_cast<char>(alphabet.byte[read.value]));
    token.remove_prefix(read.length);
  }
  return true;
}

std::string TokenOfBytes(absl::string_view bytes) {
  std::string token;
  for (const char byte : bytes) AppendCodePoint(LetterOfByte(static_cast<uint8_t>(byte)), &token);
  return token;
}

}  // namespace megascale::tokenizer
