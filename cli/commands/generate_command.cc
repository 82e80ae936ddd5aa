// generate: using a checkpoint, without a driver.
#include <cstdio>
#include <memory>
#include <string>

#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "runtime/base/status.h"
#include "runtime/inference/inference.h"

namespace megascale::cli {
namespace {

constexpr int64_t kThreadsMax = 1024;

struct ModelFlags {
  std::string checkpoint;
  int64_t threads = 0;
  std::string format = "text";
  SampleOptions sample;
  int64_t seed = 1;
};

void AddModelOptions(Command* command, ModelFlags* flags) {
  command->Path("--checkpoint", &flags->checkpoint,
                "a checkpoint, or the folder of several: the newest");
  command->Integer("--threads", &flags->threads, "threads to compute with; 0: one for each core");
  AddOutputOption(command, &flags->format);
}

absl::StatusOr<std::unique_ptr<Inference>> LoadModel(const ModelFlags& flags) {
  if (flags.checkpoint.empty())
    return absl::InvalidArgumentError("--checkpoint: is missing; expected a directory");
  if (flags.threads < 0 || flags.threads > kThreadsMax) {
    return absl::InvalidArgumentError("--threads: is out of range; expected 0 (all cores) to 1024");
  }
  ASSIGN_OR_RETURN(const std::string step_directory, FindCheckpoint(flags.checkpoint));
  return Inference::Load(step_directory, static_cast<int>(flags.threads));
}

absl::Status Generate(const ModelFlags& flags) {
  RETURN_IF_ERROR(CheckSampleOptions(flags.sample));
  ASSIGN_OR_RETURN(const auto inference, LoadModel(flags));
  const bool json = flags.format == "json";
  SampleOptions options = flags.sample;
  options.seed = static_cast<uint64_t>(flags.seed);
  std::string text;
  const auto show = [&](absl::string_view piece) {
    if (json) {
      text.append(piece.data(), piece.size());
      return;
    }
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    FlushOutput();
  };
  if (!json) show(options.prompt);
  RETURN_IF_ERROR(inference->Sample(options, show));
  if (!json) {
    show("\n");
    return absl::OkStatus();
  }
  JsonObject object;
  object.Add("prompt", options.prompt);
  object.Add("text", text);
  object.Add("step", int64_t{inference->manifest().step()});
  std::printf("%s\n", object.Finish().c_str());
  return absl::OkStatus();
}

void RunsWith(Command* command, const std::shared_ptr<ModelFlags>& flags,
              absl::Status (*run)(const ModelFlags&)) {
  command->Runs([flags, run] {
    if (!CheckOutputFormat(flags->format)) return static_cast<int>(kExitUsage);
    const absl::Status status = run(*flags);
    return status.ok() ? static_cast<int>(kExitGood) : ReportError(status);
  });
}

}  // namespace

void AddGenerateCommand(CommandLine* line) {
  auto flags = std::make_shared<ModelFlags>();
  Command* command = line->Add("generate", "samples text from a checkpoint");
  AddModelOptions(command, flags.get());
  command->Text("--prompt", &flags->sample.prompt, "text to continue (default: a new line)");
  command->Integer("--tokens", &flags->sample.num_tokens,
                   "how many tokens to add to the prompt; bytes, without a tokenizer");
  command->Number(
      "--temperature", &flags->sample.temperature,
      "0: always the most likely token; 1: the probabilities that the model has learnt");
  command->Integer("--top-k", &flags->sample.top_k,
                   "choose among this many most likely tokens; 0: among all");
  command->Integer("--seed", &flags->seed, "the same seed gives the same text");
  command->Details(
      "Loads the newest complete checkpoint of the folder and writes the prompt and what the model "
      "adds to it. Needs no driver.");
  command->Examples(
      "megascale generate --checkpoint out/checkpoints --prompt 'Love is'\n"
      "megascale generate --checkpoint out/checkpoints --temperature 0.6 --top-k 40 --seed 7 "
      "--tokens 500");
  RunsWith(command, flags, Generate);
}

}  // namespace megascale::cli
