// diagnose: says which rank, machine or link is the cause when a job is slow or stuck.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_line/report.h"
#include "cli/commands/commands.h"
#include "cli/connection/connection.h"
#include "cli/diagnosis/diagnose_job.h"
#include "cli/diagnosis/diagnosis_text.h"
#include "cli/diagnosis/job_trace.h"
#include "cli/diagnosis/service_report.h"
#include "controlplane/address/address.h"
#include "controlplane/trace/rank_name.h"
#include "nlohmann/json.hpp"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/diagnose/chrome_trace.h"
#include "runtime/diagnose/traced_job.h"

namespace megascale::cli {
namespace {

using nlohmann::json;

constexpr int kRanksAskedMax = 64;
constexpr int64_t kStepsSaved = 100;  // enough to compare the newest with older ones

struct DiagnoseFlags {
  ConnectionFlags connection;
  std::string job_id;
  std::string trace;
  std::string save;
  std::string saved;
  std::string format = "text";
  std::string svg;
  bool force = false;
  int64_t steps = 20;
};

OutputKind SavedEvidenceFile() {
  return {"saved evidence", [](const std::string& path) { return SavedEvidence(path).ok(); }};
}

json VerdictJson(const Diagnosis& diagnosis, const ConnectionFlags& flags) {
  const Findings& findings = diagnosis.findings;
  std::vector<std::string> advice = findings.advice;
  for (std::string& line : advice) line = CompleteCommands(line, flags);
  json verdict = {{"cause", findings.cause},       {"summary", findings.verdict},
                  {"evidence", findings.evidence}, {"cost", findings.cost},
                  {"done", findings.done},         {"advice", advice},
                  {"excluded", findings.excluded}};
  if (diagnosis.rank >= 0) verdict["rank"] = diagnosis.rank;
  if (!findings.first_error.empty()) verdict["first_error"] = findings.first_error;
  if (!diagnosis.node.empty()) verdict["node"] = diagnosis.node;
  if (diagnosis.peer >= 0) verdict["peer"] = diagnosis.peer;
  if (!diagnosis.peer_node.empty()) verdict["peer_node"] = diagnosis.peer_node;
  return verdict;
}

absl::StatusOr<diagnose::ChromeTrace> ReadTraceFile(const std::string& path) {
  ASSIGN_OR_RETURN(const base::UniqueFd file, OpenInputFile(path));
  const auto read = [&](char* buffer, size_t size) -> absl::StatusOr<size_t> {
    for (;;) {
      const ssize_t count = ::read(file.get(), buffer, size);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) return base::ErrnoStatus(errno, "read");
    }
  };
  return diagnose::ReadChromeTrace(read);
}

// Says which small faults of the trace were put right or left out.
void AddFaults(const diagnose::ChromeTrace& trace, const diagnose::TracedJob& job,
               std::vector<std::string>* notes) {
  const size_t num_events = trace.events.size() + static_cast<size_t>(trace.num_bad);
  if (trace.num_negative > 0) {
    notes->push_back(absl::StrFormat(
        "%d of %d events end before they begin, the worst %.0f us before; they count as 0 s",
        trace.num_negative, num_events, -1e6 * trace.most_negative_seconds));
  }
  if (trace.num_bad > 0) {
    notes->push_back(absl::StrCat(trace.num_bad, " of ", num_events,
                                  " events are bad and left out; the first: ", trace.first_bad));
  }
  if (job.num_twice > 0) {
    notes->push_back(absl::StrCat(job.num_twice, " of ", num_events,
                                  " events are a second one of the same operation; left out"));
  }
}

absl::StatusOr<Diagnosis> DiagnoseTrace(const std::string& path) {
  ASSIGN_OR_RETURN(const diagnose::ChromeTrace trace, ReadTraceFile(path));
  ASSIGN_OR_RETURN(const diagnose::TracedJob job, diagnose::JobOfTrace(trace));
  std::vector<trace::RankName> names;
  for (const diagnose::Worker& worker : job.graph.workers()) {
    names.push_back({.rank = absl::StrCat("rank ", worker.rank),
                     .node = "",
                     .place = absl::StrCat("stage ", worker.stage, ", data ", worker.replica)});
  }
  Diagnosis diagnosis = DiagnoseSteps(job.graph, job.steps, {}, names);
  diagnosis.findings.done.clear();
  AddFaults(trace, job, &diagnosis.notes);
  if (job.num_steps_left_out > 0) {
    diagnosis.notes.push_back(
        absl::StrCat(job.num_steps_left_out, " steps have other operations than most; left out"));
  }
  for (const std::string& name : job.ignored_names) {
    diagnosis.notes.push_back(absl::StrCat("unknown operation '", name, "'; left out"));
  }
  return diagnosis;
}

absl::StatusOr<Diagnosis> DiagnoseSource(EvidenceSource* source, int64_t num_steps) {
  ASSIGN_OR_RETURN(Diagnosis diagnosis, DiagnoseJob(source, {.num_steps = num_steps}));
  ASSIGN_OR_RETURN(const control::v1::Job job, source->Job());
  if (LeavesOpenWhoIsLate(diagnosis) && job.ranks_size() <= kRanksAskedMax) {
    AddLateRank(source->Evidence(telemetry::v1::EVIDENCE_KIND_EXCHANGES, {}), job.job_id(),
                &diagnosis);
  }
  AddStorageFailure(job, &diagnosis);
  AddSilentKeeper(job, &diagnosis);
  return diagnosis;
}

absl::StatusOr<Diagnosis> AskDriver(const DiagnoseFlags& flags) {
  ASSIGN_OR_RETURN(const auto client, Connect(flags.connection));
  const auto source = LiveEvidence(client.get(), flags.job_id);
  absl::StatusOr<Diagnosis> diagnosis = DiagnoseSource(source.get(), flags.steps);
  if (diagnosis.ok() && !flags.save.empty()) {
    RETURN_IF_ERROR(base::Annotate(SaveEvidence(source.get(),
                                                {.num_steps = std::max(flags.steps, kStepsSaved),
                                                 .rank = diagnosis->rank,
                                                 .attempt = diagnosis->attempt},
                                                flags.save),
                                   flags.save));
  }
  return diagnosis;
}

absl::StatusOr<Diagnosis> ReadSaved(const DiagnoseFlags& flags) {
  ASSIGN_OR_RETURN(const auto source, SavedEvidence(flags.saved));
  return DiagnoseSource(source.get(), flags.steps);
}

absl::Status CheckFlags(const DiagnoseFlags& flags) {
  const int num_given = (flags.job_id.empty() ? 0 : 1) + (flags.trace.empty() ? 0 : 1) +
                        (flags.saved.empty() ? 0 : 1);
  if (num_given != 1) {
    return absl::InvalidArgumentError(
        num_given == 0
            ? "expected a job's id, --saved FILE, or --trace FILE"
            : "a job's id, --saved and --trace exclude each other; expected one of them");
  }
  if (!flags.save.empty() && flags.job_id.empty()) {
    return absl::InvalidArgumentError(
        "--save keeps the evidence of a job; give the job's id instead of a file");
  }
  for (const std::string& input : {flags.trace, flags.saved}) {
    RETURN_IF_ERROR(CheckKeepsInputs("--svg", flags.svg, {input}));
  }
  RETURN_IF_ERROR(CheckReplaces("--svg", flags.svg, SvgPicture(), flags.force));
  RETURN_IF_ERROR(CheckReplaces("--save", flags.save, SavedEvidenceFile(), flags.force));
  RETURN_IF_ERROR(CheckStepsTraced(flags.steps));
  return absl::OkStatus();
}

void Print(const Diagnosis& diagnosis, const DiagnoseFlags& flags, std::FILE* file) {
  if (flags.format == "json") {
    json object = diagnosis.details;
    object["verdict"] = VerdictJson(diagnosis, flags.connection);
    std::fprintf(file, "%s\n", object.dump(2, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    const auto complete = [&](const std::string& line) {
      return CompleteCommands(line, flags.connection);
    };
    std::fprintf(file, "%s", ToText(diagnosis.findings, complete).c_str());
  }
}

// The driver's silence is a verdict, too; the exit code is that of a call that failed. Standard
// output is left to the picture if that goes there.
int ReportAskError(const absl::Status& status, const DiagnoseFlags& flags) {
  const auto address = client::ChooseAddress(flags.connection.address);
  if (IsSilence(status) && address.ok()) {
    Print(DiagnoseSilentDriver(status, flags.job_id, address->text), flags,
          IsStandardOutput(flags.svg) ? stderr : stdout);
    if (flags.format == "text") return ExitCodeOf(status);  // the verdict has the error
  }
  return ReportCallError(status, flags.connection);
}

int RunDiagnose(const DiagnoseFlags& flags) {
  if (const absl::Status valid = CheckFlags(flags); !valid.ok()) return ReportError(valid);
  if (!CheckOutputFormat(flags.format)) return kExitUsage;
  const std::string& file = flags.saved.empty() ? flags.trace : flags.saved;
  const absl::StatusOr<Diagnosis> diagnosis = !flags.saved.empty()   ? ReadSaved(flags)
                                              : !flags.trace.empty() ? DiagnoseTrace(file)
                                                                     : AskDriver(flags);
  if (!diagnosis.ok()) {
    return file.empty() ? ReportAskError(diagnosis.status(), flags)
                        : ReportError(base::Annotate(diagnosis.status(), file));
  }
  for (const std::string& note : diagnosis->notes) {
    std::fprintf(stderr, "megascale: %s\n", CompleteCommands(note, flags.connection).c_str());
  }
  if (!flags.svg.empty()) {
    if (diagnosis->picture.empty()) {
      std::fprintf(stderr, "megascale: no picture: there are no spans to draw\n");
    } else if (const absl::Status written = WriteOutputFile(flags.svg, diagnosis->picture);
               !written.ok()) {
      return ReportError(base::Annotate(written, "--svg"));
    }
    if (IsStandardOutput(flags.svg)) return kExitGood;
  }
  Print(*diagnosis, flags, stdout);
  return kExitGood;
}

}  // namespace

void AddDiagnoseCommand(CommandLine* line) {
  auto flags = std::make_shared<DiagnoseFlags>();
  Command* command =
      line->Add("diagnose", "says which rank, machine or link makes a job slow or stuck, and why");
  command->OptionalPositional("JOB", &flags->job_id, "the job's id");
  command->Path("--trace", &flags->trace,
                "analyses this file in place of a job: a Chrome trace of training steps, plain or "
                "gzip, as ByteDance's StragglerAnalysis writes it (default: none)");
  command->Path("--save", &flags->save,
                "also writes the evidence into this file, gzip, to look at it again with --saved "
                "(default: none)");
  command->Path("--saved", &flags->saved,
                "diagnoses the evidence in this file in place of a job (default: none)");
  AddOutputOption(command, &flags->format);
  command->Path("--svg", &flags->svg,
                "draws the ranks into this file, in the colour of what they cost; -: standard "
                "output, instead of the verdict (default: none)");
  AddForceOption(command, &flags->force);
  command->Integer("--steps", &flags->steps, "how many of the newest steps");
  AddRetryOption(command, &flags->connection);
  AddConnectionOptions(command, &flags->connection);
  command->Details(
      "If the job stands still: walks from the instruction of each rank through the plan's "
      "dependencies to the rank that the others wait for. If it makes progress: replays its newest "
      "steps with the time of an operation replaced by what such operations take on the mean, and "
      "tells one slow worker, unequal stages, a slow link, slow collectives, waiting for data and "
      "jitter apart. Where nothing explains the lost time, the verdict is \"I do not know\", with "
      "what was excluded.\n"
      "docs/diagnosis.md explains the numbers. The exit code is 0 whatever the verdict; if the "
      "driver is silent, which is a verdict, too, it is that of a call without an answer.");
  command->Examples(
      "megascale diagnose fortunes-1a2b3c4d\n"
      "megascale diagnose fortunes-1a2b3c4d -o json --svg ranks.svg\n"
      "megascale diagnose fortunes-1a2b3c4d --save evidence.gz\n"
      "megascale diagnose --saved evidence.gz\n"
      "megascale diagnose --trace timeline.json.gz");
  command->Runs([flags] { return RunDiagnose(*flags); });
}

}  // namespace megascale::cli
