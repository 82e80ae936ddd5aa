#include "runtime/inference/generate.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::inference {
namespace {

// Keeps the seeds of prompts apart. Not the step of UniformNumbers, or their numbers would overlap.
constexpr uint64_t kSeedStep = 0xD1B54A32D192ED03u;

// One sequence of the model, and the prompt that it continues.
struct Sequence {
  int64_t prompt_index = -1;  // -1: it is free
  UniformNumbers uniform{0};
  std::vector<int32_t> tokens;  // of the prompt, and those that were added
  int64_t num_added = 0;
};

class Generation {
 public:
  Generation(LanguageModel* model, absl::Span<const std::vector<int32_t>> prompts,
             const GenerateOptions& options, const GenerateEvents& events)
      : model_(*model),
        prompts_(prompts),
        options_(options),
        events_(events),
        sequences_(model->num_sequences()) {}

  absl::Status Run() {
    for (;;) {
      RETURN_IF_ERROR(FillFreeSequences());
      if (IsCancelled()) return absl::OkStatus();
      std::vector<NextToken> next;
      for (size_t i = 0; i < sequences_.size(); ++i) {
        const Sequence& sequence = sequences_[i];
        if (sequence.prompt_index < 0) continue;
        next.push_back({static_cast<int64_t>(i), sequence.tokens.back()});
      }
      if (next.empty()) return absl::OkStatus();
      RETURN_IF_ERROR(Advance(next));
    }
  }

 private:
  bool IsCancelled() const { return events_.is_cancelled && events_.is_cancelled(); }

  absl::Status FillFreeSequences() {
    for (size_t i = 0; i < sequences_.size(); ++i) {
      // A prompt may end with its first token.
      while (sequences_[i].prompt_index < 0 && next_prompt_ < prompts_.size()) {
        if (IsCancelled()) return absl::OkStatus();
        RETURN_IF_ERROR(Begin(static_cast<int64_t>(i)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Begin(int64_t index) {
    Sequence& sequence = sequences_[index];
    sequence.prompt_index = static_cast<int64_t>(next_prompt_);
    sequence.tokens = prompts_[next_prompt_];
    sequence.uniform = UniformNumbers(options_.seed + kSeedStep * next_prompt_);
    sequence.num_added = 0;
    ++next_prompt_;
    if (options_.num_tokens == 0) return End(&sequence, EndOf::kNumTokens);
    model_.Clear(index);
    RETURN_IF_ERROR(model_.Read(index, sequence.tokens, &logits_));
    return Choose(&sequence, 0);
  }

  // Gives each sequence its last token, and chooses the next one.
  absl::Status Advance(const std::vector<NextToken>& next) {
    std::vector<NextToken> with_room;
    for (const NextToken& token : next) {
      if (model_.SizeOf(token.sequence) < model_.capacity()) {
        with_room.push_back(token);
        continue;
      }
      RETURN_IF_ERROR(KeepNewestHalf(token.sequence));
      RETURN_IF_ERROR(Choose(&sequences_[token.sequence], 0));
    }
    if (with_room.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(model_.Step(with_room, &logits_));
    for (size_t row = 0; row < with_room.size(); ++row) {
      RETURN_IF_ERROR(Choose(&sequences_[with_room[row].sequence], row));
    }
    return absl::OkStatus();
  }

  absl::Status KeepNewestHalf(int64_t index) {
    const std::vector<int32_t>& tokens = sequences_[index].tokens;
    const auto kept = static_cast<size_t>((model_.capacity() + 1) / 2);
    model_.Clear(index);
    return model_.Read(index, absl::MakeSpan(tokens).last(std::min(kept, tokens.size())), &logits_);
  }

  // Chooses the sequence's next token by row `row` of the logits.
  absl::Status Choose(Sequence* sequence, size_t row) {
    const auto all = static_cast<size_t>(model_.config().vocab_size);
    const auto known = static_cast<size_t>(options_.vocabulary_size);
    const absl::Span<const double> logits = absl::MakeSpan(logits_).subspan(row * all, all);
    const int token = ChooseToken(logits.first(known == 0 ? all : std::min(known, all)),
                                  options_.rule, sequence->uniform.Next());
    const std::vector<int32_t>& ends = options_.end_tokens;
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
      return End(sequence, EndOf::kEndToken);
    }
    sequence->tokens.push_back(token);
    RETURN_IF_ERROR(events_.on_token(sequence->prompt_index, token));
    if (++sequence->num_added < options_.num_tokens) return absl::OkStatus();
    return End(sequence, EndOf::kNumTokens);
  }

  absl::Status End(Sequence* sequence, EndOf why) {
    const int64_t prompt_index = sequence->prompt_index;
    sequence->prompt_index = -1;
    return events_.on_end(prompt_index, why);
  }

  LanguageModel& model_;
  const absl::Span<const std::vector<int32_t>> prompts_;
  const GenerateOptions& options_;
  const GenerateEvents& events_;
  std::vector<Sequence> sequences_;
  size_t next_prompt_ = 0;
  std::vector<double> logits_;
};

}  // namespace

absl::Status Generate(LanguageModel* model, absl::Span<const std::vector<int32_t>> prompts,
                      const GenerateOptions& options, const GenerateEvents& events) {
  for (const std::vector<int32_t>& prompt : prompts) {
    MEGASCALE_CHECK(!prompt.empty() && static_cast<int64_t>(prompt.size()) <= model->capacity());
  }
  return Generation(model, prompts, options, events).Run();
}

}  // namespace megascale::inference
