// A `tokenizer.json` for tests: byte-level BPE without merges, one token for each letter.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace megascale::tokenizer {

// The special token that ends a document.
inline constexpr char kLettersEnd[] = "<|endoftext|>";

// Returns the file's text. `tokens`: by id; kLettersEnd is one of them.
inline std::string LettersTokenizer(const std::vector<std::string>& tokens) {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (const std::string& token : tokens) vocabulary[token] = vocabulary.size();
  const nlohmann::json end = {{"id", vocabulary.at(kLettersEnd)},
                              {"content", kLettersEnd},
                              {"single_word", false},
                              {"lstrip", false},
                              {"rstrip", false},
                              {"normalized", false},
                              {"special", true}};
  const nlohmann::json file = {
      {"version", "1.0"},
      {"added_tokens", {end}},
      {"normalizer", nullptr},
      {"post_processor", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"vocab", vocabulary},
        {"merges", nlohmann::json::array()}}}};
  return file.dump();
}

// Returns that of nine letters, "a" to "i", and the end: ten tokens.
inline std::string NineLetters() {
  return LettersTokenizer({"a", "b", "c", "d", "e", "f", "g", "h", "i", kLettersEnd});
}

}  // namespace megascale::tokenizer
