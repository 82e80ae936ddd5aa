#include "runtime/data/tokenizer/files/tokenizer_json.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/files/components.h"
#include "runtime/data/tokenizer/files/json_object.h"
#include "runtime/data/tokenizer/files/known_fields.h"
#include "runtime/data/tokenizer/text/byte_alphabet.h"

namespace megascale::tokenizer {
namespace {

constexpr int kNumBytes = 256;

// Borrows the strings of a token list.
using Ids = absl::flat_hash_map<absl::string_view, int32_t>;

std::string Quoted(absl::string_view token) {
  return absl::StrCat("'", base::Printable(token, 60), "'");
}

Ids IdsOf(const std::vector<std::string>& tokens) {
  Ids ids;
  ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) ids.try_emplace(tokens[id], id);
  return ids;
}

absl::StatusOr<std::vector<std::string>> ReadVocabulary(const JsonObject& model) {
  ASSIGN_OR_RETURN(const JsonObject object, model.Object("vocab"));
  const Json& vocabulary = *model.Find("vocab");
  std::vector<std::string> tokens(vocabulary.size());
  std::vector<bool> taken(vocabulary.size(), false);
  for (const auto& [token, value] : vocabulary.items()) {
    base::CountWork(token.size() + 1);
    ASSIGN_OR_RETURN(const int32_t id, IdOfJson(value, object.PathOf(Quoted(token))));
    if (static_cast<size_t>(id) >= tokens.size() || taken[id]) {
      return absl::InvalidArgumentError(
          absl::StrCat(object.PathOf(Quoted(token)), ": is ", id,
                       static_cast<size_t>(id) < tokens.size() ? ", as another token is" : "",
                       "; expected each of 0 to ", tokens.size() - 1, " once"));
    }
    taken[id] = true;
    tokens[id] = token;
  }
  return tokens;
}

struct Pair {
  absl::string_view left;
  absl::string_view right;
};

// Reads "left right" or ["left", "right"]. Borrows `value`.
absl::StatusOr<Pair> ReadPair(const Json& value, const std::string& path) {
  constexpr char kExpected[] = "\"left right\" or [\"left\", \"right\"]";
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return WrongType(path, &value, kExpected);
    }
    const absl::string_view view = text;
    return Pair{view.substr(0, space), view.substr(space + 1)};
  }
  if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string()) {
    return WrongType(path, &value, kExpected);
  }
  return Pair{value[0].get_ref<const std::string&>(), value[1].get_ref<const std::string&>()};
}

absl::StatusOr<std::vector<BpeMerge>> ReadMerges(const JsonObject& model, const Ids& ids) {
  ASSIGN_OR_RETURN(const Json* values, model.Array("merges"));
  std::vector<BpeMerge> merges;
  merges.reserve(values->size());
  std::string joined;
  for (const Json& value : *values) {
    const auto path = [&] { return absl::StrCat(model.PathOf("merges"), "[", merges.size(), "]"); };
    const auto pair = ReadPair(value, "");
    if (!pair.ok()) return base::Annotate(pair.status(), path());
    joined = absl::StrCat(pair->left, pair->right);
    base::CountWork(joined.size());
    BpeMerge merge = {};
    for (const auto& [token, id] :
         {std::make_pair(pair->left, &merge.left), std::make_pair(pair->right, &merge.right),
          std::make_pair(absl::string_view(joined), &merge.result)}) {
      const auto found = ids.find(token);
      if (found == ids.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path(), ": ", Quoted(token), " is not in model.vocab"));
      }
      *id = found->second;
    }
    merges.push_back(merge);
  }
  return merges;
}

// Refuses what would change the result and no family uses.
absl::Status CheckPlainModel(const JsonObject& model) {
  if (model.Find("type") != nullptr || model.Find("merges") == nullptr) {
    ASSIGN_OR_RETURN(const std::string type, model.Type());
    if (type != "BPE") {
      return absl::InvalidArgumentError(
          absl::StrCat("model: ", base::Printable(type, 60), " is not supported; expected BPE"));
    }
  }
  const Json* dropout = model.Find("dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0)) {
    return absl::InvalidArgumentError("model.dropout: is not supported; expected null or 0");
  }
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = model.Find(name);
    if (value == nullptr || (value->is_string() && value->get_ref<const std::string&>().empty())) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(model.PathOf(name), ": is not supported; expected null"));
  }
  return absl::OkStatus();
}

// Fills spec->symbols with the tokens as they stand in text. A token outside the byte alphabet
// cannot be reached from bytes.
void FillSymbols(const std::vector<std::string>& tokens, BpeSpec* spec) {
  std::string bytes;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (spec->start == BpeStart::kCharacters) {
      spec->symbols.emplace_back(tokens[id], id);
    } else if (BytesOfToken(tokens[id], &bytes)) {
      spec->symbols.emplace_back(bytes, id);
    }
  }
}

// Says that a byte-level vocabulary never needs the fallback.
absl::Status CheckEveryByte(const Ids& ids) {
  for (int byte = 0; byte < kNumBytes; ++byte) {
    std::string letter;
    AppendCodePoint(LetterOfByte(static_cast<uint8_t>(byte)), &letter);
    if (ids.contains(letter)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.byte_fallback: is not supported with a ByteLevel pre_tokenizer and a "
                     "vocabulary without byte ",
                     byte, "; expected false"));
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const JsonObject& model, TokenizerParts* parts) {
  RETURN_IF_ERROR(CheckPlainModel(model));
  ASSIGN_OR_RETURN(parts->tokens, ReadVocabulary(model));
  const Ids ids = IdsOf(parts->tokens);
  BpeSpec& spec = parts->model;
  spec.start = parts->pre_tokenizer.byte_level ? BpeStart::kBytes : BpeStart::kCharacters;
  ASSIGN_OR_RETURN(spec.merges, ReadMerges(model, ids));
  ASSIGN_OR_RETURN(spec.fuse_unknown, model.Bool("fuse_unk", false));
  ASSIGN_OR_RETURN(spec.ignore_merges, model.Bool("ignore_merges", false));
  ASSIGN_OR_RETURN(const bool byte_fallback, model.Bool("byte_fallback", false));
  if (byte_fallback && spec.start == BpeStart::kBytes) {
    RETURN_IF_ERROR(CheckEveryByte(ids));
  } else if (byte_fallback) {
    for (int byte = 0; byte < kNumBytes; ++byte) {
      const auto found = ids.find(absl::StrFormat("<0x%02X>", byte));
      spec.byte_fallback.push_back(found == ids.end() ? -1 : found->second);
    }
  }
  if (model.Find("unk_token") != nullptr) {
    ASSIGN_OR_RETURN(const std::string unknown, model.Text("unk_token"));
    const auto found = ids.find(unknown);
    if (found == ids.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.unk_token: ", Quoted(unknown), " is not in model.vocab"));
    }
    spec.unknown = found->second;
  }
  FillSymbols(parts->tokens, &spec);
  return absl::OkStatus();
}

absl::StatusOr<AddedToken> ReadAddedToken(const JsonObject& object) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.id, object.Integer("id"));
  ASSIGN_OR_RETURN(token.content, object.Text("content"));
  ASSIGN_OR_RETURN(token.special, object.Bool("special", false));
  ASSIGN_OR_RETURN(token.single_word, object.Bool("single_word", false));
  ASSIGN_OR_RETURN(token.lstrip, object.Bool("lstrip", false));
  ASSIGN_OR_RETURN(token.rstrip, object.Bool("rstrip", false));
  ASSIGN_OR_RETURN(token.normalized, object.Bool("normalized", !token.special));
  return token;
}

// The reference numbers added tokens itself: as in the vocabulary, or after it in order. A file
// that says otherwise would mean other ids here than there, so it is refused.
absl::Status ReadAddedTokens(const JsonObject& file, TokenizerParts* parts) {
  if (file.Find("added_tokens") == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Json* values, file.Array("added_tokens"));
  absl::flat_hash_map<std::string, int32_t> vocabulary;
  for (const auto& [token, id] : IdsOf(parts->tokens)) vocabulary.try_emplace(token, id);
  absl::flat_hash_set<std::string> seen;
  size_t index = 0;
  for (const Json& value : *values) {
    const std::string path = absl::StrCat("added_tokens[", index++, "]");
    ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, path));
    ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(object));
    base::CountWork(token.content.size() + 1);
    if (token.content.empty()) continue;
    if (!seen.insert(token.content).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", Quoted(token.content), " is there already; expected it once"));
    }
    const auto found = vocabulary.find(token.content);
    const bool is_new = found == vocabulary.end();
    const auto id = is_new ? static_cast<int32_t>(parts->tokens.size()) : found->second;
    if (token.id != id) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": ", Quoted(token.content), " has id ", token.id, ", expected ", id,
          is_new ? ", the next one after the tokens before it" : ", as in model.vocab"));
    }
    if (is_new) parts->tokens.push_back(token.content);
    parts->added_tokens.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const std::vector<int32_t>& ids, size_t num_tokens) {
  for (const int32_t id : ids) {
    if (static_cast<size_t>(id) < num_tokens) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("post_processor: token id ", id, " is not in the vocabulary of ", num_tokens));
  }
  return absl::OkStatus();
}

absl::string_view NameOfSplit(const Split& split) {
  const auto* pattern = std::get_if<SplitPattern>(&split);
  return pattern == nullptr ? "runs of a class" : NameOf(*pattern);
}

std::string Describe(const TokenizerParts& parts) {
  std::string text = parts.pre_tokenizer.byte_level ? "byte-level BPE" : "BPE of characters";
  if (!parts.model.byte_fallback.empty()) absl::StrAppend(&text, " with byte fallback");
  const auto& splits = parts.pre_tokenizer.splits;
  for (size_t i = 0; i < splits.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? ", split as " : ", then ", NameOfSplit(splits[i]));
  }
  return text;
}

// The character before which words begin in pieces that are whole texts.
std::string WordBeginOf(const TokenizerParts& parts) {
  if (parts.pre_tokenizer.metaspace) return parts.pre_tokenizer.metaspace->replacement;
  for (const NormalizerStep& step : parts.normalizer) {
    if (step.kind != NormalizerStep::Kind::kReplace || step.pattern != " ") continue;
    const bool one =
        !step.content.empty() && CharacterLength(step.content[0]) == step.content.size();
    return one ? step.content : "";
  }
  return "";
}

// What a call of another program left in its file; a text is never cut or filled up here.
void WarnIfSet(const JsonObject& file, const char* name, TokenizerParts* parts) {
  if (file.Find(name) == nullptr) return;
  parts->warnings.push_back(
      absl::StrCat("tokenizer.json: ", name, " is set, and ignored: texts are encoded whole"));
}

void AppendJson(absl::string_view text, std::string* out) {
  absl::StrAppend(out, Json(std::string(text)).dump());
}

std::string AddedTokenJson(size_t id, absl::string_view content) {
  std::string text = absl::StrCat("    {\"id\": ", id, ", \"content\": ");
  AppendJson(content, &text);
  return absl::StrCat(text, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, ",
                      "\"normalized\": false, \"special\": true}");
}

// Returns all tokens in the order of their ids, as the file writes them.
std::vector<std::string> TokensOf(const ByteLevelBpe& bpe) {
  std::vector<std::string> tokens = bpe.special_tokens;
  std::vector<uint32_t> letters;
  for (int byte = 0; byte < kNumBytes; ++byte) letters.push_back(LetterOfByte(byte));
  std::sort(letters.begin(), letters.end());
  for (const uint32_t letter : letters) AppendCodePoint(letter, &tokens.emplace_back());
  absl::flat_hash_set<std::string> seen(tokens.begin(), tokens.end());
  for (const auto& [left, right] : bpe.merges) {
    std::string token = TokenOfBytes(absl::StrCat(left, right));
    if (seen.insert(token).second) tokens.push_back(std::move(token));
  }
  return tokens;
}

std::string PreTokenizerJson(SplitPattern split) {
  if (split == SplitPattern::kGpt2) {
    return R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, )"
           R"("use_regex": true})";
  }
  std::string text = R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": )";
  AppendJson(RegularExpressionOf(split), &text);
  return absl::StrCat(text, R"(}, "behavior": "Isolated", "invert": false},
    {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
  ]})");
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseTokenizerJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  ASSIGN_OR_RETURN(const JsonObject file, JsonObject::Of(json, ""));
  TokenizerParts parts;
  WarnIfSet(file, "truncation", &parts);
  WarnIfSet(file, "padding", &parts);
  if (const auto unknown = UnknownFieldsOf(json); !unknown.empty()) {
    const bool one = unknown.size() == 1;
    parts.warnings.push_back(absl::StrCat("tokenizer.json: the ", one ? "field " : "fields ",
                                          base::Shortlist(unknown), one ? " is" : " are",
                                          " unknown and ignored"));
  }
  ASSIGN_OR_RETURN(parts.normalizer, ReadNormalizer(file));
  ASSIGN_OR_RETURN(parts.pre_tokenizer, ReadPreTokenizer(file));
  ASSIGN_OR_RETURN(parts.decoder, ReadDecoder(file));
  ASSIGN_OR_RETURN(const JsonObject model, file.Object("model"));
  RETURN_IF_ERROR(ReadModel(model, &parts));
  parts.model.word_begin = WordBeginOf(parts);
  RETURN_IF_ERROR(ReadAddedTokens(file, &parts));
  ASSIGN_OR_RETURN(TokensAround around, ReadPostProcessor(file));
  RETURN_IF_ERROR(CheckIds(around.begin, parts.tokens.size()));
  RETURN_IF_ERROR(CheckIds(around.end, parts.tokens.size()));
  parts.begin_ids = std::move(around.begin);
  parts.end_ids = std::move(around.end);
  parts.description = Describe(parts);
  parts.sha256 = base::Sha256Hex(text);
  return parts;
}

absl::Status CheckSpecialTokens(absl::Span<const std::string> tokens) {
  std::set<absl::string_view> seen;
  for (const std::string& token : tokens) {
    const auto refuse = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("'", base::Printable(token, 60), "' ", why));
    };
    if (token.empty()) return refuse("is empty; expected a word such as <|endoftext|>");
    if (!base::IsUtf8(token)) return refuse("is not UTF-8; expected text");
    if (!seen.insert(token).second) return refuse("is given twice; expected different tokens");
    std::string bytes;
    if (BytesOfToken(token, &bytes) && bytes.size() == 1) {
      return refuse("stands for a byte in the vocabulary; expected a longer word");
    }
  }
  return absl::OkStatus();
}

std::string WriteTokenizerJson(const ByteLevelBpe& bpe) {
  const std::vector<std::string> tokens = TokensOf(bpe);
  std::string text =
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
      "  \"added_tokens\": [";
  for (size_t id = 0; id < bpe.special_tokens.size(); ++id) {
    absl::StrAppend(&text, id == 0 ? "\n" : ",\n", AddedTokenJson(id, bpe.special_tokens[id]));
  }
  absl::StrAppend(&text, "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": ",
                  PreTokenizerJson(bpe.split), ",\n  \"post_processor\": null,\n",
                  R"(  "decoder": {"type": "ByteLevel", "add_prefix_space": false, )",
                  R"("trim_offsets": true, "use_regex": true},)", "\n", R"(  "model": {
    "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {)");
  for (size_t id = 0; id < tokens.size(); ++id) {
    absl::StrAppend(&text, id == 0 ? "\n      " : ",\n      ");
    AppendJson(tokens[id], &text);
    absl::StrAppend(&text, ": ", id);
  }
  absl::StrAppend(&text, "\n    },\n    \"merges\": [");
  for (size_t i = 0; i < bpe.merges.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "\n      [" : ",\n      [");
    AppendJson(TokenOfBytes(bpe.merges[i].first), &text);
    absl::StrAppend(&text, ", ");
    AppendJson(TokenOfBytes(bpe.merges[i].second), &text);
    absl::StrAppend(&text, "]");
  }
  return absl::StrCat(text, "\n    ]\n  }\n}\n");
}

}  // namespace megascale::tokenizer
