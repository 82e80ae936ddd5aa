#include "controlplane/driver/job_view.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "runtime/base/version.h"
#include "runtime/model/config.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

constexpr size_t kRateSteps = 20;

void SetTime(int64_t unix_nanos, google::protobuf::Timestamp* timestamp) {
  timestamp->set_seconds(unix_nanos / 1'000'000'000);
  timestamp->set_nanos(static_cast<int32_t>(unix_nanos % 1'000'000'000));
}

// Over the last steps that this attempt completed.
double TokensPerSecond(const JobRecord& job, const LossLog& loss_log) {
  double tokens = 0;
  double seconds = 0;
  size_t count = 0;
  for (auto it = loss_log.recent().rbegin(); it != loss_log.recent().rend(); ++it) {
    if (it->attempt() != job.attempt() || ++count > kRateSteps) break;
    tokens += static_cast<double>(it->tokens());
    seconds += it->seconds();
  }
  return seconds > 0 ? tokens / seconds : 0;
}

double FlopsPerToken(const JobRecord& job) {
  const auto& spec = job.submitted().spec();
  const auto config = model::MakeModelConfig(spec.model());
  return config.ok() ? model::TrainFlopsPerToken(*config, spec.train().seq_length()) : 0;
}

// Agents on one machine measure the same machine. 0 when one of the machines is not measured.
double FlopsCeiling(const JobRecord& job, const DriverState& state) {
  std::map<std::string, double> by_machine;
  for (const std::string& node_id : NodesOf(job)) {
    const NodeRecord* node = FindNode(state, node_id);
    if (node == nullptr) return 0;
    double& ceiling = by_machine[node->hello().machine_id()];
    for (const auto& preflight : job.preflights()) {
      const NodeRecord* measured = FindNode(state, preflight.node_id());
      if (measured != nullptr && measured->hello().machine_id() == node->hello().machine_id()) {
        ceiling = std::max(ceiling, preflight.preflight().flops_ceiling());
      }
    }
  }
  double sum = 0;
  for (const auto& [machine, ceiling] : by_machine) {
    if (ceiling <= 0) return 0;
    sum += ceiling;
  }
  return sum;
}

void AddRanks(const JobRecord& job, const FailureDetector& detector, control::Job* view) {
  for (const auto& placement : job.placements()) {
    auto* rank = view->add_ranks();
    rank->set_node_id(placement.node_id());
    rank->mutable_status()->set_rank(placement.rank());
    const auto* actual = detector.LastReport(placement.node_id(), JobId(job));
    if (actual == nullptr || actual->attempt() != job.attempt()) continue;
    for (const auto& reported : actual->ranks()) {
      if (reported.status().rank() == placement.rank()) {
        *rank->mutable_status() = reported.status();
      }
    }
  }
}

// Checkpoints that cannot be written do not stop a job, but must be seen.
void AddStorageError(const JobRecord& job, const FailureDetector& detector, control::Job* view) {
  for (const std::string& node_id : NodesOf(job)) {
    const auto* actual = detector.LastReport(node_id, JobId(job));
    if (actual == nullptr || actual->storage_error().empty()) continue;
    const std::string before = view->message().empty() ? "" : absl::StrCat(view->message(), "; ");
    view->set_message(absl::StrCat(before, "cannot write checkpoints on ", node_id, ": ",
                                   actual->storage_error()));
    return;
  }
}

void AddTimes(const JobRecord& job, const ViewSources& sources, control::Job* view) {
  SetTime(job.submitted_unix_nanos(), view->mutable_submitted_at());
  if (job.started_unix_nanos() != 0) {
    SetTime(job.started_unix_nanos(), view->mutable_started_at());
  }
  if (job.ended_unix_nanos() != 0) SetTime(job.ended_unix_nanos(), view->mutable_ended_at());
  const absl::Duration age = sources.now - absl::FromUnixNanos(job.submitted_unix_nanos());
  view->set_submitted_age_seconds(std::max(0.0, absl::ToDoubleSeconds(age)));
}

}  // namespace

control::Job ViewJob(const JobRecord& job, const LossLog* loss_log, const ViewSources& sources) {
  control::Job view;
  view.set_job_id(JobId(job));
  *view.mutable_spec() = job.submitted().spec();
  view.set_state(job.state());
  view.set_reason(job.reason());
  view.set_message(job.message());
  view.set_attempt(job.attempt());
  view.set_restarts(std::max<int64_t>(0, job.attempt() - 1));
  view.set_directory(job.submitted().directory());
  view.set_last_step(job.restore().step());
  if (loss_log != nullptr && !loss_log->recent().empty()) {
    view.set_last_step(std::max(loss_log->last_step(), job.restore().step()));
    *view.mutable_last_record() = loss_log->recent().back();
    view.set_tokens_per_second(TokensPerSecond(job, *loss_log));
  }
  if (job.has_culprit()) *view.mutable_culprit() = job.culprit();
  if (job.committed_size() > 0) {
    const auto& newest = job.committed(job.committed_size() - 1);
    view.mutable_last_checkpoint()->set_step(newest.step());
    view.mutable_last_checkpoint()->set_attempt(newest.attempt());
    view.mutable_last_checkpoint()->set_directory(newest.directory());
  }
  AddTimes(job, sources, &view);
  view.set_flops_ceiling(FlopsCeiling(job, *sources.state));
  view.set_model_flops_per_second(view.tokens_per_second() * FlopsPerToken(job));
  AddRanks(job, *sources.detector, &view);
  if (HoldsSlots(job)) AddStorageError(job, *sources.detector, &view);
  return view;
}

control::GetClusterResponse ViewCluster(const ViewSources& sources) {
  control::GetClusterResponse response;
  response.set_version(base::kVersion);
  std::map<std::string, int> used;
  for (const JobRecord& job : sources.state->jobs()) {
    if (!HoldsSlots(job)) continue;
    for (const auto& placement : job.placements()) ++used[placement.node_id()];
  }
  for (const NodeRecord& node : sources.state->nodes()) {
    auto* view = response.add_nodes();
    view->set_node_id(node.hello().node_id());
    view->set_num_slots(node.hello().num_slots());
    view->set_num_slots_used(used[node.hello().node_id()]);
    view->set_alive(node.alive());
    view->set_machine_id(node.hello().machine_id());
    view->set_heartbeat_age_seconds(
        absl::ToDoubleSeconds(sources.detector->SilenceOf(node.hello().node_id())));
  }
  return response;
}

}  // namespace megascale::driver
