#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "cli/view/interrupt.h"
#include "cli/view/log_lines.h"

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

// Longer logs are put in order in parts of this size.
constexpr size_t kInOrderBytesMax = size_t{256} << 20;

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  FlushOutput();
}

// Reads the logs of all processes to their present end and prints them in the order of their times.
// Moves `request` to where the logs ended.
absl::Status PrintInOrder(client::JobClient* client, const std::function<bool()>& stop,
                          const client::LogsOptions& options,
                          control::v1::StreamLogsRequest* request) {
  control::v1::StreamLogsRequest present = *request;
  present.set_follow(false);
  LogLines lines;
  const auto take = [&](control::v1::StreamLogsResponse piece) {
    // A line that is being written is left to the next request.
    const size_t whole = request->follow() ? piece.data().rfind('\n') + 1 : piece.data().size();
    piece.set_end_offset(piece.end_offset() - static_cast<int64_t>(piece.data().size() - whole));
    piece.mutable_data()->resize(whole);
    lines.Add(piece);
    client::NotePosition(piece, request);
    if (lines.size_bytes() > kInOrderBytesMax) Print(lines.Take());
  };
  absl::Status status = client->Logs(present, {take, stop}, options);
  Print(lines.Take());
  return status;
}

// As PrintInOrder, then follows the logs until the job has ended if asked to. New lines come within
// a fraction of a second.
absl::Status PrintAll(client::JobClient* client, const std::function<bool()>& stop,
                      const client::LogsOptions& options, control::v1::StreamLogsRequest request) {
  absl::Status status = PrintInOrder(client, stop, options, &request);
  // A job that has not started yet has no log.
  const bool goes_on = request.follow() && !stop() && (status.ok() || absl::IsNotFound(status));
  if (!goes_on) return status;
  const auto print = [](const control::v1::StreamLogsResponse& piece) {
    LogLines lines;
    lines.Add(piece);
    Print(lines.Take());
  };
  return client->Logs(request, {print, stop}, options);
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
      Print(piece.data());
    }
  };
  client::LogsOptions options;
  options.on_absent = [] {
    std::fprintf(stderr, "the driver cannot be reached; trying again, from this line on\n");
  };
  const bool in_order = flags.rank < 0 && flags.format == "text";
  const absl::Status status = in_order ? PrintAll(client->get(), stop, options, request)
                                       : (*client)->Logs(request, {show, stop}, options);
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
      "Shows one attempt from its beginning, in the order of time, by the machines' clocks; each "
      "line begins with the rank that wrote it. With --follow it goes on with later attempts until "
      "the job has ended. When the driver restarts meanwhile, it goes on where it was.");
  command->Examples(
      "megascale logs fortunes-1a2b3c4d\n"
      "megascale logs -f --rank 3 fortunes-1a2b3c4d\n"
      "megascale logs --attempt 1 fortunes-1a2b3c4d  # why did the first attempt end?");
  command->Runs([flags] { return ShowLogs(*flags); });
}

}  // namespace megascale::cli
