#include "controlplane/client/job_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::client {
namespace {

constexpr absl::Duration kReadDeadline = absl::Seconds(5);
constexpr absl::Duration kWriteDeadline = absl::Seconds(10);
constexpr absl::Duration kRetryDelayMin = absl::Milliseconds(50);
constexpr absl::Duration kRetryDelayMax = absl::Seconds(1);
constexpr absl::Duration kStopPollInterval = absl::Milliseconds(50);
constexpr size_t kPemBytesMax = 1 << 20;

absl::StatusOr<std::string> ReadPem(const std::string& path, const char* what) {
  absl::StatusOr<std::string> text = base::ReadFile(path, kPemBytesMax);
  if (text.ok()) return text;
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", text.status().message()));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ClientOptions& options) {
  const TlsFiles& tls = options.tls;
  if (options.address.is_unix()) return grpc::InsecureChannelCredentials();
  if (tls.ca.empty() && tls.cert.empty() && tls.key.empty()) {
    if (options.insecure && options.address.loopback) return grpc::InsecureChannelCredentials();
    return absl::InvalidArgumentError(absl::StrCat(
        options.address.text, " is a TCP address: it needs --tls-ca, --tls-cert and --tls-key",
        options.address.loopback ? ", or --insecure" : "; --insecure is for loopback addresses"));
  }
  if (tls.ca.empty() || tls.cert.empty() || tls.key.empty()) {
    return absl::InvalidArgumentError(
        "mutual TLS needs all three of --tls-ca, --tls-cert and --tls-key");
  }
  grpc::SslCredentialsOptions pem;
  ASSIGN_OR_RETURN(pem.pem_root_certs, ReadPem(tls.ca, "--tls-ca"));
  ASSIGN_OR_RETURN(pem.pem_cert_chain, ReadPem(tls.cert, "--tls-cert"));
  ASSIGN_OR_RETURN(pem.pem_private_key, ReadPem(tls.key, "--tls-key"));
  return grpc::SslCredentials(pem);
}

grpc::ChannelArguments MakeArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Also what one attempt to connect may take: a busy machine is no driver that is away.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return arguments;
}

// Cancels a streaming call when its caller wants to stop.
class StopWatcher {
 public:
  StopWatcher(std::function<bool()> should_stop, grpc::ClientContext* context) {
    if (!should_stop) return;
    thread_ = std::thread([this, should_stop = std::move(should_stop), context] {
      while (!done_.WaitForNotificationWithTimeout(kStopPollInterval)) {
        if (should_stop()) context->TryCancel();
      }
    });
  }
  ~StopWatcher() {
    done_.Notify();
    if (thread_.joinable()) thread_.join();
  }

 private:
  absl::Notification done_;
  std::thread thread_;
};

}  // namespace

struct JobClient::Impl {
  Impl(std::string name, const std::shared_ptr<grpc::Channel>& channel)
      : name(std::move(name)), stub(control::v1::JobService::NewStub(channel)) {}

  absl::Status ToStatus(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    if (code == absl::StatusCode::kUnavailable) {
      return absl::UnavailableError(absl::StrCat("no driver can be reached at ", name));
    }
    if (code == absl::StatusCode::kDeadlineExceeded) {
      return absl::DeadlineExceededError(
          absl::StrCat("the driver at ", name, " did not answer in time"));
    }
    return absl::Status(code, status.error_message());
  }

  // Calls `method` once, with a deadline.
  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> Call(Method method, const Request& request, absl::Duration timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    Response response;
    RETURN_IF_ERROR(ToStatus((stub.get()->*method)(&context, request, &response)));
    return response;
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

  const std::string name;
  const std::unique_ptr<control::v1::JobService::Stub> stub;
};

JobClient::JobClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JobClient::~JobClient() = default;

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Create(const ClientOptions& options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeCredentials(options));
  auto impl = std::make_unique<Impl>(
      options.address.text,
      grpc::CreateCustomChannel(options.address.text, credentials, MakeArguments()));
  return std::unique_ptr<JobClient>(new JobClient(std::move(impl)));
}

absl::StatusOr<control::v1::Job> JobClient::Submit(const control::v1::SubmitJobRequest& request,
                                                   absl::Duration retry_for) {
  const absl::Time give_up = absl::Now() + retry_for;
  absl::Duration delay = kRetryDelayMin;
  while (true) {
    auto response = impl_->Call<control::v1::SubmitJobResponse>(
        &control::v1::JobService::Stub::SubmitJob, request, kWriteDeadline);
    if (response.ok()) return std::move(*response->mutable_job());
    if (!absl::IsUnavailable(response.status()) || absl::Now() + delay > give_up) {
      return response.status();
    }
    absl::SleepFor(delay);
    delay = std::min(2 * delay, kRetryDelayMax);
  }
}

absl::StatusOr<control::v1::Job> JobClient::Get(const std::string& job_id) {
  control::v1::GetJobRequest request;
  request.set_job_id(job_id);
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::GetJobResponse>(&control::v1::JobService::Stub::GetJob,
                                                            request, kReadDeadline));
  return std::move(*response.mutable_job());
}

absl::StatusOr<control::v1::ListJobsResponse> JobClient::List() {
  return impl_->Call<control::v1::ListJobsResponse>(&control::v1::JobService::Stub::ListJobs,
                                                    control::v1::ListJobsRequest(), kReadDeadline);
}

absl::StatusOr<control::v1::Job> JobClient::Cancel(const control::v1::CancelJobRequest& request) {
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::CancelJobResponse>(
                       &control::v1::JobService::Stub::CancelJob, request, kWriteDeadline));
  return std::move(*response.mutable_job());
}

absl::StatusOr<control::v1::GetClusterResponse> JobClient::Cluster() {
  return impl_->Call<control::v1::GetClusterResponse>(
      &control::v1::JobService::Stub::GetCluster, control::v1::GetClusterRequest(), kReadDeadline);
}

absl::Status JobClient::Watch(const std::string& job_id,
                              const StreamCallbacks<control::v1::WatchJobResponse>& callbacks) {
  control::v1::WatchJobRequest request;
  request.set_job_id(job_id);
  return impl_->Stream(&control::v1::JobService::Stub::WatchJob, request, callbacks);
}

absl::Status JobClient::Logs(const control::v1::StreamLogsRequest& request,
                             const StreamCallbacks<control::v1::StreamLogsResponse>& callbacks) {
  return impl_->Stream(&control::v1::JobService::Stub::StreamLogs, request, callbacks);
}

}  // namespace megascale::client
