#include "controlplane/page/prometheus.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "controlplane/page/job_json.h"
#include "runtime/base/text/printable.h"

namespace megascale::page {
namespace {

namespace control = megascale::control::v1;

std::string Value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

// Writes one metric: its help, its type, and a line for each sample.
class Metric {
 public:
  Metric(std::string* out, std::string name, const char* type, const char* help)
      : out_(*out), name_(std::move(name)) {
    absl::StrAppend(&out_, "# HELP ", name_, " ", help, "\n# TYPE ", name_, " ", type, "\n");
  }
  void Add(const std::string& labels, double value) {
    absl::StrAppend(&out_, name_, labels.empty() ? "" : absl::StrCat("{", labels, "}"), " ",
                    Value(value), "\n");
  }

 private:
  std::string& out_;
  std::string name_;
};

std::string JobLabel(const control::Job& job) {
  return absl::StrCat("job_id=", PrometheusLabel(job.job_id()));
}

// A measurement that every job has, or only some.
struct JobGauge {
  const char* name;
  const char* type;
  const char* help;
  std::function<bool(const control::Job&)> has;
  std::function<double(const control::Job&)> value;
};

bool Always(const control::Job&) { return true; }
bool HasRecord(const control::Job& job) { return job.has_last_record(); }
bool HasCheckpoint(const control::Job& job) { return job.has_last_checkpoint(); }
bool Trains(const control::Job& job) { return job.state() == control::JOB_STATE_RUNNING; }

const std::vector<JobGauge>& JobGauges() {
  static const auto* gauges = new std::vector<JobGauge>{
      {"megascale_job_step", "gauge", "Newest completed step.", Always,
       [](const auto& job) { return static_cast<double>(job.last_step()); }},
      {"megascale_job_target_steps", "gauge", "Steps after which the job is complete.", Always,
       [](const auto& job) { return static_cast<double>(job.spec().train().steps()); }},
      {"megascale_job_attempt", "gauge", "Present attempt; 0 before the first one.", Always,
       [](const auto& job) { return static_cast<double>(job.attempt()); }},
      {"megascale_job_restarts_total", "counter", "Attempts after the first one.", Always,
       [](const auto& job) { return static_cast<double>(job.restarts()); }},
      {"megascale_job_ranks", "gauge", "Ranks that are placed.", Always,
       [](const auto& job) { return static_cast<double>(job.ranks_size()); }},
      {"megascale_job_loss", "gauge", "Mean loss of the newest step, in nats per token.", HasRecord,
       [](const auto& job) { return job.last_record().loss(); }},
      {"megascale_job_gradient_norm", "gauge", "Gradient norm of the newest step, before clipping.",
       HasRecord, [](const auto& job) { return job.last_record().grad_norm(); }},
      {"megascale_job_learning_rate", "gauge", "Learning rate of the newest step.", HasRecord,
       [](const auto& job) { return job.last_record().lr(); }},
      {"megascale_job_step_duration_seconds", "gauge", "Duration of the newest step.", HasRecord,
       [](const auto& job) { return job.last_record().seconds(); }},
      {"megascale_job_tokens_per_second", "gauge", "Tokens per second over the newest steps.",
       Trains, [](const auto& job) { return job.tokens_per_second(); }},
      {"megascale_job_model_flops_per_second", "gauge",
       "Model FLOP per second over the newest steps; recomputation does not count.", Trains,
       [](const auto& job) { return job.model_flops_per_second(); }},
      {"megascale_job_mfu_ratio", "gauge", "Model FLOPs utilization of the job's machines, 0 to 1.",
       [](const auto& job) { return Trains(job) && job.flops_ceiling() > 0; }, MfuOf},
      {"megascale_job_checkpoint_step", "gauge", "Step of the newest committed checkpoint.",
       HasCheckpoint,
       [](const auto& job) { return static_cast<double>(job.last_checkpoint().step()); }},
      {"megascale_job_checkpoint_age_seconds", "gauge",
       "Time since the newest checkpoint was committed.", HasCheckpoint,
       [](const auto& job) { return job.last_checkpoint().age_seconds(); }},
  };
  return *gauges;
}

std::vector<const control::Job*> ChooseJobs(const std::vector<control::Job>& jobs) {
  std::vector<const control::Job*> chosen;
  for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) chosen.push_back(&*job);
  std::stable_partition(chosen.begin(), chosen.end(),
                        [](const control::Job* job) { return !job->has_ended_at(); });
  chosen.resize(std::min(chosen.size(), kExportedJobsMax));
  return chosen;
}

void AddStates(const std::vector<const control::Job*>& jobs, std::string* out) {
  Metric metric(out, "megascale_job_state", "gauge",
                "1 for the state that the job is in, 0 for the others.");
  for (const control::Job* job : jobs) {
    for (int state = control::JobState_MIN + 1; state <= control::JobState_MAX; ++state) {
      const auto value = static_cast<control::JobState>(state);
      const std::string word = absl::AsciiStrToLower(StateWord(value));
      metric.Add(absl::StrCat(JobLabel(*job), ",state=", PrometheusLabel(word)),
                 job->state() == value ? 1 : 0);
    }
  }
}

void AddFailures(const std::vector<const control::Job*>& jobs, const FailureHistory& failures,
                 std::string* out) {
  {
    Metric metric(out, "megascale_job_failures_total", "counter",
                  "Failed attempts since the driver started, by the class of the first cause.");
    for (const control::Job* job : jobs) {
      for (const auto& [failure_class, count] : failures.CountsOf(job->job_id())) {
        const std::string& name = telemetry::v1::FailureClass_Name(
            static_cast<telemetry::v1::FailureClass>(failure_class));
        metric.Add(
            absl::StrCat(
                JobLabel(*job), ",failure_class=",
                PrometheusLabel(absl::AsciiStrToLower(absl::StripPrefix(name, "FAILURE_CLASS_")))),
            static_cast<double>(count));
      }
    }
  }
  Metric metric(out, "megascale_job_recovery_duration_seconds", "gauge",
                "From the newest failure to the next attempt's first completed step.");
  for (const control::Job* job : jobs) {
    const std::vector<ObservedFailure> seen = failures.Of(job->job_id());
    if (seen.empty() || seen.back().recovery_seconds < 0) continue;
    metric.Add(JobLabel(*job), seen.back().recovery_seconds);
  }
}

void AddNodes(const control::GetClusterResponse& cluster, std::string* out) {
  const auto add = [&](const char* name, const char* help, const auto& value) {
    Metric metric(out, name, "gauge", help);
    for (const control::NodeView& node : cluster.nodes()) {
      metric.Add(absl::StrCat("node_id=", PrometheusLabel(node.node_id())), value(node));
    }
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
  Metric metric(out, "megascale_node_pool", "gauge", "1 for the pool that the machine is in.");
  for (const control::NodeView& node : cluster.nodes()) {
    const std::string& pool = control::Pool_Name(node.pool());
    metric.Add(
        absl::StrCat("node_id=", PrometheusLabel(node.node_id()), ",pool=",
                     PrometheusLabel(absl::AsciiStrToLower(absl::StripPrefix(pool, "POOL_")))),
        1);
  }
}

}  // namespace

std::string PrometheusLabel(const std::string& value) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(base::Printable(value, 200), {{"\\", "\\\\"}, {"\"", "\\\""}}),
      "\"");
}

std::string PrometheusText(const ExportedJobs& exported) {
  std::string out;
  Metric(&out, "megascale_build_info", "gauge", "The driver's version; always 1.")
      .Add(absl::StrCat("version=", PrometheusLabel(exported.cluster.version())), 1);
  const std::vector<const control::Job*> jobs = ChooseJobs(exported.jobs);
  Metric(&out, "megascale_jobs", "gauge", "Jobs that the driver lists.")
      .Add("", static_cast<double>(exported.jobs.size()));
  Metric(&out, "megascale_jobs_left_out", "gauge", "Jobs without metrics: there are too many.")
      .Add("", static_cast<double>(exported.jobs.size() - jobs.size()));
  AddStates(jobs, &out);
  for (const JobGauge& gauge : JobGauges()) {
    Metric metric(&out, gauge.name, gauge.type, gauge.help);
    for (const control::Job* job : jobs) {
      if (gauge.has(*job)) metric.Add(JobLabel(*job), gauge.value(*job));
    }
  }
  AddFailures(jobs, exported.failures, &out);
  AddNodes(exported.cluster, &out);
  return out;
}

}  // namespace megascale::page
