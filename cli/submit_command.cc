#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/connection.h"
#include "cli/follow.h"
#include "cli/job_file.h"
#include "cli/report.h"
#include "cli/submit.h"
#include "cli/terminal.h"
#include "runtime/base/status.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/config.h"

namespace megascale::cli {
namespace {

struct SubmitFlags {
  JobFlags job;
  ConnectionFlags connection;
  bool follow = false;
  bool dry_run = false;
  absl::Duration retry_for = absl::Seconds(5);
  std::string format = "text";
};

int DryRun(const SubmitFlags& flags, const control::v1::SubmitJobRequest& request) {
  if (flags.format == "json") {
    PrintJson(request, JsonLayout::kPretty);
    return kExitGood;
  }
  const absl::StatusOr<model::ModelConfig> config = model::MakeModelConfig(request.spec().model());
  if (!config.ok()) return ReportError(config.status());
  const job::v1::ParallelSpec& parallel = request.spec().parallel();
  std::printf("# %s is valid; nothing was submitted\n", flags.job.file.c_str());
  std::printf("# needs %d slots: data %d x pipeline %d; %s parameters; %d micro-batches a step\n",
              job::WorldSize(request.spec()), parallel.data_parallel_size(),
              parallel.pipeline_model_parallel_size(),
              WithCommas(model::NumParameters(*config)).c_str(),
              job::NumMicrobatches(request.spec()));
  std::printf("%s", ToYaml(request.spec()).c_str());
  return kExitGood;
}

int FollowSubmitted(const SubmitFlags& flags, const std::string& job_id, client::JobClient* client,
                    Interrupt* interrupt) {
  FollowOptions options;
  options.style = flags.format == "json" ? FollowStyle::kJson : FollowStyle::kLive;
  options.interrupt = interrupt;
  const absl::StatusOr<FollowResult> result = FollowJob(client, job_id, options);
  if (!result.ok()) return ReportError(result.status());
  if (result->end == FollowResult::End::kJobEnded) return ExitCodeOf(result->job);
  PrintDetached(job_id, flags.connection);
  return kExitGood;
}

// The id alone goes to standard output, for scripts.
void PrintSubmitted(const SubmitFlags& flags, const control::v1::Job& job) {
  if (flags.format == "json") {
    PrintJson(job, flags.follow ? JsonLayout::kOneLine : JsonLayout::kPretty);
    return;
  }
  std::printf("%s\n", job.job_id().c_str());
  std::fflush(stdout);
  if (flags.follow) return;
  const auto next = [&](const char* verb, const char* what) {
    const std::string words = absl::StrCat(verb, " ", job.job_id());
    std::fprintf(stderr, "  %s: %s\n", what, NextCommand(words, flags.connection).c_str());
  };
  next("watch", "follow it");
  next("logs -f", "its output");
  next("cancel", "stop it");
}

int Submit(const SubmitFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto request = MakeSubmitRequest(flags.job);
  if (!request.ok()) return ReportError(request.status());
  if (flags.dry_run) return DryRun(flags, *request);
  std::unique_ptr<Interrupt> interrupt;
  if (flags.follow) interrupt = std::make_unique<Interrupt>();
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  const auto job = (*client)->Submit(*request, flags.retry_for);
  if (!job.ok()) return ReportError(job.status());
  PrintSubmitted(flags, *job);
  if (!flags.follow) return kExitGood;
  return FollowSubmitted(flags, job->job_id(), client->get(), interrupt.get());
}

}  // namespace

void AddSubmitCommand(CommandLine* line) {
  auto flags = std::make_shared<SubmitFlags>();
  Command* command =
      line->Add("submit", "gives a job to the driver; repeating it with the same --job-id is safe");
  AddJobOptions(command, &flags->job);
  command->Flag("--follow", &flags->follow, "follow it until it ends; Ctrl-C leaves it running");
  command->Flag("--dry-run", &flags->dry_run, "check the file and show all fields; submit nothing");
  command->Duration("--retry-for", &flags->retry_for, "how long to try to reach the driver");
  AddOutputOption(command, &flags->format);
  AddConnectionOptions(command, &flags->connection);
  command->Examples(
      "megascale submit examples/fortunes.yaml --follow\n"
      "megascale submit job.yaml --set train.steps=100 --set optimizer.lr=1e-3\n"
      "megascale submit job.yaml --dry-run\n"
      "megascale submit job.yaml --from out/checkpoints/step-00000400-attempt-1");
  command->Runs([flags] { return Submit(*flags); });
}

}  // namespace megascale::cli
