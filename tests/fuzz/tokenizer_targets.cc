#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/check.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/tokenizer/files/sentencepiece.h"
#include "runtime/data/tokenizer/files/settings.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"
#include "runtime/data/tokenizer/files/vocabulary_files.h"
#include "runtime/data/tokenizer/text/utf8.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

using tokenizer::Tokenizer;

// What holds for every tokenizer: known ids, valid text, and a stream that gives the same.
void CheckText(const Tokenizer& tokenizer, absl::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, {}, &ids);
  const auto decoded = tokenizer.Decode(ids, {});
  MEGASCALE_CHECK_MSG(decoded.ok(), decoded.status().ToString());
  MEGASCALE_CHECK(base::IsUtf8(*decoded));
  tokenizer::DecodeStream stream(&tokenizer, {});
  std::string streamed;
  for (const int32_t id : ids) MEGASCALE_CHECK(stream.Push(id, &streamed).ok());
  stream.Finish(&streamed);
  MEGASCALE_CHECK(base::IsUtf8(streamed));
}

std::unique_ptr<Tokenizer> Make(const std::string& json) {
  auto parts = tokenizer::ParseTokenizerJson(json);
  MEGASCALE_CHECK_MSG(parts.ok(), parts.status().ToString());
  return *Tokenizer::Create(*std::move(parts));
}

// Byte-level, without a normaliser: decoding gives back every text.
std::unique_ptr<Tokenizer> MakeByteLevel(tokenizer::SplitPattern split) {
  tokenizer::ByteLevelBpe bpe;
  bpe.special_tokens = {"<|endoftext|>", "<s>"};
  bpe.merges = {{"a", "b"}, {" ", "a"}, {" ", " "}, {"ab", "ab"}, {"\xC3", "\xA9"}, {"1", "2"}};
  bpe.split = split;
  return Make(tokenizer::WriteTokenizerJson(bpe));
}

// As Llama 2: whole texts, and bytes for unknown characters.
std::unique_ptr<Tokenizer> MakeFallback() {
  std::string vocabulary;
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppend(&vocabulary, "\"<0x", std::string(1, kDigits[byte / 16]),
                    std::string(1, kDigits[byte % 16]), ">\": ", byte, ", ");
  }
  return Make(absl::StrCat(R"({"added_tokens": [{"id": 260, "content": "<s>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
      {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "byte_fallback": true, "vocab": {)",
                           vocabulary, R"("▁": 256, "a": 257, "▁a": 258, "▁▁": 259},
    "merges": ["▁ a", "▁ ▁"]}})"));
}

}  // namespace

void RunTokenizerJson(absl::string_view input) {
  auto parts = tokenizer::ParseTokenizerJson(input);
  if (!parts.ok()) return CheckLine(parts.status());
  const auto tokenizer = Tokenizer::Create(*std::move(parts));
  if (!tokenizer.ok()) return CheckLine(tokenizer.status());
  CheckText(**tokenizer, "aab b ba  abab<0x00>\xC3\xA9\xFF 'S 1234");
}

// Each line is the content of one file beside a tokenizer.json; an empty one: there is no such
// file.
void RunTokenizerSettings(absl::string_view input) {
  static const auto* const file = new std::string(tokenizer::WriteTokenizerJson([] {
    tokenizer::ByteLevelBpe bpe;
    bpe.special_tokens = {"<|endoftext|>", "<s>"};
    return bpe;
  }()));
  tokenizer::SettingsFiles files;
  std::optional<std::string>* const all[] = {&files.tokenizer_config, &files.special_tokens_map,
                                             &files.added_tokens, &files.config};
  size_t index = 0;
  for (const absl::string_view part : absl::StrSplit(input, absl::MaxSplits('\n', 3))) {
    if (!part.empty()) *all[index] = std::string(part);
    ++index;
  }
  const auto settings = tokenizer::ReadSettings(files, tokenizer::TokenizerClass::kPlain);
  if (!settings.ok()) return CheckLine(settings.status());
  auto parts = tokenizer::ParseTokenizerJson(*file);
  MEGASCALE_CHECK(parts.ok());
  const absl::Status applied = tokenizer::ApplySettings(*settings, /*is_json=*/true, &*parts);
  if (!applied.ok()) return CheckLine(applied);
  const auto tokenizer = Tokenizer::Create(*std::move(parts));
  if (!tokenizer.ok()) return CheckLine(tokenizer.status());
  CheckText(**tokenizer, "a <s> b<pad> <|endoftext|>\xC3\xA9\xFF x");
}

void RunTokenizerVocabulary(absl::string_view input) {
  const size_t end = std::min(input.find('\n'), input.size());
  const absl::string_view merges = input.substr(std::min(end + 1, input.size()));
  for (const auto one : {tokenizer::TokenizerClass::kGpt2, tokenizer::TokenizerClass::kQwen2}) {
    tokenizer::Settings settings;
    settings.tokenizer_class = one;
    auto parts = tokenizer::ParseVocabularyFiles(input.substr(0, end), merges, settings);
    if (!parts.ok()) {
      CheckLine(parts.status());
      continue;
    }
    const auto tokenizer = Tokenizer::Create(*std::move(parts));
    if (!tokenizer.ok()) return CheckLine(tokenizer.status());
    CheckText(**tokenizer, "aab b ba  abab\xC3\xA9\xFF 'S 1234");
  }
}

void RunSentencePiece(absl::string_view input) {
  auto folder_parts = tokenizer::ParseSentencePieceAsLlama(input, {.legacy = false});
  if (folder_parts.ok()) {
    const auto whole = Tokenizer::Create(*std::move(folder_parts));
    if (whole.ok()) CheckText(**whole, "a ab  b<s>\xC3\xA9\xFF 12");
  }
  auto parts = tokenizer::ParseSentencePiece(input);
  if (!parts.ok()) return CheckLine(parts.status());
  const auto tokenizer = Tokenizer::Create(*std::move(parts));
  if (!tokenizer.ok()) return CheckLine(tokenizer.status());
  CheckText(**tokenizer, "a ab  b<s>\xC3\xA9\xFF 12");
}

void RunTokenizerText(absl::string_view input) {
  static const auto* const tokenizers = new std::vector<std::unique_ptr<Tokenizer>>([] {
    std::vector<std::unique_ptr<Tokenizer>> made;
    made.push_back(MakeByteLevel(tokenizer::SplitPattern::kGpt2));
    made.push_back(MakeByteLevel(tokenizer::SplitPattern::kLlama3));
    made.push_back(MakeByteLevel(tokenizer::SplitPattern::kQwen2));
    made.push_back(MakeFallback());
    made.push_back(MakeByteLevel(tokenizer::SplitPattern::kTekken));
    made.push_back(MakeByteLevel(tokenizer::SplitPattern::kO200k));
    return made;
  }());
  if (input.empty()) return;
  const size_t index = static_cast<unsigned char>(input[0]) % tokenizers->size();
  const Tokenizer& tokenizer = *(*tokenizers)[index];
  const absl::string_view text = input.substr(1);
  CheckText(tokenizer, text);
  std::vector<int32_t> ids;
  tokenizer.Encode(text, {}, &ids);
  std::string expected = tokenizer::RepairUtf8(text);
  // The marker is a space once it is encoded, and special tokens take away where a text begins.
  if (index == 3 && (absl::StrContains(expected, "▁") || absl::StrContains(expected, "<"))) return;
  MEGASCALE_CHECK_MSG(*tokenizer.Decode(ids, {}) == expected, expected);
}

}  // namespace megascale::fuzz
