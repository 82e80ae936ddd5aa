#include "controlplane/client/job_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controlplane/security/credentials.h"
#include "controlplane/security/probe.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/stop_signal.h"
#include "runtime/job/names.h"

namespace megascale::client {
namespace {

constexpr absl::Duration kReadDeadline = absl::Seconds(5);
constexpr absl::Duration kWriteDeadline = absl::Seconds(10);
constexpr absl::Duration kRetryDelayMin = absl::Milliseconds(50);
constexpr absl::Duration kRetryDelayMax = absl::Seconds(1);
constexpr absl::Duration kStopPollInterval = absl::Milliseconds(50);
constexpr absl::Duration kProbeTimeout = absl::Seconds(3);
// A list of every job that a driver holds; what is larger is refused, not held in memory.
constexpr int kMessageBytesMax = 64 << 20;

grpc::ChannelArguments MakeArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also what one attempt to connect may take: a busy machine is no driver that is away.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return arguments;
}

// Cancels a streaming call when its caller wants to stop.
class StopWatcher {
 public:
  StopWatcher(std::function<bool()> should_stop, grpc::ClientContext* context) {
    if (!should_stop) return;
    thread_ = std::thread([this, should_stop = std::move(should_stop), context] {
      while (!done_.WaitFor(kStopPollInterval)) {
        if (should_stop()) context->TryCancel();
      }
    });
  }
  ~StopWatcher() {
    done_.Give();
    if (thread_.joinable()) thread_.join();
  }

 private:
  base::StopSignal done_;
  std::thread thread_;
};

}  // namespace

struct JobClient::Impl {
  Impl(const ClientOptions& options, const std::shared_ptr<grpc::Channel>& channel)
      : options(options), stub(control::v1::JobService::NewStub(channel)) {}

  // gRPC does not say why there is no connection. A refusal is final: it is not "unavailable".
  absl::Status WhyUnavailable() const {
    if (!options.address.is_unix()) {
      absl::Status why =
          security::ProbeDriver(options.address, options.tls, security::Role::kUser, kProbeTimeout);
      if (!why.ok()) return why;
    }
    return absl::UnavailableError(
        absl::StrCat("no driver can be reached at ", options.address.text));
  }

  absl::Status ToStatus(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    if (code == absl::StatusCode::kUnavailable) {
      return WhyUnavailable();
    }
    if (code == absl::StatusCode::kDeadlineExceeded) {
      return absl::DeadlineExceededError(
          absl::StrCat("the driver at ", options.address.text, " did not answer in time"));
    }
    return absl::Status(code, status.error_message());
  }

  // Calls `method` once, with a deadline.
  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> Call(Method method, const Request& request, absl::Duration timeout) {
    grpc::ClientContext context;
    // gRPC turns it into a time of the monotonic clock at once.
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    Response response;
    RETURN_IF_ERROR(ToStatus((stub.get()->*method)(&context, request, &response)));
    return response;
  }

  absl::StatusOr<control::v1::Job> Get(const control::v1::GetJobRequest& request) {
    RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
    ASSIGN_OR_RETURN(auto response,
                     Call<control::v1::GetJobResponse>(&control::v1::JobService::Stub::GetJob,
                                                       request, kReadDeadline));
    return std::move(*response.mutable_job());
  }

  template <typename Message, typename Method, typename Request>
  absl::Status Stream(Method method, const Request& request,
                      const StreamCallbacks<Message>& callbacks) {
    grpc::ClientContext context;
    const auto reader = (stub.get()->*method)(&context, request);
    StopWatcher watcher(callbacks.should_stop, &context);
    Message message;
    while (reader->Read(&message)) callbacks.on_message(message);
    return ToStatus(reader->Finish());
  }

  const ClientOptions options;
  const std::unique_ptr<control::v1::JobService::Stub> stub;
};

JobClient::JobClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JobClient::~JobClient() = default;

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Create(const ClientOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   security::MakeChannelCredentials(options.address, options.tls, options.insecure,
                                                    security::Role::kUser));
  auto impl = std::make_unique<Impl>(
      options, grpc::CreateCustomChannel(options.address.text, credentials, MakeArguments()));
  return std::unique_ptr<JobClient>(new JobClient(std::move(impl)));
}

absl::StatusOr<control::v1::Job> JobClient::Submit(const control::v1::SubmitJobRequest& request,
                                                   absl::Duration retry_for) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  const absl::Duration give_up = base::RealClock().Monotonic() + retry_for;
  absl::Duration delay = kRetryDelayMin;
  while (true) {
    auto response = impl_->Call<control::v1::SubmitJobResponse>(
        &control::v1::JobService::Stub::SubmitJob, request, kWriteDeadline);
    if (response.ok()) return std::move(*response->mutable_job());
    if (!absl::IsUnavailable(response.status()) ||
        base::RealClock().Monotonic() + delay > give_up) {
      return response.status();
    }
    absl::SleepFor(delay);
    delay = std::min(2 * delay, kRetryDelayMax);
  }
}

absl::StatusOr<control::v1::Job> JobClient::Get(const std::string& job_id) {
  control::v1::GetJobRequest request;
  request.set_job_id(job_id);
  return impl_->Get(request);
}

absl::StatusOr<control::v1::Job> JobClient::Measure(const std::string& job_id) {
  control::v1::GetJobRequest request;
  request.set_job_id(job_id);
  request.set_measure_steps(true);
  return impl_->Get(request);
}

absl::StatusOr<control::v1::ListJobsResponse> JobClient::List() {
  return impl_->Call<control::v1::ListJobsResponse>(&control::v1::JobService::Stub::ListJobs,
                                                    control::v1::ListJobsRequest(), kReadDeadline);
}

absl::StatusOr<control::v1::Job> JobClient::Cancel(const control::v1::CancelJobRequest& request) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::CancelJobResponse>(
                       &control::v1::JobService::Stub::CancelJob, request, kWriteDeadline));
  return std::move(*response.mutable_job());
}

absl::StatusOr<control::v1::GetClusterResponse> JobClient::Cluster() {
  return impl_->Call<control::v1::GetClusterResponse>(
      &control::v1::JobService::Stub::GetCluster, control::v1::GetClusterRequest(), kReadDeadline);
}

absl::StatusOr<control::v1::NodeView> JobClient::Evict(
    const control::v1::EvictNodeRequest& request) {
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::EvictNodeResponse>(
                       &control::v1::JobService::Stub::EvictNode, request, kWriteDeadline));
  return std::move(*response.mutable_node());
}

absl::StatusOr<control::v1::NodeView> JobClient::Uncordon(const std::string& node_id) {
  control::v1::UncordonNodeRequest request;
  request.set_node_id(node_id);
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::UncordonNodeResponse>(
                       &control::v1::JobService::Stub::UncordonNode, request, kWriteDeadline));
  return std::move(*response.mutable_node());
}

absl::Status JobClient::Watch(const std::string& job_id,
                              const StreamCallbacks<control::v1::WatchJobResponse>& callbacks) {
  RETURN_IF_ERROR(job::CheckJobId(job_id));
  control::v1::WatchJobRequest request;
  request.set_job_id(job_id);
  return impl_->Stream(&control::v1::JobService::Stub::WatchJob, request, callbacks);
}

absl::Status JobClient::Logs(const control::v1::StreamLogsRequest& request,
                             const StreamCallbacks<control::v1::StreamLogsResponse>& callbacks) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  return impl_->Stream(&control::v1::JobService::Stub::StreamLogs, request, callbacks);
}

absl::Status JobClient::Spans(const control::v1::StreamSpansRequest& request,
                              const StreamCallbacks<control::v1::StreamSpansResponse>& callbacks) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  return impl_->Stream(&control::v1::JobService::Stub::StreamSpans, request, callbacks);
}

}  // namespace megascale::client
