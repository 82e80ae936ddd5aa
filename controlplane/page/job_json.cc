#include "controlplane/page/job_json.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "controlplane/page/json_number.h"
#include "controlplane/page/mesh_json.h"
#include "runtime/base/text/printable.h"
#include "runtime/base/text/shortlist.h"
#include "runtime/layout/groups.h"
#include "runtime/machine/exchange_verdict.h"
#include "runtime/plan/mesh.h"

namespace megascale::page {
namespace {

using nlohmann::json;

// Long texts of other machines are cut, so that no answer grows without bound.
constexpr size_t kTextBytesMax = 2000;
constexpr int kWarningsMax = 20;

std::string Text(const std::string& text) { return base::Printable(text, kTextBytesMax); }

std::string Word(const std::string& enum_name, const char* prefix) {
  return std::string(absl::StripPrefix(enum_name, prefix));
}

plan::Mesh MeshOf(const control::v1::Job& job) {
  return layout::MeshOf(job.spec()).value_or(plan::Mesh());
}

int64_t Seconds(const google::protobuf::Timestamp& time) { return time.seconds(); }

// "out of memory"
std::string ClassWords(telemetry::v1::FailureClass failure_class) {
  const std::string word = Word(telemetry::v1::FailureClass_Name(failure_class), "FAILURE_CLASS_");
  return absl::AsciiStrToLower(absl::StrReplaceAll(word, {{"_", " "}}));
}

json CulpritJson(const control::v1::Culprit& culprit) {
  return {{"node", Text(culprit.node_id())},
          {"rank", culprit.rank()},
          {"class", ClassWords(culprit.failure_class())},
          {"evidence", Text(culprit.evidence())},
          {"attempt", culprit.attempt()}};
}

// Where the time of a job went, in seconds: "wall", and parts that add up to it.
json AccountJson(const control::v1::TimeAccount& account) {
  const auto seconds = [](int64_t nanos) { return static_cast<double>(nanos) / 1e9; };
  return {{"wall", seconds(account.wall_nanos())},
          {"kept", seconds(account.kept_nanos())},
          {"queue", seconds(account.queue_nanos())},
          {"start", seconds(account.start_nanos())},
          {"load", seconds(account.load_nanos())},
          {"checkpoint", seconds(account.checkpoint_nanos())},
          {"detection", seconds(account.detection_nanos())},
          {"decision", seconds(account.decision_nanos())},
          {"recomputation", seconds(account.recomputation_nanos())},
          {"degraded", seconds(account.degraded_nanos())},
          {"evaluation", seconds(account.evaluation_nanos())}};
}

json SuspicionJson(const control::v1::Suspicion& suspicion) {
  json lines = json::array();
  for (int i = 0; i < std::min(kWarningsMax, suspicion.evidence_size()); ++i) {
    lines.push_back(Text(suspicion.evidence(i)));
  }
  return {{"attempt", suspicion.attempt()},         {"rank", suspicion.rank()},
          {"node", Text(suspicion.node_id())},      {"verdict", Text(suspicion.verdict())},
          {"evidence", std::move(lines)},           {"since", Seconds(suspicion.since())},
          {"began", Seconds(suspicion.began_at())}, {"action", Text(suspicion.action())}};
}

// What a machine reached in an exchange with another one or, in a round, with several at once.
json ExchangeJson(const control::v1::ExchangeResult* result) {
  if (result == nullptr) return nullptr;
  std::vector<std::string> with(result->node_ids().begin(), result->node_ids().end());
  if (with.empty()) with.push_back(result->node_id());
  const machine::ExchangeVerdict verdict = machine::Judge(*result);
  return {{"with", Text(base::Shortlist(with))},
          {"verdict", verdict == machine::ExchangeVerdict::kPassed   ? "passed"
                      : verdict == machine::ExchangeVerdict::kFailed ? "failed"
                                                                     : "unknown"},
          {"why", Text(result->failure() + result->note())},
          {"bytes_per_second", Number(result->bytes_per_second())},
          {"expected", Number(result->rate_min())},
          {"latency_seconds", Number(result->latency_seconds())},
          {"ended", Seconds(result->ended_at())}};
}

json MachineJson(const control::v1::NodeView& node) {
  const std::string pool =
      absl::AsciiStrToLower(Word(control::v1::Pool_Name(node.pool()), "POOL_"));
  return {{"node", Text(node.node_id())},
          {"machine", Text(node.machine_id())},
          {"pool", pool},
          {"alive", node.alive()},
          {"evicted", node.evicted()},
          {"why", Text(node.evicted_why() + node.quarantine_evidence())},
          {"draining", node.draining()},
          {"slots", node.num_slots()},
          {"used", node.num_slots_used()},
          {"jobs", node.num_jobs()},
          {"heartbeat_seconds", Number(node.heartbeat_age_seconds())},
          {"cores", Number(node.resources().cores())},
          {"memory_bytes", node.resources().memory_bytes()},
          {"exchanges", node.exchanges_size()},
          {"exchanges_with", Text(node.exchanges_with())},
          {"worst_exchange", ExchangeJson(machine::WorstExchange(node.exchanges()))},
          {"exchange_round",
           ExchangeJson(node.has_exchange_round() ? &node.exchange_round() : nullptr)}};
}

// By node: what the newest job that runs there suspects of it.
std::map<std::string, json> SuspectsByNode(absl::Span<const control::v1::Job> jobs) {
  std::map<std::string, json> suspects;
  for (const control::v1::Job& job : jobs) {
    if (job.has_ended_at() || !job.has_suspicion()) continue;
    suspects[job.suspicion().node_id()] = {{"job", Text(job.job_id())},
                                           {"rank", job.suspicion().rank()},
                                           {"verdict", Text(job.suspicion().verdict())},
                                           {"since", Seconds(job.suspicion().since())}};
  }
  return suspects;
}

}  // namespace

bool IsWell(const control::v1::NodeView& node) {
  return node.alive() && !node.evicted() && !node.draining() &&
         node.pool() != control::v1::POOL_QUARANTINED;
}

std::string StateWord(control::v1::JobState state) {
  return Word(control::v1::JobState_Name(state), "JOB_STATE_");
}

double MfuOf(const control::v1::Job& job) {
  return job.flops_ceiling() > 0 ? job.model_flops_per_second() / job.flops_ceiling() : 0;
}

json JobSummary(const control::v1::Job& job) {
  json summary = {{"id", Text(job.job_id())},
                  {"name", Text(job.spec().name())},
                  {"state", StateWord(job.state())},
                  {"reason", Text(job.reason())},
                  {"message", Text(job.message())},
                  {"attempt", job.attempt()},
                  {"restarts", job.restarts()},
                  {"step", job.last_step()},
                  {"steps", job.spec().train().steps()},
                  {"tokens_per_second", Number(job.tokens_per_second())},
                  {"mfu", Number(MfuOf(job))},
                  {"queue", job.queue_position()},
                  {"ranks", job.ranks_size()},
                  {"mesh_sizes", absl::StrReplaceAll(MeshOf(job).SizesText(), {{" x ", " × "}})},
                  {"submitted", Seconds(job.submitted_at())},
                  {"started", Seconds(job.started_at())},
                  {"ended", Seconds(job.ended_at())}};
  if (job.has_last_record()) {
    const telemetry::v1::StepRecord& record = job.last_record();
    summary["loss"] = Number(record.loss());
    summary["grad_norm"] = Number(record.grad_norm());
    summary["lr"] = Number(record.lr());
    summary["step_seconds"] = Number(record.seconds());
  }
  if (job.has_held_out()) summary["held_out_loss"] = Number(job.held_out().loss());
  return summary;
}

json JobDetails(const control::v1::Job& job, absl::Span<const ObservedFailure> failures) {
  json details = JobSummary(job);
  details["mesh"] = MeshJson(MeshOf(job));
  details["attempt_reason"] = Text(job.attempt_reason());
  details["flops_ceiling"] = Number(job.flops_ceiling());
  details["warnings"] = json::array();
  for (int i = 0; i < std::min(kWarningsMax, job.warnings_size()); ++i) {
    details["warnings"].push_back(Text(job.warnings(i)));
  }
  for (int i = 0; i < std::min(kWarningsMax, job.number_warnings_size()); ++i) {
    details["warnings"].push_back(Text(job.number_warnings(i).message()));
  }
  if (job.has_time_account()) details["time"] = AccountJson(job.time_account());
  if (job.has_last_hour()) details["last_hour"] = AccountJson(job.last_hour());
  if (job.has_suspicion()) details["suspicion"] = SuspicionJson(job.suspicion());
  if (job.has_storage_failure()) {
    details["storage_failure"] = {{"node", Text(job.storage_failure().node_id())},
                                  {"message", Text(job.storage_failure().message())},
                                  {"seconds", job.storage_failure().seconds()}};
  }
  if (job.has_last_checkpoint()) {
    details["checkpoint"] = {{"step", job.last_checkpoint().step()},
                             {"age_seconds", job.last_checkpoint().age_seconds()},
                             {"directory", Text(job.last_checkpoint().directory())}};
  }
  if (job.has_lowest_held_out()) {
    details["lowest_held_out"] = {{"step", job.lowest_held_out().step()},
                                  {"loss", Number(job.lowest_held_out().loss())}};
  }
  if (job.has_best_checkpoint()) {
    details["best_checkpoint"] = {{"step", job.best_checkpoint().step()},
                                  {"directory", Text(job.best_checkpoint().directory())}};
  }
  details["failures"] = json::array();
  for (const ObservedFailure& failure : failures) {
    json line = CulpritJson(failure.culprit);
    line["consequences"] = failure.num_consequences;
    line["noticed"] = failure.noticed_unix_seconds;
    line["last_step"] = failure.last_step;
    line["detection_seconds"] = failure.detection_seconds;
    line["recovery_seconds"] = failure.recovery_seconds;
    details["failures"].push_back(std::move(line));
  }
  return details;
}

json StepColumns(const control::v1::Job& job, absl::Span<const telemetry::v1::StepRecord> steps) {
  // The model's FLOPs for a token are those of the newest steps, which the driver computed.
  const double flops_per_token =
      job.tokens_per_second() > 0 ? job.model_flops_per_second() / job.tokens_per_second() : 0;
  const double mfu_per_token = job.flops_ceiling() > 0 ? flops_per_token / job.flops_ceiling() : 0;
  json columns = {
      {"step", json::array()}, {"loss", json::array()},    {"grad_norm", json::array()},
      {"lr", json::array()},   {"seconds", json::array()}, {"tokens_per_second", json::array()},
      {"mfu", json::array()},  {"attempt", json::array()}, {"held_out_loss", json::array()}};
  for (const telemetry::v1::StepRecord& step : steps) {
    const double rate =
        step.seconds() > 0 ? static_cast<double>(step.tokens()) / step.seconds() : 0;
    columns["step"].push_back(step.step());
    columns["loss"].push_back(Number(step.loss()));
    columns["grad_norm"].push_back(Number(step.grad_norm()));
    columns["lr"].push_back(Number(step.lr()));
    columns["seconds"].push_back(Number(step.seconds()));
    columns["tokens_per_second"].push_back(Number(rate));
    columns["mfu"].push_back(mfu_per_token > 0 ? Number(rate * mfu_per_token) : json(nullptr));
    columns["attempt"].push_back(step.attempt());
    columns["held_out_loss"].push_back(step.has_held_out_loss() ? Number(step.held_out_loss())
                                                                : json(nullptr));
  }
  return columns;
}

json MachinesJson(const control::v1::GetClusterResponse& cluster,
                  absl::Span<const control::v1::Job> jobs) {
  const std::map<std::string, json> suspects = SuspectsByNode(jobs);
  std::vector<const control::v1::NodeView*> nodes;
  for (const control::v1::NodeView& node : cluster.nodes()) nodes.push_back(&node);
  const auto urgency = [&](const control::v1::NodeView* node) {
    if (!IsWell(*node)) return 0;
    return suspects.count(node->node_id()) > 0 ? 1 : 2;
  };
  std::stable_sort(nodes.begin(), nodes.end(),
                   [&](const auto* a, const auto* b) { return urgency(a) < urgency(b); });
  json machines = json::array();
  size_t num_bytes = 0;
  for (const control::v1::NodeView* node : nodes) {
    json machine = MachineJson(*node);
    if (const auto found = suspects.find(node->node_id()); found != suspects.end()) {
      machine["suspect"] = found->second;
    }
    if (!AppendWithin(kListBytesMax, std::move(machine), &machines, &num_bytes)) break;
  }
  const size_t num_left_out = nodes.size() - machines.size();
  return {{"version", cluster.version()},
          {"total", cluster.nodes_size()},
          {"left_out", num_left_out},
          {"machines", std::move(machines)}};
}

bool AppendWithin(size_t bytes_max, json element, json* list, size_t* num_bytes) {
  const size_t size = element.dump(-1, ' ', false, json::error_handler_t::replace).size() + 1;
  if (*num_bytes + size > bytes_max) return false;
  *num_bytes += size;
  list->push_back(std::move(element));
  return true;
}

}  // namespace megascale::page
