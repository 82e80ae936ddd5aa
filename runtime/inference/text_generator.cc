#include "runtime/inference/text_generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/tokenizer/text/utf8.h"
#include "runtime/ops/product.h"

namespace megascale::inference {
namespace {

constexpr int64_t kTokensMax = 1'000'000;

// Turns the ids of one continuation into text, as they come.
class TextStream {
 public:
  // A tokenizer's text depends on the tokens before: it gets the prompt first.
  absl::Status Begin(const TextCodec& codec, absl::Span<const int32_t> prompt) {
    if (codec.tokenizer() == nullptr) return absl::OkStatus();
    stream_ = std::make_unique<tokenizer::DecodeStream>(
        codec.tokenizer(), tokenizer::DecodeOptions{.skip_special_tokens = true});
    std::string of_prompt;
    for (const int32_t id : prompt) RETURN_IF_ERROR(stream_->Push(id, &of_prompt));
    return absl::OkStatus();
  }
  absl::Status Push(int32_t id, std::string* out) {
    if (stream_ != nullptr) return stream_->Push(id, out);
    const char byte = static_cast<char>(id);
    repair_.Push(absl::string_view(&byte, 1), out);
    return absl::OkStatus();
  }
  void Finish(std::string* out) { stream_ != nullptr ? stream_->Finish(out) : repair_.Finish(out); }

 private:
  std::unique_ptr<tokenizer::DecodeStream> stream_;  // null: bytes
  tokenizer::Utf8Repair repair_;
};

absl::Status OutOfRange(absl::string_view option, double value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(option, ": ", value, " is out of range; expected ", expected));
}

}  // namespace

absl::Status CheckTextOptions(const TextOptions& options) {
  if (options.num_tokens < 0 || options.num_tokens > kTokensMax) {
    return absl::InvalidArgumentError(absl::StrCat("--tokens: ", options.num_tokens,
                                                   " is out of range; expected 0 to ", kTokensMax));
  }
  const SamplingRule& rule = options.rule;
  if (!std::isfinite(rule.temperature) || rule.temperature < 0) {
    return OutOfRange("--temperature", rule.temperature, "0 or more");
  }
  if (rule.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--top-k: ", rule.top_k, " is out of range; expected 0 (all) or more"));
  }
  if (!(rule.top_p > 0 && rule.top_p <= 1)) {
    return OutOfRange("--top-p", rule.top_p, "more than 0, at most 1 (all)");
  }
  if (options.batch < 1 || options.batch > ops::kFewRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch: ", options.batch, " is out of range; expected 1 to ", ops::kFewRows));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TextGenerator>> TextGenerator::Open(TextGeneratorOptions options) {
  ASSIGN_OR_RETURN(TextSource source, FindTextSource(options.path, options.tokenizer));
  for (const std::string& token : options.stop_tokens) {
    const std::optional<int32_t> id = source.codec.IdOf(token);
    if (!id) {
      return absl::InvalidArgumentError(
          absl::StrCat("--stop-token: '", base::Printable(token, 60),
                       "' is not in the vocabulary; expected a token as the tokenizer writes it"));
    }
    source.end_tokens.push_back(*id);
  }
  return std::unique_ptr<TextGenerator>(new TextGenerator(std::move(options), std::move(source)));
}

absl::StatusOr<std::vector<std::vector<int32_t>>> TextGenerator::Encode(
    absl::Span<const std::string> prompts, const TextEvents& events) const {
  std::vector<std::vector<int32_t>> all;
  int64_t num_twice = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string name = absl::StrCat("prompt ", i + 1);
    if (const size_t valid = tokenizer::ValidPrefix(prompts[i]); valid < prompts[i].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": is not UTF-8 at byte ", valid + 1, "; expected text in UTF-8"));
    }
    TextCodec::Prompt prompt = source_.codec.EncodePrompt(prompts[i]);
    RETURN_IF_ERROR(base::Annotate(CheckPrompt(prompts[i], prompt.ids), name));
    if (prompt.begins_twice) ++num_twice;
    all.push_back(std::move(prompt.ids));
    const auto size = static_cast<int64_t>(all.back().size());
    if (size > source_.context) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": has ", size,
                                                     " tokens; expected at most ", source_.context,
                                                     ", the model's longest sequence"));
    }
  }
  if (num_twice > 0 && events.on_warning) {
    events.on_warning(absl::StrCat(
        base::Counted(num_twice, "prompt"), num_twice == 1 ? " begins with " : " begin with ",
        source_.codec.tokenizer()->NamesBefore(), " already, which is not put there again"));
  }
  return all;
}

absl::Status TextGenerator::CheckPrompt(absl::string_view text,
                                        absl::Span<const int32_t> ids) const {
  if (ids.empty() && text.empty()) {
    return absl::InvalidArgumentError("is empty; expected at least one character");
  }
  if (ids.empty()) {
    return absl::InvalidArgumentError("the tokenizer makes no token of it; expected other text");
  }
  const tokenizer::Tokenizer* tokenizer = source_.codec.tokenizer();
  const int64_t num_rows = source_.model.vocab_size();
  const auto beyond = tokenizer == nullptr ? std::nullopt : tokenizer->FindBeyond(ids, num_rows);
  if (!beyond) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("has the token ", tokenizer->NameOf(ids[*beyond]),
                                                 ", which the model of ", num_rows,
                                                 " tokens does not have"));
}

absl::Status TextGenerator::Generate(absl::Span<const std::string> prompts,
                                     const TextOptions& options, const TextEvents& events) {
  RETURN_IF_ERROR(CheckTextOptions(options));
  ASSIGN_OR_RETURN(const auto ids, Encode(prompts, events));
  if (ids.empty()) return absl::OkStatus();
  size_t longest = 0;
  for (const auto& prompt : ids) longest = std::max(longest, prompt.size());
  LanguageModelOptions load = {.model = source_.model,
                               .compute = options_.compute.value_or(source_.compute),
                               .num_threads = options_.num_threads,
                               .device = std::move(options_.device)};
  load.num_sequences = std::min(options.batch, static_cast<int64_t>(prompts.size()));
  load.capacity = std::min(source_.context, static_cast<int64_t>(longest) + options.num_tokens);
  ASSIGN_OR_RETURN(const auto model, LanguageModel::Load(std::move(load)));

  std::vector<TextStream> streams(ids.size());
  std::vector<Continuation> continuations(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    RETURN_IF_ERROR(streams[i].Begin(source_.codec, ids[i]));
    continuations[i].num_prompt_tokens = static_cast<int64_t>(ids[i].size());
  }
  if (events.on_begin) events.on_begin();
  const auto show = [&](int64_t index, const std::string& piece) {
    if (!piece.empty()) events.on_text(index, piece);
  };
  GenerateEvents on;
  on.is_cancelled = events.is_cancelled;
  on.on_token = [&](int64_t index, int32_t token) -> absl::Status {
    std::string piece;
    ++continuations[index].num_tokens;
    RETURN_IF_ERROR(streams[index].Push(token, &piece));
    show(index, piece);
    return absl::OkStatus();
  };
  on.on_end = [&](int64_t index, EndOf end) {
    std::string piece;
    streams[index].Finish(&piece);
    show(index, piece);
    continuations[index].end = end;
    events.on_end(index, continuations[index]);
    return absl::OkStatus();
  };
  return inference::Generate(model.get(), ids,
                             {.num_tokens = options.num_tokens,
                              .rule = options.rule,
                              .seed = options.seed,
                              .end_tokens = source_.end_tokens,
                              .vocabulary_size = std::min<int64_t>(source_.codec.vocabulary_size(),
                                                                   source_.model.vocab_size())},
                             on);
}

}  // namespace megascale::inference
