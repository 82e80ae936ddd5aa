#include "controlplane/driver/job_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "controlplane/driver/agent_service.h"
#include "controlplane/driver/driver_loop.h"
#include "controlplane/driver/log_stream.h"
#include "proto/control.grpc.pb.h"
#include "runtime/job/job_spec.h"

namespace megascale::driver {
namespace {

namespace pb = megascale::control::v1;

constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
constexpr absl::Duration kCancelCheckInterval = absl::Milliseconds(50);
constexpr absl::Duration kFetchTimeout = absl::Seconds(5);
constexpr int64_t kDefaultGraceSeconds = 30;
constexpr int64_t kGraceSecondsMax = 24 * 60 * 60;
constexpr size_t kJobIdBytesMax = 128;
constexpr size_t kSecretBytes = 32;

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

// It becomes the name of folders.
absl::Status CheckJobId(const std::string& job_id) {
  const bool good = !job_id.empty() && job_id.size() <= kJobIdBytesMax && job_id[0] != '.' &&
                    job_id[0] != '-' && std::all_of(job_id.begin(), job_id.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                             c == '_' || c == '.';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("job id '", job_id.substr(0, kJobIdBytesMax),
                   "': expected 1 to 128 letters, digits, '-', '_' and '.', beginning with a "
                   "letter, digit or '_'"));
}

std::string RandomSecret() {
  std::random_device device;
  std::string secret;
  while (secret.size() < kSecretBytes) secret.push_back(static_cast<char>(device()));
  return secret;
}

absl::StatusOr<pb::Job> Submit(DriverLoop* loop, const pb::SubmitJobRequest& request) {
  if (absl::Status status = CheckJobId(request.job_id()); !status.ok()) return status;
  megascale::driver::v1::JobSubmitted submit;
  submit.set_job_id(request.job_id());
  auto spec = job::ResolveJobSpec(request.spec());
  if (!spec.ok()) return spec.status();
  *submit.mutable_spec() = *std::move(spec);
  submit.set_from_checkpoint(request.from_checkpoint());
  *submit.mutable_allow_changed() = request.allow_changed();
  submit.set_secret_seed(RandomSecret());
  return loop->Submit(std::move(submit));
}

absl::StatusOr<pb::Job> Cancel(DriverLoop* loop, const pb::CancelJobRequest& request) {
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

// What would be worth a message if it changed: not how old things are.
std::string Essence(pb::Job job) {
  job.clear_submitted_age_seconds();
  return job.SerializeAsString();
}

class JobServiceOnLoop final : public pb::JobService::Service {
 public:
  JobServiceOnLoop(DriverLoop* loop, AgentStreams* agents) : loop_(*loop), agents_(*agents) {}

  grpc::Status SubmitJob(grpc::ServerContext* context, const pb::SubmitJobRequest* request,
                         pb::SubmitJobResponse* response) override {
    return Answer(Submit(&loop_, *request), response->mutable_job());
  }

  grpc::Status GetJob(grpc::ServerContext* context, const pb::GetJobRequest* request,
                      pb::GetJobResponse* response) override {
    return Answer(loop_.GetJob(request->job_id()), response->mutable_job());
  }

  grpc::Status CancelJob(grpc::ServerContext* context, const pb::CancelJobRequest* request,
                         pb::CancelJobResponse* response) override {
    return Answer(Cancel(&loop_, *request), response->mutable_job());
  }

  grpc::Status ListJobs(grpc::ServerContext* context, const pb::ListJobsRequest* request,
                        pb::ListJobsResponse* response) override {
    auto jobs = loop_.ListJobs();
    if (!jobs.ok()) return ToGrpc(jobs.status());
    for (pb::Job& job : *jobs) *response->add_jobs() = std::move(job);
    return grpc::Status::OK;
  }

  grpc::Status GetCluster(grpc::ServerContext* context, const pb::GetClusterRequest* request,
                          pb::GetClusterResponse* response) override {
    return Answer(loop_.GetCluster(), response);
  }

  // Looks ten times a second and sends what differs from what was sent: a slow watcher gets fewer
  // messages, never older ones.
  grpc::Status WatchJob(grpc::ServerContext* context, const pb::WatchJobRequest* request,
                        grpc::ServerWriter<pb::WatchJobResponse>* writer) override {
    int64_t position = -1;
    std::string sent;
    for (;;) {
      absl::StatusOr<WatchUpdate> update = loop_.Watch(request->job_id(), position);
      if (!update.ok()) return ToGrpc(update.status());
      position = update->position;
      std::string essence = Essence(update->job);
      if (essence != sent || !update->steps.empty()) {
        pb::WatchJobResponse response;
        for (auto& step : update->steps) *response.add_steps() = std::move(step);
        const bool terminal = update->job.has_ended_at();
        *response.mutable_job() = std::move(update->job);
        if (!writer->Write(response) || terminal) return grpc::Status::OK;
        sent = std::move(essence);
      }
      if (!Wait(context, kWatchInterval)) return grpc::Status::CANCELLED;
    }
  }

  grpc::Status StreamLogs(grpc::ServerContext* context, const pb::StreamLogsRequest* request,
                          grpc::ServerWriter<pb::StreamLogsResponse>* writer) override {
    LogStreamPorts ports;
    ports.job = [&] { return loop_.GetJob(request->job_id()); };
    ports.cluster = [&] { return loop_.GetCluster(); };
    ports.fetch = [&](const std::string& node_id, const megascale::agent::v1::FetchLog& fetch) {
      return agents_.Fetch(node_id, fetch, kFetchTimeout);
    };
    ports.emit = [&](const pb::StreamLogsResponse& response) { return writer->Write(response); };
    ports.wait = [&](absl::Duration duration) { return Wait(context, duration); };
    return ToGrpc(driver::StreamLogs(*request, ports));
  }

 private:
  template <typename Message>
  static grpc::Status Answer(absl::StatusOr<Message> result, Message* response) {
    if (!result.ok()) return ToGrpc(result.status());
    *response = *std::move(result);
    return grpc::Status::OK;
  }

  // False: the caller is gone or the server stops.
  static bool Wait(grpc::ServerContext* context, absl::Duration duration) {
    for (; duration > absl::ZeroDuration(); duration -= kCancelCheckInterval) {
      if (context->IsCancelled()) return false;
      absl::SleepFor(std::min(duration, kCancelCheckInterval));
    }
    return !context->IsCancelled();
  }

  DriverLoop& loop_;
  AgentStreams& agents_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobService(DriverLoop* loop, AgentStreams* agents) {
  return std::make_unique<JobServiceOnLoop>(loop, agents);
}

}  // namespace megascale::driver
