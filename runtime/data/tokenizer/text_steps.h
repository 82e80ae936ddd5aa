// What happens to text before its pieces are encoded: normalisers change it, a pre-tokenizer cuts
// it. Only the steps that the tokenizers of the supported model families use.
// Threads: immutable; any.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "runtime/data/tokenizer/text/run_splitter.h"
#include "runtime/data/tokenizer/text/splitter.h"

namespace megascale::tokenizer {

struct NormalizerStep {
  enum class Kind {
    kNfc,
    kPrepend,  // adds `content` before text that is not empty
    kReplace,  // `content` in place of each `pattern`
  };
  Kind kind;
  std::string pattern;
  std::string content;
};

// Replaces each occurrence of `pattern` (not empty), from left to right without overlaps.
std::string ReplaceEach(absl::string_view text, absl::string_view pattern,
                        absl::string_view content);

// Returns `text` after all steps. Requires: valid UTF-8.
std::string Normalize(const std::vector<NormalizerStep>& steps, absl::string_view text);

// Spaces become `replacement`, and words begin with it.
struct MetaspaceStep {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement;  // one character
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // into words; else one piece
};

// One way to cut text: a pattern that has a name, or an expression of one class of characters.
using Split = std::variant<SplitPattern, RunSplitter>;

struct PreTokenizer {
  // Splits, each of the pieces before it, or Metaspace. Neither of them: the text is one piece.
  std::vector<Split> splits;
  std::optional<MetaspaceStep> metaspace;
  bool byte_level = false;          // pieces are encoded as bytes
  bool add_prefix_space = false;    // byte-level: text begins with a space
  bool is_lone_byte_level = false;  // byte-level is the only step of the file
};

// Calls `on_piece` for each piece of `text` in order. `is_first`: `text` is the beginning of the
// whole text. A piece is valid only during the call. Requires: valid UTF-8, not empty.
void PreTokenize(const PreTokenizer& pre_tokenizer, absl::string_view text, bool is_first,
                 absl::FunctionRef<void(absl::string_view)> on_piece);

}  // namespace megascale::tokenizer
