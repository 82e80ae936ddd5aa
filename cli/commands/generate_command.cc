// generate and evaluate: using a checkpoint, without a driver.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/view/terminal.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/inference/inference.h"

namespace megascale::cli {
namespace {

constexpr int64_t kThreadsMax = 1024;

struct ModelFlags {
  std::string checkpoint;
  int64_t threads = 0;
  std::string format = "text";
  std::vector<std::string> data_files;
  std::string held_out_windows = "all";
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

// Evaluates the text and shows the progress on standard error.
absl::StatusOr<HeldOutLoss> EvaluateVisibly(Inference* inference, const std::string& text,
                                            EvaluateOptions options) {
  const auto now = [] { return base::RealClock().Monotonic(); };
  WorkProgress progress({"held-out text", "windows"}, DetectTerminal(STDERR_FILENO), stderr, now());
  options.on_progress = [&](int64_t done, int64_t all) { progress.Show(done, all, now()); };
  return inference->Evaluate(text, options);
}

absl::Status Evaluate(const ModelFlags& flags) {
  EvaluateOptions options;
  ASSIGN_OR_RETURN(options.limit, ParseWindowLimit("--windows", flags.held_out_windows));
  ASSIGN_OR_RETURN(const auto inference, LoadModel(flags));
  job::v1::JobSpec spec = inference->manifest().spec();
  if (!flags.data_files.empty()) {
    spec.mutable_data()->clear_files();
    for (const std::string& file : flags.data_files)
      spec.mutable_data()->add_files(AbsolutePath(file));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadHeldOutText(spec));
  ASSIGN_OR_RETURN(const HeldOutLoss loss, EvaluateVisibly(inference.get(), text, options));
  if (flags.format == "json") {
    JsonObject object;
    object.Add("bits_per_byte", loss.bits_per_byte);
    object.Add("num_bytes", loss.num_bytes);
    object.Add("held_out_bytes", loss.text_bytes);
    object.Add("step", int64_t{inference->manifest().step()});
    std::printf("%s\n", object.Finish().c_str());
  } else {
    std::printf("%.4f bits per byte over %s of %s held-out bytes, after step %s\n",
                loss.bits_per_byte, WithCommas(loss.num_bytes).c_str(),
                WithCommas(loss.text_bytes).c_str(),
                WithCommas(inference->manifest().step()).c_str());
  }
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
  command->Integer("--tokens", &flags->sample.num_tokens, "how many bytes to add to the prompt");
  command->Number("--temperature", &flags->sample.temperature,
                  "0: always the most likely byte; 1: the probabilities that the model has learnt");
  command->Integer("--top-k", &flags->sample.top_k,
                   "choose among this many most likely bytes; 0: among all");
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

void AddEvaluateCommand(CommandLine* line) {
  auto flags = std::make_shared<ModelFlags>();
  Command* command =
      line->Add("evaluate", "measures a checkpoint on held-out text, in bits per byte");
  AddModelOptions(command, flags.get());
  command->Words("--data", &flags->data_files, "other files; the same share of them is held out");
  command->Text("--windows", &flags->held_out_windows,
                "windows of that text to measure: a number, all, or auto: all, but no more than "
                "2e13 FLOP pay for (a minute at 300 GFLOP/s)");
  command->Examples(
      "megascale evaluate --checkpoint out/checkpoints\n"
      "megascale evaluate --checkpoint out/checkpoints --data book.txt -o json");
  RunsWith(command, flags, Evaluate);
}

}  // namespace megascale::cli
