#include "cli/minder/job_series.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/layout/groups.h"
#include "runtime/plan/mesh.h"
#include "runtime/telemetry/machine_series.h"

namespace megascale::cli {
namespace {

namespace telemetry = megascale::telemetry::v1;
using megascale::telemetry::kAwaitingShare;

// Agents keep samples of 15 minutes.
constexpr double kAgeSecondsMax = 16 * 60;

// Adds one column of a machine's series. `read_seconds`: since 1970.
void AddColumn(const telemetry::Evidence& evidence, const telemetry::MachineSeries& series,
               const telemetry::MetricColumn& column, double read_seconds,
               std::vector<minder::Sample>* samples) {
  for (int i = 0; i < series.monotonic_nanos_size() && i < column.values_size(); ++i) {
    const double age = (static_cast<double>(evidence.monotonic_nanos()) -
                        static_cast<double>(series.monotonic_nanos(i))) /
                       1e9;
    if (!(age >= 0 && age <= kAgeSecondsMax)) continue;  // no agent of ours says so
    if (std::isfinite(column.values(i))) samples->push_back({read_seconds - age, column.values(i)});
  }
}

}  // namespace

const std::vector<minder::MetricKind>& MachineMetrics() {
  // An open limit is what healthy machines may do at least without being told apart.
  static const auto* const kinds =
      new std::vector<minder::MetricKind>{{megascale::telemetry::kComputeShare, {0, 1}, false},
                                          {megascale::telemetry::kThrottledShare, {0, 1}, false},
                                          {megascale::telemetry::kBusyCores, {0, 2}, true},
                                          {megascale::telemetry::kNetworkBytes, {0, 20e6}, true},
                                          {megascale::telemetry::kAwaitingShare, {0, 1}, false},
                                          {megascale::telemetry::kLostPackets, {0, 100}, true},
                                          {megascale::telemetry::kDiskBytes, {0, 50e6}, true},
                                          {megascale::telemetry::kMajorFaults, {0, 200}, true},
                                          {megascale::telemetry::kMemoryBytes, {0, 2e9}, true}};
  return *kinds;
}

void AddMachine(const std::string& name, const telemetry::Evidence& evidence,
                const std::string& job_id, absl::Time read_at, minder::Recording* recording) {
  telemetry::MachineSeries made;  // of the samples of an older agent, or of a job that has ended
  if (!evidence.has_series()) made = megascale::telemetry::SeriesOf(evidence.samples(), job_id);
  const telemetry::MachineSeries& series = evidence.has_series() ? evidence.series() : made;
  const double read_seconds = absl::ToDoubleSeconds(read_at - absl::UnixEpoch());
  minder::RecordedMachine machine = {
      name, std::vector<std::vector<minder::Sample>>(recording->metrics.size())};
  for (const telemetry::MetricColumn& column : series.columns()) {
    const auto metric =
        std::find(recording->metrics.begin(), recording->metrics.end(), column.metric());
    if (metric == recording->metrics.end()) continue;  // of a newer agent
    auto& samples = machine.metrics[static_cast<size_t>(metric - recording->metrics.begin())];
    if (!samples.empty()) continue;  // no agent of ours says it twice
    AddColumn(evidence, series, column, read_seconds, &samples);
  }
  recording->machines.push_back(std::move(machine));
}

std::string LeaveOutUnmeasured(minder::Recording* recording) {
  const auto at = std::find(recording->metrics.begin(), recording->metrics.end(), kAwaitingShare);
  if (at == recording->metrics.end()) return "";
  const auto column = at - recording->metrics.begin();
  std::vector<std::string> without;
  for (const minder::RecordedMachine& machine : recording->machines) {
    const bool is_recorded = !machine.metrics[0].empty();
    if (is_recorded && machine.metrics[static_cast<size_t>(column)].empty()) {
      without.push_back(machine.name);
    }
  }
  if (without.empty()) return "";
  recording->metrics.erase(at);
  for (minder::RecordedMachine& machine : recording->machines) {
    machine.metrics.erase(machine.metrics.begin() + column);
  }
  return absl::StrCat(kAwaitingShare, ": not measured by the agents of ", base::Shortlist(without),
                      ", which are older; it is compared on no machine");
}

std::vector<int> GroupsByStage(const minder::Recording& recording, const control::v1::Job& job) {
  const auto mesh = layout::MeshOf(job.spec());
  std::map<std::string, std::multiset<int>> stages;  // by machine: of its ranks
  for (int rank = 0; rank < job.ranks_size() && mesh.ok(); ++rank) {
    if (rank >= mesh->world_size()) break;
    stages[job.ranks(rank).node_id()].insert(mesh->CoordinateOf(rank).pipeline);
  }
  std::map<std::multiset<int>, int> numbers;
  std::vector<int> groups;
  for (const minder::RecordedMachine& machine : recording.machines) {
    groups.push_back(
        numbers.try_emplace(stages[machine.name], static_cast<int>(numbers.size())).first->second);
  }
  return groups;
}

absl::StatusOr<JobSeries> FetchSeries(client::JobClient* client, const std::string& job_id,
                                      const std::function<bool()>& stop) {
  JobSeries series;
  for (const minder::MetricKind& kind : MachineMetrics()) {
    series.recording.metrics.push_back(kind.name);
  }
  ASSIGN_OR_RETURN(series.job, client->Get(job_id));
  control::v1::StreamEvidenceRequest request;
  request.set_job_id(job_id);
  request.set_kind(telemetry::EVIDENCE_KIND_METRICS);
  request.set_as_series(true);
  request.set_only_ranks_of_job(true);  // of an older agent, which sends samples
  bool is_current = true;
  const auto take = [&](const control::v1::StreamEvidenceResponse& response) {
    is_current = is_current && response.attempt() == series.job.attempt();
    if (!response.error().empty()) {
      series.notes.push_back(absl::StrCat("machine ", base::Printable(response.node_id(), 100),
                                          ": ", base::Printable(response.error(), 200)));
      return;
    }
    AddMachine(response.node_id(), response.evidence(), job_id, base::RealClock().Wall(),
               &series.recording);
  };
  RETURN_IF_ERROR(client->Evidence(request, {.on_message = take, .should_stop = stop}));
  if (!is_current) {
    return absl::AbortedError(
        absl::StrCat("job ", job_id, ": began another attempt; look at its machines again"));
  }
  // They come in the order of the agents' answers.
  std::sort(series.recording.machines.begin(), series.recording.machines.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  series.groups = GroupsByStage(series.recording, series.job);
  if (std::string note = LeaveOutUnmeasured(&series.recording); !note.empty()) {
    series.notes.push_back(std::move(note));
  }
  return series;
}

}  // namespace megascale::cli
