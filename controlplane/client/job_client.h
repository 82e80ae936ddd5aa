// A driver's JobService as plain calls: deadlines, retries and status codes are its affair. gRPC
// stays in job_client.cc.
// Threads: a client may be used by several. Every call but Watch and Logs has the deadline that
// proto/control.proto gives it. Errors, for all calls: Unavailable - the driver cannot be reached
// (the message names the address); DeadlineExceeded - it did not answer, the outcome is unknown,
// the same call may be repeated; else the driver's own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/client/address.h"
#include "proto/control.pb.h"

namespace megascale::client {

// PEM files for mutual TLS: all three, or none.
struct TlsFiles {
  std::string ca;    // who signed the driver's certificate
  std::string cert;  // this client's certificate
  std::string key;   // and its private key
};

struct ClientOptions {
  Address address;
  TlsFiles tls;           // for TCP
  bool insecure = false;  // plaintext TCP; to loopback addresses only
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
  // Errors: InvalidArgument - TCP without TLS files, or a file that cannot be read.
  static absl::StatusOr<std::unique_ptr<JobClient>> Create(const ClientOptions& options);
  ~JobClient();

  // Submits, and while the driver cannot be reached tries again for `retry_for`, with the same job
  // id: it is submitted once. Errors: InvalidArgument, AlreadyExists.
  absl::StatusOr<control::v1::Job> Submit(const control::v1::SubmitJobRequest& request,
                                          absl::Duration retry_for);
  absl::StatusOr<control::v1::Job> Get(const std::string& job_id);
  absl::StatusOr<control::v1::ListJobsResponse> List();
  absl::StatusOr<control::v1::Job> Cancel(const control::v1::CancelJobRequest& request);
  absl::StatusOr<control::v1::GetClusterResponse> Cluster();

  // The job now and after every change. OK once the job has ended.
  // Blocking: until then, until should_stop, or until the driver goes away (Unavailable).
  absl::Status Watch(const std::string& job_id,
                     const StreamCallbacks<control::v1::WatchJobResponse>& callbacks);
  // Log lines. OK at their end, with `follow` once the job has ended. Blocking: as Watch.
  absl::Status Logs(const control::v1::StreamLogsRequest& request,
                    const StreamCallbacks<control::v1::StreamLogsResponse>& callbacks);

 private:
  struct Impl;
  explicit JobClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace megascale::client
