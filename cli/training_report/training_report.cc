#include "cli/training_report/training_report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/command_line/report.h"
#include "cli/view/live_view.h"
#include "cli/view/overfitting.h"
#include "cli/view/terminal.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/format/message_json.h"
#include "runtime/inference/text_generator.h"

namespace megascale::cli {
namespace {

constexpr size_t kMetricsBytesMax = size_t{256} << 20;
constexpr int64_t kReportSampleBytes = 400;
constexpr int64_t kReportSampleTokens = 150;
constexpr int kCurveWidthMax = 72;
constexpr int kLabelColumns = 12;

absl::Status MeasureHeldOut(Inference* inference, const EvaluateOptions& options,
                            TrainingReport* report) {
  ASSIGN_OR_RETURN(const EvaluationText text,
                   OpenEvaluationText(inference->manifest().spec(), {.held_out_only = true}));
  ASSIGN_OR_RETURN(report->held_out, inference->Evaluate(text.text(), options));
  const absl::StatusOr<int64_t> xz = XzSize(report->held_out.text);
  if (xz.ok()) {
    report->xz_bits_per_byte =
        8.0 * static_cast<double>(*xz) / static_cast<double>(report->held_out.num_bytes);
  }
  return absl::OkStatus();
}

absl::Status AddSample(TrainingReport* report) {
  ASSIGN_OR_RETURN(const auto generator,
                   inference::TextGenerator::Open({.path = report->checkpoint}));
  inference::TextEvents events;
  events.on_text = [&](int64_t, absl::string_view piece) {
    report->sample.append(piece.data(), piece.size());
  };
  events.on_end = [](int64_t, const inference::Continuation&) {};
  const int64_t length = report->has_tokenizer ? kReportSampleTokens : kReportSampleBytes;
  return generator->Generate({"\n"}, {.num_tokens = length}, events);
}

void PrintHeldOut(const TrainingReport& report) {
  if (!report.not_measured.empty()) {
    std::fflush(stdout);
    std::fprintf(stderr,
                 "\nwarning: held-out text was not measured: %s; a larger data.held_out_fraction "
                 "holds out more\n",
                 report.not_measured.c_str());
    return;
  }
  const HeldOutLoss& loss = report.held_out;
  const std::string bytes =
      report.has_tokenizer ? absl::StrCat(WithCommas(loss.num_bytes), " bytes, ") : std::string();
  std::printf("\nheld-out text: %.3f bits per byte (measured on %s%s of %s held-out %s)",
              loss.bits_per_byte, bytes.c_str(), WithCommas(loss.num_tokens).c_str(),
              WithCommas(loss.text_tokens).c_str(), report.has_tokenizer ? "tokens" : "bytes");
  if (report.xz_bits_per_byte > 0) {
    std::printf("; `xz -9` needs %.3f for the same bytes", report.xz_bits_per_byte);
  }
  std::printf("\n");
}

}  // namespace

absl::StatusOr<TrainingReport> MakeTrainingReport(const control::v1::Job& job,
                                                  EvaluateOptions options) {
  TrainingReport report;
  options.keep_text = true;
  report.checkpoint = job.last_checkpoint().directory();
  ASSIGN_OR_RETURN(const auto inference, Inference::Load({.path = report.checkpoint}));
  report.has_tokenizer = inference->tokenizer() != nullptr;
  const absl::Status measured = MeasureHeldOut(inference.get(), options, &report);
  if (!measured.ok()) report.not_measured = std::string(measured.message());
  RETURN_IF_ERROR(AddSample(&report));
  return report;
}

Losses LossesOf(const control::v1::Job& job, const std::vector<CurvePoint>& seen) {
  const std::string path = absl::StrCat(job.directory(), "/metrics.jsonl");
  const absl::StatusOr<std::string> text = base::ReadFile(path, kMetricsBytesMax);
  if (!text.ok()) return {seen, {}};
  Losses losses;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(*text), '\n', absl::SkipEmpty())) {
    telemetry::v1::StepRecord record;
    if (!checkpoint::FromJson(line, path, &record).ok()) return {seen, {}};
    losses.training.push_back({record.step(), record.loss()});
    if (!record.has_held_out_loss()) continue;
    losses.held_out.push_back({record.step(), record.held_out_loss()});
  }
  return losses;
}

void PrintCurve(const Losses& losses, bool has_tokenizer) {
  const Terminal terminal = DetectTerminal(STDOUT_FILENO);
  CurveOptions options;
  options.unicode = terminal.unicode;
  options.width = std::min(kCurveWidthMax, terminal.width - kLabelColumns);
  options.second = losses.held_out;
  std::printf("\ntraining loss%s, nats per %s, by step\n",
              losses.held_out.empty() ? ""
              : options.unicode       ? ", and ○ loss on held-out text"
                                      : ", and o loss on held-out text",
              has_tokenizer ? "token" : "byte");
  for (const std::string& line : DrawCurve(losses.training, options)) {
    std::printf("%s\n", line.c_str());
  }
  const std::string overfitting =
      OverfittingText(losses.training, losses.held_out, has_tokenizer ? "token" : "byte");
  if (!overfitting.empty()) std::printf("\n%s\n", overfitting.c_str());
}

void PrintTrainingReport(const TrainingReport& report, const std::string& program) {
  PrintHeldOut(report);
  std::printf("\na sample:\n");
  for (const absl::string_view line : absl::StrSplit(absl::string_view(report.sample), '\n')) {
    std::printf("  | %.*s\n", static_cast<int>(line.size()), line.data());
  }
  const std::string checkpoint = PathToType(report.checkpoint);
  std::printf("\ncheckpoint: %s\nnext:\n", checkpoint.c_str());
  const char* const next[] = {"generate --prompt 'Love is' --checkpoint", "evaluate --checkpoint",
                              "checkpoint inspect"};
  for (const char* words : next) {
    std::printf("  %s %s %s\n", program.c_str(), words, checkpoint.c_str());
  }
}

void PrintTrainingReportJson(const control::v1::Job& job, const TrainingReport& report) {
  JsonObject object;
  object.Add("job_id", job.job_id());
  object.Add("state", StateName(job.state()));
  object.Add("checkpoint", report.checkpoint);
  if (report.not_measured.empty()) {
    object.Add("bits_per_byte", report.held_out.bits_per_byte);
    object.Add("measured_bytes", report.held_out.num_bytes);
    object.Add("measured_tokens", report.held_out.num_tokens);
    object.Add(report.has_tokenizer ? "held_out_tokens" : "held_out_bytes",
               report.held_out.text_tokens);
  } else {
    object.Add("held_out_not_measured", report.not_measured);
  }
  if (report.xz_bits_per_byte > 0) object.Add("xz_bits_per_byte", report.xz_bits_per_byte);
  object.Add("sample", report.sample);
  std::printf("%s\n", object.Finish().c_str());
}

}  // namespace megascale::cli
