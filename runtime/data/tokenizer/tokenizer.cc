#include "runtime/data/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/tokenizer/text/utf8.h"

namespace megascale::tokenizer {
namespace {

constexpr size_t kShownBytesMax = 60;

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(TokenizerParts parts) {
  RETURN_IF_ERROR(CheckDecoder(parts.decoder));
  for (const AddedToken& token : parts.added_tokens) {
    MEGASCALE_CHECK(token.id >= 0 && static_cast<size_t>(token.id) < parts.tokens.size());
    if (!token.normalized || !Normalize(parts.normalizer, token.content).empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("added_tokens: '", base::Printable(token.content, kShownBytesMax),
                     "' is empty after the normalizer; expected a token that text can have"));
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

Tokenizer::Tokenizer(TokenizerParts parts)
    : tokens_(std::move(parts.tokens)),
      added_tokens_(std::move(parts.added_tokens)),
      is_special_(tokens_.size(), false),
      normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      finder_(PatternsOf(false)),
      normalized_finder_(PatternsOf(true)),
      model_(parts.model),
      begin_ids_(std::move(parts.begin_ids)),
      end_ids_(std::move(parts.end_ids)),
      decoder_(std::move(parts.decoder)),
      description_(std::move(parts.description)),
      sha256_(std::move(parts.sha256)),
      warnings_(std::move(parts.warnings)) {
  for (size_t id = 0; id < tokens_.size(); ++id) {
    id_of_.try_emplace(tokens_[id], static_cast<int32_t>(id));
  }
  std::vector<bool> is_added(tokens_.size(), false);
  for (const AddedToken& token : added_tokens_) {
    if (token.special) is_special_[token.id] = true;
    is_added[token.id] = true;
  }
  num_text_tokens_ = vocabulary_size();
  while (num_text_tokens_ > 0 && is_added[num_text_tokens_ - 1]) --num_text_tokens_;
  for (const int32_t id : parts.special_ids) is_special_[id] = true;
}

std::vector<AddedTokenFinder::Pattern> Tokenizer::PatternsOf(bool normalized) const {
  std::vector<AddedTokenFinder::Pattern> patterns;
  // As in the reference, special tokens come first: they win where two patterns are equal.
  for (const bool special : {true, false}) {
    for (const AddedToken& token : added_tokens_) {
      if (token.normalized != normalized || token.special != special) continue;
      patterns.push_back(
          {normalized ? Normalize(normalizer_, token.content) : token.content, token});
    }
  }
  return patterns;
}

void Tokenizer::Encode(absl::string_view text, const EncodeOptions& options,
                       std::vector<int32_t>* ids) const {
  if (options.add_special_tokens) ids->insert(ids->end(), begin_ids_.begin(), begin_ids_.end());
  if (ValidPrefix(text) == text.size()) {
    EncodeValid(text, options, ids);
  } else {
    EncodeValid(RepairUtf8(text), options, ids);
  }
  if (options.add_special_tokens) ids->insert(ids->end(), end_ids_.begin(), end_ids_.end());
}

bool Tokenizer::EncodeDocument(const DocumentPart& part, std::vector<int32_t>* ids) const {
  ids->clear();
  if (part.begins_document) *ids = begin_ids_;
  const auto before = static_cast<int64_t>(ids->size());
  Encode(part.text, {.add_special_tokens = false}, ids);
  const absl::Span<const int32_t> text = absl::MakeConstSpan(*ids).subspan(before);
  const auto has = [&](absl::Span<const int32_t> part_of_text, const std::vector<int32_t>& around) {
    return !around.empty() && part_of_text == absl::MakeConstSpan(around);
  };
  const size_t end_size = std::min(end_ids_.size(), text.size());
  const bool has_begin =
      part.begins_document && has(text.first(std::min<size_t>(before, text.size())), begin_ids_);
  const bool has_end = part.ends_document && has(text.last(end_size), end_ids_);
  if (part.ends_document && !has_end) ids->insert(ids->end(), end_ids_.begin(), end_ids_.end());
  if (has_begin) ids->erase(ids->begin(), ids->begin() + before);
  return has_begin || has_end;
}

std::string Tokenizer::NamesBefore() const {
  return absl::StrJoin(begin_ids_, " ", [&](std::string* out, int32_t id) {
    absl::StrAppend(out, "'", base::Printable(TokenOf(id), kShownBytesMax), "'");
  });
}

std::string Tokenizer::NamesAround() const {
  std::vector<std::string> names;
  if (!begin_ids_.empty()) names.push_back(NamesBefore());
  for (const int32_t id : end_ids_) {
    names.push_back(absl::StrCat("'", base::Printable(TokenOf(id), kShownBytesMax), "'"));
  }
  return absl::StrJoin(names, " or ");
}

void Tokenizer::EncodeValid(absl::string_view text, const EncodeOptions& options,
                            std::vector<int32_t>* ids) const {
  finder_.Split(text, !options.special_tokens_in_text, [&](const AddedTokenFinder::Part& part) {
    if (part.id >= 0) return ids->push_back(part.id);
    const bool is_first = part.text.data() == text.data();
    if (normalizer_.empty()) return EncodeBetweenTokens(part.text, is_first, options, ids);
    EncodeBetweenTokens(Normalize(normalizer_, part.text), is_first, options, ids);
  });
}

void Tokenizer::EncodeBetweenTokens(absl::string_view text, bool is_first,
                                    const EncodeOptions& options, std::vector<int32_t>* ids) const {
  const auto encode = [&](const AddedTokenFinder::Part& part) {
    if (part.id >= 0) return ids->push_back(part.id);
    PreTokenize(pre_tokenizer_, part.text, is_first && part.text.data() == text.data(),
                [&](absl::string_view piece) { model_.Encode(piece, ids); });
  };
  if (text.empty()) return;
  if (normalized_finder_.empty()) return encode({text, -1});
  normalized_finder_.Split(text, !options.special_tokens_in_text, encode);
}

absl::Status Tokenizer::CheckId(int32_t id) const {
  if (id >= 0 && id < vocabulary_size()) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat(
      "token id ", id, " is not in the vocabulary; expected 0 to ", vocabulary_size() - 1));
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              const DecodeOptions& options) const {
  DecodeStream stream(this, options);
  stream.state_.set_whole_runs(true);
  std::string text;
  for (const int32_t id : ids) RETURN_IF_ERROR(stream.Push(id, &text));
  stream.Finish(&text);
  return text;
}

std::optional<int32_t> Tokenizer::IdOf(absl::string_view token) const {
  const auto found = id_of_.find(token);
  if (found == id_of_.end()) return std::nullopt;
  return found->second;
}

std::optional<size_t> Tokenizer::FindBeyond(absl::Span<const int32_t> ids, int64_t num_rows) const {
  if (vocabulary_size() <= num_rows) return std::nullopt;
  const auto* found =
      std::find_if(ids.begin(), ids.end(), [num_rows](int32_t id) { return id >= num_rows; });
  if (found == ids.end()) return std::nullopt;
  return static_cast<size_t>(found - ids.begin());
}

std::string Tokenizer::NameOf(int32_t id) const {
  return absl::StrCat("'", base::Printable(TokenOf(id), kShownBytesMax), "' (id ", id, ")");
}

std::optional<int32_t> Tokenizer::EndOfDocument() const {
  for (const absl::string_view name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    if (const auto id = IdOf(name)) return id;
  }
  return std::nullopt;
}

DecodeStream::DecodeStream(const Tokenizer* tokenizer, const DecodeOptions& options)
    : tokenizer_(*tokenizer), options_(options), state_(&tokenizer->decoder_) {
  state_.set_whole_runs(false);
}

absl::Status DecodeStream::Push(int32_t id, std::string* out) {
  RETURN_IF_ERROR(tokenizer_.CheckId(id));
  if (options_.skip_special_tokens && tokenizer_.IsSpecial(id)) return absl::OkStatus();
  state_.Push(tokenizer_.TokenOf(id), out);
  return absl::OkStatus();
}

}  // namespace megascale::tokenizer
