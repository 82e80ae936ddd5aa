#include "controlplane/driver/service/job_service.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <grpcpp/grpcpp.h>
#include <sys/random.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controlplane/driver/listen/bounded_requests.h"
#include "controlplane/driver/listen/message_budget.h"
#include "controlplane/driver/listen/open_streams.h"
#include "controlplane/driver/relay/evidence_stream.h"
#include "controlplane/driver/relay/last_evidence.h"
#include "controlplane/driver/relay/log_stream.h"
#include "controlplane/driver/relay/span_stream.h"
#include "controlplane/driver/relay/stage_times.h"
#include "controlplane/driver/service/agent_streams.h"
#include "controlplane/driver/service/driver_loop.h"
#include "controlplane/driver/service/grpc_status.h"
#include "controlplane/driver/service/relay_ports.h"
#include "controlplane/driver/service/watched_jobs.h"
#include "controlplane/driver/shell/pages.h"
#include "controlplane/driver/storage/loss_history.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/job/job_spec.h"
#include "runtime/job/names.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

constexpr absl::Duration kCancelCheckInterval = absl::Milliseconds(250);
constexpr absl::Duration kFetchTimeout = absl::Seconds(5);
// A diagnosis must not wait for the machine that is its subject.
constexpr absl::Duration kDiagnoseFetchTimeout = absl::Seconds(2);
constexpr absl::Duration kMeasureFetchTimeout = absl::Milliseconds(500);
constexpr size_t kWatchBytesMax = size_t{32} << 20;  // of large messages to watchers at one time
constexpr int64_t kDefaultGraceSeconds = 30;
constexpr int64_t kGraceSecondsMax = 24 * 60 * 60;
constexpr int kAllowChangedMax = 64;
constexpr size_t kSecretBytes = 32;
constexpr int32_t kStepsListed = 1000;
constexpr int32_t kStepsListedMax = 10'000;

}  // namespace

std::string RandomSecret() {
  std::string secret(kSecretBytes, '\0');
  // The kernel never returns fewer bytes than requested up to 256.
  const ssize_t got = ::getrandom(secret.data(), secret.size(), 0);
  MEGASCALE_CHECK(got == static_cast<ssize_t>(kSecretBytes));
  return secret;
}

namespace {

absl::Status CheckSubmit(const control::SubmitJobRequest& request) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  if (!request.from_checkpoint().empty()) {
    RETURN_IF_ERROR(job::CheckPath("from_checkpoint", request.from_checkpoint()));
  }
  if (request.allow_changed_size() > kAllowChangedMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("allow_changed: has ", request.allow_changed_size(),
                     " entries; expected at most ", kAllowChangedMax));
  }
  for (const std::string& what : request.allow_changed()) {
    RETURN_IF_ERROR(checkpoint::CheckAllowed("allow_changed", what));
  }
  return absl::OkStatus();
}

// Kept with the submit, since the same specification may have other bytes in another release.
std::string SpecPrint(const job::v1::JobSpec& spec) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  spec.SerializeToCodedStream(&coded);
  coded.Trim();
  return base::Sha256Hex(bytes);
}

absl::StatusOr<control::Job> Submit(DriverLoop* loop, const control::SubmitJobRequest& request) {
  RETURN_IF_ERROR(CheckSubmit(request));
  megascale::driver::v1::JobSubmitted submit;
  submit.set_job_id(request.job_id());
  auto spec = job::ResolveJobSpec(request.spec());
  if (!spec.ok()) return spec.status();
  *submit.mutable_spec() = *std::move(spec);
  submit.set_from_checkpoint(request.from_checkpoint());
  *submit.mutable_allow_changed() = request.allow_changed();
  submit.set_take_over(request.take_over());
  submit.set_spec_sha256(SpecPrint(submit.spec()));
  submit.set_secret_seed(RandomSecret());
  return loop->Submit(submit);
}

absl::StatusOr<control::Job> Cancel(DriverLoop* loop, const control::CancelJobRequest& request) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  megascale::driver::v1::CancelRequested cancel;
  cancel.set_job_id(request.job_id());
  cancel.set_checkpoint(request.checkpoint());
  *cancel.mutable_grace() = request.grace();
  if (!request.has_grace()) cancel.mutable_grace()->set_seconds(kDefaultGraceSeconds);
  if (cancel.grace().seconds() < 0 || cancel.grace().nanos() < 0 ||
      cancel.grace().seconds() > kGraceSecondsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("grace: ", cancel.grace().seconds(), " s is not between 0 s and 24 h"));
  }
  return loop->Cancel(cancel);
}

// Limited, because the reason is shown in one line.
constexpr size_t kReasonBytesMax = 200;

absl::StatusOr<control::NodeView> Evict(DriverLoop* loop,
                                        const control::EvictNodeRequest& request) {
  const bool printable = std::none_of(request.reason().begin(), request.reason().end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  if (!printable || request.reason().size() > kReasonBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("reason: expected one line of at most ", kReasonBytesMax, " bytes"));
  }
  megascale::driver::v1::NodeEvicted evicted;
  evicted.set_node_id(request.node_id());
  evicted.set_why(request.reason());
  return loop->Evict(evicted);
}

absl::StatusOr<control::Job> Report(DriverLoop* loop,
                                    const control::ReportSuspectRequest& request) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  megascale::driver::v1::SuspectFound found;
  found.set_job_id(request.job_id());
  control::Suspicion* suspicion = found.mutable_suspicion();
  suspicion->set_attempt(request.attempt());
  suspicion->set_node_id(request.node_id());
  suspicion->set_verdict(request.verdict());
  *suspicion->mutable_evidence() = request.evidence();
  if (request.has_began_at()) *suspicion->mutable_began_at() = request.began_at();
  return loop->Report(found);
}

// Reads the loss log in the caller's thread, not in the loop's.
absl::StatusOr<control::ListStepsResponse> ReadStepsOf(DriverLoop* loop,
                                                       const control::ListStepsRequest& request) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  if (request.first_step() < 0 || request.max_steps() < 0 ||
      request.max_steps() > kStepsListedMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_step ", request.first_step(), ", max_steps ", request.max_steps(),
                     ": expected a step from 0, and at most ", kStepsListedMax, " steps"));
  }
  ASSIGN_OR_RETURN(const control::Job job, loop->GetJob(request.job_id()));
  const int32_t steps_max = request.max_steps() == 0 ? kStepsListed : request.max_steps();
  ASSIGN_OR_RETURN(StepRecords steps,
                   ReadSteps(job.directory(), &RealJobFiles(), request.first_step(), steps_max));
  control::ListStepsResponse response;
  for (auto& step : steps) *response.add_steps() = std::move(step);
  return response;
}

class JobServiceOnLoop final : public control::JobService::Service {
 public:
  JobServiceOnLoop(DriverLoop* loop, AgentStreams* agents)
      : loop_(*loop), agents_(*agents), watched_(loop) {}

  grpc::Status SubmitJob(grpc::ServerContext* context, const control::SubmitJobRequest* request,
                         control::SubmitJobResponse* response) override {
    return Answer(Submit(&loop_, *request), response->mutable_job());
  }

  grpc::Status GetJob(grpc::ServerContext* context, const control::GetJobRequest* request,
                      control::GetJobResponse* response) override {
    if (absl::Status status = job::CheckJobId(request->job_id()); !status.ok())
      return ToGrpc(status);
    if (grpc::Status got = Answer(loop_.GetJob(request->job_id()), response->mutable_job());
        !got.ok()) {
      return got;
    }
    if (request->measure_steps()) {
      *response->mutable_job()->mutable_stage_times() = MeasureStages(
          response->job(), PortsOf<SpanStreamPorts>(request->job_id(), kMeasureFetchTimeout));
    }
    return ToGrpc(CutToPageOfRanks(*request, response));
  }

  grpc::Status CancelJob(grpc::ServerContext* context, const control::CancelJobRequest* request,
                         control::CancelJobResponse* response) override {
    return Answer(Cancel(&loop_, *request), response->mutable_job());
  }

  grpc::Status ListJobs(grpc::ServerContext* context, const control::ListJobsRequest* request,
                        control::ListJobsResponse* response) override {
    return Answer(loop_.ListJobs(*request), response);
  }

  grpc::Status ListSteps(grpc::ServerContext* context, const control::ListStepsRequest* request,
                         control::ListStepsResponse* response) override {
    return Answer(ReadStepsOf(&loop_, *request), response);
  }

  grpc::Status GetCluster(grpc::ServerContext* context, const control::GetClusterRequest* request,
                          control::GetClusterResponse* response) override {
    return Answer(loop_.GetCluster(), response);
  }

  grpc::Status EvictNode(grpc::ServerContext* context, const control::EvictNodeRequest* request,
                         control::EvictNodeResponse* response) override {
    return Answer(Evict(&loop_, *request), response->mutable_node());
  }

  grpc::Status UncordonNode(grpc::ServerContext* context,
                            const control::UncordonNodeRequest* request,
                            control::UncordonNodeResponse* response) override {
    return Answer(loop_.Uncordon(request->node_id()), response->mutable_node());
  }

  grpc::Status SetSpare(grpc::ServerContext* context, const control::SetSpareRequest* request,
                        control::SetSpareResponse* response) override {
    megascale::driver::v1::NodeSpareSet spare_set;
    spare_set.set_node_id(request->node_id());
    spare_set.set_spare(request->spare());
    return Answer(loop_.SetSpare(spare_set), response->mutable_node());
  }

  grpc::Status ReportSuspect(grpc::ServerContext* context,
                             const control::ReportSuspectRequest* request,
                             control::ReportSuspectResponse* response) override {
    return Answer(Report(&loop_, *request), response->mutable_job());
  }

  // Looks at the job up to ten times a second and sends it if it has changed: a slow watcher gets
  // fewer messages, never stale ones. All watchers of a job share what they are shown.
  grpc::Status WatchJob(grpc::ServerContext* context, const control::WatchJobRequest* request,
                        grpc::ServerWriter<control::WatchJobResponse>* writer) override {
    if (absl::Status status = job::CheckJobId(request->job_id()); !status.ok())
      return ToGrpc(status);
    if (request->ranks_max() < 0) {
      return ToGrpc(absl::InvalidArgumentError(absl::StrCat(
          "ranks_max: ", request->ranks_max(), "; expected a number from 0; 0 stands for all")));
    }
    OpenStreams::Stream stream(&streams_, context);
    if (!stream.status().ok()) return ToGrpc(stream.status());
    WatchedJobs::Watch watch(&watched_, request->job_id(), request->ranks_max());
    SentToWatcher sent;
    for (;;) {
      const auto shown = watch.Show();
      if (!shown.ok()) return ToGrpc(shown.status());
      const auto write = [&](const control::WatchJobResponse& response) {
        return stream.Guard([&] { return writer->Write(response); });
      };
      if (!SendNews(**shown, write, &sent)) return grpc::Status::OK;
      if (!Wait(context, watch.interval())) return grpc::Status::CANCELLED;
    }
  }

  grpc::Status StreamLogs(grpc::ServerContext* context, const control::StreamLogsRequest* request,
                          grpc::ServerWriter<control::StreamLogsResponse>* writer) override {
    if (absl::Status status = job::CheckJobId(request->job_id()); !status.ok())
      return ToGrpc(status);
    OpenStreams::Stream stream(&streams_, context);
    if (!stream.status().ok()) return ToGrpc(stream.status());
    auto ports = PortsOf<LogStreamPorts>(request->job_id(), kFetchTimeout);
    ports.emit = [&](const control::StreamLogsResponse& response) {
      return stream.Guard([&] { return writer->Write(response); });
    };
    ports.wait = [&](absl::Duration duration) { return Wait(context, duration); };
    return ToGrpc(driver::StreamLogs(*request, ports));
  }

  grpc::Status StreamSpans(grpc::ServerContext* context, const control::StreamSpansRequest* request,
                           grpc::ServerWriter<control::StreamSpansResponse>* writer) override {
    if (absl::Status status = job::CheckJobId(request->job_id()); !status.ok())
      return ToGrpc(status);
    OpenStreams::Stream stream(&streams_, context);
    if (!stream.status().ok()) return ToGrpc(stream.status());
    auto ports = PortsOf<SpanStreamPorts>(request->job_id(), kDiagnoseFetchTimeout);
    ports.emit = [&](const control::StreamSpansResponse& response) {
      return !context->IsCancelled() && stream.Guard([&] { return writer->Write(response); });
    };
    return ToGrpc(driver::StreamSpans(*request, ports));
  }

  grpc::Status StreamEvidence(
      grpc::ServerContext* context, const control::StreamEvidenceRequest* request,
      grpc::ServerWriter<control::StreamEvidenceResponse>* writer) override {
    if (absl::Status status = job::CheckJobId(request->job_id()); !status.ok())
      return ToGrpc(status);
    OpenStreams::Stream stream(&streams_, context);
    if (!stream.status().ok()) return ToGrpc(stream.status());
    // Reading the stacks of a process takes some seconds.
    const bool is_slow = request->kind() == telemetry::v1::EVIDENCE_KIND_STACKS;
    auto ports = PortsOf<EvidenceStreamPorts>(request->job_id(),
                                              is_slow ? kFetchTimeout : kDiagnoseFetchTimeout);
    ports.emit = [&](const control::StreamEvidenceResponse& response) {
      return !context->IsCancelled() && stream.Guard([&] { return writer->Write(response); });
    };
    return ToGrpc(driver::StreamEvidence(*request, ports));
  }

 private:
  template <typename Message>
  static grpc::Status Answer(absl::StatusOr<Message> result, Message* response) {
    if (!result.ok()) return ToGrpc(result.status());
    *response = *std::move(result);
    return grpc::Status::OK;
  }

  struct SentToWatcher {
    int64_t round = -1;     // of the view from which the newest message was made
    int64_t version = -1;   // WatchedJobs::Shown; -1: nothing was sent yet
    int64_t position = -1;  // in the job's steps
  };

  // Sends what has changed since the last message. While large messages to other watchers leave no
  // room it sends nothing, and what it sends later is newer. Returns false once the stream is over.
  bool SendNews(const WatchedJobs::Shown& shown,
                const std::function<bool(const control::WatchJobResponse&)>& write,
                SentToWatcher* sent) {
    if (shown.view->round() == sent->round) return true;
    const MessageBudget::Share room(&watch_budget_, shown.num_bytes);
    if (!room.granted()) return true;
    control::WatchJobResponse response;
    for (auto& step : shown.view->StepsSince(shown.job.job_id(), &sent->position)) {
      *response.add_steps() = std::move(step);
    }
    sent->round = shown.view->round();
    if (std::exchange(sent->version, shown.version) == shown.version && response.steps().empty()) {
      return true;
    }
    // A copy for each of many watchers would cost more than to write it.
    response.unsafe_arena_set_allocated_job(const_cast<control::Job*>(&shown.job));
    const bool written = write(response);
    (void)response.unsafe_arena_release_job();
    return written && !shown.job.has_ended_at();
  }

  // Readers also get what was kept of a job that has ended.
  template <typename Ports>
  Ports PortsOf(const std::string& job_id, absl::Duration fetch_timeout) {
    auto ports = RelayPorts<Ports>(&loop_, &agents_, job_id, fetch_timeout);
    if constexpr (!std::is_same_v<Ports, LogStreamPorts>) {
      ports.saved = [](const control::Job& job) { return ReadLastEvidence(job, &RealJobFiles()); };
    }
    return ports;
  }

  // Waits; returns false if the caller is gone or the server stops.
  static bool Wait(grpc::ServerContext* context, absl::Duration duration) {
    for (; duration > absl::ZeroDuration(); duration -= kCancelCheckInterval) {
      if (context->IsCancelled()) return false;
      absl::SleepFor(std::min(duration, kCancelCheckInterval));
    }
    return !context->IsCancelled();
  }

  DriverLoop& loop_;
  AgentStreams& agents_;
  OpenStreams streams_;
  WatchedJobs watched_;
  MessageBudget watch_budget_{kWatchBytesMax};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(DriverLoop* loop, AgentStreams* agents) {
  return BoundRequests(std::make_unique<JobServiceOnLoop>(loop, agents),
                       *control::SubmitJobRequest::descriptor()->file()->service(0),
                       {.large_methods = {"SubmitJob"}});
}

}  // namespace megascale::driver
