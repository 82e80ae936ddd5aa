#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "cli/view/interrupt.h"

namespace megascale::cli {
namespace {

struct LogsFlags {
  ConnectionFlags connection;
  std::string job_id;
  int64_t rank = -1;
  std::optional<int64_t> attempt;  // unset: the newest
  bool follow = false;
  std::string format = "text";
};

// Prints lines; with several ranks each line names its rank.
void PrintLines(const control::v1::StreamLogsResponse& piece, bool with_rank) {
  if (!with_rank) {
    std::fwrite(piece.data().data(), 1, piece.data().size(), stdout);
  } else {
    const std::string who = piece.rank() < 0 ? absl::StrCat("host ", piece.node_id())
                                             : absl::StrCat("rank ", piece.rank());
    for (const absl::string_view text :
         absl::StrSplit(absl::string_view(piece.data()), '\n', absl::SkipEmpty())) {
      std::printf("[%s] %.*s\n", who.c_str(), static_cast<int>(text.size()), text.data());
    }
  }
  FlushOutput();
}

int ShowLogs(const LogsFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  if (flags.rank < -1 || flags.rank > (1 << 30)) {
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("--rank ", flags.rank,
                     ": expected a rank from 0, or -1 for all ranks and host processes")));
  }
  if (flags.attempt.value_or(1) < 1) {
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("--attempt ", *flags.attempt,
                     ": expected an attempt from 1; without --attempt the newest is shown")));
  }
  Interrupt interrupt;
  const auto stop = [&] { return interrupt.Count() > 0 || OutputFailed(); };
  const auto client = Connect(flags.connection, stop);
  if (!client.ok()) return ReportError(client.status());
  control::v1::StreamLogsRequest request;
  request.set_job_id(flags.job_id);
  request.set_rank(static_cast<int32_t>(flags.rank));
  request.set_attempt(flags.attempt.value_or(0));
  request.set_follow(flags.follow);
  const auto show = [&](const control::v1::StreamLogsResponse& piece) {
    if (flags.format == "json") {
      PrintJson(piece, JsonLayout::kOneLine);
    } else {
      PrintLines(piece, flags.rank < 0);
    }
  };
  client::LogsOptions options;
  options.on_absent = [] {
    std::fprintf(stderr, "the driver cannot be reached; trying again, from this line on\n");
  };
  const absl::Status status = (*client)->Logs(request, {show, stop}, options);
  if (status.ok() || stop()) return kExitGood;
  return ReportCallError(status, flags.connection);
}

}  // namespace

void AddLogsCommand(CommandLine* line) {
  auto flags = std::make_shared<LogsFlags>();
  Command* command = line->Add("logs", "shows what a job's processes wrote");
  command->Positional("JOB", &flags->job_id, "the job's id");
  command->Flag("-f,--follow", &flags->follow, "go on until the job ends");
  command->Integer("--rank", &flags->rank, "show this rank only; -1: all ranks and host processes");
  command->OptionalInteger("--attempt", &flags->attempt,
                           "show this attempt, from 1 (default: the newest)");
  AddOutputOption(command, &flags->format);
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "Shows one attempt from its beginning; each line begins with the rank that wrote it. With "
      "--follow it goes on with later attempts until the job has ended. When the driver restarts "
      "meanwhile, it goes on where it was.");
  command->Examples(
      "megascale logs fortunes-1a2b3c4d\n"
      "megascale logs -f --rank 3 fortunes-1a2b3c4d\n"
      "megascale logs --attempt 1 fortunes-1a2b3c4d  # why did the first attempt end?");
  command->Runs([flags] { return ShowLogs(*flags); });
}

}  // namespace megascale::cli
