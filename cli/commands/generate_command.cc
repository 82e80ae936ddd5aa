// generate: using a checkpoint, without a driver.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/commands/model_options.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/data/source/text_check.h"
#include "runtime/data/tokenizer/text/utf8.h"
#include "runtime/inference/text_generator.h"

namespace megascale::cli {
namespace {

constexpr size_t kPromptsBytesMax = size_t{64} << 20;

struct GenerateFlags : ModelOptions {
  inference::TextOptions text;
  int64_t seed = 1;
  std::vector<std::string> prompt;
  std::string prompts;
  std::string tokenizer;
  std::string precision;
  std::vector<std::string> stop_tokens;
};

// The prompts' continuations on standard output, in the order of the prompts: the first one that
// has not ended appears as it is made, the others wait for their turn.
class Continuations {
 public:
  Continuations(absl::Span<const std::string> prompts, bool json, std::optional<int64_t> step)
      : prompts_(prompts), json_(json), step_(step), states_(prompts.size()) {}

  void Begin() {
    if (!json_ && turn_ < prompts_.size()) Write(prompts_[turn_]);
  }
  void AddText(int64_t index, absl::string_view piece) {
    State& state = states_[index];
    state.text.append(piece.data(), piece.size());
    if (!json_ && static_cast<size_t>(index) == turn_) Write(piece);
  }
  void End(int64_t index, const inference::Continuation& continuation) {
    states_[index].end = continuation;
    while (turn_ < states_.size() && states_[turn_].end) {
      json_ ? PrintJsonLine() : Write("\n");
      states_[turn_].text.clear();
      if (++turn_ == states_.size() || json_) continue;
      Write("\n");
      Begin();
      Write(states_[turn_].text);
    }
  }

 private:
  struct State {
    std::string text;
    std::optional<inference::Continuation> end;
  };

  static void Write(absl::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    FlushOutput();
  }
  void PrintJsonLine() const {
    const State& state = states_[turn_];
    JsonObject object;
    object.Add("prompt", prompts_[turn_]);
    object.Add("text", state.text);
    object.Add("prompt_tokens", state.end->num_prompt_tokens);
    object.Add("tokens", state.end->num_tokens);
    object.Add("end", state.end->end == inference::EndOf::kEndToken ? "end token" : "tokens");
    if (step_) object.Add("step", *step_);
    Write(object.Finish() + "\n");
  }

  const absl::Span<const std::string> prompts_;
  const bool json_;
  const std::optional<int64_t> step_;
  std::vector<State> states_;
  size_t turn_ = 0;  // the first prompt whose continuation has not ended
};

absl::StatusOr<std::string> ReadPromptsFile(const std::string& path) {
  if (path != "-") return base::ReadFile(path, kPromptsBytesMax);
  std::string text;
  char buffer[4096];
  for (;;) {
    const size_t count = std::fread(buffer, 1, sizeof(buffer), stdin);
    if (count == 0) return text;
    text.append(buffer, count);
    if (text.size() > kPromptsBytesMax) {
      return absl::ResourceExhaustedError("--prompts -: is longer than 64 MiB; expected less");
    }
  }
}

// Reads a prompt from each line of a file.
absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string content, ReadPromptsFile(path));
  absl::string_view text = content;
  absl::ConsumePrefix(&text, data::kByteOrderMark);
  const std::string name = path == "-" ? "standard input" : path;
  std::vector<std::string> prompts = absl::StrSplit(text, '\n');
  if (prompts.back().empty()) prompts.pop_back();  // the last line has an end
  if (prompts.empty()) {
    return absl::InvalidArgumentError(name + ": is empty; expected a prompt in each line");
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (absl::EndsWith(prompts[i], "\r")) prompts[i].pop_back();
    const size_t valid = tokenizer::ValidPrefix(prompts[i]);
    const bool is_utf8 = valid == prompts[i].size();
    if (is_utf8 && !prompts[i].empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, ":", i + 1,
        is_utf8 ? ": is empty; expected a prompt" : ": is not UTF-8; expected text in UTF-8"));
  }
  return prompts;
}

absl::StatusOr<std::vector<std::string>> PromptsOf(const GenerateFlags& flags) {
  if (!flags.prompts.empty() && !flags.prompt.empty()) {
    return absl::InvalidArgumentError(
        "--prompt and --prompts exclude each other; give one of them");
  }
  if (!flags.prompts.empty()) return ReadPrompts(flags.prompts);
  return flags.prompt.empty() ? std::vector<std::string>{"\n"} : flags.prompt;
}

absl::StatusOr<std::optional<tensor::DType>> ComputeTypeOf(const GenerateFlags& flags) {
  if (flags.precision.empty()) return std::optional<tensor::DType>();
  if (flags.precision == "fp32") return std::optional(tensor::DType::kF32);
  if (flags.precision == "bf16") return std::optional(tensor::DType::kBF16);
  return absl::InvalidArgumentError(absl::StrCat("--precision: expected fp32 or bf16, found '",
                                                 base::Printable(flags.precision, 60), "'"));
}

absl::Status Generate(const GenerateFlags& flags) {
  inference::TextOptions options = flags.text;
  options.seed = static_cast<uint64_t>(flags.seed);
  RETURN_IF_ERROR(CheckTextOptions(options));
  RETURN_IF_ERROR(CheckModelOptions(flags));
  inference::TextGeneratorOptions open;
  ASSIGN_OR_RETURN(open.compute, ComputeTypeOf(flags));
  ASSIGN_OR_RETURN(const std::vector<std::string> prompts, PromptsOf(flags));
  open.path = flags.checkpoint;
  open.tokenizer = flags.tokenizer;
  open.num_threads = static_cast<int>(flags.threads);
  open.stop_tokens = flags.stop_tokens;
  ASSIGN_OR_RETURN(const auto generator, inference::TextGenerator::Open(std::move(open)));
  for (const std::string& warning : generator->source().warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  Continuations shown(prompts, flags.format == "json", generator->source().step);
  inference::TextEvents events;
  events.on_warning = [](const std::string& warning) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  };
  events.on_begin = [&] { shown.Begin(); };
  events.on_text = [&](int64_t index, absl::string_view piece) { shown.AddText(index, piece); };
  events.on_end = [&](int64_t index, const inference::Continuation& continuation) {
    shown.End(index, continuation);
  };
  events.is_cancelled = OutputFailed;
  return generator->Generate(prompts, options, events);
}

}  // namespace

void AddGenerateCommand(CommandLine* line) {
  auto flags = std::make_shared<GenerateFlags>();
  Command* command = line->Add("generate", "continues text with a trained model");
  AddModelOptions(command, flags.get(),
                  "a checkpoint, the folder of several (the newest), or a Hugging Face folder");
  command->Repeated("--prompt", &flags->prompt,
                    "text to continue; repeat it for several (default: a new line)");
  command->Path("--prompts", &flags->prompts,
                "a file with a prompt in each line, or - for standard input");
  command->Integer("--tokens", &flags->text.num_tokens,
                   "how many tokens to add to a prompt, at most; bytes, without a tokenizer");
  command->Number(
      "--temperature", &flags->text.rule.temperature,
      "0: always the most likely token; 1: the probabilities that the model has learnt");
  command->Integer("--top-k", &flags->text.rule.top_k,
                   "choose among this many most likely tokens; 0: among all");
  command->Number("--top-p", &flags->text.rule.top_p,
                  "choose among the most likely tokens that have this probability together");
  command->Integer("--seed", &flags->seed, "the same seed gives the same text");
  command->Integer("--batch", &flags->text.batch, "how many prompts to continue at once");
  command->Path(
      "--tokenizer", &flags->tokenizer,
      "a tokenizer.json, a SentencePiece .model, a folder with one of them, or bytes: every "
      "byte is a token (default: the model's own)");
  command->Repeated("--stop-token", &flags->stop_tokens,
                    "a further token that ends the text, as the tokenizer writes it");
  command->Text("--precision", &flags->precision,
                "fp32 or bf16 (default: as the model was trained, or is stored)");
  command->Details(
      "Writes each prompt and what the model adds to it, until an end token of the model or "
      "--tokens. Takes the newest complete checkpoint of a folder. Needs no driver.\n"
      "With -o json it writes a line for each prompt.");
  command->Examples(
      "megascale generate --checkpoint out/checkpoints --prompt 'Love is'\n"
      "megascale generate --checkpoint out/checkpoints --temperature 0.6 --top-k 40 "
      "--tokens 500\n"
      "megascale generate --checkpoint /models/llama --prompts questions.txt --temperature 0 "
      "-o json");
  command->Runs([flags] { return RunModelCommand(*flags, [&] { return Generate(*flags); }); });
}

}  // namespace megascale::cli
