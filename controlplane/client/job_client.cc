#include "controlplane/client/job_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controlplane/security/driver_channel.h"
#include "controlplane/security/probe.h"
#include "proto/control.grpc.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/stop_signal.h"
#include "runtime/base/version.h"
#include "runtime/job/names.h"

namespace megascale::client {
namespace {

constexpr absl::Duration kReadDeadline = absl::Seconds(5);
constexpr absl::Duration kWriteDeadline = absl::Seconds(10);
// The shortest deadline of a call that is repeated, however little of the caller's time is left.
constexpr absl::Duration kPatientDeadlineMin = absl::Seconds(1);
constexpr absl::Duration kRetryDelayMin = absl::Milliseconds(50);
constexpr absl::Duration kRetryDelayMax = absl::Seconds(1);
constexpr absl::Duration kStopPollInterval = absl::Milliseconds(50);
constexpr absl::Duration kReconnectDelay = absl::Milliseconds(200);
// If this many log streams in a row break off within this time while the driver answers calls, the
// driver is not just restarting.
constexpr absl::Duration kShortStream = absl::Seconds(1);
constexpr int kShortStreamsMax = 20;
constexpr absl::Duration kProbeTimeout = absl::Seconds(3);
// Generous, because a driver on a busy machine is not away.
constexpr absl::Duration kQueueTimeout = absl::Seconds(5);
constexpr int64_t kJobsPage = 500;
constexpr int kJobsToTellOrder = 2;
// A connection that was idle for longer is not used again: nobody answers the driver's pings
// meanwhile, so the driver closes it after 50 s (GRPC_ARG_KEEPALIVE_TIME_MS there).
constexpr absl::Duration kIdleMax = absl::Seconds(20);
// Enough for a job of tens of thousands of ranks. Larger messages are refused, to bound the memory.
constexpr int kMessageBytesMax = 64 << 20;

grpc::ChannelArguments MakeArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // The time that one attempt to connect may take; generous, because a driver on a busy machine is
  // not away. gRPC waits as long before the next attempt, too: see DriverChannel::ConnectSoon.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return arguments;
}

// True if the driver is absent, stands still, or just ends.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status);
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
    done_.Notify();
    if (thread_.joinable()) thread_.join();
  }

 private:
  base::StopSignal done_;
  std::thread thread_;
};

}  // namespace

void NotePosition(const control::v1::StreamLogsResponse& piece,
                  control::v1::StreamLogsRequest* request) {
  auto& positions = *request->mutable_resume_at();
  // Attempts come one after the other, so the logs of earlier attempts are complete.
  if (!positions.empty() && positions[0].attempt() < piece.attempt()) positions.Clear();
  const auto is_same = [&](const control::v1::LogPosition& at) {
    return at.rank() == piece.rank() && at.node_id() == piece.node_id();
  };
  auto at = std::find_if(positions.begin(), positions.end(), is_same);
  control::v1::LogPosition* position = at == positions.end() ? positions.Add() : &*at;
  position->set_rank(piece.rank());
  position->set_attempt(piece.attempt());
  position->set_node_id(piece.node_id());
  position->set_offset(piece.end_offset());
}

struct JobClient::Impl {
  Impl(const ClientOptions& options, std::unique_ptr<security::DriverChannel> driver)
      : options(options), driver(std::move(driver)) {}

  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect() {
    absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = driver->Connect();
    if (absl::IsUnavailable(channel.status())) return WhyUnavailable();
    return channel;
  }

  // Over a Unix socket every Connect makes a connection, which costs more than a short call. So a
  // call leaves its connection to the next one. Null: there is none.
  std::shared_ptr<grpc::Channel> TakeKept() {
    const absl::Duration now = base::RealClock().Monotonic();
    const std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<grpc::Channel> taken = std::exchange(kept, nullptr);
    return now - kept_at > kIdleMax ? nullptr : taken;
  }
  void Keep(std::shared_ptr<grpc::Channel> channel) {
    const absl::Duration now = base::RealClock().Monotonic();
    const std::lock_guard<std::mutex> lock(mutex);
    kept = std::move(channel);
    kept_at = now;
  }

  // Finds out why there is no connection, which gRPC does not tell. A refusal is final, so it is
  // not "unavailable".
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
      driver->ConnectSoon();
      return WhyUnavailable();
    }
    if (code == absl::StatusCode::kDeadlineExceeded) {
      return absl::DeadlineExceededError(
          absl::StrCat("the driver at ", options.address.text, " did not answer in time"));
    }
    if (code == absl::StatusCode::kUnimplemented) {
      return absl::UnimplementedError(absl::StrCat(
          "the driver at ", options.address.text, " is too old for this (", status.error_message(),
          "); upgrade it, or use its own version of megascale (", base::kVersion, " is this one)"));
    }
    return absl::Status(code, status.error_message());
  }

  // Calls `method`, and once more if a kept connection had ended; both within `timeout`.
  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> Call(Method method, const Request& request, absl::Duration timeout) {
    Response response;
    const absl::Duration end = base::RealClock().Monotonic() + timeout;
    const auto call = [&](const std::shared_ptr<grpc::Channel>& channel) {
      const auto stub = control::v1::JobService::NewStub(channel);
      grpc::ClientContext context;
      // gRPC converts it to the monotonic clock at once.
      context.set_deadline(std::chrono::system_clock::now() +
                           absl::ToChronoMilliseconds(end - base::RealClock().Monotonic()));
      return (stub.get()->*method)(&context, request, &response);
    };
    std::shared_ptr<grpc::Channel> channel = TakeKept();
    const bool is_kept = channel != nullptr;
    if (!is_kept) {
      ASSIGN_OR_RETURN(channel, Connect());
    }
    grpc::Status got = call(channel);
    // The driver was restarted since the last call. At worst it was restarted during this one, and
    // had carried it out: then the second call changes nothing, but its answer may be that of a
    // request that comes too late.
    if (is_kept && got.error_code() == grpc::StatusCode::UNAVAILABLE) {
      ASSIGN_OR_RETURN(channel, Connect());
      got = call(channel);
    }
    const absl::Status status = ToStatus(got);
    if (options.address.is_unix() && !IsAway(status)) Keep(std::move(channel));
    if (absl::IsCancelled(status)) {  // nobody here cancels this call
      return absl::UnavailableError(
          absl::StrCat("the driver at ", options.address.text, " is stopping"));
    }
    RETURN_IF_ERROR(status);
    return response;
  }

  // As Call, while the driver cannot be reached again and again.
  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> CallPatiently(Method method, const Request& request,
                                         absl::Duration timeout, const RetryOptions& retry) {
    const absl::Duration give_up = base::RealClock().Monotonic() + retry.time;
    const auto should_stop = [&] { return retry.should_stop && retry.should_stop(); };
    absl::Duration delay = kRetryDelayMin;
    while (true) {
      // A driver that stands still must not hold up a caller who wants to wait for less.
      const absl::Duration left = give_up - base::RealClock().Monotonic();
      const absl::Duration deadline = retry.time == absl::ZeroDuration()
                                          ? timeout
                                          : std::min(timeout, std::max(left, kPatientDeadlineMin));
      absl::StatusOr<Response> response = Call<Response>(method, request, deadline);
      const bool is_late = base::RealClock().Monotonic() + delay > give_up;
      if (!IsAway(response.status()) || is_late || should_stop()) return response;
      if (retry.on_retry) retry.on_retry();
      absl::SleepFor(delay);
      if (should_stop()) return response;
      delay = std::min(2 * delay, kRetryDelayMax);
    }
  }

  absl::StatusOr<control::v1::Job> Get(const control::v1::GetJobRequest& request,
                                       const RetryOptions& retry) {
    RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
    ASSIGN_OR_RETURN(auto response,
                     CallPatiently<control::v1::GetJobResponse>(
                         &control::v1::JobService::Stub::GetJob, request, kReadDeadline, retry));
    return std::move(*response.mutable_job());
  }

  // Reads pages of jobs until there are `num_jobs`, or all (0).
  absl::StatusOr<control::v1::ListJobsResponse> Pages(bool newest_first, int64_t num_jobs) {
    control::v1::ListJobsRequest request;
    request.set_newest_first(newest_first);
    control::v1::ListJobsResponse all;
    std::set<std::string> tokens;
    for (;;) {
      const int64_t left = num_jobs > 0 ? num_jobs - all.jobs_size() : kJobsPage;
      request.set_page_size(static_cast<int32_t>(std::min(left, kJobsPage)));
      ASSIGN_OR_RETURN(auto page, CallPatiently<control::v1::ListJobsResponse>(
                                      &control::v1::JobService::Stub::ListJobs, request,
                                      kReadDeadline, options.retry));
      all.mutable_jobs()->MergeFrom(page.jobs());
      const bool is_enough = num_jobs > 0 && all.jobs_size() >= num_jobs;
      if (page.next_page_token().empty() || is_enough) return all;
      if (page.jobs().empty() || !tokens.insert(page.next_page_token()).second) {
        return absl::InternalError("the driver's list of jobs does not end");
      }
      request.set_page_token(page.next_page_token());
    }
  }

  // Returns true if `list`, which was asked for with newest_first, begins with the oldest job: the
  // driver is older than this field. The times only say whether asking is worth while.
  absl::StatusOr<bool> IgnoresOrder(const control::v1::ListJobsResponse& list) {
    if (list.jobs_size() < kJobsToTellOrder) return false;
    const auto time_of = [](const control::v1::Job& job) {
      return std::pair(job.submitted_at().seconds(), job.submitted_at().nanos());
    };
    if (time_of(list.jobs(0)) >= time_of(list.jobs(list.jobs_size() - 1))) return false;
    ASSIGN_OR_RETURN(const auto oldest, Pages(/*newest_first=*/false, /*num_jobs=*/1));
    return oldest.jobs_size() > 0 && oldest.jobs(0).job_id() == list.jobs(0).job_id();
  }

  template <typename Message, typename Method, typename Request>
  absl::Status Stream(Method method, const Request& request,
                      const StreamCallbacks<Message>& callbacks) {
    ASSIGN_OR_RETURN(const auto channel, Connect());
    const auto stub = control::v1::JobService::NewStub(channel);
    grpc::ClientContext context;
    const auto reader = (stub.get()->*method)(&context, request);
    StopWatcher watcher(callbacks.should_stop, &context);
    Message message;
    while (reader->Read(&message)) callbacks.on_message(message);
    return ToStatus(reader->Finish());
  }

  const ClientOptions options;
  const std::unique_ptr<security::DriverChannel> driver;
  std::mutex mutex;
  std::shared_ptr<grpc::Channel> kept;
  absl::Duration kept_at;  // when its last call ended
};

JobClient::JobClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JobClient::~JobClient() = default;

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Create(const ClientOptions& options) {
  security::DriverChannelOptions channel;
  channel.address = options.address;
  channel.tls = options.tls;
  channel.insecure = options.insecure;
  channel.role = security::Role::kUser;
  channel.queue_timeout = kQueueTimeout;
  ASSIGN_OR_RETURN(auto driver, security::DriverChannel::Create(channel, MakeArguments()));
  return std::unique_ptr<JobClient>(
      new JobClient(std::make_unique<Impl>(options, std::move(driver))));
}

absl::StatusOr<control::v1::Job> JobClient::Submit(const control::v1::SubmitJobRequest& request,
                                                   const RetryOptions& retry) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  ASSIGN_OR_RETURN(auto response,
                   impl_->CallPatiently<control::v1::SubmitJobResponse>(
                       &control::v1::JobService::Stub::SubmitJob, request, kWriteDeadline, retry));
  return std::move(*response.mutable_job());
}

absl::StatusOr<control::v1::Job> JobClient::Get(const std::string& job_id) {
  control::v1::GetJobRequest request;
  request.set_job_id(job_id);
  return impl_->Get(request, impl_->options.retry);
}

absl::StatusOr<control::v1::Job> JobClient::Measure(const std::string& job_id) {
  control::v1::GetJobRequest request;
  request.set_job_id(job_id);
  request.set_measure_steps(true);
  return impl_->Get(request, impl_->options.retry);
}

absl::StatusOr<control::v1::ListJobsResponse> JobClient::List(int64_t limit) {
  if (limit <= 0) return impl_->Pages(/*newest_first=*/false, /*num_jobs=*/0);
  // From one job nobody can tell the order.
  ASSIGN_OR_RETURN(auto list,
                   impl_->Pages(/*newest_first=*/true, std::max<int64_t>(limit, kJobsToTellOrder)));
  ASSIGN_OR_RETURN(const bool is_ignored, impl_->IgnoresOrder(list));
  if (is_ignored) {
    ASSIGN_OR_RETURN(list, impl_->Pages(/*newest_first=*/false, /*num_jobs=*/0));
  } else {
    std::reverse(list.mutable_jobs()->begin(), list.mutable_jobs()->end());
  }
  if (list.jobs_size() > limit) {
    list.mutable_jobs()->DeleteSubrange(0, list.jobs_size() - static_cast<int>(limit));
  }
  return list;
}

absl::StatusOr<control::v1::ListStepsResponse> JobClient::Steps(
    const control::v1::ListStepsRequest& request) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  return impl_->CallPatiently<control::v1::ListStepsResponse>(
      &control::v1::JobService::Stub::ListSteps, request, kReadDeadline, impl_->options.retry);
}

absl::StatusOr<control::v1::Job> JobClient::Cancel(const control::v1::CancelJobRequest& request) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::CancelJobResponse>(
                       &control::v1::JobService::Stub::CancelJob, request, kWriteDeadline));
  return std::move(*response.mutable_job());
}

absl::StatusOr<control::v1::GetClusterResponse> JobClient::Cluster() {
  return impl_->CallPatiently<control::v1::GetClusterResponse>(
      &control::v1::JobService::Stub::GetCluster, control::v1::GetClusterRequest(), kReadDeadline,
      impl_->options.retry);
}

absl::StatusOr<control::v1::NodeView> JobClient::Evict(
    const control::v1::EvictNodeRequest& request) {
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::EvictNodeResponse>(
                       &control::v1::JobService::Stub::EvictNode, request, kWriteDeadline));
  return std::move(*response.mutable_node());
}

absl::StatusOr<control::v1::Job> JobClient::ReportSuspect(
    const control::v1::ReportSuspectRequest& request) {
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::ReportSuspectResponse>(
                       &control::v1::JobService::Stub::ReportSuspect, request, kWriteDeadline));
  return std::move(*response.mutable_job());
}

absl::StatusOr<control::v1::NodeView> JobClient::Uncordon(const std::string& node_id) {
  control::v1::UncordonNodeRequest request;
  request.set_node_id(node_id);
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::UncordonNodeResponse>(
                       &control::v1::JobService::Stub::UncordonNode, request, kWriteDeadline));
  return std::move(*response.mutable_node());
}

absl::StatusOr<control::v1::NodeView> JobClient::SetSpare(
    const control::v1::SetSpareRequest& request) {
  ASSIGN_OR_RETURN(auto response,
                   impl_->Call<control::v1::SetSpareResponse>(
                       &control::v1::JobService::Stub::SetSpare, request, kWriteDeadline));
  return std::move(*response.mutable_node());
}

absl::Status JobClient::Watch(const std::string& job_id,
                              const StreamCallbacks<control::v1::WatchJobResponse>& callbacks,
                              int ranks_max) {
  RETURN_IF_ERROR(job::CheckJobId(job_id));
  control::v1::WatchJobRequest request;
  request.set_job_id(job_id);
  request.set_ranks_max(ranks_max);
  return impl_->Stream(&control::v1::JobService::Stub::WatchJob, request, callbacks);
}

absl::Status JobClient::Logs(const control::v1::StreamLogsRequest& request,
                             const StreamCallbacks<control::v1::StreamLogsResponse>& callbacks,
                             const LogsOptions& options) {
  RETURN_IF_ERROR(Get(request.job_id()).status());
  control::v1::StreamLogsRequest next = request;
  int num_short = 0;  // streams in a row that broke off at once
  const auto on_message = [&](const control::v1::StreamLogsResponse& piece) {
    num_short = 0;
    callbacks.on_message(piece);
    NotePosition(piece, &next);
  };
  for (;;) {
    const absl::Duration opened_at = base::RealClock().Monotonic();
    absl::Status status = impl_->Stream<control::v1::StreamLogsResponse>(
        &control::v1::JobService::Stub::StreamLogs, next, {on_message, callbacks.should_stop});
    // A driver that shuts down cancels its calls.
    const bool broke_off = absl::IsUnavailable(status) || absl::IsCancelled(status);
    if (!broke_off || (callbacks.should_stop && callbacks.should_stop())) return status;
    num_short = base::RealClock().Monotonic() - opened_at < kShortStream ? num_short + 1 : 0;
    if (num_short > kShortStreamsMax) return status;
    RETURN_IF_ERROR(AwaitDriver(request.job_id(), callbacks.should_stop, options));
  }
}

absl::Status JobClient::AwaitDriver(const std::string& job_id,
                                    const std::function<bool()>& should_stop,
                                    const LogsOptions& options) {
  const absl::Duration since = base::RealClock().Monotonic();
  control::v1::GetJobRequest request;
  request.set_job_id(job_id);
  if (options.on_absent) options.on_absent();
  while (base::RealClock().Monotonic() - since <= options.absence_max) {
    absl::SleepFor(kReconnectDelay);
    if (should_stop && should_stop()) return absl::CancelledError("asked to stop");
    absl::Status status = impl_->Get(request, /*retry=*/{}).status();
    if (!IsAway(status)) return status;
  }
  return absl::UnavailableError(
      absl::StrCat("the driver at ", impl_->options.address.text, " has not answered for ",
                   absl::FormatDuration(options.absence_max), "; the job may go on without it"));
}

absl::Status JobClient::Spans(const control::v1::StreamSpansRequest& request,
                              const StreamCallbacks<control::v1::StreamSpansResponse>& callbacks) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  return impl_->Stream(&control::v1::JobService::Stub::StreamSpans, request, callbacks);
}

absl::Status JobClient::Evidence(
    const control::v1::StreamEvidenceRequest& request,
    const StreamCallbacks<control::v1::StreamEvidenceResponse>& callbacks) {
  RETURN_IF_ERROR(job::CheckJobId(request.job_id()));
  return impl_->Stream(&control::v1::JobService::Stub::StreamEvidence, request, callbacks);
}

}  // namespace megascale::client
