// The alphabet in which byte-level vocabularies write bytes as visible characters: printable bytes
// of Latin-1 are written as themselves, and the other 68 bytes, in order, as U+0100, U+0101, …
// Threads: any.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace megascale::tokenizer {

// Returns the code point that stands for `byte`.
uint32_t LetterOfByte(uint8_t byte);

// Replaces `bytes` by the bytes for which the characters of `token` stand. False, with `bytes`
// unspecified, if a character is not in the alphabet. Requires: valid UTF-8.
bool BytesOfToken(absl::string_view token, std::string* bytes);

// Returns the bytes written in the alphabet.
std::string TokenOfBytes(absl::string_view bytes);

}  // namespace megascale::tokenizer
