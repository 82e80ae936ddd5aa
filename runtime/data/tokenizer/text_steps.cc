#include "runtime/data/tokenizer/text_steps.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "runtime/data/tokenizer/text/nfc.h"

namespace megascale::tokenizer {
namespace {

size_t FirstPieceOf(const Split& split, absl::string_view text) {
  const auto* run = std::get_if<RunSplitter>(&split);
  return run != nullptr ? run->FirstPiece(text) : FirstPiece(std::get<SplitPattern>(split), text);
}

// Splits by the first pattern, each piece by the second one, and so on.
void SplitWords(absl::Span<const Split> patterns, absl::string_view text,
                absl::FunctionRef<void(absl::string_view)> on_piece) {
  if (patterns.empty()) return on_piece(text);
  while (!text.empty()) {
    const size_t length = FirstPieceOf(patterns[0], text);
    if (patterns.size() == 1) {
      on_piece(text.substr(0, length));
    } else {
      SplitWords(patterns.subspan(1), text.substr(0, length), on_piece);
    }
    text.remove_prefix(length);
  }
}

void SplitMetaspace(const MetaspaceStep& step, absl::string_view text, bool is_first,
                    absl::FunctionRef<void(absl::string_view)> on_piece) {
  const std::string& mark = step.replacement;
  std::string replaced = ReplaceEach(text, " ", mark);
  const bool prepends = step.prepend == MetaspaceStep::Prepend::kAlways ||
                        (step.prepend == MetaspaceStep::Prepend::kFirst && is_first);
  if (prepends && !absl::StartsWith(replaced, mark)) replaced.insert(0, mark);
  absl::string_view rest = replaced;
  if (!step.split) return on_piece(rest);
  while (!rest.empty()) {
    const size_t next = rest.find(mark, absl::StartsWith(rest, mark) ? mark.size() : 0);
    const size_t length = std::min(next, rest.size());
    on_piece(rest.substr(0, length));
    rest.remove_prefix(length);
  }
}

}  // namespace

std::string ReplaceEach(absl::string_view text, absl::string_view pattern,
                        absl::string_view content) {
  std::string result;
  result.reserve(text.size());
  for (;;) {
    const size_t at = text.find(pattern);
    if (at == absl::string_view::npos) break;
    absl::StrAppend(&result, text.substr(0, at), content);
    text.remove_prefix(at + pattern.size());
  }
  absl::StrAppend(&result, text);
  return result;
}

std::string Normalize(const std::vector<NormalizerStep>& steps, absl::string_view text) {
  std::string result(text);
  for (const NormalizerStep& step : steps) {
    switch (step.kind) {
      case NormalizerStep::Kind::kNfc:
        result = ToNfc(result);
        break;
      case NormalizerStep::Kind::kPrepend:
        if (!result.empty()) result.insert(0, step.content);
        break;
      case NormalizerStep::Kind::kReplace:
        result = ReplaceEach(result, step.pattern, step.content);
        break;
    }
  }
  return result;
}

void PreTokenize(const PreTokenizer& pre_tokenizer, absl::string_view text, bool is_first,
                 absl::FunctionRef<void(absl::string_view)> on_piece) {
  if (pre_tokenizer.metaspace) {
    return SplitMetaspace(*pre_tokenizer.metaspace, text, is_first, on_piece);
  }
  std::string prefixed;
  if (pre_tokenizer.add_prefix_space && text[0] != ' ') {
    prefixed = absl::StrCat(" ", text);
    text = prefixed;
  }
  SplitWords(pre_tokenizer.splits, text, on_piece);
}

}  // namespace megascale::tokenizer
