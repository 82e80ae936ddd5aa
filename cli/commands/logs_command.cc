#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/commands.h"
#include "cli/connection.h"
#include "cli/interrupt.h"
#include "cli/report.h"

namespace megascale::cli {
namespace {

struct LogsFlags {
  ConnectionFlags connection;
  std::string job_id;
  int64_t rank = -1;
  int64_t attempt = 0;
  bool follow = false;
  std::string format = "text";
};

// Lines of several ranks say whose they are.
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
  std::fflush(stdout);
}

int ShowLogs(const LogsFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  if (flags.rank < -1 || flags.rank > (1 << 30)) {
    return ReportError(absl::InvalidArgumentError("--rank: expected a rank from 0, or -1 for all"));
  }
  Interrupt interrupt;
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  control::v1::StreamLogsRequest request;
  request.set_job_id(flags.job_id);
  request.set_rank(static_cast<int32_t>(flags.rank));
  request.set_attempt(flags.attempt);
  request.set_follow(flags.follow);
  const absl::Status status =
      (*client)->Logs(request, {[&](const control::v1::StreamLogsResponse& piece) {
                                  if (flags.format == "json") {
                                    PrintJson(piece, JsonLayout::kOneLine);
                                  } else {
                                    PrintLines(piece, flags.rank < 0);
                                  }
                                },
                                [&] { return interrupt.Count() > 0; }});
  if (status.ok() || interrupt.Count() > 0) return kExitGood;
  return ReportError(status);
}

}  // namespace

void AddLogsCommand(CommandLine* line) {
  auto flags = std::make_shared<LogsFlags>();
  Command* command = line->Add("logs", "shows what a job's processes wrote");
  command->Positional("JOB", &flags->job_id, "the job's id");
  command->Flag("-f,--follow", &flags->follow, "go on until the job ends");
  command->Integer("--rank", &flags->rank, "one rank only; -1: all ranks and hosts");
  command->Integer("--attempt", &flags->attempt, "of this attempt; 0: the newest");
  AddOutputOption(command, &flags->format);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "From the beginning of one attempt, each line behind the rank that wrote it. With --follow "
      "also "
      "those of attempts that come after, until the job has ended.");
  command->Examples(
      "megascale logs fortunes-1a2b3c4d\n"
      "megascale logs -f --rank 3 fortunes-1a2b3c4d\n"
      "megascale logs --attempt 1 fortunes-1a2b3c4d  # why did the first attempt end?");
  command->Runs([flags] { return ShowLogs(*flags); });
}

}  // namespace megascale::cli
