#include "runtime/data/dataset/job_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/dataset/text_chunks.h"
#include "runtime/data/tokenizer/bpe/bpe_trainer.h"
#include "runtime/data/tokenizer/files/tokenizer_json.h"

namespace megascale::data {
namespace {

using job::v1::DataSpec;

constexpr int64_t kNumBytes = 256;
constexpr int64_t kMinFrequency = 2;
constexpr char kEndOfDocument[] = "<|endoftext|>";
constexpr char kLearntFile[] = "tokenizer.json";

absl::StatusOr<JobTokenizer> Load(const DataSpec& spec, const std::string& path) {
  JobTokenizer loaded;
  ASSIGN_OR_RETURN(tokenizer::LoadedTokenizer read, tokenizer::LoadTokenizerWithFiles(path));
  loaded.tokenizer = std::move(read.tokenizer);
  loaded.files = std::move(read.files);
  const auto end = spec.end_token().empty() ? loaded.tokenizer->EndOfDocument()
                                            : loaded.tokenizer->IdOf(spec.end_token());
  if (end) {
    loaded.end_token = *end;
    return loaded;
  }
  if (!spec.end_token().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has no token '", base::Printable(spec.end_token(), 60), "', which data.end_token names"));
  }
  return absl::InvalidArgumentError(
      "has no <|endoftext|>, <|end_of_text|> or </s>; name the token that ends a document in "
      "data.end_token");
}

// Returns the first bytes of `text`, at most `size`, without a part of a character.
absl::string_view Prefix(absl::string_view text, int64_t size) {
  auto end = static_cast<size_t>(std::max<int64_t>(size, 0));
  if (end >= text.size()) return text;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

// Counts the words of a file's training part.
class WordReader {
 public:
  WordReader(const DataSpec& spec, tokenizer::WordCounter* counter, const OnProgress& on_progress)
      : spec_(spec), counter_(counter), on_progress_(on_progress) {}

  absl::Status Read(const Input& input) {
    TextChunkOptions options = {
        .path = input.path, .json_field = spec_.json_field(), .skip_bad = spec_.skip_bad()};
    if (input.kind == Input::Kind::kPlain) {
      options.end = input.train_bytes;
      return ReadChunks(options, {});
    }
    if (input.train_bytes == input.size_bytes) return ReadChunks(options, {});
    // Packed text and JSON Lines are cut at this share of their text.
    const double share =
        static_cast<double>(input.train_bytes) / static_cast<double>(input.size_bytes);
    Bytes bytes;
    ASSIGN_OR_RETURN(bytes.all, CountBytes(options));
    bytes.wanted = static_cast<int64_t>(static_cast<double>(bytes.all) * share);
    if (!spec_.json_field().empty()) return ReadChunks(options, bytes);
    options.end = bytes.wanted;
    return ReadChunks(options, {});
  }

 private:
  // Bytes of unpacked text.
  struct Bytes {
    int64_t all = INT64_MAX;
    int64_t wanted = INT64_MAX;  // from the beginning
  };

  absl::StatusOr<int64_t> CountBytes(const TextChunkOptions& options) const {
    ASSIGN_OR_RETURN(const auto chunks, TextChunks::Open(options));
    TextChunk chunk;
    int64_t num_bytes = 0;
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, chunks->Next(&chunk));
      if (!more) return num_bytes;
      num_bytes += static_cast<int64_t>(chunk.text.size());
      Report("measuring ", options.path, *chunks);
    }
  }

  // Reads whole documents until the wanted bytes are reached, but only the begin of the last
  // document of all, in which the held-out part begins.
  absl::Status ReadChunks(const TextChunkOptions& options, const Bytes& bytes) {
    ASSIGN_OR_RETURN(const auto chunks, TextChunks::Open(options));
    TextChunk chunk;
    for (int64_t num_bytes = 0; num_bytes < bytes.wanted;) {
      ASSIGN_OR_RETURN(const bool more, chunks->Next(&chunk));
      if (!more) break;
      const int64_t before = num_bytes;
      num_bytes += static_cast<int64_t>(chunk.text.size());
      counter_->Feed(num_bytes < bytes.all ? chunk.text
                                           : Prefix(chunk.text, bytes.wanted - before));
      if (chunk.ends_document) counter_->Finish();
      Report("learning a tokenizer from ", options.path, *chunks);
    }
    return absl::OkStatus();
  }

  void Report(absl::string_view what, const std::string& path, const TextChunks& chunks) const {
    if (!on_progress_) return;
    on_progress_(absl::StrCat(what, path), chunks.stream().read_bytes(),
                 chunks.stream().file_bytes());
  }

  const DataSpec& spec_;
  tokenizer::WordCounter* counter_;
  const OnProgress& on_progress_;
};

std::string LearntDigest(const DataSpec& spec, const std::vector<Input>& inputs) {
  std::vector<std::string> parts = {"learnt 2", absl::StrCat(spec.tokenizer_vocab_size()),
                                    absl::StrCat(spec.json_field().size()), spec.json_field(),
                                    absl::StrCat(spec.skip_bad())};
  for (const Input& input : inputs) {
    parts.push_back(absl::StrCat(input.sha256, " ", input.train_bytes));
  }
  return base::Sha256Hex(absl::StrJoin(parts, "\n"));
}

absl::StatusOr<std::string> Learn(const DataSpec& spec, const std::vector<Input>& inputs,
                                  const OnProgress& on_progress) {
  tokenizer::ByteLevelBpe bpe;
  bpe.special_tokens = {kEndOfDocument};
  tokenizer::WordCounter counter(bpe.split);
  WordReader reader(spec, &counter, on_progress);
  for (const Input& input : inputs) {
    if (input.kind == Input::Kind::kTokens || input.kind == Input::Kind::kMegatron) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.tokenizer_vocab_size: ", input.path,
          " has tokens, from which no tokenizer can be learnt; name theirs in data.tokenizer"));
    }
    if (input.train_bytes > 0) RETURN_IF_ERROR(reader.Read(input));
  }
  if (counter.words().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("data.files: ", inputs.front().path,
                                                   ": has no text to learn a tokenizer from"));
  }
  tokenizer::BpeTrainOptions options;
  options.num_tokens_max = spec.tokenizer_vocab_size() - kNumBytes - 1;
  options.min_frequency = kMinFrequency;
  options.on_progress = [&](int64_t done, int64_t all) {
    if (on_progress) on_progress("learning a tokenizer", done, all);
  };
  bpe.merges = tokenizer::TrainBpe(counter.words(), options);
  return tokenizer::WriteTokenizerJson(bpe);
}

// All tokens but the added ones at the end that no document has by itself.
int32_t NeededTokens(const JobTokenizer& loaded) {
  int32_t needed = std::max(loaded.tokenizer->num_text_tokens(), loaded.end_token + 1);
  for (const auto* ids : {&loaded.tokenizer->begin_ids(), &loaded.tokenizer->end_ids()}) {
    for (const int32_t id : *ids) needed = std::max(needed, id + 1);
  }
  return needed;
}

}  // namespace

bool UsesTokenizer(const DataSpec& spec) {
  return spec.tokenizer_vocab_size() > 0 ||
         (!spec.tokenizer().empty() && spec.tokenizer() != "bytes");
}

absl::StatusOr<JobTokenizer> LoadJobTokenizer(const DataSpec& spec) {
  absl::StatusOr<JobTokenizer> loaded = Load(spec, spec.tokenizer());
  if (loaded.ok()) return loaded;
  const bool says_path = absl::StrContains(loaded.status().message(), spec.tokenizer());
  return base::Annotate(loaded.status(), says_path
                                             ? "data.tokenizer"
                                             : absl::StrCat("data.tokenizer: ", spec.tokenizer()));
}

absl::StatusOr<JobTokenizer> LearnJobTokenizer(const DataSpec& spec,
                                               const std::vector<Input>& inputs,
                                               const TokenCache& cache,
                                               const OnProgress& on_progress) {
  const std::string folder = absl::StrCat(cache.folder(), "/learnt-", LearntDigest(spec, inputs));
  const std::string file = absl::StrCat(folder, "/", kLearntFile);
  const auto waits = [&] {
    if (on_progress) on_progress("waiting for a tokenizer", 0, 0);
  };
  ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::Take(folder, waits));
  absl::StatusOr<JobTokenizer> learnt = Load(spec, file);
  if (learnt.ok()) return learnt;
  ASSIGN_OR_RETURN(const std::string content, Learn(spec, inputs, on_progress));
  RETURN_IF_ERROR(base::WriteFileDurably(file, content));
  return Load(spec, file);
}

absl::Status FillVocabulary(job::v1::JobSpec* spec) {
  if (!UsesTokenizer(spec->data())) return absl::OkStatus();
  int32_t tokens = spec->data().tokenizer_vocab_size();
  int32_t needed = tokens;
  if (tokens == 0) {
    ASSIGN_OR_RETURN(const JobTokenizer loaded, LoadJobTokenizer(spec->data()));
    tokens = loaded.tokenizer->vocabulary_size();
    needed = NeededTokens(loaded);
  }
  if (spec->model().vocab_size() == 0) spec->mutable_model()->set_vocab_size(tokens);
  if (spec->model().vocab_size() >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model.vocab_size: is ", spec->model().vocab_size(), ", but the tokenizer ",
      spec->data().tokenizer_vocab_size() > 0 ? "to learn" : spec->data().tokenizer(), " has ",
      tokens, " tokens; expected at least ", needed == tokens ? "as many" : absl::StrCat(needed)));
}

}  // namespace megascale::data
