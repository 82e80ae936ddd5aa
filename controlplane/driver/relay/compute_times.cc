#include "controlplane/driver/relay/compute_times.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/telemetry/rank_work.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

using Ranges = google::protobuf::RepeatedPtrField<telemetry::StepRange>;

// Implausible values are ignored, because they come from other machines.
constexpr double kSecondsMax = 1e9;
constexpr int64_t kStepsMax = 1'000'000'000;

void AddRange(int64_t first, int64_t last, Ranges* ranges) {
  telemetry::StepRange* range = ranges->Add();
  range->set_first_step(first);
  range->set_last_step(last);
}

// Returns the seconds of a step; 0: they are not known.
double OfStep(const telemetry::StepsWork& work) {
  if (work.num_steps() <= 0 || work.num_steps() > kStepsMax) return 0;
  const double seconds = work.compute_seconds();
  if (!std::isfinite(seconds) || seconds <= 0 || seconds > kSecondsMax) return 0;
  return seconds / static_cast<double>(work.num_steps());
}

// Agents of older versions send their samples, which are summed up here.
std::vector<telemetry::RankWork> WorkIn(const telemetry::Evidence& evidence,
                                        const std::string& job_id, const Ranges& ranges) {
  if (evidence.samples().empty()) return {evidence.work().begin(), evidence.work().end()};
  return megascale::telemetry::SumWork(job_id, {ranges.begin(), ranges.end()}, evidence.samples());
}

}  // namespace

absl::StatusOr<std::vector<diagnose::ComputeTime>> ReadComputeTimes(
    const control::Job& job, EvidenceStreamPorts ports, const ComputeTimesRequest& request) {
  control::StreamEvidenceRequest question;
  question.set_job_id(job.job_id());
  question.set_kind(telemetry::EVIDENCE_KIND_METRICS);
  question.set_only_ranks_of_job(true);
  AddRange(1, request.normal_step, question.mutable_work_of());
  AddRange(request.normal_step + 1, std::max<int64_t>(1, job.last_step()),
           question.mutable_work_of());
  std::map<int, diagnose::ComputeTime> times;
  ports.job = [&job] { return job; };
  ports.emit = [&, emit = std::move(ports.emit)](const control::StreamEvidenceResponse& answer) {
    for (const telemetry::RankWork& work :
         WorkIn(answer.evidence(), job.job_id(), question.work_of())) {
      const int rank = work.rank();
      if (rank < 0 || rank >= job.ranks_size() || work.ranges_size() != 2) continue;
      if (job.ranks(rank).node_id() != answer.node_id()) continue;
      const double now = OfStep(work.ranges(1));
      if (now > 0) times[rank] = {.rank = rank, .before = OfStep(work.ranges(0)), .now = now};
    }
    return (emit == nullptr || emit(answer)) && !request.should_end();
  };
  const absl::Status read = StreamEvidence(question, ports);
  if (!read.ok() && !absl::IsCancelled(read)) return read;
  std::vector<diagnose::ComputeTime> ascending;
  for (const auto& [rank, time] : times) ascending.push_back(time);
  return ascending;
}

}  // namespace megascale::driver
