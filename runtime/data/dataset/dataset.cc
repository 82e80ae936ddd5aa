#include "runtime/data/dataset/dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/data/token_file/megatron_file.h"
#include "runtime/data/token_file/token_file.h"

namespace megascale::data {
namespace {

constexpr int64_t kScanTokens = 1 << 16;

// A contiguous part of a token file.
class TokenPart : public TokenText {
 public:
  TokenPart(std::shared_ptr<const TokenSource> source, int64_t begin, int64_t end)
      : source_(std::move(source)), begin_(begin), num_tokens_(end - begin) {}
  int64_t num_tokens() const override { return num_tokens_; }
  absl::Status Read(int64_t begin, absl::Span<int32_t> out) const override {
    return source_->Read(begin_ + begin, out);
  }

 private:
  std::shared_ptr<const TokenSource> source_;
  int64_t begin_;
  int64_t num_tokens_;
};

using TokenSources = std::vector<std::shared_ptr<const TokenSource>>;

TokenSources Shared(std::vector<std::unique_ptr<TokenSource>> sources) {
  return {std::make_move_iterator(sources.begin()), std::make_move_iterator(sources.end())};
}

// Returns after how many of all tokens the held-out part begins: at this share of them, then at the
// end of that document, unless nothing would be left.
int64_t CutOf(const TokenSources& sources, double share) {
  int64_t total = 0;
  for (const auto& source : sources) total += source->num_tokens();
  if (share <= 0 || share >= 1) return share <= 0 ? 0 : total;
  const auto wanted = static_cast<int64_t>(static_cast<double>(total) * share);
  int64_t before = 0;
  for (const auto& source : sources) {
    for (int64_t i = 0; wanted <= before + source->num_tokens() && i < source->num_documents();
         ++i) {
      const int64_t end = before + source->DocumentEnd(i);
      if (end >= wanted) return end < total ? end : wanted;
    }
    before += source->num_tokens();
  }
  return wanted;
}

// Checks ids of a file that does not say how large its vocabulary is.
absl::Status CheckIds(const TokenSource& source, int64_t vocabulary_size) {
  std::vector<int32_t> ids;
  for (int64_t at = 0; at < source.num_tokens(); at += static_cast<int64_t>(ids.size())) {
    ids.resize(static_cast<size_t>(std::min(kScanTokens, source.num_tokens() - at)));
    RETURN_IF_ERROR(source.Read(at, absl::MakeSpan(ids)));
    const auto bad = std::find_if(ids.begin(), ids.end(),
                                  [&](int32_t id) { return id < 0 || id >= vocabulary_size; });
    if (bad == ids.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("data.files: ", source.layout().path, ": token ",
                                                   at + (bad - ids.begin()), " is ", *bad,
                                                   ", but model.vocab_size is ", vocabulary_size));
  }
  return absl::OkStatus();
}

}  // namespace

class DatasetBuilder {
 public:
  DatasetBuilder(const job::v1::JobSpec& spec, const DatasetOptions& options)
      : spec_(spec), options_(options), cache_(spec.data().token_cache()), dataset_(new Dataset) {}

  absl::StatusOr<std::unique_ptr<Dataset>> Build() {
    for (const job::v1::DataSpec& data : DataOfSources()) {
      Dataset::Source source;
      const auto index = static_cast<int>(dataset_->sources_.size());
      if (spec_.data().weights_size() > index) {
        MEGASCALE_CHECK(absl::SimpleAtod(spec_.data().weights(index), &source.weight));
      }
      RETURN_IF_ERROR(UsesTokenizer(data) ? ListTokens(data, &source) : OpenBytes(data, &source));
      dataset_->sources_.push_back(std::move(source));
    }
    AddFileCounts();
    if (UsesTokenizer(spec_.data())) RETURN_IF_ERROR(AddTokens());
    Join();
    if (!options_.held_out_only) RETURN_IF_ERROR(MakeSamples());
    AddSettings(absl::StrJoin(spec_.data().weights(), " "));
    return std::move(dataset_);
  }

 private:
  // One for each source; all entries are one source if they have no weights.
  std::vector<job::v1::DataSpec> DataOfSources() const {
    if (spec_.data().weights().empty()) return {spec_.data()};
    std::vector<job::v1::DataSpec> all;
    for (const std::string& file : spec_.data().files()) {
      all.push_back(spec_.data());
      all.back().clear_files();
      all.back().add_files(file);
    }
    return all;
  }

  // Says which file belongs to which source of a mixture.
  void AddFileCounts() {
    if (dataset_->sources_.size() < 2) return;
    for (const Dataset::Source& source : dataset_->sources_) {
      const size_t num_files =
          source.corpus != nullptr ? source.corpus->paths().size() : source.inputs.size();
      AddSettings(absl::StrCat("files of a source: ", num_files));
    }
  }

  absl::Status OpenBytes(const job::v1::DataSpec& data, Dataset::Source* source) {
    const int seq_length = options_.held_out_only ? 0 : spec_.train().seq_length();
    ASSIGN_OR_RETURN(source->corpus, Corpus::Open(data, seq_length));
    for (const std::string& path : source->corpus->paths()) {
      if (!IsTokenFile(path)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "data.files: ", path, ": is a token file; name its tokenizer in data.tokenizer"));
    }
    AddWarnings(source->corpus->folders());
    ASSIGN_OR_RETURN(const std::vector<std::string> binary, source->corpus->WarningsOfBinary());
    AddWarnings(binary);
    const auto train = [&] { return std::make_unique<ByteText>(source->corpus->train()); };
    if (options_.whole) source->held_out_parts.push_back(train());
    if (!options_.held_out_only) source->train_parts.push_back(train());
    source->held_out_parts.push_back(std::make_unique<ByteText>(source->corpus->held_out()));
    return absl::OkStatus();
  }

  absl::Status ListTokens(const job::v1::DataSpec& data, Dataset::Source* source) {
    ASSIGN_OR_RETURN(InputList list, ListInputs(data));
    source->inputs = std::move(list.inputs);
    AddWarnings(list.folders);
    if (!options_.whole) return absl::OkStatus();
    for (Input& input : source->inputs) input.train_bytes = 0;
    return absl::OkStatus();
  }

  absl::Status AddTokens() {
    base::RaiseOpenFilesLimit();
    if (spec_.data().tokenizer_vocab_size() > 0) {
      std::vector<Input> all;
      for (const Dataset::Source& source : dataset_->sources_) {
        all.insert(all.end(), source.inputs.begin(), source.inputs.end());
      }
      ASSIGN_OR_RETURN(dataset_->tokenizer_,
                       LearnJobTokenizer(spec_.data(), all, cache_, options_.on_progress));
    } else {
      ASSIGN_OR_RETURN(dataset_->tokenizer_, LoadJobTokenizer(spec_.data()));
    }
    const tokenizer::Tokenizer& tokenizer = *dataset_->tokenizer_.tokenizer;
    for (const std::string& warning : tokenizer.warnings()) {
      dataset_->warnings_.push_back(absl::StrCat("data.tokenizer: ", warning));
    }
    const int64_t tokens = tokenizer.num_text_tokens();
    if (tokens > spec_.model().vocab_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.tokenizer: has ", tokens, " tokens, more than model.vocab_size = ",
          spec_.model().vocab_size(), "; every machine needs the tokenizer of the job"));
    }
    for (Dataset::Source& source : dataset_->sources_) {
      for (const Input& input : source.inputs) RETURN_IF_ERROR(AddInput(input, &source));
    }
    return absl::OkStatus();
  }

  absl::Status AddInput(const Input& input, Dataset::Source* source) {
    switch (input.kind) {
      case Input::Kind::kPlain:
        return AddPlain(input, source);
      case Input::Kind::kDocuments:
        return AddDocuments(input, source);
      case Input::Kind::kTokens:
        return AddTokenFile(input, source);
      case Input::Kind::kMegatron:
        return AddMegatron(input, source);
    }
    return absl::OkStatus();
  }

  // Encodes a part of a plain file; the whole file has the same digest however much is held out.
  absl::StatusOr<EncodedText> Encode(const Input& input, int64_t begin, int64_t end) {
    EncodeRequest request;
    request.text.path = input.path;
    request.text.json_field = spec_.data().json_field();
    request.text.skip_bad = spec_.data().skip_bad();
    request.text.begin = begin;
    request.text.end = end == input.size_bytes ? INT64_MAX : end;
    request.text_sha256 = input.sha256;
    request.tokenizer = dataset_->tokenizer_.tokenizer.get();
    request.end_token = dataset_->tokenizer_.end_token;
    request.num_rows = spec_.model().vocab_size();
    ASSIGN_OR_RETURN(EncodedText encoded, cache_.Encode(request, options_.on_progress));
    AddSettings(encoded.sha256);
    if (encoded.num_skipped > 0 && (end == input.size_bytes || options_.held_out_only)) {
      dataset_->warnings_.push_back(absl::StrCat(
          "data.files: ", input.path, ": skipped ", encoded.num_skipped,
          spec_.data().json_field().empty() ? " bytes that are not UTF-8" : " bad lines"));
    }
    if (encoded.num_repeated > 0) {
      dataset_->warnings_.push_back(absl::StrCat(
          "data.files: ", input.path, ": ", encoded.num_repeated, " documents begin or end with ",
          request.tokenizer->NamesAround(), " already, which is not put there again"));
    }
    return encoded;
  }

  absl::Status AddPlain(const Input& input, Dataset::Source* source) {
    if (input.train_bytes > 0 && !options_.held_out_only) {
      ASSIGN_OR_RETURN(EncodedText encoded, Encode(input, 0, input.train_bytes));
      AddParts(Shared(std::move(encoded.pieces)), 1, source);
    }
    if (input.train_bytes == input.size_bytes) return absl::OkStatus();
    ASSIGN_OR_RETURN(EncodedText encoded, Encode(input, input.train_bytes, input.size_bytes));
    AddParts(Shared(std::move(encoded.pieces)), 0, source);
    return absl::OkStatus();
  }

  absl::Status AddDocuments(const Input& input, Dataset::Source* source) {
    if (options_.held_out_only && input.train_bytes == input.size_bytes) return absl::OkStatus();
    ASSIGN_OR_RETURN(EncodedText encoded, Encode(input, 0, input.size_bytes));
    AddParts(Shared(std::move(encoded.pieces)), ShareOf(input), source);
    return absl::OkStatus();
  }

  absl::Status AddTokenFile(const Input& input, Dataset::Source* source) {
    RETURN_IF_ERROR(base::Annotate(VerifyTokenFile(input.path), "data.files"));
    ASSIGN_OR_RETURN(TokenFile file, OpenTokenFile(input.path));
    if (file.tokenizer_sha256 != dataset_->tokenizer_.tokenizer->sha256()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.files: ", input.path, ": was encoded by the tokenizer with SHA-256 ",
                       file.tokenizer_sha256.substr(0, 12), "..., the job's has ",
                       dataset_->tokenizer_.tokenizer->sha256().substr(0, 12), "..."));
    }
    if (dataset_->tokenizer_.tokenizer->vocabulary_size() > spec_.model().vocab_size()) {
      RETURN_IF_ERROR(CheckIds(*file.source, spec_.model().vocab_size()));
    }
    AddSettings(input.sha256);
    std::vector<std::unique_ptr<TokenSource>> sources;
    sources.push_back(std::move(file.source));
    AddParts(Shared(std::move(sources)), ShareOf(input), source);
    return absl::OkStatus();
  }

  absl::Status AddMegatron(const Input& input, Dataset::Source* source) {
    auto opened = OpenMegatronFile(input.path);
    if (!opened.ok()) return base::Annotate(opened.status(), "data.files");
    RETURN_IF_ERROR(CheckIds(**opened, spec_.model().vocab_size()));
    AddSettings(input.sha256);
    std::vector<std::unique_ptr<TokenSource>> sources;
    sources.push_back(*std::move(opened));
    AddParts(Shared(std::move(sources)), ShareOf(input), source);
    return absl::OkStatus();
  }

  static double ShareOf(const Input& input) {
    return static_cast<double>(input.train_bytes) / static_cast<double>(input.size_bytes);
  }

  // Adds token files to the two parts of a source, cut at `share` of their tokens.
  void AddParts(const TokenSources& sources, double share, Dataset::Source* source) {
    int64_t cut = CutOf(sources, share);
    for (const auto& tokens : sources) {
      const int64_t here = std::clamp<int64_t>(cut, 0, tokens->num_tokens());
      cut -= here;
      if (here > 0 && !options_.held_out_only) {
        source->train_parts.push_back(std::make_unique<TokenPart>(tokens, 0, here));
      }
      if (here == tokens->num_tokens()) continue;
      source->held_out_parts.push_back(
          std::make_unique<TokenPart>(tokens, here, tokens->num_tokens()));
    }
  }

  void Join() {
    std::vector<const TokenText*> held_out;
    for (Dataset::Source& source : dataset_->sources_) {
      std::vector<const TokenText*> train;
      for (const auto& part : source.train_parts) train.push_back(part.get());
      for (const auto& part : source.held_out_parts) held_out.push_back(part.get());
      source.train = std::make_unique<JoinedText>(std::move(train));
    }
    dataset_->held_out_ = std::make_unique<JoinedText>(std::move(held_out));
  }

  absl::Status MakeSamples() {
    std::vector<Samples::Source> sources;
    int index = 0;
    for (const Dataset::Source& source : dataset_->sources_) {
      if (source.train->num_tokens() <= spec_.train().seq_length()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "data.files: ", spec_.data().files(index), ": has ", source.train->num_tokens(),
            " tokens for training, expected at least train.seq_length + 1 = ",
            int64_t{spec_.train().seq_length()} + 1));
      }
      sources.push_back({source.train.get(), source.weight});
      ++index;
    }
    dataset_->samples_ =
        std::make_unique<Samples>(spec_.train().seed(), spec_.train().seq_length(), sources);
    return absl::OkStatus();
  }

  void AddWarnings(const std::vector<std::string>& warnings) {
    dataset_->warnings_.insert(dataset_->warnings_.end(), warnings.begin(), warnings.end());
  }
  void AddSettings(absl::string_view text) { absl::StrAppend(&dataset_->settings_, text, "\n"); }

  const job::v1::JobSpec& spec_;
  const DatasetOptions& options_;
  TokenCache cache_;
  std::unique_ptr<Dataset> dataset_;
};

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const job::v1::JobSpec& spec,
                                                       const DatasetOptions& options) {
  return DatasetBuilder(spec, options).Build();
}

absl::StatusOr<checkpoint::v1::DataFingerprint> Dataset::Fingerprint() const {
  checkpoint::v1::DataFingerprint all;
  int64_t tokens = 0;
  for (const Source& source : sources_) {
    if (source.corpus != nullptr) {
      ASSIGN_OR_RETURN(const auto bytes, source.corpus->Fingerprint());
      for (const std::string& sha256 : bytes.file_sha256()) all.add_file_sha256(sha256);
      all.set_total_bytes(all.total_bytes() + bytes.total_bytes());
      all.set_held_out_bytes(all.held_out_bytes() + bytes.held_out_bytes());
    }
    for (const Input& input : source.inputs) {
      all.add_file_sha256(input.sha256);
      all.set_total_bytes(all.total_bytes() + input.size_bytes);
      all.set_held_out_bytes(all.held_out_bytes() + input.size_bytes - input.train_bytes);
    }
    tokens += source.train->num_tokens();
  }
  all.set_tokenizer(tokenizer() == nullptr ? "bytes" : tokenizer_.tokenizer->sha256());
  // Bytes without weights have the fingerprint of older versions.
  if (tokenizer() != nullptr || sources_.size() > 1)
    all.set_tokens_sha256(base::Sha256Hex(settings_));
  if (tokenizer() != nullptr) all.set_total_tokens(tokens + held_out_->num_tokens());
  return all;
}

std::vector<const TokenText*> Dataset::train_texts() const {
  std::vector<const TokenText*> texts;
  for (const Source& source : sources_) texts.push_back(source.train.get());
  return texts;
}

std::string Dataset::PathsText() const {
  std::vector<std::string> paths;
  for (const Source& source : sources_) {
    if (source.corpus != nullptr) {
      const std::vector<std::string> files = source.corpus->paths();
      paths.insert(paths.end(), files.begin(), files.end());
    }
    for (const Input& input : source.inputs) paths.push_back(input.path);
  }
  return base::Shortlist(paths);
}

}  // namespace megascale::data
