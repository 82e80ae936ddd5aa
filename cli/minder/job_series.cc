#include "cli/minder/job_series.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/layout/groups.h"
#include "runtime/plan/mesh.h"

namespace megascale::cli {
namespace {

namespace telemetry = megascale::telemetry::v1;

constexpr size_t kNumMetrics = 9;
constexpr char kAwaitingShare[] = "awaiting share";
// Agents keep samples of 15 minutes.
constexpr double kAgeSecondsMax = 16 * 60;

// The job's processes on the machine, together.
struct JobOnMachine {
  int num_ranks = 0;
  double compute_share = 0;                  // means of the ranks
  std::optional<double> awaiting_share = 0;  // unset: it is not measured
  double memory_bytes = 0;
};

JobOnMachine JobOn(const telemetry::MachineSample& sample, const std::string& job_id) {
  JobOnMachine job;
  for (const telemetry::ProcessSample& process : sample.ranks()) {
    if (process.job_id() != job_id) continue;
    ++job.num_ranks;
    job.compute_share += process.compute_share();
    if (!process.has_awaiting_share()) job.awaiting_share.reset();
    // Waiting beside an instruction that computes costs no time.
    if (job.awaiting_share.has_value()) {
      *job.awaiting_share += std::min(process.awaiting_share(), process.wait_share());
    }
    job.memory_bytes += static_cast<double>(process.memory_bytes());
  }
  if (job.num_ranks > 0) {
    job.compute_share /= job.num_ranks;
    if (job.awaiting_share.has_value()) *job.awaiting_share /= job.num_ranks;
  }
  return job;
}

// In the order of MachineMetrics.
std::vector<std::optional<double>> ValuesOf(const telemetry::MachineSample& sample,
                                            const JobOnMachine& job) {
  double network = 0;
  double errors = 0;
  for (const telemetry::InterfaceSample& interface : sample.interfaces()) {
    network += interface.received_bytes() + interface.sent_bytes();
    errors += interface.errors();
  }
  return {job.compute_share,
          sample.throttled_share(),
          sample.busy_cores(),
          network,
          job.awaiting_share,
          sample.retransmitted_segments() + errors,
          sample.disk_read_bytes() + sample.disk_written_bytes(),
          sample.major_faults(),
          job.memory_bytes};
}

}  // namespace

const std::vector<minder::MetricKind>& MachineMetrics() {
  // An open limit is what healthy machines may do at least without being told apart.
  static const auto* const kinds =
      new std::vector<minder::MetricKind>{{"compute share", {0, 1}, false},
                                          {"throttled share", {0, 1}, false},
                                          {"busy cores", {0, 2}, true},
                                          {"network bytes per second", {0, 20e6}, true},
                                          {kAwaitingShare, {0, 1}, false},
                                          {"lost packets per second", {0, 100}, true},
                                          {"disk bytes per second", {0, 50e6}, true},
                                          {"major faults per second", {0, 200}, true},
                                          {"memory bytes", {0, 2e9}, true}};
  return *kinds;
}

void AddMachine(const std::string& name, const telemetry::Evidence& evidence,
                const std::string& job_id, absl::Time read_at, minder::Recording* recording) {
  minder::RecordedMachine machine = {name, std::vector<std::vector<minder::Sample>>(kNumMetrics)};
  const double read_seconds = absl::ToDoubleSeconds(read_at - absl::UnixEpoch());
  for (const telemetry::MachineSample& sample : evidence.samples()) {
    const JobOnMachine job = JobOn(sample, job_id);
    if (job.num_ranks == 0) continue;
    const double age = (static_cast<double>(evidence.monotonic_nanos()) -
                        static_cast<double>(sample.monotonic_nanos())) /
                       1e9;
    if (!(age >= 0 && age <= kAgeSecondsMax)) continue;  // no agent of ours says so
    const std::vector<std::optional<double>> values = ValuesOf(sample, job);
    for (size_t m = 0; m < kNumMetrics; ++m) {
      if (values[m].has_value()) machine.metrics[m].push_back({read_seconds - age, *values[m]});
    }
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
  request.set_only_ranks_of_job(true);
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
