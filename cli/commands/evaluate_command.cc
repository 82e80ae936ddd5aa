// evaluate: how well a checkpoint predicts text, without a driver.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/commands/model_options.h"
#include "cli/view/terminal.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/inference/inference.h"

namespace megascale::cli {
namespace {

struct EvaluateFlags : ModelOptions {
  std::vector<std::string> data_files;
  std::string tokenizer;
  std::string end_token;
  int64_t seq_length = 0;
  std::string json_field;
  bool skip_bad = false;
  bool whole = false;
  std::string windows = "all";
};

absl::Status CheckFlags(const EvaluateFlags& flags) {
  RETURN_IF_ERROR(CheckModelOptions(flags));
  if (flags.data_files.empty() && (!flags.json_field.empty() || flags.skip_bad)) {
    return absl::InvalidArgumentError(
        "--json-field and --skip-bad apply to the files of --data; add --data, or leave them out");
  }
  if (flags.seq_length < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--seq-length: ", flags.seq_length,
                                                   " is out of range; expected 1 or more, or 0 "
                                                   "for the default"));
  }
  return absl::OkStatus();
}

// False for weights alone: imported ones, or a Hugging Face folder.
bool IsOfJob(const Inference& inference) {
  return inference.manifest().kind() != checkpoint::v1::CHECKPOINT_KIND_WEIGHTS;
}

// Returns the checkpoint's job with the text that is to be measured.
absl::StatusOr<job::v1::JobSpec> SpecOf(const EvaluateFlags& flags, const Inference& inference) {
  job::v1::JobSpec spec = inference.manifest().spec();
  if (flags.data_files.empty()) return spec;
  job::v1::DataSpec& data = *spec.mutable_data();
  data.clear_files();
  data.clear_weights();
  for (const std::string& file : flags.data_files) data.add_files(AbsolutePath(file));
  if (inference.tokenizer() == nullptr && (!flags.json_field.empty() || flags.skip_bad)) {
    return absl::InvalidArgumentError(
        "--json-field and --skip-bad need a tokenizer, but this model reads bytes; leave them out");
  }
  data.set_json_field(flags.json_field);
  data.set_skip_bad(flags.skip_bad);
  return spec;
}

// Refuses weights alone without --data, before they are read.
absl::Status CheckHasText(const EvaluateFlags& flags) {
  if (!flags.data_files.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool is_of_job, IsWrittenByJob(flags.checkpoint));
  if (is_of_job) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--data: is missing; these weights have no text of their own; name files with text");
}

absl::StatusOr<EvaluationText> OpenText(const EvaluateFlags& flags, const Inference& inference) {
  ASSIGN_OR_RETURN(const job::v1::JobSpec spec, SpecOf(flags, inference));
  data::DatasetOptions options = {.held_out_only = true, .whole = flags.whole};
  WorkProgress progress({"text", "bytes"}, DetectTerminal(STDERR_FILENO), stderr,
                        base::RealClock().Monotonic());
  options.on_progress = [&](const std::string&, int64_t done, int64_t all) {
    if (all > 0) progress.Show(done, all, base::RealClock().Monotonic());
  };
  ASSIGN_OR_RETURN(EvaluationText text, OpenEvaluationText(spec, options));
  for (const std::string& warning : text.dataset->warnings()) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  return text;
}

void Print(const EvaluateFlags& flags, const HeldOutLoss& loss, const Inference& inference) {
  const int64_t step = inference.manifest().step();
  const bool bytes = inference.tokenizer() == nullptr;
  if (flags.format == "json") {
    JsonObject object;
    object.Add("bits_per_byte", loss.bits_per_byte);
    object.Add("loss", loss.nats_per_token);
    object.Add("perplexity", std::exp(loss.nats_per_token));
    object.Add("num_bytes", loss.num_bytes);
    object.Add("num_tokens", loss.num_tokens);
    object.Add(bytes ? "held_out_bytes" : "held_out_tokens", loss.text_tokens);
    if (IsOfJob(inference)) object.Add("step", step);
    std::printf("%s\n", object.Finish().c_str());
    return;
  }
  const char* what = flags.whole ? "" : "held-out ";
  const std::string when =
      IsOfJob(inference) ? absl::StrCat(", after step ", WithCommas(step)) : "";
  std::printf("%.4f bits per byte over %s%s of %s %s%s%s\n", loss.bits_per_byte,
              WithCommas(loss.num_bytes).c_str(),
              bytes ? "" : absl::StrCat(" bytes, ", WithCommas(loss.num_tokens)).c_str(),
              WithCommas(loss.text_tokens).c_str(), what, bytes ? "bytes" : "tokens", when.c_str());
  std::printf("loss %.4f nats per token, perplexity %.2f\n", loss.nats_per_token,
              std::exp(loss.nats_per_token));
}

// Returns what was measured, for errors: "the held-out part of a.txt, b.txt".
std::string NameOfText(const EvaluateFlags& flags) {
  const std::string files =
      flags.data_files.empty() ? "the job's text" : absl::StrJoin(flags.data_files, ", ");
  return flags.whole ? files
                     : absl::StrCat("the held-out part of ", files, " (--whole measures all)");
}

absl::Status Evaluate(const EvaluateFlags& flags) {
  RETURN_IF_ERROR(CheckFlags(flags));
  EvaluateOptions options;
  ASSIGN_OR_RETURN(options.limit, ParseWindowLimit("--windows", flags.windows));
  RETURN_IF_ERROR(CheckHasText(flags));
  ASSIGN_OR_RETURN(const auto inference,
                   Inference::Load({.path = flags.checkpoint,
                                    .tokenizer = flags.tokenizer,
                                    .end_token = flags.end_token,
                                    .seq_length = flags.seq_length,
                                    .num_threads = static_cast<int>(flags.threads)}));
  for (const std::string& warning : inference->warnings()) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
  ASSIGN_OR_RETURN(const EvaluationText text, OpenText(flags, *inference));
  WorkProgress progress({"held-out text", "windows"}, DetectTerminal(STDERR_FILENO), stderr,
                        base::RealClock().Monotonic());
  options.on_progress = [&](int64_t done, int64_t all) {
    progress.Show(done, all, base::RealClock().Monotonic());
  };
  const auto loss = inference->Evaluate(text.text(), options);
  if (!loss.ok()) return base::Annotate(loss.status(), NameOfText(flags));
  Print(flags, *loss, *inference);
  return absl::OkStatus();
}

}  // namespace

void AddEvaluateCommand(CommandLine* line) {
  auto flags = std::make_shared<EvaluateFlags>();
  Command* command =
      line->Add("evaluate", "measures a model on text: loss, perplexity and bits per byte of text");
  AddModelOptions(command, flags.get(),
                  "a checkpoint, the folder of several (the newest), or a Hugging Face folder");
  command->Words("--data", &flags->data_files, "other files; the same share of them is held out");
  command->Flag("--whole", &flags->whole, "measure all of the text, not only its held-out part");
  command->Text("--json-field", &flags->json_field,
                "the files are JSON Lines, and this field of a line is a document");
  command->Flag("--skip-bad", &flags->skip_bad,
                "count and leave out bad lines, and bytes that are not UTF-8");
  command->Integer(
      "--seq-length", &flags->seq_length,
      "tokens of a window, each predicted from those before it in the window; 0: those "
      "of the training's sequences, and for weights that no job here has trained "
      "1024, or fewer if the model has fewer positions");
  command->Path("--tokenizer", &flags->tokenizer,
                "for weights that no job here has trained: another tokenizer than their own; "
                "bytes: every byte is a token");
  command->Text("--end-token", &flags->end_token,
                "for weights that no job here has trained: the token that ends a document "
                "(default: the tokenizer's usual one, or else that of the weights)");
  command->Text("--windows", &flags->windows,
                "windows of that text to measure: a number, all, or auto: all, but no more than "
                "2e13 FLOP pay for (a minute at 300 GFLOP/s)");
  command->Examples(
      "megascale evaluate --checkpoint out/checkpoints\n"
      "megascale evaluate --checkpoint out/checkpoints --data book.txt --whole -o json\n"
      "megascale evaluate --checkpoint /models/llama --data book.txt --seq-length 2048");
  command->Runs([flags] { return RunModelCommand(*flags, [&] { return Evaluate(*flags); }); });
}

}  // namespace megascale::cli
