// Agents answer with nonsense, or somebody edits a file of saved evidence: what the page,
// `diagnose` and `minder` make of it is bounded and printable, and names no rank that does not
// exist.
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/diagnosis/diagnose_job.h"
#include "cli/diagnosis/evidence_source.h"
#include "cli/diagnosis/exchange_report.h"
#include "cli/diagnosis/service_report.h"
#include "cli/diagnosis/stack_report.h"
#include "cli/minder/job_series.h"
#include "controlplane/page/evidence_json.h"
#include "google/protobuf/util/json_util.h"
#include "proto/control.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/base/text/printable.h"
#include "runtime/job/job_spec.h"
#include "runtime/minder/recording.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

using control::v1::StreamEvidenceResponse;

constexpr int kRanks = 4;
constexpr char kJob[] = "j";

void CheckText(const std::string& text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    MEGASCALE_CHECK_MSG(base::Printable(line, line.size()) == line, line);
  }
}

void CheckDiagnosis(const cli::Diagnosis& diagnosis, int num_ranks) {
  MEGASCALE_CHECK(diagnosis.rank >= -1 && diagnosis.rank < num_ranks);
  MEGASCALE_CHECK(diagnosis.peer >= -1 && diagnosis.peer < num_ranks);
  MEGASCALE_CHECK(diagnosis.rank_on_node >= -1 && diagnosis.rank_on_node < num_ranks);
  CheckText(cli::ToText(diagnosis.findings));
  CheckText(diagnosis.node + diagnosis.peer_node);
  for (const std::string& note : diagnosis.notes) CheckText(note);
  (void)diagnosis.details.dump();  // throws if a text in it is not UTF-8
}

// What machines measured becomes a recording, which the file that holds it reads back.
void CheckSeries(const std::vector<StreamEvidenceResponse>& responses) {
  minder::Recording recording;
  for (const minder::MetricKind& kind : cli::MachineMetrics()) {
    recording.metrics.push_back(kind.name);
  }
  for (size_t i = 0; i < responses.size(); ++i) {
    cli::AddMachine(absl::StrCat("n", i), responses[i].evidence(), kJob,
                    absl::FromUnixSeconds(1764052800), &recording);
  }
  constexpr int kSecondsMax = 900;
  const minder::CommonTime common = minder::CommonTimeOf(recording, {.seconds_max = kSecondsMax});
  MEGASCALE_CHECK(common.num_seconds >= 0 && common.num_seconds <= kSecondsMax);
  if (responses.empty()) return;
  const auto again = minder::ParseRecording(minder::FormatRecording(recording));
  MEGASCALE_CHECK_MSG(again.ok(), again.status().message());
}

std::string MutateResponse(const std::string& frame, Random* random) {
  StreamEvidenceResponse response;
  if (!response.ParseFromString(frame)) return frame;
  MutateMessage(&response, random);
  return response.SerializeAsString();
}

// Makes a mistake in the message of a line of saved evidence.
template <typename Message>
std::string MutateJson(absl::string_view text, Random* random) {
  Message message;
  std::string changed(text);
  if (!google::protobuf::util::JsonStringToMessage(changed, &message).ok()) return changed;
  MutateMessage(&message, random);
  std::string json;
  const bool is_written = google::protobuf::util::MessageToJsonString(message, &json).ok();
  return is_written ? json : changed;
}

std::string MutateLine(const std::string& line, Random* random) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
  const auto& [word, text] = parts;
  std::string changed =
      word == "job"       ? MutateJson<control::v1::Job>(text, random)
      : word == "spans"   ? MutateJson<control::v1::StreamSpansResponse>(text, random)
      : word == "cluster" ? MutateJson<control::v1::GetClusterResponse>(text, random)
                          : MutateJson<StreamEvidenceResponse>(text, random);
  return absl::StrCat(word, " ", changed);
}

}  // namespace

void RunEvidence(absl::string_view input) {
  std::vector<StreamEvidenceResponse> responses;
  for (const std::string& frame : SplitFrames(input)) {
    StreamEvidenceResponse response;
    if (!response.ParseFromString(frame)) continue;
    // The driver fills in the rank.
    response.set_rank(static_cast<int>(responses.size()) % kRanks);
    responses.push_back(std::move(response));
  }
  for (const StreamEvidenceResponse& response : responses) {
    (void)page::ExchangesJson(response.evidence()).dump();
    (void)page::MachineMetricsJson(response.evidence()).dump();
  }
  CheckSeries(responses);
  cli::Diagnosis diagnosis;
  diagnosis.findings.cause = "exchange";
  const std::vector<int> members = {0, 1, 2, 3};
  const std::vector<int> machines = {0, 0, 1, 1};
  const std::vector<trace::RankName> names = {
      {"rank 0", "", ""}, {"rank 1", "", ""}, {"rank 2", "", ""}, {"rank 3", "", ""}};
  if (!responses.empty() && responses[0].evidence().running_size() > 0) {
    const auto instruction =
        plan::InstructionId::FromPacked(responses[0].evidence().running(0).instruction());
    const auto calls = cli::ShownCallsOf(responses, instruction, members);
    const diagnose::ExchangeVerdict verdict = diagnose::ExplainExchange(calls);
    cli::AddExchange(verdict, names, machines, &diagnosis);
    cli::AddStandstill(responses, {instruction}, verdict, &diagnosis);
  }
  cli::AddStacks(responses, &diagnosis);
  CheckDiagnosis(diagnosis, kRanks);
}

std::string MutateEvidence(const std::string& input, Random* random) {
  return MutateFrames(input, random, MutateResponse);
}

void RunSavedEvidence(absl::string_view input) {
  constexpr int kRanksMax = 1024;
  const base::UniqueFd file(::memfd_create("saved", MFD_CLOEXEC));
  MEGASCALE_CHECK(file.valid() && base::WriteAll(file.get(), input).ok());
  const auto saved = cli::SavedEvidence(absl::StrCat("/proc/self/fd/", file.get()));
  if (!saved.ok()) return CheckLine(saved.status());
  const auto job = (*saved)->Job();
  if (!job.ok() || job->ranks_size() > kRanksMax) return;
  auto diagnosis = cli::DiagnoseJob(saved->get(), {.num_steps = 5, .replayed_max = 1e5});
  if (!diagnosis.ok()) return CheckLine(diagnosis.status());
  cli::AddStorageFailure(*job, &*diagnosis);
  cli::AddSilentKeeper(*job, &*diagnosis);
  CheckDiagnosis(*diagnosis, job::WorldSize(job->spec()));
}

std::string MutateSavedEvidence(const std::string& input, Random* random) {
  std::vector<std::string> lines = absl::StrSplit(input, '\n');
  std::string& line = lines[random->Below(lines.size())];
  switch (random->Below(6)) {
    case 0:
      line.clear();
      break;
    case 1:
      std::swap(line, lines[random->Below(lines.size())]);
      break;
    case 2:
      line = absl::StrCat(line, "\n", line);
      break;
    default:
      line = MutateLine(line, random);
  }
  return absl::StrJoin(lines, "\n");
}

}  // namespace megascale::fuzz
