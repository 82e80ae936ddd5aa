// Text to token ids and back, as the tokenizers of GPT-2, GPT-NeoX, Llama, Mistral and Qwen do it:
// token for token what PyPI's `tokenizers` gives for the same tokenizer.json.
//
//   ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer("llama/tokenizer.json"));
//   std::vector<int32_t> ids;
//   tokenizer->Encode("Love is", {}, &ids);
//   ASSIGN_OR_RETURN(const std::string text, tokenizer->Decode(ids, {}));
//
// A text passes: added tokens -> normaliser -> added tokens again -> pre-tokenizer -> BPE. To load
// a tokenizer, see files/tokenizer_file.h. Threads: immutable; any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/data/tokenizer/added_tokens.h"
#include "runtime/data/tokenizer/bpe/bpe_model.h"
#include "runtime/data/tokenizer/decoder.h"
#include "runtime/data/tokenizer/text_steps.h"

namespace megascale::tokenizer {

// What a tokenizer is made of.
struct TokenizerParts {
  std::vector<std::string> tokens;       // by id, as tokenizer.json writes them
  std::vector<AddedToken> added_tokens;  // each is among the tokens
  std::vector<int32_t> special_ids;      // special, but never found in text; each is a token
  std::vector<NormalizerStep> normalizer;
  PreTokenizer pre_tokenizer;
  BpeSpec model;
  // What a post-processor adds around a text.
  std::vector<int32_t> begin_ids;
  std::vector<int32_t> end_ids;
  Decoder decoder;
  std::string description;            // one line for people: "byte-level BPE, split as llama3"
  std::string sha256;                 // of the file, and of what other files of its folder change
  std::vector<std::string> warnings;  // what is odd but allowed, one line each
};

struct EncodeOptions {
  // Adds the tokens that the tokenizer puts around a text, such as "<s>".
  bool add_special_tokens = true;
  // Special tokens that are written out in the text become their ids. Turn it off for text that
  // others wrote and that must not end a document.
  bool special_tokens_in_text = true;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

class Tokenizer {
 public:
  // Errors: InvalidArgument - a part that contradicts another one.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(TokenizerParts parts);

  // Appends the ids of `text`. Invalid UTF-8 counts as U+FFFD.
  // Cost: memory of a few times the text's size for tokenizers that normalise; for byte-level ones
  // without a normaliser, that of the ids.
  void Encode(absl::string_view text, const EncodeOptions& options,
              std::vector<int32_t>* ids) const;

  // A document, or one of the parts in which a long one is encoded.
  struct DocumentPart {
    absl::string_view text;
    bool begins_document = true;
    bool ends_document = true;
  };
  // Replaces `ids` by those of a document with the tokens that belong around a text. Where the text
  // itself begins or ends with them, they are not put there again. Returns true if so.
  bool EncodeDocument(const DocumentPart& part, std::vector<int32_t>* ids) const;
  // Returns the tokens around a text, for messages: "'<s>'" or "'<s>' or '</s>'".
  std::string NamesAround() const;
  std::string NamesBefore() const;

  // Returns the text. It is valid UTF-8.
  // Errors: OutOfRange - an id that this tokenizer does not have.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids,
                                     const DecodeOptions& options) const;

  // One more than the highest id.
  int32_t vocabulary_size() const { return static_cast<int32_t>(tokens_.size()); }
  // One more than the highest id of a token that is not an added one.
  int32_t num_text_tokens() const { return num_text_tokens_; }
  // Returns the place in `ids` of the first one that a vocabulary of `num_rows` tokens does not
  // have; nullopt: it has all of them.
  std::optional<size_t> FindBeyond(absl::Span<const int32_t> ids, int64_t num_rows) const;
  // Returns "'[PAD]' (id 400)". Requires: 0 <= id < vocabulary_size().
  std::string NameOf(int32_t id) const;
  // Returns a token as the file writes it. Requires: 0 <= id < vocabulary_size().
  const std::string& TokenOf(int32_t id) const { return tokens_[id]; }
  // Returns the id of a token as the file writes it; nullopt: there is none.
  std::optional<int32_t> IdOf(absl::string_view token) const;
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }
  bool IsSpecial(int32_t id) const { return id < vocabulary_size() && is_special_[id]; }
  // Returns the id of the token that ends a document: the first of "<|endoftext|>",
  // "<|end_of_text|>" and "</s>" that exists; nullopt: none of them.
  std::optional<int32_t> EndOfDocument() const;

  const std::vector<int32_t>& begin_ids() const { return begin_ids_; }
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  const std::string& description() const { return description_; }
  const std::string& sha256() const { return sha256_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  friend class DecodeStream;
  explicit Tokenizer(TokenizerParts parts);
  std::vector<AddedTokenFinder::Pattern> PatternsOf(bool normalized) const;
  void EncodeValid(absl::string_view text, const EncodeOptions& options,
                   std::vector<int32_t>* ids) const;
  void EncodeBetweenTokens(absl::string_view text, bool is_first, const EncodeOptions& options,
                           std::vector<int32_t>* ids) const;
  absl::Status CheckId(int32_t id) const;

  std::vector<std::string> tokens_;
  absl::flat_hash_map<absl::string_view, int32_t> id_of_;
  std::vector<AddedToken> added_tokens_;
  std::vector<bool> is_special_;  // by id
  std::vector<NormalizerStep> normalizer_;
  PreTokenizer pre_tokenizer_;
  AddedTokenFinder finder_;             // in the text as it is
  AddedTokenFinder normalized_finder_;  // in normalised text
  BpeModel model_;
  std::vector<int32_t> begin_ids_;
  std::vector<int32_t> end_ids_;
  Decoder decoder_;
  std::string description_;
  std::string sha256_;
  std::vector<std::string> warnings_;
  int32_t num_text_tokens_ = 0;
};

// Decodes ids as they come, for text that is shown while it is generated. The pieces together equal
// Decode's text, with one exception: if a run of byte-fallback tokens starts with valid characters
// and turns out to be invalid later, Decode replaces the whole run, but the stream has already
// returned the valid characters. Borrows the tokenizer. Threads: one at a time.
class DecodeStream {
 public:
  DecodeStream(const Tokenizer* tokenizer, const DecodeOptions& options);

  // Appends the text that is certain now: whole characters. Errors: as Tokenizer::Decode.
  absl::Status Push(int32_t id, std::string* out);
  // Appends what was held back, as U+FFFD. Call it once, last.
  void Finish(std::string* out) { state_.Finish(out); }

 private:
  friend class Tokenizer;
  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  DecodeState state_;
};

}  // namespace megascale::tokenizer
