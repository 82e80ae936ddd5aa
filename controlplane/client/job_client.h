// A driver's JobService as plain calls. The client handles deadlines, retries and status codes;
// only job_client.cc sees gRPC. Threads: any number may use one client. Every call but Watch, Logs
// and Spans has the deadline that proto/control.proto gives it. Errors of all calls:
//   Unavailable - the driver cannot be reached; the message names the address.
//   Unauthenticated - driver or client refuses the other's certificate, only one of them uses TLS,
//     or a Unix socket belongs to another user; the message says which and what to do.
//   PermissionDenied - the certificate's role does not allow the call.
//   DeadlineExceeded - the driver did not answer; the outcome is unknown, and the same call may be
//     repeated.
//   Any other error comes from the driver.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/address/address.h"
#include "controlplane/security/tls_files.h"
#include "proto/control.pb.h"

namespace megascale::client {

// What a call does while the driver cannot be reached.
struct RetryOptions {
  absl::Duration time = absl::ZeroDuration();  // how long to try again; 0: not at all
  std::function<void()> on_retry = {};         // called before each wait; may be empty
  // Called before and after each wait; true ends the call with its last error; may be empty.
  std::function<bool()> should_stop = {};
};

struct ClientOptions {
  Address address;
  security::TlsFiles tls;  // for TCP
  bool insecure = false;   // plaintext TCP; to loopback addresses only
  RetryOptions retry =
      {};  // of Get, Measure, List, Steps and Cluster, and of the beginning of Logs
};

// Callbacks of a streaming call. Both run in the caller's thread, or in one that ends before the
// call returns.
template <typename Message>
struct StreamCallbacks {
  std::function<void(const Message&)> on_message;
  std::function<bool()> should_stop;  // called every 50 ms; true ends the call with Cancelled
};

// What Logs does when the driver goes away in the middle.
struct LogsOptions {
  // How long the driver may stay away after it has answered once.
  absl::Duration absence_max = absl::Seconds(60);
  std::function<void()> on_absent = {};  // called once for each absence; may be empty
};

// Makes `request` continue after `piece`.
void NotePosition(const control::v1::StreamLogsResponse& piece,
                  control::v1::StreamLogsRequest* request);

class JobClient {
 public:
  // Makes a client that is not connected yet.
  // Errors: InvalidArgument - TCP without TLS, or TLS files that cannot be used; Unauthenticated -
  // the certificate has expired.
  static absl::StatusOr<std::unique_ptr<JobClient>> Create(const ClientOptions& options);
  ~JobClient();

  // Submits a job. Every retry has the same job id, so the job is submitted only once. Errors:
  // InvalidArgument, AlreadyExists.
  absl::StatusOr<control::v1::Job> Submit(const control::v1::SubmitJobRequest& request,
                                          const RetryOptions& retry);
  absl::StatusOr<control::v1::Job> Get(const std::string& job_id);
  // As Get, with Job.stage_times if they can be measured; takes longer.
  absl::StatusOr<control::v1::Job> Measure(const std::string& job_id);
  // Returns summaries of the `limit` jobs that were submitted last, or of all (0), in the order of
  // submission. Asks for one page after the other. A driver that is too old to begin with the
  // newest job is asked for all jobs.
  absl::StatusOr<control::v1::ListJobsResponse> List(int64_t limit = 0);
  // Returns a part of the job's loss log.
  absl::StatusOr<control::v1::ListStepsResponse> Steps(
      const control::v1::ListStepsRequest& request);
  absl::StatusOr<control::v1::Job> Cancel(const control::v1::CancelJobRequest& request);
  absl::StatusOr<control::v1::GetClusterResponse> Cluster();
  absl::StatusOr<control::v1::NodeView> Evict(const control::v1::EvictNodeRequest& request);
  absl::StatusOr<control::v1::NodeView> Uncordon(const std::string& node_id);
  absl::StatusOr<control::v1::NodeView> SetSpare(const control::v1::SetSpareRequest& request);
  // Reports a machine of a job that differs from the others; returns the job with its suspicion.
  absl::StatusOr<control::v1::Job> ReportSuspect(const control::v1::ReportSuspectRequest& request);

  // Passes the job now and after every change. Returns OK once the job has ended. `ranks_max`: as
  // in proto/control.proto.
  // Blocking: until the job has ended, should_stop returns true, or the driver goes away
  // (Unavailable).
  absl::Status Watch(const std::string& job_id,
                     const StreamCallbacks<control::v1::WatchJobResponse>& callbacks,
                     int ranks_max = 0);
  // Passes log lines. Returns OK at the end of the logs; with `follow`, once the job has ended. If
  // the driver goes away in the middle, waits for it or its successor and continues at the same
  // place: no line is lost or comes twice. Blocking: until then, until should_stop returns true, or
  // until the driver has been away for longer than absence_max (Unavailable).
  absl::Status Logs(const control::v1::StreamLogsRequest& request,
                    const StreamCallbacks<control::v1::StreamLogsResponse>& callbacks,
                    const LogsOptions& options = {});
  // Passes the newest spans of each rank, one message for each rank in order, then returns OK.
  // Blocking: as Watch. Errors: FailedPrecondition - no rank of the job runs.
  absl::Status Spans(const control::v1::StreamSpansRequest& request,
                     const StreamCallbacks<control::v1::StreamSpansResponse>& callbacks);
  // Passes evidence about ranks, as proto/control.proto says. Blocking and errors: as Spans.
  absl::Status Evidence(const control::v1::StreamEvidenceRequest& request,
                        const StreamCallbacks<control::v1::StreamEvidenceResponse>& callbacks);

 private:
  struct Impl;
  explicit JobClient(std::unique_ptr<Impl> impl);
  // Returns once the driver answers a question about the job.
  absl::Status AwaitDriver(const std::string& job_id, const std::function<bool()>& should_stop,
                           const LogsOptions& options);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::client
