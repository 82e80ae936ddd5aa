#include "runtime/data/tokenizer/files/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/work/counted_work.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

constexpr char kMarker[] = "▁";
constexpr size_t kPieceBytesMax = 512;

absl::Status Malformed() {
  return absl::InvalidArgumentError("is no SentencePiece model; expected its protocol buffer");
}

// One field of a protocol buffer.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;       // of a varint or a fixed number
  absl::string_view bytes;  // of a string or a message
};

// Reads the fields of a message one by one.
class Fields {
 public:
  explicit Fields(absl::string_view message) : rest_(message) {}

  bool at_end() const { return rest_.empty(); }

  absl::StatusOr<Field> Next() {
    Field field;
    base::CountWork(1);
    ASSIGN_OR_RETURN(const uint64_t key, Varint());
    field.number = key >> 3;
    switch (key & 7) {
      case 0: {
        ASSIGN_OR_RETURN(field.value, Varint());
        return field;
      }
      case 1:
        return Fixed(8, field);
      case 2: {
        ASSIGN_OR_RETURN(const uint64_t size, Varint());
        if (size > rest_.size()) return Malformed();
        field.bytes = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return field;
      }
      case 5:
        return Fixed(4, field);
      default:
        return Malformed();
    }
  }

 private:
  absl::StatusOr<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return Malformed();
  }
  absl::StatusOr<Field> Fixed(size_t size, Field field) {
    if (size > rest_.size()) return Malformed();
    std::memcpy(&field.value, rest_.data(), size);
    rest_.remove_prefix(size);
    return field;
  }

  absl::string_view rest_;
};

enum PieceType : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kByte = 6 };

struct Piece {
  std::string text;
  float score = 0;
  uint64_t type = kNormal;
};

struct Model {
  std::vector<Piece> pieces;
  uint64_t type = 1;  // unigram
  bool byte_fallback = false;
  bool whitespace_is_suffix = false;
  bool has_charsmap = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

absl::Status ReadPiece(absl::string_view message, Model* model) {
  Piece& piece = model->pieces.emplace_back();
  for (Fields fields(message); !fields.at_end();) {
    ASSIGN_OR_RETURN(const Field field, fields.Next());
    if (field.number == 1) piece.text = std::string(field.bytes);
    if (field.number == 2) std::memcpy(&piece.score, &field.value, sizeof(piece.score));
    if (field.number == 3) piece.type = field.value;
  }
  const bool good = !piece.text.empty() && piece.text.size() <= kPieceBytesMax &&
                    base::IsUtf8(piece.text) && std::isfinite(piece.score);
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("piece ", model->pieces.size() - 1,
                                                 ": expected UTF-8 of 1 to ", kPieceBytesMax,
                                                 " bytes with a finite score"));
}

absl::Status ReadTrainer(absl::string_view message, Model* model) {
  for (Fields fields(message); !fields.at_end();) {
    ASSIGN_OR_RETURN(const Field field, fields.Next());
    if (field.number == 3) model->type = field.value;
    if (field.number == 24) model->whitespace_is_suffix = field.value != 0;
    if (field.number == 35) model->byte_fallback = field.value != 0;
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizerSpec(absl::string_view message, Model* model) {
  for (Fields fields(message); !fields.at_end();) {
    ASSIGN_OR_RETURN(const Field field, fields.Next());
    if (field.number == 2) model->has_charsmap = !field.bytes.empty();
    if (field.number == 3) model->add_dummy_prefix = field.value != 0;
    if (field.number == 4) model->remove_extra_whitespaces = field.value != 0;
    if (field.number == 5) model->escape_whitespaces = field.value != 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<Model> ReadModel(absl::string_view content) {
  Model model;
  for (Fields fields(content); !fields.at_end();) {
    ASSIGN_OR_RETURN(const Field field, fields.Next());
    if (field.number == 1) RETURN_IF_ERROR(ReadPiece(field.bytes, &model));
    if (field.number == 2) RETURN_IF_ERROR(ReadTrainer(field.bytes, &model));
    if (field.number == 3) RETURN_IF_ERROR(ReadNormalizerSpec(field.bytes, &model));
  }
  if (model.pieces.empty()) return Malformed();
  return model;
}

absl::Status CheckSupported(const Model& model, bool as_llama) {
  const auto refuse = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("SentencePiece model with ", what,
                                                   " is not supported; use its tokenizer.json"));
  };
  constexpr uint64_t kBpe = 2;
  if (model.type != kBpe) return refuse("a type other than BPE");
  if (model.has_charsmap) return refuse("a normalizer other than identity");
  if (model.remove_extra_whitespaces) return refuse("remove_extra_whitespaces");
  if (!model.escape_whitespaces) return refuse("unescaped whitespace");
  if (model.whitespace_is_suffix) return refuse("treat_whitespace_as_suffix");
  if (as_llama && !model.add_dummy_prefix) return refuse("add_dummy_prefix false in a folder");
  for (const Piece& piece : model.pieces) {
    const bool is_known = piece.type == kNormal || piece.type == kUnknown ||
                          piece.type == kControl || piece.type == kByte;
    if (is_known || (as_llama && piece.type == kUserDefined)) continue;
    return refuse(as_llama ? "unused pieces" : "user-defined or unused pieces");
  }
  return absl::OkStatus();
}

// Returns the byte of "<0x0A>"; -1: another text.
int ByteOfPiece(absl::string_view text) {
  uint32_t byte = 0;
  const bool is_byte = text.size() == 6 && text.substr(0, 3) == "<0x" && text[5] == '>' &&
                       absl::SimpleHexAtoi(text.substr(3, 2), &byte);
  return is_byte ? static_cast<int>(byte) : -1;
}

using Ids = absl::flat_hash_map<absl::string_view, int32_t>;

// Every way to make a piece of two others is a merge, with the piece's place by score as its rank.
void AddMerges(const Model& model, const Ids& ids, BpeSpec* spec) {
  std::vector<float> scores;
  for (const Piece& piece : model.pieces) scores.push_back(piece.score);
  std::sort(scores.begin(), scores.end(), [](float a, float b) { return a > b; });
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (const auto& [symbol, id] : spec->symbols) {
    const auto place = std::lower_bound(scores.begin(), scores.end(), model.pieces[id].score,
                                        [](float a, float b) { return a > b; });
    const absl::string_view text = symbol;
    for (size_t at = CharacterLength(text[0]); at < text.size(); at += CharacterLength(text[at])) {
      base::CountWork(text.size());
      const auto left = ids.find(text.substr(0, at));
      const auto right = ids.find(text.substr(at));
      if (left == ids.end() || right == ids.end()) continue;
      spec->merges.push_back({left->second, right->second, id});
      spec->merge_ranks.push_back(static_cast<uint32_t>(place - scores.begin()));
    }
  }
}

// Makes the tokens, and what a piece begins as.
absl::StatusOr<Ids> AddTokens(const Model& model, TokenizerParts* parts) {
  parts->model.start = BpeStart::kCharacters;
  parts->model.fuse_unknown = true;
  parts->model.word_begin = kMarker;
  Ids ids;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    parts->tokens.push_back(piece.text);
    if (ids.try_emplace(piece.text, static_cast<int32_t>(i)).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("piece ", i, ": '", base::Printable(piece.text, 60), "' is there already"));
  }
  return ids;
}

absl::Status AddPieces(const Model& model, TokenizerParts* parts) {
  RETURN_IF_ERROR(AddTokens(model, parts).status());
  BpeSpec& spec = parts->model;
  if (model.byte_fallback) spec.byte_fallback.assign(256, -1);
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    if (piece.type == kNormal) spec.symbols.emplace_back(piece.text, id);
    if (piece.type == kUnknown) spec.unknown = id;
    if (piece.type == kUnknown || piece.type == kControl) parts->special_ids.push_back(id);
    if (piece.type == kByte && model.byte_fallback && ByteOfPiece(piece.text) >= 0) {
      spec.byte_fallback[ByteOfPiece(piece.text)] = id;
    }
  }
  Ids normal;
  for (const auto& [symbol, id] : spec.symbols) normal.try_emplace(symbol, id);
  AddMerges(model, normal, &spec);
  return absl::OkStatus();
}

// A merge in the order in which the class of Llama ranks merges.
struct RankedMerge {
  BpeMerge merge;
  float score;
  size_t left_characters;
  size_t right_characters;

  bool operator<(const RankedMerge& other) const {  // true: is ranked before
    if (score != other.score) return score > other.score;
    if (left_characters != other.left_characters) return left_characters > other.left_characters;
    return right_characters > other.right_characters;
  }
};

size_t NumCharacters(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Returns the merges that make one piece, those of lower ids first.
std::vector<RankedMerge> MergesOf(absl::string_view text, int32_t id, float score, const Ids& ids) {
  std::vector<RankedMerge> merges;
  for (size_t at = CharacterLength(text[0]); at < text.size(); at += CharacterLength(text[at])) {
    base::CountWork(text.size());
    const auto left = ids.find(text.substr(0, at));
    const auto right = ids.find(text.substr(at));
    if (left == ids.end() || right == ids.end()) continue;
    merges.push_back({{left->second, right->second, id},
                      score,
                      NumCharacters(left->first),
                      NumCharacters(right->first)});
  }
  std::sort(merges.begin(), merges.end(), [](const RankedMerge& a, const RankedMerge& b) {
    return std::pair(a.merge.left, a.merge.right) < std::pair(b.merge.left, b.merge.right);
  });
  return merges;
}

// As AddPieces, but as the class of Llama converts a model: every piece can be merged, every merge
// has a rank of its own, and control and user-defined pieces are added tokens.
absl::Status AddPiecesAsLlama(const Model& model, TokenizerParts* parts) {
  constexpr size_t kNumSpecial = 3;  // their scores do not count
  ASSIGN_OR_RETURN(const Ids ids, AddTokens(model, parts));
  BpeSpec& spec = parts->model;
  spec.byte_fallback.assign(256, -1);
  std::vector<RankedMerge> merges;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const Piece& piece = model.pieces[i];
    const auto id = static_cast<int32_t>(i);
    spec.symbols.emplace_back(piece.text, id);
    if (piece.type == kUnknown) spec.unknown = id;
    if (piece.type == kControl || piece.type == kUserDefined) {
      parts->added_tokens.push_back(
          {.id = id, .content = piece.text, .special = piece.type == kControl});
    }
    // The class of Llama writes these with capital letters.
    const int byte = ByteOfPiece(piece.text);
    if (byte >= 0 && piece.text == absl::StrFormat("<0x%02X>", byte)) spec.byte_fallback[byte] = id;
    const float score = i < kNumSpecial ? 0 : piece.score;
    for (RankedMerge& merge : MergesOf(piece.text, id, score, ids)) merges.push_back(merge);
  }
  std::stable_sort(merges.begin(), merges.end());
  for (const RankedMerge& merge : merges) spec.merges.push_back(merge.merge);
  return absl::OkStatus();
}

void AddSteps(bool has_prefix, TokenizerParts* parts) {
  if (has_prefix) parts->normalizer.push_back({NormalizerStep::Kind::kPrepend, "", kMarker});
  parts->normalizer.push_back({NormalizerStep::Kind::kReplace, " ", kMarker});
}

void AddDecoder(bool has_prefix, TokenizerParts* parts) {
  using Kind = DecoderStep::Kind;
  parts->decoder.steps = {{.kind = Kind::kReplace, .pattern = kMarker, .content = " "},
                          {.kind = Kind::kByteFallback, .pattern = "", .content = ""},
                          {.kind = Kind::kFuse, .pattern = "", .content = ""}};
  if (!has_prefix) return;
  parts->decoder.steps.push_back({.kind = Kind::kStrip, .pattern = "", .content = " ", .start = 1});
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseSentencePiece(absl::string_view content) {
  const absl::StatusOr<Model> model = ReadModel(content);
  if (!model.ok()) return model.status();
  RETURN_IF_ERROR(CheckSupported(*model, /*as_llama=*/false));
  TokenizerParts parts;
  RETURN_IF_ERROR(AddPieces(*model, &parts));
  AddSteps(model->add_dummy_prefix, &parts);
  AddDecoder(model->add_dummy_prefix, &parts);
  parts.description =
      absl::StrCat("SentencePiece BPE", model->byte_fallback ? " with byte fallback" : "");
  parts.sha256 = base::Sha256Hex(content);
  return parts;
}

absl::StatusOr<TokenizerParts> ParseSentencePieceAsLlama(absl::string_view content,
                                                         const LlamaOptions& options) {
  const absl::StatusOr<Model> model = ReadModel(content);
  if (!model.ok()) return model.status();
  RETURN_IF_ERROR(CheckSupported(*model, /*as_llama=*/true));
  TokenizerParts parts;
  RETURN_IF_ERROR(AddPiecesAsLlama(*model, &parts));
  if (options.legacy) {
    AddSteps(options.add_prefix_space, &parts);
  } else {
    parts.pre_tokenizer.metaspace = {.replacement = kMarker,
                                     .prepend = options.add_prefix_space
                                                    ? MetaspaceStep::Prepend::kFirst
                                                    : MetaspaceStep::Prepend::kNever,
                                     .split = false};
  }
  AddDecoder(options.add_prefix_space, &parts);
  parts.description = "SentencePiece BPE with byte fallback, as Llama";
  parts.sha256 = base::Sha256Hex(content);
  return parts;
}

}  // namespace megascale::tokenizer
