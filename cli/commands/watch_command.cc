// watch and wait: follow a job, with and without a view.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/commands/follow.h"
#include "cli/connection/connection.h"
#include "cli/training_report/training_report.h"
#include "cli/view/live_view.h"
#include "cli/view/terminal.h"
#include "runtime/base/status.h"
#include "runtime/data/dataset/job_tokenizer.h"

namespace megascale::cli {
namespace {

struct WatchFlags {
  ConnectionFlags connection;
  std::string job_id;
  std::string format = "text";
  absl::Duration timeout = absl::InfiniteDuration();
};

absl::StatusOr<FollowResult> Follow(const WatchFlags& flags, const FollowOptions& options) {
  const auto stop = [&] { return options.interrupt != nullptr && options.interrupt->Count() > 0; };
  ASSIGN_OR_RETURN(const auto client, Connect(flags.connection, stop));
  return FollowJob(client.get(), flags.job_id, options);
}

int Watch(const WatchFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  Interrupt interrupt;
  FollowOptions options;
  options.style = flags.format == "json" ? FollowStyle::kJson : FollowStyle::kLive;
  options.needs_output = true;
  options.interrupt = &interrupt;
  options.connection = flags.connection;
  const absl::StatusOr<FollowResult> result = Follow(flags, options);
  if (!result.ok()) return ReportCallError(result.status(), flags.connection);
  if (result->end == FollowResult::End::kJobEnded) {
    if (options.style == FollowStyle::kLive && DetectTerminal(STDOUT_FILENO).interactive) {
      PrintCurve({result->losses, result->held_out},
                 data::UsesTokenizer(result->job.spec().data()));
    }
    return ExitCodeOf(result->job);
  }
  if (result->end == FollowResult::End::kOutputLost) return kExitFailed;  // FinishOutput says why
  PrintDetached(flags.job_id, flags.connection);
  return kExitGood;
}

int Wait(const WatchFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  FollowOptions options;
  options.style = FollowStyle::kQuiet;
  options.needs_ranks = flags.format == "json";
  options.timeout = flags.timeout;
  options.connection = flags.connection;
  const absl::StatusOr<FollowResult> result = Follow(flags, options);
  if (!result.ok()) return ReportCallError(result.status(), flags.connection);
  const std::string state = StateLine(CompleteCommands(result->job, flags.connection));
  if (result->end == FollowResult::End::kTimedOut) {
    std::fprintf(stderr, "megascale: %s has not ended within %s; it is %s\n", flags.job_id.c_str(),
                 absl::FormatDuration(flags.timeout).c_str(), state.c_str());
    return kExitFailed;
  }
  if (flags.format == "json") {
    PrintJson(result->job, JsonLayout::kPretty);
  } else {
    std::printf("%s  %s\n", flags.job_id.c_str(), state.c_str());
  }
  return ExitCodeOf(result->job);
}

}  // namespace

void AddWatchCommand(CommandLine* line) {
  auto flags = std::make_shared<WatchFlags>();
  Command* command = line->Add("watch", "follows a job until it ends; Ctrl-C leaves it running");
  command->Positional("JOB", &flags->job_id, "the job's id");
  AddOutputOption(command, &flags->format);
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "On a terminal the view is redrawn; elsewhere a line is written for every change. The driver "
      "may be restarted meanwhile. Exits 0 if the job succeeded, else 1.");
  command->Examples(
      "megascale watch fortunes-1a2b3c4d\n"
      "megascale watch fortunes-1a2b3c4d -o json  # one line of JSON a change");
  command->Runs([flags] { return Watch(*flags); });
}

void AddWaitCommand(CommandLine* line) {
  auto flags = std::make_shared<WatchFlags>();
  Command* command =
      line->Add("wait", "waits until a job has ended; exits 0 if it succeeded, else 1");
  command->Positional("JOB", &flags->job_id, "the job's id");
  command->Duration("--timeout", &flags->timeout,
                    "give up after this time: exit 1, or 3 if the driver has not answered");
  AddOutputOption(command, &flags->format);
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Examples("megascale wait fortunes-1a2b3c4d && echo trained");
  command->Runs([flags] { return Wait(*flags); });
}

}  // namespace megascale::cli
