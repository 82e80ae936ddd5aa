#include "runtime/data/tokenizer/files/vocabulary_files.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/files/json_object.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"
#include "runtime/data/tokenizer/text/unicode_class.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";

// White space as Python splits lines at it.
bool IsPythonSpace(uint32_t code_point) {
  return UnicodeTable::Get().IsSpace(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

std::vector<absl::string_view> WordsOf(absl::string_view line) {
  std::vector<absl::string_view> words;
  size_t begin = 0;
  for (size_t at = 0; at <= line.size();) {
    const bool at_end = at == line.size();
    const CodePoint next = at_end ? CodePoint{.value = ' ', .length = 1} : ReadCodePoint(&line[at]);
    if (IsPythonSpace(next.value)) {
      if (at > begin) words.push_back(line.substr(begin, at - begin));
      begin = at + next.length;
    }
    at += next.length;
  }
  return words;
}

struct Line {
  size_t number;  // from 1
  std::vector<absl::string_view> words;
};

// Returns the lines that the class takes for merges. Borrows `text`.
std::vector<Line> LinesOf(absl::string_view text, bool is_gpt2) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (is_gpt2) lines.pop_back();
  std::vector<Line> result;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i == 0 && is_gpt2) continue;
    std::vector<absl::string_view> words = WordsOf(lines[i]);
    const bool is_version = i == 0 && !words.empty() && absl::StartsWith(words[0], "#version:");
    if (!is_gpt2 && (is_version || words.empty())) continue;
    result.push_back({i + 1, std::move(words)});
  }
  return result;
}

absl::StatusOr<Json> ReadMergeLines(absl::string_view text, const Json& vocabulary, bool is_gpt2) {
  if (text.empty()) return absl::InvalidArgumentError(": is empty; expected lines of two tokens");
  if (!base::IsUtf8(text)) return absl::InvalidArgumentError(": is not UTF-8; expected text");
  absl::ConsumePrefix(&text, kByteOrderMark);
  // Python reads all three ends of lines as newlines.
  const std::string lines = absl::StrReplaceAll(text, {{"\r\n", "\n"}, {"\r", "\n"}});
  absl::flat_hash_set<absl::string_view> tokens;
  for (const auto& [token, id] : vocabulary.items()) tokens.insert(token);
  absl::flat_hash_set<std::pair<absl::string_view, absl::string_view>> seen;
  Json merges = Json::array();
  base::CountWork(lines.size());
  for (const Line& line : LinesOf(lines, is_gpt2)) {
    const auto refuse = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat(":", line.number, ": ", why));
    };
    if (line.words.size() != 2) {
      return refuse(absl::StrCat("has ", line.words.size(), " words; expected two tokens"));
    }
    const absl::string_view left = line.words[0];
    const absl::string_view right = line.words[1];
    if (!seen.insert({left, right}).second) continue;
    for (const std::string& token :
         {std::string(left), std::string(right), absl::StrCat(left, right)}) {
      if (tokens.contains(token)) continue;
      return refuse(
          absl::StrCat("'", base::Printable(token, 60), "'", " is not in ", kVocabularyFile));
    }
    merges.push_back(Json::array({std::string(left), std::string(right)}));
  }
  return merges;
}

absl::Status CheckHasClass(const Settings& settings) {
  const bool is_known = settings.tokenizer_class == TokenizerClass::kGpt2 ||
                        settings.tokenizer_class == TokenizerClass::kQwen2;
  if (is_known) return absl::OkStatus();
  if (settings.tokenizer_class == TokenizerClass::kPlain && !settings.class_is_named) {
    return absl::InvalidArgumentError(absl::StrCat(
        kVocabularyFile, ": neither ", kConfigFile, " nor ", kModelConfigFile,
        " says how to read it; expected the tokenizer_class GPT2Tokenizer or Qwen2Tokenizer"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer_class: ", NameOf(settings.tokenizer_class), " is not supported for ",
                   kVocabularyFile, " and ", kMergesFile,
                   "; expected GPT2Tokenizer or Qwen2Tokenizer, or a tokenizer.json beside them"));
}

// What the class adds to the model, as a tokenizer.json writes it.
Json ComponentsOf(const Settings& settings) {
  const bool prefix = settings.add_prefix_space.value_or(false);
  Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", true}};
  Json file = {{"decoder", {{"type", "ByteLevel"}}}};
  if (settings.tokenizer_class == TokenizerClass::kGpt2) {
    file["pre_tokenizer"] = bytes;
    return file;
  }
  bytes["use_regex"] = false;
  const Json split = {
      {"type", "Split"},
      {"pattern", {{"Regex", std::string(RegularExpressionOf(SplitPattern::kQwen2))}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  file["normalizer"] = {{"type", "NFC"}};
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, bytes})}};
  return file;
}

absl::Status CheckPrefixSpace(const Settings& settings) {
  const bool is_qwen2 = settings.tokenizer_class == TokenizerClass::kQwen2;
  const bool is_bad =
      settings.add_prefix_space_is_null || (is_qwen2 && settings.add_prefix_space.value_or(false));
  if (!is_bad) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kConfigFile, ": add_prefix_space: is ", settings.add_prefix_space_is_null ? "null" : "true",
      ", which ", NameOf(settings.tokenizer_class), " does not support; expected ",
      is_qwen2 ? "false" : "true or false"));
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseVocabularyFiles(absl::string_view vocabulary,
                                                    absl::string_view merges,
                                                    const Settings& settings) {
  RETURN_IF_ERROR(CheckHasClass(settings));
  RETURN_IF_ERROR(CheckPrefixSpace(settings));
  absl::StatusOr<Json> tokens = ParseJson(vocabulary);
  if (!tokens.ok()) return base::Annotate(tokens.status(), kVocabularyFile);
  if (!tokens->is_object() || tokens->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        kVocabularyFile, ": ", tokens->is_object() ? "has no tokens" : "is no JSON object",
        "; expected an object with the id of each token"));
  }
  const bool is_gpt2 = settings.tokenizer_class == TokenizerClass::kGpt2;
  absl::StatusOr<Json> pairs = ReadMergeLines(merges, *tokens, is_gpt2);
  if (!pairs.ok()) {
    return absl::Status(pairs.status().code(), absl::StrCat(kMergesFile, pairs.status().message()));
  }
  Json file = ComponentsOf(settings);
  file["model"]["type"] = "BPE";
  file["model"]["vocab"] = *std::move(tokens);
  file["model"]["merges"] = *std::move(pairs);
  auto parts = ParseTokenizerJson(file.dump());
  if (!parts.ok()) return base::Annotate(parts.status(), kVocabularyFile);
  return parts;
}

}  // namespace megascale::tokenizer
