#include "runtime/inference/text_source.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/data/dataset/job_tokenizer.h"
#include "runtime/data/tokenizer/files/tokenizer_file.h"
#include "runtime/hugging_face/end_tokens.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/hugging_face/kept_files.h"
#include "runtime/hugging_face/weights.h"
#include "runtime/layout/rank_layout.h"

namespace megascale::inference {
namespace {

using tensor::DType;

constexpr int64_t kByteTokens = 256;
constexpr char kBytes[] = "bytes";  // as in data.tokenizer
constexpr int kJobsMax = 16;

// Returns the type in which weights of this stored type lose nothing that a model needs.
DType TypeOfStored(const std::string& dtype) {
  return dtype == "BF16" ? DType::kBF16 : DType::kF32;
}

// A source of weights, with the folder that may have its tokenizer and end tokens.
struct Found {
  hugging_face::Source source;
  std::optional<checkpoint::v1::Manifest> of_job;
  std::string files;  // a folder; empty: there is none
};

// `jobs_max`: how many jobs are followed that began with each other's weights, perhaps their own.
absl::StatusOr<Found> Find(const std::string& path, int jobs_max = kJobsMax) {
  Found found;
  ASSIGN_OR_RETURN(found.source, hugging_face::FindSource(path));
  if (!found.source.is_checkpoint) {
    found.files = found.source.path;
    return found;
  }
  ASSIGN_OR_RETURN(checkpoint::v1::Manifest manifest, checkpoint::ReadManifest(found.source.path));
  if (manifest.kind() == checkpoint::v1::CHECKPOINT_KIND_WEIGHTS) {
    found.files = hugging_face::KeptFolderOf(found.source.path);
    return found;
  }
  // The folder from which the job's weights came may be gone by now.
  const std::string& from = manifest.spec().model().from();
  if (!from.empty() && jobs_max > 0) {
    const auto origin = Find(from, jobs_max - 1);
    if (origin.ok()) found.files = origin->files;
  }
  found.of_job = std::move(manifest);
  return found;
}

absl::StatusOr<DType> StoredType(const hugging_face::Source& source) {
  if (source.is_checkpoint) {
    ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(source.path));
    return reader->tensors().empty() ? DType::kF32 : TypeOfStored(reader->tensors()[0].dtype);
  }
  ASSIGN_OR_RETURN(const auto weights, hugging_face::Weights::Open(source.path));
  return TypeOfStored(weights->DtypeOf(weights->tensors()[0]));
}

// Returns where the tokenizer is: a file or folder; empty: bytes are tokens.
absl::StatusOr<std::string> FindTokenizer(const Found& found, const std::string& given) {
  if (given == kBytes) return std::string();
  if (!given.empty()) return given;
  if (found.of_job) {
    // Whatever its first weights were trained with, it may have been trained on bytes. A checkpoint
    // keeps a copy of the tokenizer with which it was trained.
    if (!data::UsesTokenizer(found.of_job->spec().data())) return std::string();
    return tokenizer::TokenizerOfCheckpoint(found.source.path);
  }
  if (!found.files.empty() &&
      !absl::IsNotFound(tokenizer::FindTokenizerFile(found.files).status())) {
    return found.files;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(found.source.path,
                   ": has no tokenizer.json, tokenizer.model or vocab.json; name one by "
                   "--tokenizer, or say --tokenizer bytes if every byte is a token"));
}

absl::Status CheckVocabulary(const TextCodec& codec, const hugging_face::Source& source) {
  const int64_t model = source.model.vocab_size();
  if (codec.vocabulary_size() <= model) return absl::OkStatus();
  // Added tokens at the end are no obstacle while they do not occur.
  if (codec.tokenizer() != nullptr && codec.tokenizer()->num_text_tokens() <= model) {
    return absl::OkStatus();
  }
  if (codec.tokenizer() == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        source.path, ": has a vocabulary of ", model,
        " tokens and no tokenizer: expected 256 for bytes; name a tokenizer by --tokenizer"));
  }
  return absl::InvalidArgumentError(absl::StrCat("the tokenizer has ", codec.vocabulary_size(),
                                                 " tokens, the model of ", source.path, " has ",
                                                 model, ": expected no more; use the model's own"));
}

// Returns the token that the job put after every document, if it has one.
std::optional<int32_t> EndTokenOfJob(const job::v1::DataSpec& data,
                                     const tokenizer::Tokenizer& tokenizer) {
  if (!data::UsesTokenizer(data)) return std::nullopt;
  return data.end_token().empty() ? tokenizer.EndOfDocument() : tokenizer.IdOf(data.end_token());
}

// Drops the ids that `used` spells otherwise than the folder's own tokenizer: in `used` they are
// other tokens. A folder whose tokenizer is missing or cannot be read is believed.
void DropOtherTokens(const std::string& folder, const tokenizer::Tokenizer& used,
                     std::vector<int32_t>* ids) {
  const auto own = tokenizer::LoadTokenizer(folder);
  if (!own.ok()) return;
  std::erase_if(*ids, [&](int32_t id) {
    return id < (*own)->vocabulary_size() && (*own)->TokenOf(id) != used.TokenOf(id);
  });
}

// `used`: where the codec's tokenizer was found.
absl::StatusOr<std::vector<int32_t>> FindEndTokens(const Found& found, const std::string& used,
                                                   const TextCodec& codec) {
  if (codec.tokenizer() == nullptr) return std::vector<int32_t>();
  std::vector<int32_t> ids;
  if (!found.files.empty()) {
    ASSIGN_OR_RETURN(ids, hugging_face::ReadEndTokens(found.files));
  }
  for (const int32_t id : ids) {
    if (id < found.source.model.vocab_size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(found.files, ": eos_token_id is ", id, ": expected a token below ",
                     found.source.model.vocab_size(), ", the model's vocabulary"));
  }
  // A token that the tokenizer does not have is never generated.
  std::erase_if(ids, [&](int32_t id) { return id >= codec.vocabulary_size(); });
  if (!ids.empty() && used != found.files) DropOtherTokens(found.files, *codec.tokenizer(), &ids);
  if (const auto of_job = found.of_job
                              ? EndTokenOfJob(found.of_job->spec().data(), *codec.tokenizer())
                              : std::nullopt;
      of_job && std::find(ids.begin(), ids.end(), *of_job) == ids.end()) {
    ids.push_back(*of_job);
  }
  const auto of_tokenizer = codec.tokenizer()->EndOfDocument();
  if (ids.empty() && of_tokenizer) ids.push_back(*of_tokenizer);
  return ids;
}

}  // namespace

int64_t TextCodec::vocabulary_size() const {
  return tokenizer_ == nullptr ? kByteTokens : tokenizer_->vocabulary_size();
}

TextCodec::Prompt TextCodec::EncodePrompt(absl::string_view text) const {
  Prompt prompt;
  if (tokenizer_ == nullptr) {
    for (const char c : text) prompt.ids.push_back(static_cast<unsigned char>(c));
    return prompt;
  }
  prompt.begins_twice =
      tokenizer_->EncodeDocument({.text = text, .ends_document = false}, &prompt.ids);
  return prompt;
}

std::optional<int32_t> TextCodec::IdOf(absl::string_view token) const {
  if (tokenizer_ != nullptr) return tokenizer_->IdOf(token);
  if (token.size() != 1) return std::nullopt;
  return static_cast<unsigned char>(token[0]);
}

absl::StatusOr<TextSource> FindTextSource(const std::string& path,
                                          const std::string& tokenizer_path) {
  ASSIGN_OR_RETURN(const Found found, Find(path));
  TextSource text;
  text.model = found.source.model;
  text.model.set_from(found.source.path);
  text.warnings = found.source.warnings;
  const int64_t positions = text.model.max_position_embeddings();
  text.context = positions > 0 ? positions : kLongestSequence;
  if (found.of_job) {
    text.step = found.of_job->step();
    text.compute = layout::ComputeType(found.of_job->spec().train().precision());
  } else {
    ASSIGN_OR_RETURN(text.compute, StoredType(found.source));
  }
  ASSIGN_OR_RETURN(text.tokenizer, FindTokenizer(found, tokenizer_path));
  if (!text.tokenizer.empty()) {
    ASSIGN_OR_RETURN(auto loaded, tokenizer::LoadTokenizer(text.tokenizer));
    for (const std::string& warning : loaded->warnings()) text.warnings.push_back(warning);
    text.codec = TextCodec(std::move(loaded));
  }
  RETURN_IF_ERROR(CheckVocabulary(text.codec, found.source));
  ASSIGN_OR_RETURN(text.end_tokens, FindEndTokens(found, text.tokenizer, text.codec));
  return text;
}

absl::StatusOr<std::optional<hugging_face::EndToken>> FindJobEndToken(
    const std::string& checkpoint) {
  ASSIGN_OR_RETURN(const checkpoint::v1::Manifest manifest, checkpoint::ReadManifest(checkpoint));
  const job::v1::DataSpec& data = manifest.spec().data();
  if (!data::UsesTokenizer(data)) return std::nullopt;
  ASSIGN_OR_RETURN(const std::string path, tokenizer::TokenizerOfCheckpoint(checkpoint));
  ASSIGN_OR_RETURN(const auto tokenizer, tokenizer::LoadTokenizer(path));
  const std::optional<int32_t> id = EndTokenOfJob(data, *tokenizer);
  if (!id) return std::nullopt;
  const auto& added = tokenizer->added_tokens();
  const bool is_added =
      std::any_of(added.begin(), added.end(), [&](const auto& token) { return token.id == *id; });
  return hugging_face::EndToken{.id = *id, .text = is_added ? tokenizer->TokenOf(*id) : ""};
}

}  // namespace megascale::inference
