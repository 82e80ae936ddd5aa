#include "controlplane/page/page.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "controlplane/page/evidence_json.h"
#include "controlplane/page/failure_history.h"
#include "controlplane/page/job_json.h"
#include "controlplane/page/job_traces.h"
#include "controlplane/page/mesh_json.h"
#include "controlplane/page/prometheus.h"
#include "controlplane/page/rank_json.h"
#include "controlplane/page/static_files.h"
#include "controlplane/page/trace_json.h"
#include "nlohmann/json.hpp"
#include "runtime/base/status.h"
#include "runtime/base/stop_signal.h"
#include "runtime/base/text/printable.h"
#include "runtime/job/evaluation.h"
#include "runtime/layout/groups.h"
#include "runtime/plan/mesh.h"

namespace megascale::page {
namespace {

using http::Request;
using http::Response;
using nlohmann::json;

// The jobs are read this often, or less often if reading takes long: at most a twentieth of the
// time.
constexpr absl::Duration kPollInterval = absl::Milliseconds(200);
constexpr int kPollShare = 20;
constexpr int64_t kTracedStepsMax = 50;
// An answer made of what agents keep is at most this old.
constexpr absl::Duration kEvidenceAgeMax = absl::Seconds(1);
constexpr size_t kEvidencesMax = 32;
constexpr int64_t kPointsMax = 4000;
// Evaluations that are read one by one for a curve.
constexpr int64_t kEvaluatedMax = 200;
constexpr size_t kJobsMax = 300;
constexpr size_t kLogBytesMax = size_t{64} << 10;
// A longer log is read only up to here: reading costs the agent and the network.
constexpr size_t kLogReadMax = size_t{32} << 20;

Response Json(const json& value) {
  return {.content_type = "application/json",
          .body = value.dump(-1, ' ', false, json::error_handler_t::replace)};
}

Response Error(const absl::Status& status) {
  Response response = Json({{"error", base::Printable(status.message(), 1000)},
                            {"code", absl::StatusCodeToString(status.code())}});
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
      response.status = 404;
      break;
    case absl::StatusCode::kInvalidArgument:
      response.status = 400;
      break;
    case absl::StatusCode::kFailedPrecondition:
      response.status = 409;
      break;
    default:
      response.status = 503;
  }
  return response;
}

Response AnswerOf(const absl::StatusOr<json>& value) {
  return value.ok() ? Json(*value) : Error(value.status());
}

const char* ContentType(absl::string_view name) {
  if (absl::EndsWith(name, ".html")) return "text/html; charset=utf-8";
  if (absl::EndsWith(name, ".js")) return "text/javascript; charset=utf-8";
  if (absl::EndsWith(name, ".css")) return "text/css; charset=utf-8";
  return "image/svg+xml";
}

absl::StatusOr<std::string> TextOf(const Request& request, const std::string& name) {
  const auto found = request.query.find(name);
  if (found == request.query.end() || found->second.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the parameter '", name, "' is missing"));
  }
  return found->second;
}

// Returns the number, or `unset` if the request does not have it.
absl::StatusOr<int64_t> NumberOf(const Request& request, const std::string& name, int64_t unset,
                                 int64_t max) {
  const auto found = request.query.find(name);
  if (found == request.query.end()) return unset;
  int64_t value = 0;
  if (!absl::SimpleAtoi(found->second, &value) || value < 0 || value > max) {
    return absl::InvalidArgumentError(
        absl::StrCat("the parameter '", name, "': expected a number from 0 to ", max));
  }
  return value;
}

// What one poll read.
struct Snapshot {
  std::vector<control::v1::Job> jobs;
  control::v1::GetClusterResponse cluster;
  absl::Time at;
  absl::Status status;  // of the poll: not OK if the driver did not answer
};

// An answer made of what an agent keeps, or why there is none.
struct KeptAnswer {
  absl::StatusOr<json> answer;
  absl::Duration at;
};

// The list of jobs, each time it has changed.
class JobEvents : public http::EventSource {
 public:
  explicit JobEvents(std::function<std::string()> read) : read_(std::move(read)) {}
  std::string Next() override {
    std::string text = read_();
    if (text == sent_) return "";
    sent_ = text;
    return absl::StrCat("data: ", sent_, "\n\n");
  }

 private:
  std::function<std::string()> read_;
  std::string sent_;
};

}  // namespace

struct Page::Impl {
  explicit Impl(const PageOptions& page_options) : options(page_options) {}

  PageOptions options;
  base::StopSignal stop;
  JobTraces traces{{.source = options.source, .clock = options.clock, .stop = &stop}};
  std::thread poller;

  std::mutex mutex;  // of the next two
  std::shared_ptr<const Snapshot> snapshot = std::make_shared<Snapshot>();
  FailureHistory failures;

  std::mutex evidence_mutex;  // held while an agent is asked: one reader at a time
  std::map<std::string, KeptAnswer> evidences;

  std::shared_ptr<const Snapshot> Newest() {
    const std::lock_guard<std::mutex> lock(mutex);
    return snapshot;
  }
  std::vector<ObservedFailure> FailuresOf(const std::string& job_id) {
    const std::lock_guard<std::mutex> lock(mutex);
    return failures.Of(job_id);
  }
  absl::StatusOr<control::v1::Job> JobOf(const Request& request);
  json JobsJson();
  absl::StatusOr<json> Details(const Request& request);
  absl::StatusOr<json> Steps(const Request& request);
  absl::StatusOr<json> HeatMap(const Request& request);
  absl::StatusOr<json> Timeline(const Request& request);
  absl::StatusOr<json> Rank(const Request& request);
  absl::StatusOr<json> EvidenceOf(const control::v1::Job& job, int rank,
                                  telemetry::v1::EvidenceKind kind);
  absl::StatusOr<json> Exchanges(const Request& request);
  absl::StatusOr<json> MachineMetrics(const Request& request);
  absl::StatusOr<json> Log(const Request& request);
  json Machines();
  std::string Metrics();
};

json Page::Impl::JobsJson() {
  const auto now = Newest();
  json jobs = json::array();
  size_t num_bytes = 0;
  for (auto job = now->jobs.rbegin(); job != now->jobs.rend() && jobs.size() < kJobsMax; ++job) {
    if (!AppendWithin(kListBytesMax, JobSummary(*job), &jobs, &num_bytes)) break;
  }
  return {{"version", now->cluster.version()},
          {"error", base::Printable(now->status.message(), 500)},
          {"total", now->jobs.size()},
          {"jobs", std::move(jobs)}};
}

absl::StatusOr<control::v1::Job> Page::Impl::JobOf(const Request& request) {
  ASSIGN_OR_RETURN(const std::string id, TextOf(request, "job"));
  const auto now = Newest();
  for (const control::v1::Job& job : now->jobs) {
    if (job.job_id() == id) return job;
  }
  return absl::NotFoundError(
      absl::StrCat("there is no job ", base::Printable(id, 100), "; /api/jobs lists them"));
}

absl::StatusOr<json> Page::Impl::Details(const Request& request) {
  ASSIGN_OR_RETURN(control::v1::Job job, JobOf(request));
  // The list of jobs has no figures of a job whose loss log is closed.
  if (job.has_ended_at() && !job.has_last_record()) {
    ASSIGN_OR_RETURN(job, options.source->GetJob(job.job_id()));
  }
  return JobDetails(job, FailuresOf(job.job_id()));
}

// Adds steps with an evaluation that a sample of a job's steps lacks, so that its curve is whole.
absl::Status AddEvaluated(PageSource* source, const control::v1::Job& job,
                          std::vector<telemetry::v1::StepRecord>* steps) {
  const int64_t interval = job::EvaluationInterval(job.spec());
  if (interval == 0 || steps->empty()) return absl::OkStatus();
  const int64_t last = steps->back().step();
  const int64_t stride = interval * std::max<int64_t>(1, last / interval / kEvaluatedMax);
  const auto is_before = [](const auto& a, const auto& b) { return a.step() < b.step(); };
  std::vector<telemetry::v1::StepRecord> missing;
  for (int64_t step = stride; step < last; step += stride) {
    telemetry::v1::StepRecord wanted;
    wanted.set_step(step);
    if (std::binary_search(steps->begin(), steps->end(), wanted, is_before)) continue;
    ASSIGN_OR_RETURN(const auto found, source->Steps(job, step, 1));
    if (!found.empty() && found[0].step() == step) missing.push_back(found[0]);
  }
  steps->insert(steps->end(), missing.begin(), missing.end());
  std::stable_sort(steps->begin(), steps->end(), is_before);
  return absl::OkStatus();
}

// With `after`: the steps after it; otherwise some steps of the whole log.
absl::StatusOr<json> Page::Impl::Steps(const Request& request) {
  ASSIGN_OR_RETURN(const control::v1::Job job, JobOf(request));
  ASSIGN_OR_RETURN(const int64_t points, NumberOf(request, "points", 1000, kPointsMax));
  ASSIGN_OR_RETURN(const int64_t after, NumberOf(request, "after", 0, int64_t{1} << 62));
  auto steps = after > 0 ? options.source->Steps(job, after + 1, points)
                         : options.source->SampleSteps(job, points);
  if (!steps.ok()) return steps.status();
  if (after == 0) RETURN_IF_ERROR(AddEvaluated(options.source, job, &*steps));
  return StepColumns(job, *steps);
}

absl::StatusOr<json> Page::Impl::HeatMap(const Request& request) {
  ASSIGN_OR_RETURN(const control::v1::Job job, JobOf(request));
  ASSIGN_OR_RETURN(const int64_t num_steps, NumberOf(request, "steps", 5, kTracedStepsMax));
  ASSIGN_OR_RETURN(const auto traced, traces.ForHeatMap(job, num_steps));
  return HeatMapJson(traced->spans, traced->steps, std::max(int64_t{1}, num_steps));
}

absl::StatusOr<json> Page::Impl::Timeline(const Request& request) {
  ASSIGN_OR_RETURN(const control::v1::Job job, JobOf(request));
  ASSIGN_OR_RETURN(const plan::Mesh mesh, layout::MeshOf(job.spec()));
  ASSIGN_OR_RETURN(const int64_t num_steps, NumberOf(request, "steps", 5, kTracedStepsMax));
  ASSIGN_OR_RETURN(const int64_t rank, NumberOf(request, "rank", 0, mesh.world_size() - 1));
  const auto word = request.query.find("axis");
  ASSIGN_OR_RETURN(const plan::Axis axis, word == request.query.end()
                                              ? plan::Axis::kPipeline
                                              : AxisFromWord(mesh, word->second));
  ASSIGN_OR_RETURN(const auto traced,
                   traces.ForTimeline(job, num_steps, axis, static_cast<int>(rank)));
  // The newest whole step; in a job that stands still, the one in which it does.
  const timeline::TimedStep* shown = &traced->steps.back();
  for (const timeline::TimedStep& step : traced->steps) {
    if (step.whole) shown = &step;
  }
  return TimelineJson(traced->spans, *shown, axis, static_cast<int>(rank));
}

absl::StatusOr<json> Page::Impl::Rank(const Request& request) {
  ASSIGN_OR_RETURN(const control::v1::Job job, JobOf(request));
  ASSIGN_OR_RETURN(const int64_t rank, NumberOf(request, "rank", 0, 1 << 30));
  return RankJson(job, static_cast<int>(rank), FailuresOf(job.job_id()));
}

absl::StatusOr<json> Page::Impl::EvidenceOf(const control::v1::Job& job, int rank,
                                            telemetry::v1::EvidenceKind kind) {
  const bool is_metrics = kind == telemetry::v1::EVIDENCE_KIND_METRICS;
  // The ranks of a machine have the same metrics.
  const std::string key = is_metrics
                              ? absl::StrCat("machine ", job.ranks(rank).node_id())
                              : absl::StrCat("rank ", job.job_id(), " ", job.attempt(), " ", rank);
  const std::lock_guard<std::mutex> lock(evidence_mutex);
  const absl::Duration now = options.clock->Monotonic();
  const auto found = evidences.find(key);
  if (found != evidences.end() && now - found->second.at < kEvidenceAgeMax) {
    return found->second.answer;
  }
  if (found == evidences.end() && evidences.size() >= kEvidencesMax) evidences.clear();
  const auto evidence = options.source->Evidence(job.job_id(), rank, kind);
  absl::StatusOr<json> answer = absl::UnknownError("");
  if (!evidence.ok()) {
    answer = evidence.status();
  } else {
    answer = is_metrics ? MachineMetricsJson(*evidence) : ExchangesJson(*evidence);
  }
  evidences.insert_or_assign(key, KeptAnswer{answer, options.clock->Monotonic()});
  return answer;
}

absl::StatusOr<json> Page::Impl::Exchanges(const Request& request) {
  ASSIGN_OR_RETURN(const control::v1::Job job, JobOf(request));
  ASSIGN_OR_RETURN(const int64_t rank, NumberOf(request, "rank", 0, 1 << 30));
  if (rank >= job.ranks_size()) {
    return absl::NotFoundError(absl::StrCat("job ", job.job_id(), ": has no rank ", rank));
  }
  return EvidenceOf(job, static_cast<int>(rank), telemetry::v1::EVIDENCE_KIND_EXCHANGES);
}

// A machine is asked in the name of a job that has ranks there.
absl::StatusOr<json> Page::Impl::MachineMetrics(const Request& request) {
  ASSIGN_OR_RETURN(const std::string node, TextOf(request, "node"));
  const auto now = Newest();
  for (const control::v1::Job& job : now->jobs) {
    if (job.has_ended_at()) continue;
    for (int rank = 0; rank < job.ranks_size(); ++rank) {
      if (job.ranks(rank).node_id() == node) {
        return EvidenceOf(job, rank, telemetry::v1::EVIDENCE_KIND_METRICS);
      }
    }
  }
  return absl::NotFoundError(absl::StrCat("no job has ranks on ", base::Printable(node, 100),
                                          "; metrics can be read of machines that run a job"));
}

// The last lines that a rank wrote.
absl::StatusOr<json> Page::Impl::Log(const Request& request) {
  ASSIGN_OR_RETURN(const control::v1::Job job, JobOf(request));
  ASSIGN_OR_RETURN(const int64_t rank, NumberOf(request, "rank", 0, 1 << 30));
  std::string text;
  size_t read = 0;
  bool cut = false;
  RETURN_IF_ERROR(options.source->Logs(
      job.job_id(), static_cast<int>(rank), [&](const control::v1::StreamLogsResponse& piece) {
        read += piece.data().size();
        text += piece.data();
        if (text.size() > kLogBytesMax) {
          text.erase(0, text.size() - kLogBytesMax);
          cut = true;
        }
        return read < kLogReadMax && !stop.WaitFor(absl::ZeroDuration());
      }));
  json lines = json::array();
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.push_back(base::Printable(line, 1000));
  }
  return json{{"rank", rank},
              {"lines", std::move(lines)},
              {"cut", cut},
              {"incomplete", read >= kLogReadMax}};
}

json Page::Impl::Machines() {
  const auto now = Newest();
  return MachinesJson(now->cluster, now->jobs);
}

std::string Page::Impl::Metrics() {
  ExportedJobs exported;
  const auto now = Newest();
  exported.jobs = now->jobs;
  exported.cluster = now->cluster;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    exported.failures = failures;
  }
  return PrometheusText(exported);
}

Page::Page(const PageOptions& options) : impl_(std::make_unique<Impl>(options)) {}

void Page::Stop() { impl_->stop.Notify(); }

Page::~Page() {
  Stop();
  if (impl_->poller.joinable()) impl_->poller.join();
}

void Page::Poll() {
  auto read = std::make_shared<Snapshot>();
  auto jobs = impl_->options.source->Jobs();
  auto cluster = impl_->options.source->Cluster();
  read->at = impl_->options.clock->Wall();
  read->status = !jobs.ok() ? jobs.status() : cluster.status();
  if (jobs.ok()) impl_->traces.Keep(*jobs);
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!read->status.ok()) {
    // What was known stays on the page, with the error.
    read->jobs = impl_->snapshot->jobs;
    read->cluster = impl_->snapshot->cluster;
  } else {
    read->jobs = *std::move(jobs);
    read->cluster = *std::move(cluster);
    for (const control::v1::Job& job : read->jobs) {
      impl_->failures.Observe(job, impl_->options.clock->Monotonic(), read->at);
    }
    impl_->failures.Keep(read->jobs);
  }
  impl_->snapshot = std::move(read);
}

void Page::Start() {
  impl_->poller = std::thread([this] {
    absl::Duration pause;
    do {
      const absl::Duration begin = impl_->options.clock->Monotonic();
      Poll();
      pause = std::max(kPollInterval, (impl_->options.clock->Monotonic() - begin) * kPollShare);
    } while (!impl_->stop.WaitFor(pause));
  });
}

Response Page::Answer(const Request& request) {
  if (request.path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = impl_->Metrics()};
  }
  if (request.path == "/api/jobs") return Json(impl_->JobsJson());
  if (request.path == "/api/machines") return Json(impl_->Machines());
  if (request.path == "/api/job") return AnswerOf(impl_->Details(request));
  if (request.path == "/api/steps") return AnswerOf(impl_->Steps(request));
  if (request.path == "/api/heat-map") return AnswerOf(impl_->HeatMap(request));
  if (request.path == "/api/timeline") return AnswerOf(impl_->Timeline(request));
  if (request.path == "/api/rank") return AnswerOf(impl_->Rank(request));
  if (request.path == "/api/exchanges") return AnswerOf(impl_->Exchanges(request));
  if (request.path == "/api/machine-metrics") return AnswerOf(impl_->MachineMetrics(request));
  if (request.path == "/api/log") return AnswerOf(impl_->Log(request));
  if (request.path == "/api/ranks") {
    const auto job = impl_->JobOf(request);
    return job.ok() ? AnswerOf(RanksJson(*job)) : Error(job.status());
  }
  const std::string name = request.path == "/" ? "index.html" : request.path.substr(1);
  for (const StaticFile& file : StaticFiles()) {
    if (name == file.name) {
      return {.content_type = ContentType(name), .body = std::string(file.data, file.size_bytes)};
    }
  }
  return {.status = 404, .body = "there is no such page\n"};
}

std::unique_ptr<http::EventSource> Page::Events(const Request& request) {
  if (request.path != "/events") return nullptr;
  return std::make_unique<JobEvents>([impl = impl_.get()] {
    return impl->JobsJson().dump(-1, ' ', false, json::error_handler_t::replace);
  });
}

}  // namespace megascale::page
