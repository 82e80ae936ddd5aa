// trace: shows what the ranks of a running job did in its newest steps.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "cli/diagnosis/job_trace.h"
#include "controlplane/trace/job_spans.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/diagnose/straggler_table.h"
#include "runtime/timeline/perfetto_trace.h"
#include "runtime/timeline/timed_step.h"

namespace megascale::cli {
namespace {

struct TraceFlags {
  ConnectionFlags connection;
  std::string job_id;
  std::string output;
  std::string table;
  bool force = false;
  int64_t steps = 5;
};

absl::StatusOr<JobTrace> Measure(const TraceFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, Connect(flags.connection));
  ASSIGN_OR_RETURN(const control::v1::Job job, client->Get(flags.job_id));
  return TraceJob(LiveEvidence(client.get(), flags.job_id).get(), job, flags.steps);
}

// "steps 12 to 16, and 17 so far"
std::string StepsText(const std::vector<timeline::TimedStep>& steps) {
  std::vector<int64_t> whole;
  std::vector<int64_t> partial;
  for (const timeline::TimedStep& step : steps) {
    (step.whole ? whole : partial).push_back(step.step);
  }
  std::string text;
  if (whole.size() == 1) text = absl::StrCat("step ", whole[0]);
  if (whole.size() > 1) text = absl::StrCat("steps ", whole.front(), " to ", whole.back());
  if (partial.empty()) return text;
  return absl::StrCat(text, whole.empty() ? "step " : ", and ", absl::StrJoin(partial, ", "),
                      " so far");
}

void PrintNotes(const JobTrace& traced) {
  for (const std::string& error : traced.spans.errors()) {
    std::fprintf(stderr, "megascale: not in the trace: %s\n", base::Printable(error).c_str());
  }
  if (traced.spans.num_lost() > 0) {
    std::fprintf(
        stderr,
        "megascale: %lld instructions and exchanges since the attempt began were not recorded, "
        "because "
        "the ranks run more than the agents read; steps without an instruction are not whole\n",
        static_cast<long long>(traced.spans.num_lost()));
  }
}

std::string TableOf(const JobTrace& traced) {
  std::vector<bool> known;
  for (const timeline::RankSpans& rank : traced.spans.ranks()) known.push_back(rank.known);
  return diagnose::ToCsv(diagnose::StragglerRows(traced.spans.plans(), known, traced.steps));
}

absl::Status CheckFlags(const TraceFlags& flags) {
  RETURN_IF_ERROR(CheckStepsTraced(flags.steps));
  if (flags.output == "json" || flags.output == "text") {
    return absl::InvalidArgumentError(
        absl::StrCat("--output: expected the file for the trace, found '", flags.output,
                     "'; for a file of that name give ./", flags.output));
  }
  RETURN_IF_ERROR(CheckReplaces("--output", flags.output, PerfettoFile(), flags.force));
  const OutputKind table = KindThatBegins("a table of steps", diagnose::ToCsv({}));
  RETURN_IF_ERROR(CheckReplaces("--table", flags.table, table, flags.force));
  return absl::OkStatus();
}

int RunTrace(const TraceFlags& flags) {
  if (const absl::Status valid = CheckFlags(flags); !valid.ok()) return ReportError(valid);
  const bool printed = IsStandardOutput(flags.output);
  const absl::StatusOr<JobTrace> traced = Measure(flags);
  if (!traced.ok()) return ReportCallError(traced.status(), flags.connection);
  PrintNotes(*traced);
  if (!flags.output.empty()) {
    std::vector<std::string> names;
    for (const trace::RankName& name : traced->spans.names()) names.push_back(name.Text());
    const absl::Status written = WriteOutputFile(
        flags.output, timeline::PerfettoTrace(traced->spans.plans(), traced->steps, names));
    if (!written.ok()) return ReportError(base::Annotate(written, "--output"));
    if (printed) return kExitGood;
  }
  if (!flags.table.empty()) {
    const absl::Status written = WriteOutputFile(flags.table, TableOf(*traced));
    if (!written.ok()) return ReportError(base::Annotate(written, "--table"));
    if (IsStandardOutput(flags.table)) return kExitGood;
  }
  std::printf("%zu ranks, %s", traced->spans.plans().size() - traced->spans.errors().size(),
              StepsText(traced->steps).c_str());
  if (traced->spans.num_clocks() > 1) {
    std::printf("; the clocks of %d machines agree to %.3f ms", traced->spans.num_clocks(),
                static_cast<double>(2 * traced->spans.clock_error_nanos()) / 1e6);
  }
  std::printf("\n");
  std::printf("%s", StageTimesTable(trace::StageTimes(traced->spans, traced->steps)).c_str());
  if (!flags.output.empty()) {
    std::printf("wrote %s; open it in https://ui.perfetto.dev\n", flags.output.c_str());
  }
  return kExitGood;
}

}  // namespace

void AddTraceCommand(CommandLine* line) {
  auto flags = std::make_shared<TraceFlags>();
  Command* command = line->Add("trace", "shows where the time of a running job's steps goes");
  command->Positional("JOB", &flags->job_id, "the job's id");
  command->Path("-o,--output", &flags->output,
                "writes a trace for ui.perfetto.dev into this file; -: standard output, instead of "
                "the table (default: none)");
  command->Path("--table", &flags->table,
                "writes a CSV with the columns of ByteDance's StragglerAnalysis into this file; -: "
                "standard output, instead of the table of stages (default: none)");
  AddForceOption(command, &flags->force);
  command->Integer("--steps", &flags->steps, "how many of the newest steps");
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "Shows the mean step time of each pipeline stage and how it was spent. Each instant counts "
      "once, for the first of these that applies: the stage computes (COMPUTE) or its optimizer "
      "does (OPTIMIZER); it waits for its tensor-parallel ranks within a pass (TENSOR PARALLEL); "
      "it waits for a transfer between stages (PIPELINE) or for a collective of the data-parallel "
      "ranks (DATA PARALLEL); it waits for its batch (DATA WAIT); it waits for other ranks "
      "(BUBBLE). The trace has a process for each rank, a thread "
      "for each of its streams and one for what tensor-parallel ranks exchange within passes, a "
      "slice for each instruction, and arrows for messages and "
      "dependencies.\n"
      "Agents keep the newest 16384 instructions of each rank until its attempt ends. Of a job "
      "that has ended only its last steps can be traced, as far as the driver kept them (at most "
      "16). The trace of a job that makes no progress shows which "
      "instruction each rank is in.");
  command->Examples(
      "megascale trace fortunes-1a2b3c4d\n"
      "megascale trace fortunes-1a2b3c4d -o trace.json\n"
      "megascale trace fortunes-1a2b3c4d --steps 20 -o trace.json");
  command->Runs([flags] { return RunTrace(*flags); });
}

}  // namespace megascale::cli
