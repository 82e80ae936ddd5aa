// status and list: print the present state once.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "cli/diagnosis/diagnose_job.h"
#include "cli/view/live_view.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/status.h"
#include "runtime/base/text/counted.h"

namespace megascale::cli {
namespace {

constexpr int kWorkersMax = 64;  // lines of a job; in JSON all

struct StatusFlags {
  ConnectionFlags connection;
  std::string job_id;
  std::string format = "text";
  bool times = false;
  std::optional<int64_t> limit;
};

void PrintJob(const control::v1::Job& job) {
  Terminal terminal = DetectTerminal(STDOUT_FILENO);
  terminal.width = 500;  // nothing is redrawn: the terminal may break lines
  terminal.height = 0;
  for (const std::string& line : RenderWholeJob(job, terminal, kWorkersMax)) {
    std::printf("%s\n", line.c_str());
  }
  if (IsTerminal(job.state())) {  // before, they are part of the job above
    for (const std::string& line : WarningLines(job)) std::printf("%s\n", line.c_str());
  }
  if (job.stage_times_size() > 0) {
    std::printf("%d steps up to %lld, mean\n%s", job.stage_times(0).num_steps(),
                static_cast<long long>(job.stage_times(0).last_step()),
                StageTimesTable(job.stage_times()).c_str());
  }
  if (const std::string line = GoodputLine(job); !line.empty()) std::printf("%s\n", line.c_str());
  if (job.queue_position() > 0) {
    std::printf("queue position %lld\n", static_cast<long long>(job.queue_position()));
  }
  if (!job.directory().empty()) std::printf("directory %s\n", job.directory().c_str());
}

// Prints the first line of the diagnosis of a job that trains.
void PrintDiagnosis(client::JobClient* client, const control::v1::Job& job,
                    const ConnectionFlags& flags) {
  const std::string verdict = BriefVerdict(LiveEvidence(client, job.job_id()).get(), job);
  if (verdict.empty()) return;  // the state above is what was asked for
  std::printf("diagnosis %s\n", CompleteCommands(verdict, flags).c_str());
}

// The newest job comes first: it must not scroll away.
void PrintJobs(const control::v1::ListJobsResponse& response, const ConnectionFlags& flags) {
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "STATE", "STEP", "ATTEMPT", "AGE", "MESSAGE"}};
  for (int i = response.jobs_size() - 1; i >= 0; --i) {
    const control::v1::Job& job = response.jobs(i);
    rows.push_back({job.job_id(), StateName(job.state()),
                    absl::StrCat(job.last_step(), "/", job.spec().train().steps()),
                    absl::StrCat(job.attempt()),
                    ShortDuration(absl::Seconds(job.submitted_age_seconds())),
                    CompleteCommands(job.message(), flags)});
  }
  std::printf("%s", FitTable(std::move(rows), OutputWidth(), LongText::kWrapped).c_str());
}

void PrintCluster(const control::v1::GetClusterResponse& cluster) {
  std::printf("driver %s, %s\n", cluster.version().c_str(),
              base::Counted(cluster.nodes_size(), "node").c_str());
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "STATE", "SLOTS", "USED", "HEARTBEAT", "CORES", "MEMORY", "LIMITED BY"}};
  for (const control::v1::NodeView& node : cluster.nodes()) {
    const agent::v1::Resources& limits = node.resources();
    rows.push_back(
        {node.node_id(), NodeStateText(node), absl::StrCat(node.num_slots()),
         absl::StrCat(node.num_slots_used()),
         absl::StrCat(ShortDuration(absl::Seconds(node.heartbeat_age_seconds())), " ago"),
         absl::StrCat(limits.cores()), base::FormatBytes(limits.memory_bytes()),
         absl::StrCat(limits.cores_source(), ", ", limits.memory_source())});
  }
  if (rows.size() == 1) return;
  std::printf("%s", FitTable(std::move(rows), OutputWidth(), LongText::kWrapped).c_str());
}

int ShowCluster(client::JobClient* client, const StatusFlags& flags) {
  const auto cluster = client->Cluster();
  if (!cluster.ok()) return ReportCallError(cluster.status(), flags.connection);
  if (flags.format == "json") {
    PrintJson(*cluster, JsonLayout::kPretty);
  } else {
    PrintCluster(*cluster);
  }
  return kExitGood;
}

int ShowStatus(const StatusFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  if (flags.job_id.empty()) return ShowCluster(client->get(), flags);
  const bool measure = flags.times || flags.format == "text";
  const auto job = measure ? (*client)->Measure(flags.job_id) : (*client)->Get(flags.job_id);
  if (!job.ok()) return ReportCallError(job.status(), flags.connection);
  if (flags.format == "json") {
    PrintJson(*job, JsonLayout::kPretty);
  } else {
    PrintJob(CompleteCommands(*job, flags.connection));
    PrintDiagnosis(client->get(), *job, flags.connection);
  }
  return kExitGood;
}

int ShowList(const StatusFlags& flags) {
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  if (flags.limit.has_value() && *flags.limit < 1) {
    return ReportError(absl::InvalidArgumentError(
        absl::StrCat("--limit ", *flags.limit, ": expected a number of jobs, from 1 on")));
  }
  const auto client = Connect(flags.connection);
  if (!client.ok()) return ReportError(client.status());
  const auto jobs = (*client)->List(flags.limit.value_or(0));
  if (!jobs.ok()) return ReportCallError(jobs.status(), flags.connection);
  if (flags.format == "json") {
    PrintJson(*jobs, JsonLayout::kPretty);
  } else {
    PrintJobs(*jobs, flags.connection);
  }
  return kExitGood;
}

}  // namespace

void AddStatusCommand(CommandLine* line) {
  auto flags = std::make_shared<StatusFlags>();
  Command* command =
      line->Add("status", "shows a job and its workers, or the driver and its nodes");
  command->OptionalPositional("JOB", &flags->job_id,
                              "the job's id; without it: the driver and its nodes");
  AddOutputOption(command, &flags->format);
  command->Flag(
      "--times", &flags->times,
      "asks the workers where the time of their newest steps went; text output always does");
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "While a job of at most 256 workers trains, a table shows how each pipeline stage spent the "
      "time of its newest steps; `megascale trace --help` explains its columns. The line "
      "\"diagnosis\" is the verdict of `megascale diagnose`; of a larger job it names that "
      "command, "
      "which takes longer. If there are more than 64 workers, 64 are shown, those without progress "
      "first; -o json shows all. The exit code is 0 whatever state the job is in; that of "
      "megascale wait tells whether the job succeeded.");
  command->Examples(
      "megascale status fortunes-1a2b3c4d\n"
      "megascale status  # the driver and its nodes\n"
      "megascale status fortunes-1a2b3c4d -o json");
  command->Runs([flags] { return ShowStatus(*flags); });
}

void AddListCommand(CommandLine* line) {
  auto flags = std::make_shared<StatusFlags>();
  Command* command = line->Add("list", "lists the jobs of the driver");
  command->OptionalInteger("--limit", &flags->limit,
                           "shows the N jobs that were submitted last; by default all");
  AddOutputOption(command, &flags->format);
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "The job that was submitted last comes first; with -o json it comes last. Jobs that have "
      "ended are shown, too. On a terminal a message is cut at its edge; elsewhere it is whole.");
  command->Examples("megascale list\nmegascale list --limit 10\nmegascale list -o json");
  command->Runs([flags] { return ShowList(*flags); });
}

}  // namespace megascale::cli
