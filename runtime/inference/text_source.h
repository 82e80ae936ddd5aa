// Finds the model, tokenizer and end tokens at a path, for generation. Reads no weights. Threads:
// plain functions. Blocking: storage.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "runtime/data/tokenizer/tokenizer.h"
#include "runtime/hugging_face/text_files.h"
#include "runtime/tensor/tensor.h"

namespace megascale::inference {

// Tokens of the longest sequence of a model that has no limit of its own.
inline constexpr int64_t kLongestSequence = int64_t{1} << 20;

// Encodes text as token ids: by a tokenizer, or as one token for each byte.
class TextCodec {
 public:
  // `tokenizer`: null for bytes.
  explicit TextCodec(std::unique_ptr<tokenizer::Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  const tokenizer::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  // One more than the highest id.
  int64_t vocabulary_size() const;
  struct Prompt {
    std::vector<int32_t> ids;
    bool begins_twice = false;  // the text itself has the tokens that belong before it
  };
  // Returns the ids of a text that the model will continue: with the tokens that the tokenizer puts
  // before a text, once, without the tokens that it puts after a text.
  Prompt EncodePrompt(absl::string_view text) const;
  // Returns the id of `token`, spelt as in the tokenizer's file; without a tokenizer, `token` is
  // one byte.
  std::optional<int32_t> IdOf(absl::string_view token) const;

 private:
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

struct TextSource {
  job::v1::ModelSpec model;                     // resolved; `from` is the path of the weights
  tensor::DType compute = tensor::DType::kF32;  // as it was trained, or as the weights are stored
  int64_t context = 0;                          // longest sequence
  std::optional<int64_t> step;                  // of a checkpoint that a job wrote
  TextCodec codec{nullptr};
  std::string tokenizer;  // path of the codec's tokenizer; empty: bytes
  // Ids in the codec's vocabulary. An end token that the weights' folder names is used only if the
  // codec spells this id as the folder's own tokenizer does.
  std::vector<int32_t> end_tokens;
  std::vector<std::string> warnings;
};

// Reads a checkpoint, a folder of them (the newest counts) or a Hugging Face folder.
// `tokenizer_path`: a tokenizer to use instead of the path's own; "bytes": no tokenizer; empty: the
// path's own. A job that was trained without a tokenizer reads bytes, even if it began with weights
// that have one. Errors: those of hugging_face::FindSource and tokenizer::LoadTokenizer;
// FailedPrecondition - no tokenizer; InvalidArgument - a tokenizer with more tokens than the model,
// apart from added tokens at its end; an end token that the model does not have.
absl::StatusOr<TextSource> FindTextSource(const std::string& path,
                                          const std::string& tokenizer_path);

// Returns the token that ends every document of the job that wrote a checkpoint; nullopt: the job
// trained on bytes, or no job wrote the checkpoint: its weights are imported. Errors: those of
// checkpoint::ReadManifest and of tokenizer::LoadTokenizer.
absl::StatusOr<std::optional<hugging_face::EndToken>> FindJobEndToken(
    const std::string& checkpoint);

}  // namespace megascale::inference
