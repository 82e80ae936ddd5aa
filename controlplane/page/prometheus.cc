#include "controlplane/page/prometheus.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"
#include "controlplane/page/job_json.h"
#include "runtime/base/text/printable.h"

namespace megascale::page {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Makes text of other machines and of users printable. The serializer escapes the characters that
// mean something in its format.
std::string Label(const std::string& text) { return base::Printable(text, 200); }

// Adds samples to one metric. Its name, help and type are written even if it has none.
class Metric {
 public:
  Metric(std::vector<MetricFamily>* families, const char* name, MetricType type, const char* help)
      : type_(type) {
    families->push_back({.name = name, .help = help, .type = type, .metric = {}});
    family_ = &families->back();
  }
  void Add(std::vector<ClientMetric::Label> labels, double value) {
    ClientMetric sample;
    sample.label = std::move(labels);
    (type_ == MetricType::Counter ? sample.counter.value : sample.gauge.value) = value;
    family_->metric.push_back(std::move(sample));
  }

 private:
  MetricFamily* family_;  // valid until the next Metric
  MetricType type_;
};

ClientMetric::Label JobLabel(const control::v1::Job& job) {
  return {"job_id", Label(job.job_id())};
}
ClientMetric::Label NodeLabel(const control::v1::NodeView& node) {
  return {"node_id", Label(node.node_id())};
}

// A measurement that every job has, or only some.
struct JobGauge {
  const char* name;
  MetricType type;
  const char* help;
  std::function<bool(const control::v1::Job&)> has;
  std::function<double(const control::v1::Job&)> value;
};

bool Always(const control::v1::Job&) { return true; }
bool HasRecord(const control::v1::Job& job) { return job.has_last_record(); }
bool HasHeldOut(const control::v1::Job& job) { return job.has_held_out(); }
bool HasLowest(const control::v1::Job& job) { return job.has_lowest_held_out(); }
bool HasCheckpoint(const control::v1::Job& job) { return job.has_last_checkpoint(); }
bool Trains(const control::v1::Job& job) { return job.state() == control::v1::JOB_STATE_RUNNING; }

const std::vector<JobGauge>& JobGauges() {
  static const auto* gauges = new std::vector<JobGauge>{
      {"megascale_job_step", MetricType::Gauge, "Newest completed step.", Always,
       [](const auto& job) { return static_cast<double>(job.last_step()); }},
      {"megascale_job_target_steps", MetricType::Gauge, "Steps after which the job is complete.",
       Always, [](const auto& job) { return static_cast<double>(job.spec().train().steps()); }},
      {"megascale_job_attempt", MetricType::Gauge, "Present attempt; 0 before the first one.",
       Always, [](const auto& job) { return static_cast<double>(job.attempt()); }},
      {"megascale_job_restarts_total", MetricType::Counter, "Attempts after the first one.", Always,
       [](const auto& job) { return static_cast<double>(job.restarts()); }},
      {"megascale_job_ranks", MetricType::Gauge, "Ranks that are placed.", Always,
       [](const auto& job) { return static_cast<double>(job.ranks_size()); }},
      {"megascale_job_loss", MetricType::Gauge, "Mean loss of the newest step, in nats per token.",
       HasRecord, [](const auto& job) { return job.last_record().loss(); }},
      {"megascale_job_held_out_loss", MetricType::Gauge,
       "Mean loss on held-out text in the newest evaluation, in nats per token.", HasHeldOut,
       [](const auto& job) { return job.held_out().loss(); }},
      {"megascale_job_held_out_loss_lowest", MetricType::Gauge,
       "Lowest loss on held-out text of all evaluations, in nats per token.", HasLowest,
       [](const auto& job) { return job.lowest_held_out().loss(); }},
      {"megascale_job_gradient_norm", MetricType::Gauge,
       "Gradient norm of the newest step, before clipping.", HasRecord,
       [](const auto& job) { return job.last_record().grad_norm(); }},
      {"megascale_job_learning_rate", MetricType::Gauge, "Learning rate of the newest step.",
       HasRecord, [](const auto& job) { return job.last_record().lr(); }},
      {"megascale_job_step_duration_seconds", MetricType::Gauge, "Duration of the newest step.",
       HasRecord, [](const auto& job) { return job.last_record().seconds(); }},
      {"megascale_job_tokens_per_second", MetricType::Gauge,
       "Tokens per second over the newest steps.", Trains,
       [](const auto& job) { return job.tokens_per_second(); }},
      {"megascale_job_model_flops_per_second", MetricType::Gauge,
       "Model FLOP per second over the newest steps; recomputation does not count.", Trains,
       [](const auto& job) { return job.model_flops_per_second(); }},
      {"megascale_job_mfu_ratio", MetricType::Gauge,
       "Model FLOPs utilization of the job's machines, 0 to 1.",
       [](const auto& job) { return Trains(job) && job.flops_ceiling() > 0; }, MfuOf},
      {"megascale_job_checkpoint_step", MetricType::Gauge,
       "Step of the newest committed checkpoint.", HasCheckpoint,
       [](const auto& job) { return static_cast<double>(job.last_checkpoint().step()); }},
      {"megascale_job_checkpoint_age_seconds", MetricType::Gauge,
       "Time since the newest checkpoint was committed.", HasCheckpoint,
       [](const auto& job) { return job.last_checkpoint().age_seconds(); }},
  };
  return *gauges;
}

// Jobs that have not ended come first, then the newest.
std::vector<const control::v1::Job*> ChooseJobs(const std::vector<control::v1::Job>& jobs,
                                                size_t most) {
  std::vector<const control::v1::Job*> chosen;
  for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) chosen.push_back(&*job);
  std::stable_partition(chosen.begin(), chosen.end(),
                        [](const control::v1::Job* job) { return !job->has_ended_at(); });
  chosen.resize(std::min(chosen.size(), most));
  return chosen;
}

// Machines that are not well come first, in the order of the list.
std::vector<const control::v1::NodeView*> ChooseNodes(
    const control::v1::GetClusterResponse& cluster, size_t most) {
  std::vector<const control::v1::NodeView*> chosen;
  for (const control::v1::NodeView& node : cluster.nodes()) chosen.push_back(&node);
  std::stable_partition(chosen.begin(), chosen.end(),
                        [](const control::v1::NodeView* node) { return !IsWell(*node); });
  chosen.resize(std::min(chosen.size(), most));
  return chosen;
}

void AddStates(const std::vector<const control::v1::Job*>& jobs, std::vector<MetricFamily>* out) {
  Metric metric(out, "megascale_job_state", MetricType::Gauge,
                "1 for the state that the job is in, 0 for the others.");
  for (const control::v1::Job* job : jobs) {
    for (int state = control::v1::JobState_MIN + 1; state <= control::v1::JobState_MAX; ++state) {
      const auto value = static_cast<control::v1::JobState>(state);
      metric.Add({JobLabel(*job), {"state", absl::AsciiStrToLower(StateWord(value))}},
                 job->state() == value ? 1 : 0);
    }
  }
}

void AddFailures(const std::vector<const control::v1::Job*>& jobs, const FailureHistory& failures,
                 std::vector<MetricFamily>* out) {
  {
    Metric metric(out, "megascale_job_failures_total", MetricType::Counter,
                  "Failed attempts since the driver started, by the class of the first cause.");
    for (const control::v1::Job* job : jobs) {
      for (const auto& [failure_class, count] : failures.CountsOf(job->job_id())) {
        const std::string& name = telemetry::v1::FailureClass_Name(
            static_cast<telemetry::v1::FailureClass>(failure_class));
        const absl::string_view word = absl::StripPrefix(name, "FAILURE_CLASS_");
        metric.Add({JobLabel(*job), {"failure_class", absl::AsciiStrToLower(word)}},
                   static_cast<double>(count));
      }
    }
  }
  Metric metric(out, "megascale_job_recovery_duration_seconds", MetricType::Gauge,
                "From the newest failure to the next attempt's first completed step.");
  for (const control::v1::Job* job : jobs) {
    const std::vector<ObservedFailure> seen = failures.Of(job->job_id());
    if (seen.empty() || seen.back().recovery_seconds < 0) continue;
    metric.Add({JobLabel(*job)}, seen.back().recovery_seconds);
  }
}

void AddNodes(const std::vector<const control::v1::NodeView*>& nodes,
              std::vector<MetricFamily>* out) {
  const auto add = [&](const char* name, const char* help, const auto& value) {
    Metric metric(out, name, MetricType::Gauge, help);
    for (const control::v1::NodeView* node : nodes) metric.Add({NodeLabel(*node)}, value(*node));
  };
  add("megascale_node_up", "1 while the machine's agent reports.",
      [](const auto& node) { return node.alive() ? 1.0 : 0.0; });
  add("megascale_node_slots", "Ranks that the machine may run.",
      [](const auto& node) { return static_cast<double>(node.num_slots()); });
  add("megascale_node_slots_used", "Ranks that are placed on the machine.",
      [](const auto& node) { return static_cast<double>(node.num_slots_used()); });
  add("megascale_node_heartbeat_age_seconds", "Time since the agent's newest report.",
      [](const auto& node) { return node.heartbeat_age_seconds(); });
  add("megascale_node_evicted", "1 while the machine is evicted.",
      [](const auto& node) { return node.evicted() ? 1.0 : 0.0; });
  Metric metric(out, "megascale_node_pool", MetricType::Gauge,
                "1 for the pool that the machine is in.");
  for (const control::v1::NodeView* node : nodes) {
    const std::string& pool = control::v1::Pool_Name(node->pool());
    const absl::string_view word = absl::StripPrefix(pool, "POOL_");
    metric.Add({NodeLabel(*node), {"pool", absl::AsciiStrToLower(word)}}, 1);
  }
}

void AddCount(const char* name, const char* help, size_t count, std::vector<MetricFamily>* out) {
  Metric(out, name, MetricType::Gauge, help).Add({}, static_cast<double>(count));
}

// The text with at most so many jobs and machines.
std::string TextOf(const ExportedJobs& exported, size_t jobs_max, size_t nodes_max) {
  const auto jobs = ChooseJobs(exported.jobs, jobs_max);
  const auto nodes = ChooseNodes(exported.cluster, nodes_max);
  std::vector<MetricFamily> families;
  Metric(&families, "megascale_build_info", MetricType::Gauge, "The driver's version; always 1.")
      .Add({{"version", Label(exported.cluster.version())}}, 1);
  AddCount("megascale_jobs", "Jobs that the driver lists.", exported.jobs.size(), &families);
  AddCount("megascale_jobs_left_out", "Jobs without metrics: there are too many.",
           exported.jobs.size() - jobs.size(), &families);
  AddCount("megascale_nodes_left_out", "Machines without metrics: there are too many.",
           static_cast<size_t>(exported.cluster.nodes_size()) - nodes.size(), &families);
  AddStates(jobs, &families);
  for (const JobGauge& gauge : JobGauges()) {
    Metric metric(&families, gauge.name, gauge.type, gauge.help);
    for (const control::v1::Job* job : jobs) {
      if (gauge.has(*job)) metric.Add({JobLabel(*job)}, gauge.value(*job));
    }
  }
  AddFailures(jobs, exported.failures, &families);
  AddNodes(nodes, &families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace

std::string PrometheusText(const ExportedJobs& exported) {
  size_t jobs_max = std::min(exported.jobs.size(), kExportedJobsMax);
  auto nodes_max = static_cast<size_t>(exported.cluster.nodes_size());
  std::string text = TextOf(exported, jobs_max, nodes_max);
  if (text.size() <= kExportedBytesMax) return text;
  // The share of `count` whose text, beyond `rest` bytes that stay, has room; the last few percent
  // are kept free, because the texts of jobs and machines differ in length.
  const auto reduced = [&](size_t count, size_t rest) {
    if (rest >= kExportedBytesMax) return size_t{0};
    return static_cast<size_t>(0.95 * static_cast<double>(count) *
                               static_cast<double>(kExportedBytesMax - rest) /
                               static_cast<double>(text.size() - rest));
  };
  const size_t without_nodes = TextOf(exported, jobs_max, 0).size();
  while (text.size() > kExportedBytesMax && nodes_max > 0) {
    nodes_max = reduced(nodes_max, without_nodes);
    text = TextOf(exported, jobs_max, nodes_max);
  }
  while (text.size() > kExportedBytesMax && jobs_max > 0) {
    jobs_max = reduced(jobs_max, 0);
    text = TextOf(exported, jobs_max, nodes_max);
  }
  return text;
}

}  // namespace megascale::page
