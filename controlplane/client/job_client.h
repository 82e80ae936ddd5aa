// A driver's JobService as plain calls: deadlines, retries and status codes are its affair. gRPC
// stays in job_client.cc.
// Threads: a client may be used by several. Every call but Watch, Logs and Spans has the deadline
// that proto/control.proto gives it. Errors, for all calls: Unavailable - the driver cannot be
// reached (the message names the address); Unauthenticated - it, or this program, refuses the
// other's certificate, or one speaks TLS and the other does not (the message says which and what to
// do); PermissionDenied - the certificate's role is another; DeadlineExceeded - it did not answer,
// the outcome is unknown, the same call may be repeated; else the driver's own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/client/address.h"
#include "controlplane/security/tls_files.h"
#include "proto/control.pb.h"

namespace megascale::client {

struct ClientOptions {
  Address address;
  security::TlsFiles tls;  // for TCP
  bool insecure = false;   // plaintext TCP; to loopback addresses only
};

// What a streaming call asks and tells its caller. Both run in the caller's thread or in one that
// ends before the call returns.
template <typename Message>
struct StreamCallbacks {
  std::function<void(const Message&)> on_message;
  std::function<bool()> should_stop;  // asked every 50 ms; true ends the call with Cancelled
};

class JobClient {
 public:
  // Does not connect yet.
  // Errors: InvalidArgument - TCP without TLS, or files that cannot be used; Unauthenticated - the
  // certificate has expired.
  static absl::StatusOr<std::unique_ptr<JobClient>> Create(const ClientOptions& options);
  ~JobClient();

  // Submits, and while the driver cannot be reached tries again for `retry_for`, with the same job
  // id: it is submitted once. Errors: InvalidArgument, AlreadyExists.
  absl::StatusOr<control::v1::Job> Submit(const control::v1::SubmitJobRequest& request,
                                          absl::Duration retry_for);
  absl::StatusOr<control::v1::Job> Get(const std::string& job_id);
  // With where the time of its newest steps went, if that can be measured: takes longer.
  absl::StatusOr<control::v1::Job> Measure(const std::string& job_id);
  absl::StatusOr<control::v1::ListJobsResponse> List();
  absl::StatusOr<control::v1::Job> Cancel(const control::v1::CancelJobRequest& request);
  absl::StatusOr<control::v1::GetClusterResponse> Cluster();
  absl::StatusOr<control::v1::NodeView> Evict(const control::v1::EvictNodeRequest& request);
  absl::StatusOr<control::v1::NodeView> Uncordon(const std::string& node_id);

  // The job now and after every change. OK once the job has ended.
  // Blocking: until then, until should_stop, or until the driver goes away (Unavailable).
  absl::Status Watch(const std::string& job_id,
                     const StreamCallbacks<control::v1::WatchJobResponse>& callbacks);
  // Log lines. OK at their end, with `follow` once the job has ended. Blocking: as Watch.
  absl::Status Logs(const control::v1::StreamLogsRequest& request,
                    const StreamCallbacks<control::v1::StreamLogsResponse>& callbacks);
  // What each rank did last, a message for each rank in order. OK at their end. Blocking: as Watch.
  // Errors: FailedPrecondition - nothing of the job runs.
  absl::Status Spans(const control::v1::StreamSpansRequest& request,
                     const StreamCallbacks<control::v1::StreamSpansResponse>& callbacks);

 private:
  struct Impl;
  explicit JobClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::client
